// MXFP4: 32 weights in 17 bytes; verify/contract/quants/mxfp4.py says what they mean. A unit is a block.
#pragma once

enum { BLOCK_WEIGHTS = 32, ALIGN = 1, UNITS_A_BLOCK = 1 };
#define DPL_FIELDS(F) F(QS, 0, 16, 1) F(E, 1, 1, 0)

#include "layouts.cuh"
#include "blocks.cuh"

struct Unit {
    uint4 qs;
    u32 e;
};

template <class L>
__device__ __forceinline__ Unit load_unit(const u8* base, u32 row, int n, u32 k) {
    Unit unit;
    unit.qs = L::template load16<QS>(base + (row + L::at(k, QS)) + L::start(n, QS));
    unit.e = L::template load1<E>(base + (row + L::at(k, E)) + L::start(n, E));
    return unit;
}

// Twice the floats 0, 0.5, 1, 1.5, 2, 3, 4, 6, and half of the power of two that e stands for: 2^(e - 128), subnormal for 0 and 1.
__device__ __forceinline__ float power_of_two(u32 e) {
    return __uint_as_float(e > 1 ? (e - 1) << 23 : 0x00200000u << e);
}

// d (d8 t): the product with a power of two is exact, unless it is subnormal or too large, and never Inf times zero.
__device__ __forceinline__ float unit_value(const Unit& q, const Inputs& v, u32) {
    const u32 low = opaque(0x03020100u), high = opaque(0x0c080604u);
    const int dot = dot_table({{low, high}, {low, high}, 0}, q.qs, v.x);
    return mul(power_of_two(q.e), mul(d8_of(v), (float)dot));
}
