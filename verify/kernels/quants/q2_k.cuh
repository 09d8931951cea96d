// Q2_K: 256 weights in 84 bytes; verify/contract/quants/q2_k.py says what they mean. A unit is a quarter of a block: 16 bytes of qs hold
// 16 columns of all four groups of a half.
#pragma once

enum { BLOCK_WEIGHTS = 256, ALIGN = 4, UNITS_A_BLOCK = 4 };
#define DPL_FIELDS(F) F(QS, 0, 64, 16) F(SCALES, 1, 16, 0) F(DM, 2, 4, 80)

#include "layouts.cuh"
#include "quarters.cuh"

struct Unit {
    uint4 two;
    uint2 scales;  // of the half; this quarter uses every second byte
    u32 dm;
};

template <class L>
__device__ __forceinline__ Unit load_unit(const u8* base, u32 row, int n, u32 k) {
    const u32 block = k >> 2;
    Unit unit;
    unit.two = L::template load16<QS>(base + (row + (L::PLANES ? 16 * k : L::at(block, QS) + 16 * (k & 3))) + L::start(n, QS));
    unit.scales = L::template load8<SCALES>(
        base + (row + (L::PLANES ? 4 * (k & ~1u) : L::at(block, SCALES) + 4 * (k & 2))) + L::start(n, SCALES));
    unit.dm = L::template load4<DM>(base + (row + L::at(block, DM)) + L::start(n, DM));
    return unit;
}

__device__ __forceinline__ void add_columns(u32 two, u32 x0, u32 x1, u32 x2, u32 x3, int* dots) {
    dots[0] = __dp4a((int)(two & 0x03030303u), (int)x0, dots[0]);
    dots[1] = __dp4a((int)(two >> 2 & 0x03030303u), (int)x1, dots[1]);
    dots[2] = __dp4a((int)(two >> 4 & 0x03030303u), (int)x2, dots[2]);
    dots[3] = __dp4a((int)(two >> 6 & 0x03030303u), (int)x3, dots[3]);
}

// d (d8[0] t0 + ...) - dmin (d8[0] u0 + ...) with t = scale dot(q, x) and u = minimum sum(x), at most 2^17 and exact.
__device__ __forceinline__ float unit_value(const Unit& q, const Inputs& v, u32 k) {
    int dots[4] = {0, 0, 0, 0};
    add_columns(q.two.x, v.x[0].x, v.x[1].x, v.x[2].x, v.x[3].x, dots);
    add_columns(q.two.y, v.x[0].y, v.x[1].y, v.x[2].y, v.x[3].y, dots);
    add_columns(q.two.z, v.x[0].z, v.x[1].z, v.x[2].z, v.x[3].z, dots);
    add_columns(q.two.w, v.x[0].w, v.x[1].w, v.x[2].w, v.x[3].w, dots);
    const u32 first = q.scales.x >> 8 * (k & 1), second = q.scales.y >> 8 * (k & 1);
    const float scaled = sum_groups(v, (int)(first & 15) * dots[0], (int)(first >> 16 & 15) * dots[1],
                                    (int)(second & 15) * dots[2], (int)(second >> 16 & 15) * dots[3]);
    const int sum0 = (short)v.meta.z, sum1 = (int)v.meta.z >> 16, sum2 = (short)v.meta.w, sum3 = (int)v.meta.w >> 16;
    const float minima = sum_groups(v, (int)(first >> 4 & 15) * sum0, (int)(first >> 20 & 15) * sum1,
                                    (int)(second >> 4 & 15) * sum2, (int)(second >> 20 & 15) * sum3);
    return __fsub_rn(__fmul_rn(half_to_float((u16)q.dm), scaled), __fmul_rn(half_to_float((u16)(q.dm >> 16)), minima));
}
