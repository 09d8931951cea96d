// Q8_0: 32 weights in 34 bytes; verify/contract/quants/q8_0.py says what they mean. A unit is half a block: 16 bytes of qs, and d.
//
// Activations ("plain"): int8 quants [32 n], then fp16 d8 [n].
#pragma once

enum { BLOCK_WEIGHTS = 32, ALIGN = 2, UNITS_A_BLOCK = 2 };
#define DPL_FIELDS(F) F(QS, 0, 32, 2) F(D, 1, 2, 0)

#include "layouts.cuh"

struct Unit {
    uint4 q;
    u16 d;
};

struct Inputs {
    uint4 x;
    u16 d8;
};

template <class L>
__device__ __forceinline__ Unit load_unit(const u8* base, u32 row, int n, u32 k) {
    Unit unit;
    unit.q = L::template load16<QS>(base + (row + (L::PLANES ? 16 * k : L::at(k >> 1, QS) + 16 * (k & 1))) + L::start(n, QS));
    unit.d = L::template load2<D>(base + (row + L::at(k >> 1, D)) + L::start(n, D));
    return unit;
}

__device__ __forceinline__ Inputs load_inputs(const u8* activations, int n, u32 k) {
    return {late16(activations + 16 * k), late2(activations + 32 * n + 2 * (k >> 1))};
}

// (d d8) dot: d d8 has 22 bits and the integer is below 2^19, so only the last product rounds.
__device__ __forceinline__ float unit_value(const Unit& q, const Inputs& v, u32) {
    int dot = __dp4a((int)q.q.x, (int)v.x.x, 0);
    dot = __dp4a((int)q.q.y, (int)v.x.y, dot);
    dot = __dp4a((int)q.q.z, (int)v.x.z, dot);
    dot = __dp4a((int)q.q.w, (int)v.x.w, dot);
    return mul(mul(half_to_float(q.d), half_to_float(v.d8)), (float)dot);
}
