// Q3_K: 256 weights in 110 bytes; verify/contract/quants/q3_k.py says what they mean. A unit is half a block: 32 bytes of qs hold two bits
// of each weight, 32 bytes of hmask the third (for both halves), 12 bytes all scales.
#pragma once

enum { BLOCK_WEIGHTS = 256, ALIGN = 2, UNITS_A_BLOCK = 2 };
#define DPL_KEEP 1  // a lane takes both halves of a sector of 32 bytes, one after the other: the L1 has to hold it
#define DPL_FIELDS(F) F(QS, 0, 64, 32) F(HMASK, 1, 32, 0) F(SCALES, 2, 12, 96) F(D, 3, 2, 108)

#include "layouts.cuh"
#include "halves.cuh"

struct Unit {
    uint4 two[2], third[2];
    u32 scales[3];
    u16 d;
};

template <class L>
__device__ __forceinline__ Unit load_unit(const u8* base, u32 row, int n, u32 k) {
    const u32 block = k >> 1;
    const u8* qs = base + (row + (L::PLANES ? 32 * k : L::at(block, QS) + 32 * (k & 1))) + L::start(n, QS);
    const u8* hmask = base + (row + L::at(block, HMASK)) + L::start(n, HMASK);
    const u8* scales = base + (row + L::at(block, SCALES)) + L::start(n, SCALES);
    Unit unit;
#pragma unroll
    for (int c = 0; c < 2; ++c) {
        unit.two[c] = L::template load16<QS>(qs + 16 * c);
        unit.third[c] = L::template load16<HMASK>(hmask + 16 * c);
    }
#pragma unroll
    for (int i = 0; i < 3; ++i) unit.scales[i] = L::template load4<SCALES>(scales + 4 * i);
    unit.d = L::template load2<D>(base + (row + L::at(block, D)) + L::start(n, D));
    return unit;
}

// Four columns of all four groups: bits 2 g and 2 g + 1 of `two` with bit g of `third` above them. Quants are multiplied where the two
// bits stand, those of the last group four times lower: 1, 4, 16 and 16 times as large.
__device__ __forceinline__ void add_columns(u32 two, u32 third, u32 x0, u32 x1, u32 x2, u32 x3, int* dots) {
    const u32 third3 = third << 3;
    dots[0] = dot_unsigned((two & 0x03030303u) | (third << 2 & 0x04040404u), x0, dots[0]);
    dots[1] = dot_unsigned((two & 0x0c0c0c0cu) | (third3 & 0x10101010u), x1, dots[1]);
    dots[2] = dot_unsigned((two & 0x30303030u) | (third << 4 & 0x40404040u), x2, dots[2]);
    dots[3] = dot_unsigned((two >> 2 & 0x30303030u) | (third3 & 0x40404040u), x3, dots[3]);
}

// d (d8[0] t0 + ...) with t = (scale - 32) (dot(q, x) - 4 sum(x)) over both columns of a group, at most 2^19 and exact. dot(q, x) is
// at most 14224.
__device__ __forceinline__ float unit_value(const Unit& q, const Inputs& v, u32 k) {
    const u32 half = 4 * (k & 1);
    int dots[2][4] = {};
#pragma unroll
    for (int c = 0; c < 2; ++c) {
        add_columns(q.two[c].x, q.third[c].x >> half, v.x[c].x, v.x[2 + c].x, v.x[4 + c].x, v.x[6 + c].x, dots[c]);
        add_columns(q.two[c].y, q.third[c].y >> half, v.x[c].y, v.x[2 + c].y, v.x[4 + c].y, v.x[6 + c].y, dots[c]);
        add_columns(q.two[c].z, q.third[c].z >> half, v.x[c].z, v.x[2 + c].z, v.x[4 + c].z, v.x[6 + c].z, dots[c]);
        add_columns(q.two[c].w, q.third[c].w >> half, v.x[c].w, v.x[2 + c].w, v.x[4 + c].w, v.x[6 + c].w, dots[c]);
    }
    // Scales as signed bytes: s + 96 with its upper bit turned is s - 32.
    const u32 above = q.scales[2] >> half;
    const u32 scales[2] = {
        ((q.scales[0] >> half & 0x0f0f0f0fu | (above << 4 & 0x30303030u)) + 0x60606060u) ^ 0x80808080u,
        ((q.scales[1] >> half & 0x0f0f0f0fu | (above << 2 & 0x30303030u)) + 0x60606060u) ^ 0x80808080u,
    };
    const u32 sums[4] = {v.sums.x, v.sums.y, v.sums.z, v.sums.w};
    int t[4];
#pragma unroll
    for (int g = 0; g < 4; ++g) {
        const int shift = g == 3 ? 4 : 2 * g;
        const int pair = pair_of(dots[0][g] >> shift, dots[1][g] >> shift), factors = (int)scales[g >> 1];
        const int sum = g & 1 ? __dp2a_hi((int)sums[g], factors, 0) : __dp2a_lo((int)sums[g], factors, 0);
        t[g] = (g & 1 ? __dp2a_hi(pair, factors, 0) : __dp2a_lo(pair, factors, 0)) - 4 * sum;
    }
    return mul(half_to_float(q.d), sum_groups(v, t));
}
