// Q2_K: 256 weights in 84 bytes; verify/contract/quants/q2_k.py says what they mean. A unit is half a block: 32 bytes of qs, 8 of scales.
#pragma once

enum { BLOCK_WEIGHTS = 256, ALIGN = 4, UNITS_A_BLOCK = 2 };
#define DPL_KEEP 1  // a lane takes both halves of a sector of 32 bytes, one after the other: the L1 has to hold it
#define DPL_FIELDS(F) F(QS, 0, 64, 16) F(SCALES, 1, 16, 0) F(DM, 2, 4, 80)

#include "layouts.cuh"
#include "halves.cuh"

struct Unit {
    uint4 two[2];
    uint2 scales;
    u32 dm;
};

template <class L>
__device__ __forceinline__ Unit load_unit(const u8* base, u32 row, int n, u32 k) {
    const u32 block = k >> 1, half = k & 1;
    const u8* qs = base + (row + (L::PLANES ? 32 * k : L::at(block, QS) + 32 * half)) + L::start(n, QS);
    Unit unit;
    unit.two[0] = L::template load16<QS>(qs);
    unit.two[1] = L::template load16<QS>(qs + 16);
    unit.scales = L::template load8<SCALES>(
        base + (row + (L::PLANES ? 8 * k : L::at(block, SCALES) + 8 * half)) + L::start(n, SCALES));
    unit.dm = L::template load4<DM>(base + (row + L::at(block, DM)) + L::start(n, DM));
    return unit;
}

// dot(q, x) of 16 columns of group g, at most 6096. Quants are multiplied where they stand in their bytes, 4^g times as large.
__device__ __forceinline__ int dot_two(uint4 two, uint4 x, int g) {
    const u32 mask = 0x03030303u << 2 * g;
    const int dot = dot_unsigned(two.y & mask, x.y, dot_unsigned(two.x & mask, x.x, 0));
    return dot_unsigned(two.w & mask, x.w, dot_unsigned(two.z & mask, x.z, dot)) >> 2 * g;
}

// d (d8[0] t0 + ...) - dmin (d8[0] u0 + ...) with t = scale dot(q, x) and u = minimum sum(x) over both columns of a group, at most
// 2^18 and exact.
__device__ __forceinline__ float unit_value(const Unit& q, const Inputs& v, u32) {
    const u32 scales[2] = {q.scales.x & 0x0f0f0f0fu, q.scales.y & 0x0f0f0f0fu};
    const u32 minima[2] = {q.scales.x >> 4 & 0x0f0f0f0fu, q.scales.y >> 4 & 0x0f0f0f0fu};
    const u32 sums[4] = {v.sums.x, v.sums.y, v.sums.z, v.sums.w};
    int t[4], u[4];
#pragma unroll
    for (int g = 0; g < 4; ++g) {
        const int dots = pair_of(dot_two(q.two[0], v.x[2 * g], g), dot_two(q.two[1], v.x[2 * g + 1], g));
        t[g] = g & 1 ? __dp2a_hi(dots, (int)scales[g >> 1], 0) : __dp2a_lo(dots, (int)scales[g >> 1], 0);
        u[g] = g & 1 ? __dp2a_hi((int)sums[g], (int)minima[g >> 1], 0) : __dp2a_lo((int)sums[g], (int)minima[g >> 1], 0);
    }
    return sub(mul(half_to_float((u16)q.dm), sum_groups(v, t)),
                     mul(half_to_float((u16)(q.dm >> 16)), sum_groups(v, u)));
}
