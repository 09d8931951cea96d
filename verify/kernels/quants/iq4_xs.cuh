// IQ4_XS: 256 weights in 136 bytes; verify/contract/quants/iq4_xs.py says what they mean. A unit is one of the eight groups of 32.
#pragma once

enum { BLOCK_WEIGHTS = 256, ALIGN = 2, UNITS_A_BLOCK = 8 };
#define DPL_FIELDS(F) F(QS, 0, 128, 8) F(SCALES_L, 1, 4, 4) F(SCALES_H, 2, 2, 2) F(D, 3, 2, 0)

#include "layouts.cuh"
#include "blocks.cuh"

struct Unit {
    uint4 qs;
    u32 low;  // of all eight scales: four bits each, and two bits each
    u16 high, d;
};

template <class L>
__device__ __forceinline__ Unit load_unit(const u8* base, u32 row, int n, u32 k) {
    const u32 block = k >> 3;
    Unit unit;
    unit.qs = L::template load16<QS>(base + (row + (L::PLANES ? 16 * k : L::at(block, QS) + 16 * (k & 7))) + L::start(n, QS));
    unit.low = L::template load4<SCALES_L>(base + (row + L::at(block, SCALES_L)) + L::start(n, SCALES_L));
    unit.high = L::template load2<SCALES_H>(base + (row + L::at(block, SCALES_H)) + L::start(n, SCALES_H));
    unit.d = L::template load2<D>(base + (row + L::at(block, D)) + L::start(n, D));
    return unit;
}

// (d d8) ((s - 32) dot): the integer is below 2^24 and d d8 has 22 bits, so only the last product rounds.
__device__ __forceinline__ float unit_value(const Unit& q, const Inputs& v, u32 k) {
    const u32 group = k & 7;
    const int scale = (int)((q.low >> 4 * group & 15) | (q.high >> 2 * group & 3) << 4) - 32;
    const int dot = scale * dot_table(iq4_table(), q.qs, v.x);
    return mul(mul(half_to_float(q.d), d8_of(v)), (float)dot);
}
