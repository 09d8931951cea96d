// What Q2_K and Q3_K share: a unit is half a block, 32 bytes of qs with two bits of four groups of 32 weights each, and integers that
// are put together over the 32 before they become floats.
//
// Activations ("halves"): 8 planes of [2 n] 16-byte items, of group g and column c (the first or the second 16 of its 32) plane
// 2 g + c: int8 quants; then a plane of int16 sums of the quants of each [8]; then 8-byte items: fp16 d8[4].
#pragma once

#include "ptx.cuh"

struct Inputs {
    uint4 x[8], sums;
    uint2 d8;
};

__device__ __forceinline__ Inputs load_inputs(const u8* activations, int n, u32 k) {
    const u8* x = activations + 16 * k;
    const u32 plane = 32 * n;
    Inputs inputs;
#pragma unroll
    for (int i = 0; i < 8; ++i) inputs.x[i] = late16(x + i * plane);
    inputs.sums = late16(x + 8 * plane);
    inputs.d8 = late8(activations + 9 * plane + 8 * k);
    return inputs;
}

// Two integers of 16 bits in a word.
__device__ __forceinline__ int pair_of(int low, int high) { return (int)__byte_perm((u32)low, (u32)high, 0x5410); }

// ((d8[0] t0 + d8[1] t1) + d8[2] t2) + d8[3] t3
__device__ __forceinline__ float sum_groups(const Inputs& v, const int* t) {
    float sum = mul(half_to_float((u16)v.d8.x), (float)t[0]);
    sum = add(sum, mul(half_to_float((u16)(v.d8.x >> 16)), (float)t[1]));
    sum = add(sum, mul(half_to_float((u16)v.d8.y), (float)t[2]));
    return add(sum, mul(half_to_float((u16)(v.d8.y >> 16)), (float)t[3]));
}
