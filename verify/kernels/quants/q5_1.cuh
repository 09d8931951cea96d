// Q5_1: 32 weights in 24 bytes; verify/contract/quants/q5_1.py says what they mean. A unit is a block.
#pragma once

enum { BLOCK_WEIGHTS = 32, ALIGN = 4, UNITS_A_BLOCK = 1 };
#define DPL_FIELDS(F) F(QS, 0, 16, 8) F(QH, 1, 4, 4) F(DM, 2, 4, 0)

#include "layouts.cuh"
#include "blocks.cuh"

struct Unit {
    uint4 qs;
    u32 qh, dm;
};

template <class L>
__device__ __forceinline__ Unit load_unit(const u8* base, u32 row, int n, u32 k) {
    Unit unit;
    unit.qs = L::template load16<QS>(base + (row + L::at(k, QS)) + L::start(n, QS));
    unit.qh = L::template load4<QH>(base + (row + L::at(k, QH)) + L::start(n, QH));
    unit.dm = L::template load4<DM>(base + (row + L::at(k, DM)) + L::start(n, DM));
    return unit;
}

// (d d8) dot(q, x) + (m d8) sum(x): the products of two halves are exact, so each term rounds once.
__device__ __forceinline__ float unit_value(const Unit& q, const Inputs& v, u32) {
    const float scaled = mul(mul(half_to_float((u16)q.dm), d8_of(v)), (float)dot_five(q.qs, q.qh, v));
    return add(scaled, mul(mul(half_to_float((u16)(q.dm >> 16)), d8_of(v)), (float)sum_of(v)));
}
