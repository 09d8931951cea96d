// IQ4_NL: 32 weights in 18 bytes; verify/contract/quants/iq4_nl.py says what they mean. A unit is a block.
#pragma once

enum { BLOCK_WEIGHTS = 32, ALIGN = 2, UNITS_A_BLOCK = 1 };
#define DPL_FIELDS(F) F(QS, 0, 16, 2) F(D, 1, 2, 0)

#include "layouts.cuh"
#include "blocks.cuh"

struct Unit {
    uint4 qs;
    u16 d;
};

template <class L>
__device__ __forceinline__ Unit load_unit(const u8* base, u32 row, int n, u32 k) {
    Unit unit;
    unit.qs = L::template load16<QS>(base + (row + L::at(k, QS)) + L::start(n, QS));
    unit.d = L::template load2<D>(base + (row + L::at(k, D)) + L::start(n, D));
    return unit;
}

// (d d8) t: d d8 has 22 bits and the integer is below 2^24, so only the last product rounds.
__device__ __forceinline__ float unit_value(const Unit& q, const Inputs& v, u32) {
    const int dot = dot_table(iq4_table(), q.qs, v.x);
    return mul(mul(half_to_float(q.d), d8_of(v)), (float)dot);
}
