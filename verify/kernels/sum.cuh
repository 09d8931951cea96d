// The only places in which lanes meet. The order of additions is part of the decode contract (docs/decode.md).
#pragma once

#include "ptx.cuh"


// Sum over the lanes of a row within a warp, in each of them: the halves are folded onto each other.
template <int LANES>
__device__ __forceinline__ float fold(float value) {
    static_assert(LANES <= 32 ? (LANES & (LANES - 1)) == 0 : LANES % 32 == 0, "a power of two, or whole warps");
#pragma unroll
    for (int offset = (LANES < 32 ? LANES : 32) / 2; offset > 0; offset /= 2)
        value = add(value, __shfl_xor_sync(0xffffffffu, value, offset));
    return value;
}

// The warps' sums of a row, added in order by one thread.
template <int LANES>
__device__ __forceinline__ float add_warps(const float* warps) {
    float sum = warps[0];
#pragma unroll
    for (int warp = 1; warp < LANES / 32; ++warp) sum = add(sum, warps[warp]);
    return sum;
}

// Sum ROWS values a lane, of the rows `row`, row + 1, ..., over the LANES lanes that share them, and store those below
// `rows`; WHOLE: all are. Every thread of the block must call it, at most once. ADD: lane r has in `added` what is added to row r.
template <int LANES, int THREADS, int ROWS, bool WHOLE = LANES == THREADS && ROWS == 1, bool ADD = false>
__device__ __forceinline__ void store_sums(const float* sums, float* out, u32 row, u32 rows, float added = 0.0f) {
    static_assert(!ADD || ROWS <= LANES, "a lane for each row");
    static_assert(THREADS % LANES == 0, "rows must fill the block");
    const int lane = LANES == THREADS ? (int)threadIdx.x : (int)threadIdx.x % LANES;
    if (LANES <= 32) {
        for (int r = 0; r < ROWS; ++r) {
            const float sum = fold<LANES>(sums[r]);
            if (lane == (ADD ? r : 0) && (WHOLE || row + r < rows)) out[row + r] = ADD ? add(sum, added) : sum;
        }
    } else {
        __shared__ float warps[ROWS][THREADS / 32];
#pragma unroll
        for (int r = 0; r < ROWS; ++r) {
            const float sum = fold<LANES>(sums[r]);
            if (threadIdx.x % 32 == 0) warps[r][threadIdx.x / 32] = sum;
        }
        __syncthreads();
        const int r = ROWS == 1 ? 0 : lane, group = LANES == THREADS ? 0 : threadIdx.x / LANES;
        if ((ROWS == 1 ? lane == 0 : lane < ROWS) && (WHOLE || row + r < rows)) {
            const float sum = add_warps<LANES>(warps[r] + group * (LANES / 32));
            out[row + r] = ADD ? add(sum, added) : sum;
        }
    }
}
