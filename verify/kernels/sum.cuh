// The only two places in which lanes meet. The order of additions is part of the decode contract (docs/decode.md).

// Sum over the LANES lanes of a row, valid in its lane 0. Within a warp the halves are folded onto each other; the
// warps' sums are then added in order by one thread. Every thread of the block must call it.
template <int LANES, int THREADS>
__device__ __forceinline__ float sum_lanes(float value) {
    static_assert(THREADS % LANES == 0, "rows must fill the block");
    static_assert(LANES <= 32 ? (LANES & (LANES - 1)) == 0 : LANES % 32 == 0, "a power of two, or whole warps");
#pragma unroll
    for (int offset = (LANES < 32 ? LANES : 32) / 2; offset > 0; offset /= 2)
        value = __fadd_rn(value, __shfl_xor_sync(0xffffffffu, value, offset));
    if (LANES > 32) {
        __shared__ float warps[THREADS / 32];
        if (threadIdx.x % 32 == 0) warps[threadIdx.x / 32] = value;
        __syncthreads();
        if (threadIdx.x % LANES == 0)
            for (int warp = 1; warp < LANES / 32; ++warp)
                value = __fadd_rn(value, warps[threadIdx.x / 32 + warp]);
    }
    return value;
}
