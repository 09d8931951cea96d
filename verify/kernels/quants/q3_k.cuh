// Q3_K: 256 weights in 110 bytes; verify/contract/quants/q3_k.py says what they mean. A unit is a quarter of a block: 16 bytes of qs hold
// two bits of 16 columns of all four groups of a half, 16 bytes of hmask the third (for both halves), 12 bytes all scales.
#pragma once

enum { BLOCK_WEIGHTS = 256, ALIGN = 2, UNITS_A_BLOCK = 4 };
#define DPL_FIELDS(F) F(QS, 0, 64, 32) F(HMASK, 1, 32, 0) F(SCALES, 2, 12, 96) F(D, 3, 2, 108)

#include "layouts.cuh"
#include "quarters.cuh"

struct Unit {
    uint4 two, third;
    u32 scales[3];
    u16 d;
};

template <class L>
__device__ __forceinline__ Unit load_unit(const u8* base, u32 row, int n, u32 k) {
    const u32 block = k >> 2, column = 16 * (k & 1);
    const u8* scales = base + (row + L::at(block, SCALES)) + L::start(n, SCALES);
    Unit unit;
    unit.two = L::template load16<QS>(base + (row + (L::PLANES ? 16 * k : L::at(block, QS) + 16 * (k & 3))) + L::start(n, QS));
    unit.third = L::template load16<HMASK>(base + (row + L::at(block, HMASK) + column) + L::start(n, HMASK));
#pragma unroll
    for (int i = 0; i < 3; ++i) unit.scales[i] = L::template load4<SCALES>(scales + 4 * i);
    unit.d = L::template load2<D>(base + (row + L::at(block, D)) + L::start(n, D));
    return unit;
}

// Four columns of all four groups; bit g of a byte of `third` is the third bit of group g.
__device__ __forceinline__ void add_columns(u32 two, u32 third, u32 x0, u32 x1, u32 x2, u32 x3, int* dots) {
    dots[0] = __dp4a((int)((two & 0x03030303u) | (third << 2 & 0x04040404u)), (int)x0, dots[0]);
    dots[1] = __dp4a((int)((two >> 2 & 0x03030303u) | (third << 1 & 0x04040404u)), (int)x1, dots[1]);
    dots[2] = __dp4a((int)((two >> 4 & 0x03030303u) | (third & 0x04040404u)), (int)x2, dots[2]);
    dots[3] = __dp4a((int)((two >> 6 & 0x03030303u) | (third >> 1 & 0x04040404u)), (int)x3, dots[3]);
}

// d (d8[0] t0 + ...) with t = (scale - 32) (dot(q, x) - 4 sum(x)), at most 2^18 and exact (0xfc is -4 as a byte). The scales of a
// quarter's groups are two and two in the 16-bit halves of a word: their low four bits at 8 column + 4 half of the first and second
// word, the two above them there and two bits further in the third.
__device__ __forceinline__ float unit_value(const Unit& q, const Inputs& v, u32 k) {
    const u32 half = 4 * (k >> 1 & 1), place = 8 * (k & 1) + half;
    int dots[4] = {0, 0, 0, 0};
    add_columns(q.two.x, q.third.x >> half, v.x[0].x, v.x[1].x, v.x[2].x, v.x[3].x, dots);
    add_columns(q.two.y, q.third.y >> half, v.x[0].y, v.x[1].y, v.x[2].y, v.x[3].y, dots);
    add_columns(q.two.z, q.third.z >> half, v.x[0].z, v.x[1].z, v.x[2].z, v.x[3].z, dots);
    add_columns(q.two.w, q.third.w >> half, v.x[0].w, v.x[1].w, v.x[2].w, v.x[3].w, dots);
    const u32 above = q.scales[2] >> place;
    const u32 first = (q.scales[0] >> place & 0x000f000fu) | (above << 4 & 0x00300030u);
    const u32 second = (q.scales[1] >> place & 0x000f000fu) | (above << 2 & 0x00300030u);
    const int t0 = ((int)(first & 63) - 32) * __dp2a_lo((int)v.meta.z, 0x00fc, dots[0]);
    const int t1 = ((int)(first >> 16) - 32) * __dp2a_lo((int)v.meta.z, 0xfc00, dots[1]);
    const int t2 = ((int)(second & 63) - 32) * __dp2a_lo((int)v.meta.w, 0x00fc, dots[2]);
    const int t3 = ((int)(second >> 16) - 32) * __dp2a_lo((int)v.meta.w, 0xfc00, dots[3]);
    return __fmul_rn(half_to_float(q.d), sum_groups(v, t0, t1, t2, t3));
}
