// Q6_K: 256 weights in 210 bytes; verify/contract/quants/q6_k.py says what they mean. A unit is a quarter of a block: 16 columns of a
// half. Two 16-byte ql loads (+0, +32) and one 16-byte qh load hold the same 16 columns of all four groups of 32, so no loaded bit is
// thrown away: 64 weights for 48 bytes, 8 scales' bytes (half used) and d.
#pragma once

enum { BLOCK_WEIGHTS = 256, ALIGN = 2, UNITS_A_BLOCK = 4 };
#define DPL_FIELDS(F) F(QL, 0, 128, 0) F(QH, 1, 64, 128) F(SCALES, 2, 16, 192) F(D, 3, 2, 208)

#include "layouts.cuh"
#include "quarters.cuh"

struct Unit {
    uint4 low, high, top;  // ql +0, ql +32, qh
    uint2 scales;          // of the half; this quarter uses every second byte
    u16 d;
};

// Where quarter k lies in the planes of its row, or what stands for planes: columns 16 (k & 1) of half (k >> 1) & 1 of
// block k >> 2. For planes most of it cancels out: few instructions between a block's start and its first load.
struct Places {
    u32 low, top, scales, d;
};

template <class L>
__device__ __forceinline__ Places places(u32 k) {
    if (L::PLANES) return {32 * k - 16 * (k & 1), 16 * k, 4 * (k & ~1u), 2 * (k >> 2)};
    const u32 block = k >> 2, half = k >> 1 & 1, column = 16 * (k & 1);
    return {L::at(block, QL) + 64 * half + column, L::at(block, QH) + 32 * half + column, L::at(block, SCALES) + 8 * half,
            L::at(block, D)};
}

template <class L>
__device__ __forceinline__ Unit load_unit(const u8* base, u32 row, int n, u32 k) {
    const Places at = places<L>(k);
    Unit unit;
    unit.low = L::template load16<QL>(base + (row + at.low) + L::start(n, QL));
    unit.high = L::template load16<QL>(base + (row + at.low) + L::start(n, QL) + 32);
    unit.top = L::template load16<QH>(base + (row + at.top) + L::start(n, QH));
    unit.scales = L::template load8<SCALES>(base + (row + at.scales) + L::start(n, SCALES));
    unit.d = L::template load2<D>(base + (row + at.d) + L::start(n, D));
    return unit;
}

// Four columns of all four groups. Two masks clear the neighbours of the upper bits; then q is one instruction a group.
__device__ __forceinline__ void add_columns(u32 low, u32 high, u32 top, u32 x0, u32 x1, u32 x2, u32 x3, int* dots) {
    const u32 top02 = even_pairs(top), top13 = even_pairs(top >> 2);
    dots[0] = __dp4a((int)join_nibbles(low, top02 << 4), (int)x0, dots[0]);
    dots[1] = __dp4a((int)join_nibbles(high, top13 << 4), (int)x1, dots[1]);
    dots[2] = __dp4a((int)join_nibbles(low >> 4, top02), (int)x2, dots[2]);
    dots[3] = __dp4a((int)join_nibbles(high >> 4, top13), (int)x3, dots[3]);
}

// d (d8[0] t0 + d8[1] t1 + d8[2] t2 + d8[3] t3) with t = scale (dot(q, x) - 32 sum(x)), |t| <= 2^23 and exact; the -32
// is taken out of the loop over the weights by the sums that come with the activations (0xe0 is -32 as a byte).
__device__ __forceinline__ float unit_value(const Unit& q, const Inputs& v, u32 k) {
    int dots[4] = {0, 0, 0, 0};
    add_columns(q.low.x, q.high.x, q.top.x, v.x[0].x, v.x[1].x, v.x[2].x, v.x[3].x, dots);
    add_columns(q.low.y, q.high.y, q.top.y, v.x[0].y, v.x[1].y, v.x[2].y, v.x[3].y, dots);
    add_columns(q.low.z, q.high.z, q.top.z, v.x[0].z, v.x[1].z, v.x[2].z, v.x[3].z, dots);
    add_columns(q.low.w, q.high.w, q.top.w, v.x[0].w, v.x[1].w, v.x[2].w, v.x[3].w, dots);
    const u32 odd = k & 1;
    const int t0 = signed_byte(q.scales.x, odd) * __dp2a_lo((int)v.meta.z, 0x00e0, dots[0]);
    const int t1 = signed_byte(q.scales.x, odd + 2) * __dp2a_lo((int)v.meta.z, 0xe000, dots[1]);
    const int t2 = signed_byte(q.scales.y, odd) * __dp2a_lo((int)v.meta.w, 0x00e0, dots[2]);
    const int t3 = signed_byte(q.scales.y, odd + 2) * __dp2a_lo((int)v.meta.w, 0xe000, dots[3]);
    return mul(half_to_float(q.d), sum_groups(v, t0, t1, t2, t3));
}
