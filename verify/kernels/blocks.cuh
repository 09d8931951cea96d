// What the types share whose units are 32 weights in 16 bytes of qs: byte i holds weight i in its low four bits and weight 16 + i in
// its high ones.
//
// Activations, in three planes over the groups of 32 weights: 16 bytes of int8 quants, the other 16, then fp16 d8 and the int16 sum of all 32.
// Quants stand in the order of the weights, or for types that look them up in a table byte after byte of qs: 0, 16, 1, 17, ...
#pragma once

#include "ptx.cuh"

struct Inputs {
    uint4 x[2];
    u32 meta;
};

__device__ __forceinline__ Inputs load_inputs(const u8* activations, int n, u32 k) {
    const u32 groups = UNITS_A_BLOCK * n;
    const u8* x = activations + 16 * k;
    return {{late16(x), late16(x + 16 * groups)}, late4(activations + 32 * groups + 4 * k)};
}

__device__ __forceinline__ float d8_of(const Inputs& v) { return half_to_float((u16)v.meta); }
__device__ __forceinline__ int sum_of(const Inputs& v) { return (int)v.meta >> 16; }

// dot(q, x) for quants of four bits. The high ones are multiplied where they are, 16 times as large, and shifted once at the end.
__device__ __forceinline__ int dot_nibbles(uint4 qs, const Inputs& v) {
    int low = dot_unsigned(qs.x & 0x0f0f0f0fu, v.x[0].x, 0), high = dot_unsigned(qs.x & 0xf0f0f0f0u, v.x[1].x, 0);
    low = dot_unsigned(qs.y & 0x0f0f0f0fu, v.x[0].y, low), high = dot_unsigned(qs.y & 0xf0f0f0f0u, v.x[1].y, high);
    low = dot_unsigned(qs.z & 0x0f0f0f0fu, v.x[0].z, low), high = dot_unsigned(qs.z & 0xf0f0f0f0u, v.x[1].z, high);
    low = dot_unsigned(qs.w & 0x0f0f0f0fu, v.x[0].w, low), high = dot_unsigned(qs.w & 0xf0f0f0f0u, v.x[1].w, high);
    return low + (high >> 4);
}

// Bits 0 to 3 of `bits` as bit 4 of the four bytes.
__device__ __forceinline__ u32 spread(u32 bits) { return (bits & 15) * 0x02040810u & 0x10101010u; }

// dot(q, x) for quants of five bits, the fifth of weight j in bit j of qh.
__device__ __forceinline__ int dot_five(uint4 qs, u32 qh, const Inputs& v) {
    int dot = __dp4a((int)(qs.x & 0x0f0f0f0fu | spread(qh)), (int)v.x[0].x, 0);
    dot = __dp4a((int)(qs.y & 0x0f0f0f0fu | spread(qh >> 4)), (int)v.x[0].y, dot);
    dot = __dp4a((int)(qs.z & 0x0f0f0f0fu | spread(qh >> 8)), (int)v.x[0].z, dot);
    dot = __dp4a((int)(qs.w & 0x0f0f0f0fu | spread(qh >> 12)), (int)v.x[0].w, dot);
    dot = __dp4a((int)(qs.x >> 4 & 0x0f0f0f0fu | spread(qh >> 16)), (int)v.x[1].x, dot);
    dot = __dp4a((int)(qs.y >> 4 & 0x0f0f0f0fu | spread(qh >> 20)), (int)v.x[1].y, dot);
    dot = __dp4a((int)(qs.z >> 4 & 0x0f0f0f0fu | spread(qh >> 24)), (int)v.x[1].z, dot);
    return __dp4a((int)(qs.w >> 4 & 0x0f0f0f0fu | spread(qh >> 28)), (int)v.x[1].w, dot);
}

// A table of 16 numbers in two halves of 8, by the upper bit of the quant: the first half's numbers, and those of the other half
// with the sign changed, or the other way round; all from 0 to 127.
struct Table {
    u32 plus[2], minus[2];
    u32 flip;  // 0x88888888 if `plus` is for quants with the upper bit, else 0
};

// sum(table[q] x) over the eight quants of a word: each half of the table gives 0 for the quants of the other.
__device__ __forceinline__ void add_word(const Table& t, u32 qs, u32 x0, u32 x1, int& plus, int& minus) {
    const u32 for_plus = qs ^ t.flip, for_minus = for_plus ^ 0x88888888u;
    plus = __dp4a((int)look_up(t.plus[0], t.plus[1], for_plus), (int)x0, plus);
    minus = __dp4a((int)look_up(t.minus[0], t.minus[1], for_minus), (int)x0, minus);
    plus = __dp4a((int)look_up(t.plus[0], t.plus[1], for_plus >> 16), (int)x1, plus);
    minus = __dp4a((int)look_up(t.minus[0], t.minus[1], for_minus >> 16), (int)x1, minus);
}

__device__ __forceinline__ int dot_table(const Table& t, uint4 qs, const uint4* x) {
    int plus = 0, minus = 0;
    add_word(t, qs.x, x[0].x, x[0].y, plus, minus);
    add_word(t, qs.y, x[0].z, x[0].w, plus, minus);
    add_word(t, qs.z, x[1].x, x[1].y, plus, minus);
    add_word(t, qs.w, x[1].z, x[1].w, plus, minus);
    return plus - minus;
}

// -127 -104 -83 -65 -49 -35 -22 -10 | 1 13 25 38 53 69 89 113
__device__ __forceinline__ Table iq4_table() {
    return {{opaque(0x26190d01u), opaque(0x71594535u)}, {opaque(0x4153687fu), opaque(0x0a162331u)}, 0x88888888u};
}
