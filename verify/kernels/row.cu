// The tuned form. LANES lanes share a row, a lane takes QUARTERS quarters of a super-block at once, all their loads in
// flight before the first is used; THREADS / LANES rows a block. verify/forms.py has the rule.
//
// A quarter is 16 columns of a half: two 16-byte ql loads (+0, +32) and one 16-byte qh load hold the same 16 columns of
// all four groups of 32, so no loaded bit is thrown away: 64 weights for 48 bytes, 8 scales' bytes (half used) and d.
//
// Activations ("quarters"), 5 planes of [4 n] 16-byte items, so that a warp reads each of them contiguously:
//     plane g = 0..3: the int8 quants of group g, 16 columns;  plane 4: fp16 d8[4], then int16 sums of the quants [4].

#include "q6k.cuh"
#include "sum.cuh"

enum { LANES = DPL_LANES, QUARTERS = DPL_QUARTERS, THREADS = DPL_THREADS };

struct Quarter {
    uint4 low, high, top;  // ql +0, ql +32, qh
    uint2 scales;          // of the half; this quarter uses every second byte
    u16 d;
};

// Quarter k is columns 16 (k & 1) of half (k >> 1) & 1 of block k >> 2.
template <class L>
__device__ __forceinline__ Quarter load_quarter(const u8* row, int n, int k) {
    const int block = k >> 2, half = k >> 1 & 1, column = 16 * (k & 1);
    const u8* ql = row + L::at(n, block, QL, 128) + 64 * half + column;
    Quarter quarter;
    quarter.low = L::load16(ql);
    quarter.high = L::load16(ql + 32);
    quarter.top = L::load16(row + L::at(n, block, QH, 64) + 32 * half + column);
    quarter.scales = L::load8(row + L::at(n, block, SCALES, 16) + 8 * half);
    quarter.d = L::load2(row + L::at(n, block, D, 2));
    return quarter;
}

// d (d8[0] t0 + d8[1] t1 + d8[2] t2 + d8[3] t3) with t = scale (dot(q, x) - 32 sum(x)), |t| <= 2^23 and exact; the -32
// is taken out of the loop over the weights by the sums that come with the activations.
__device__ __forceinline__ float quarter_value(const Quarter& quarter, const u8* activations, int n, int k) {
    const uint4* x = (const uint4*)(activations + (u32)(16 * k));
    const u32 plane = 4 * n;
    const uint4 meta = __ldg(x + 4 * plane);
    const int odd = 8 * (k & 1);
    const u32 scales01 = quarter.scales.x >> odd, scales23 = quarter.scales.y >> odd;
    const int dot0 = dot16(quarter.low, quarter.top, __ldg(x), 0);
    const int dot1 = dot16(quarter.high, quarter.top, __ldg(x + plane), 1);
    const int dot2 = dot16(quarter.low, quarter.top, __ldg(x + 2 * plane), 2);
    const int dot3 = dot16(quarter.high, quarter.top, __ldg(x + 3 * plane), 3);
    const int t0 = (signed char)scales01 * (dot0 - 32 * (short)meta.z);
    const int t1 = (signed char)(scales01 >> 16) * (dot1 - 32 * (short)(meta.z >> 16));
    const int t2 = (signed char)scales23 * (dot2 - 32 * (short)meta.w);
    const int t3 = (signed char)(scales23 >> 16) * (dot3 - 32 * (short)(meta.w >> 16));
    float sum = __fmul_rn(half_to_float((u16)meta.x), (float)t0);
    sum = __fadd_rn(sum, __fmul_rn(half_to_float((u16)(meta.x >> 16)), (float)t1));
    sum = __fadd_rn(sum, __fmul_rn(half_to_float((u16)meta.y), (float)t2));
    sum = __fadd_rn(sum, __fmul_rn(half_to_float((u16)(meta.y >> 16)), (float)t3));
    return __fmul_rn(half_to_float(quarter.d), sum);
}

// With one or two quarters a lane, nothing branches: a lane that has no quarter left loads the row's last one again and
// does not use it, and the loads of weights and activations all fly together. To keep it so, one block a multiprocessor
// is all that the compiler is asked for: aiming for more, it saves registers by sinking loads to their first use, behind
// the wait for other loads. With more quarters a lane that would take too many registers, and branches separate
// the quarters (measured: 152064 x 5120 with 16 lanes 146 us with the branches, 171 without; 5120 x 13824 20.9 and 17.5).
enum { FLAT = QUARTERS <= 2 };
#if DPL_QUARTERS <= 2
#define BOUNDS __launch_bounds__(THREADS, 1)
#else
#define BOUNDS __launch_bounds__(THREADS)
#endif

// One lane's share of a row: quarters lane, lane + LANES, ..., added in this order whatever QUARTERS is.
template <class L>
__device__ __forceinline__ float lane_sum(const u8* row, const u8* activations, int n, int lane) {
    float sum = 0.0f;
    for (int first = lane; first - lane < 4 * n; first += LANES * QUARTERS) {
        Quarter quarters[QUARTERS];
#pragma unroll
        for (int i = 0; i < QUARTERS; ++i) {
            const int k = first + i * LANES;
            if (FLAT || k < 4 * n) quarters[i] = load_quarter<L>(row, n, min(k, 4 * n - 1));
        }
#pragma unroll
        for (int i = 0; i < QUARTERS; ++i) {
            const int k = first + i * LANES;
            if (FLAT || k < 4 * n) {
                const float value = quarter_value(quarters[i], activations, n, min(k, 4 * n - 1));
                if (k < 4 * n) sum = __fadd_rn(sum, value);
            }
        }
    }
    return sum;
}

__device__ __forceinline__ long long row_index() {
    return (long long)blockIdx.x * (THREADS / LANES) + threadIdx.x / LANES;
}

__device__ __forceinline__ void store(float sum, float* out, long long row, long long rows) {
    sum = sum_lanes<LANES, THREADS>(sum);
    if (row < rows && threadIdx.x % LANES == 0) out[row] = sum;
}

template <class L>
__device__ __forceinline__ void decode(const u8* weights, const u8* activations, float* out, long long rows, int n) {
    const long long row = row_index();
    const u8* mine = weights + (row < rows ? row : rows - 1) * L::stride(n);
    const float sum = lane_sum<L>(mine, activations, n, threadIdx.x % LANES);
    store(sum, out, row, rows);
}

#define KERNEL(name, Layout)                                                                                     \
    extern "C" __global__ void BOUNDS                                                                            \
        row_##name(const u8* weights, const u8* activations, float* out, long long rows, int n) {                \
        decode<Layout>(weights, activations, out, rows, n);                                                      \
    }

KERNEL(native, Native)
KERNEL(padded, Padded)
KERNEL(dpl, Dpl)

// 16 bytes to shared memory; without a stop in the registers where the chip can (sm_80 and later).
__device__ __forceinline__ void copy16(uint4* shared, const uint4* global) {
#if __CUDA_ARCH__ >= 800
    const u32 address = (u32)__cvta_generic_to_shared(shared);
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(address), "l"(global) : "memory");
#else
    *shared = *global;
#endif
}

__device__ __forceinline__ void wait_for_copies() {
#if __CUDA_ARCH__ >= 800
    asm volatile("cp.async.wait_all;" ::: "memory");
#endif
    __syncthreads();
}

// The native layout with no repacking but with wide loads all the same: the 16-byte items that cover the row go to
// shared memory and the row is decoded there. What it needs is a buffer whose base is aligned and whose end is rounded
// up to 16 bytes. The baseline to beat for anyone who may not repack.
// Shared memory: THREADS / LANES times (210 n + 47) / 16 items (up to 14 bytes before the row, and a word after it).
extern "C" __global__ void BOUNDS
    row_staged(const u8* weights, const u8* activations, float* out, long long rows, int n) {
    extern __shared__ uint4 stage[];
    const int lane = threadIdx.x % LANES;
    const long long row = row_index(), source = row < rows ? row : rows - 1;
    const long long start = source * Native::stride(n), end = start + Native::stride(n);
    uint4* mine = stage + threadIdx.x / LANES * ((BLOCK_BYTES * n + 47) / 16);
    for (long long item = start / 16 + lane; item < (end + 15) / 16; item += LANES)
        copy16(mine + (item - start / 16), (const uint4*)weights + item);
    wait_for_copies();
    const float sum = lane_sum<Staged>((const u8*)mine + start % 16, activations, n, lane);
    store(sum, out, row, rows);
}
