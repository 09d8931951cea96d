// What the types of 256 weights share: activations by quarters of a block, and the order in which its four groups are added.
//
// Activations ("quarters"), 5 planes of [4 n] 16-byte items, so that a warp reads each of them contiguously:
//     plane g = 0..3: the int8 quants of group g, 16 columns;  plane 4: fp16 d8[4], then int16 sums of the quants [4].
#pragma once

#include "ptx.cuh"

struct Inputs {
    uint4 x[4], meta;
};

__device__ __forceinline__ Inputs load_inputs(const u8* activations, int n, u32 k) {
    const u8* x = activations + 16 * k;
    const u32 plane = 64 * n;
    return {{late16(x), late16(x + plane), late16(x + 2 * plane), late16(x + 3 * plane)}, late16(x + 4 * plane)};
}

// ((d8[0] t0 + d8[1] t1) + d8[2] t2) + d8[3] t3
__device__ __forceinline__ float sum_groups(const Inputs& v, int t0, int t1, int t2, int t3) {
    float sum = mul(half_to_float((u16)v.meta.x), (float)t0);
    sum = add(sum, mul(half_to_float((u16)(v.meta.x >> 16)), (float)t1));
    sum = add(sum, mul(half_to_float((u16)v.meta.y), (float)t2));
    return add(sum, mul(half_to_float((u16)(v.meta.y >> 16)), (float)t3));
}
