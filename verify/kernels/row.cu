// The tuned form. LANES lanes share a row, a lane takes QUARTERS quarters of a super-block at once, all their loads in
// flight before the first is used; THREADS / LANES such groups a block. verify/contract/forms.py has the table.
//
// A quarter is 16 columns of a half: two 16-byte ql loads (+0, +32) and one 16-byte qh load hold the same 16 columns of
// all four groups of 32, so no loaded bit is thrown away: 64 weights for 48 bytes, 8 scales' bytes (half used) and d.
//
// Activations ("quarters"), 5 planes of [4 n] 16-byte items, so that a warp reads each of them contiguously:
//     plane g = 0..3: the int8 quants of group g, 16 columns;  plane 4: fp16 d8[4], then int16 sums of the quants [4].

#ifndef DPL_ROWS
#define DPL_ROWS 1  // rows that a group takes at once: they share the activations, and twice the loads are in flight
#endif
#ifndef DPL_BLOCKS
#define DPL_BLOCKS 1  // blocks a multiprocessor that the compiler must leave registers for
#endif
// 0: rows of any length, in as many turns as it takes. 1: rows of at most LANES * QUARTERS quarters, and no loop. 2: rows
// of at most LANES quarters; a grid that the device holds at once walks over them.
#ifndef DPL_PLAN
#define DPL_PLAN 0
#endif
#ifndef DPL_N
#define DPL_N 0  // if not 0, the only n that the kernels are for: a seventh fewer instructions
#endif
#ifndef DPL_WHOLE
#define DPL_WHOLE 0  // 1: only for numbers of rows that leave no group of the grid without one
#endif

#include "q6k.cuh"
#include "ptx.cuh"
#include "sum.cuh"

enum { LANES = DPL_LANES, QUARTERS = DPL_QUARTERS, THREADS = DPL_THREADS, ROWS = DPL_ROWS, GROUPS = THREADS / LANES };

// Measured on Hopper; other chips' compilers need other numbers of registers, and decide for themselves.
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ == 900
enum { BLOCKS = DPL_BLOCKS };
#else
enum { BLOCKS = 1 };
#endif

struct Quarter {
    uint4 low, high, top;  // ql +0, ql +32, qh
    uint2 scales;          // of the half; this quarter uses every second byte
    u16 d;
};

struct Inputs {
    uint4 x[4], meta;
};

// A layout whose loads stay where they are written (ptx.cuh). The native one has too many of them to insist.
// Activations are read again for every row: they stay in the L1 if weights, which are read once, do not pass through it.
// A walk has them in registers, and with few lanes the L1 serves it better, as it does padded blocks: loads share sectors.
template <class L>
struct Early : L {
    static const bool KEEP = L::SPARSE || (DPL_PLAN == 2 && LANES <= 192);
    static __device__ __forceinline__ uint4 load16(const u8* p) { return early16<KEEP>(p); }
    static __device__ __forceinline__ uint2 load8(const u8* p) { return early8<KEEP>(p); }
    static __device__ __forceinline__ u16 load2(const u8* p) { return early2<KEEP>(p); }
};

// Where quarter k lies in the planes of its row, or what stands for planes: columns 16 (k & 1) of half (k >> 1) & 1 of
// block k >> 2.
struct Places {
    u32 low, top, scales, d;
};

template <class L>
__device__ __forceinline__ Places places(const L&, u32 k) {
    const u32 block = k >> 2, half = k >> 1 & 1, column = 16 * (k & 1);
    return {L::at(0, block, 0, 128) + 64 * half + column, L::at(0, block, 0, 64) + 32 * half + column,
            L::at(0, block, 0, 16) + 8 * half, L::at(0, block, 0, 2)};
}

// The same for planes, where most of it cancels out: few instructions between a block's start and its first load.
__device__ __forceinline__ Places places(const Early<Dpl>&, u32 k) {
    return {32 * k - 16 * (k & 1), 16 * k, 4 * (k & ~1u), 2 * (k >> 2)};
}

// Quarter k of the row that begins `row` bytes behind `base`. The planes' own offsets come last: where n is known they are
// part of the load instruction.
template <class L>
__device__ __forceinline__ Quarter load_quarter(const u8* base, u32 row, int n, u32 k) {
    const Places at = places(L(), k);
    Quarter quarter;
    quarter.low = L::load16(base + (row + at.low) + L::at(n, 0, QL, 0));
    quarter.high = L::load16(base + (row + at.low) + L::at(n, 0, QL, 0) + 32);
    quarter.top = L::load16(base + (row + at.top) + L::at(n, 0, QH, 0));
    quarter.scales = L::load8(base + (row + at.scales) + L::at(n, 0, SCALES, 0));
    quarter.d = L::load2(base + (row + at.d) + L::at(n, 0, D, 0));
    return quarter;
}

__device__ __forceinline__ Inputs load_inputs(const u8* activations, int n, u32 k) {
    const u8* x = activations + 16 * k;
    const u32 plane = 64 * n;
    return {{late16(x), late16(x + plane), late16(x + 2 * plane), late16(x + 3 * plane)}, late16(x + 4 * plane)};
}

// Four columns of all four groups. Two masks clear the neighbours of the upper bits; then q is one instruction a group.
__device__ __forceinline__ void add_columns(u32 low, u32 high, u32 top, u32 x0, u32 x1, u32 x2, u32 x3, int* dots) {
    const u32 top02 = even_pairs(top), top13 = even_pairs(top >> 2);
    dots[0] = __dp4a((int)join_nibbles(low, top02 << 4), (int)x0, dots[0]);
    dots[1] = __dp4a((int)join_nibbles(high, top13 << 4), (int)x1, dots[1]);
    dots[2] = __dp4a((int)join_nibbles(low >> 4, top02), (int)x2, dots[2]);
    dots[3] = __dp4a((int)join_nibbles(high >> 4, top13), (int)x3, dots[3]);
}

// d (d8[0] t0 + d8[1] t1 + d8[2] t2 + d8[3] t3) with t = scale (dot(q, x) - 32 sum(x)), |t| <= 2^23 and exact; the -32
// is taken out of the loop over the weights by the sums that come with the activations (0xe0 is -32 as a byte).
__device__ __forceinline__ float quarter_value(const Quarter& q, const Inputs& v, u32 k) {
    int dots[4] = {0, 0, 0, 0};
    add_columns(q.low.x, q.high.x, q.top.x, v.x[0].x, v.x[1].x, v.x[2].x, v.x[3].x, dots);
    add_columns(q.low.y, q.high.y, q.top.y, v.x[0].y, v.x[1].y, v.x[2].y, v.x[3].y, dots);
    add_columns(q.low.z, q.high.z, q.top.z, v.x[0].z, v.x[1].z, v.x[2].z, v.x[3].z, dots);
    add_columns(q.low.w, q.high.w, q.top.w, v.x[0].w, v.x[1].w, v.x[2].w, v.x[3].w, dots);
    const u32 odd = k & 1;
    const int t0 = signed_byte(q.scales.x, odd) * __dp2a_lo((int)v.meta.z, 0x00e0, dots[0]);
    const int t1 = signed_byte(q.scales.x, odd + 2) * __dp2a_lo((int)v.meta.z, 0xe000, dots[1]);
    const int t2 = signed_byte(q.scales.y, odd) * __dp2a_lo((int)v.meta.w, 0x00e0, dots[2]);
    const int t3 = signed_byte(q.scales.y, odd + 2) * __dp2a_lo((int)v.meta.w, 0xe000, dots[3]);
    float sum = __fmul_rn(half_to_float((u16)v.meta.x), (float)t0);
    sum = __fadd_rn(sum, __fmul_rn(half_to_float((u16)(v.meta.x >> 16)), (float)t1));
    sum = __fadd_rn(sum, __fmul_rn(half_to_float((u16)v.meta.y), (float)t2));
    sum = __fadd_rn(sum, __fmul_rn(half_to_float((u16)(v.meta.y >> 16)), (float)t3));
    return __fmul_rn(half_to_float(q.d), sum);
}

__device__ __forceinline__ u32 lane_index() { return LANES == THREADS ? threadIdx.x : threadIdx.x % LANES; }
__device__ __forceinline__ u32 group_index() { return LANES == THREADS ? 0 : threadIdx.x / LANES; }

// Each row is decoded once and by one group: lane i adds the quarters i, i + LANES, ... in this order, whatever QUARTERS
// is. Nothing branches on what a lane has to do: one that has no quarter left loads the row's last one and does not use
// it, a row behind the last is the last, and the loads all fly together. A kernel that need not wait asks for the
// activations first: they are near, and out of the way when the weights arrive.
template <class L>
__device__ __forceinline__ void decode(const u8* weights, const u8* activations, float* out, u32 rows, int n) {
    const bool inputs_first = !DPL_DEPENDENT && QUARTERS == 1, whole = DPL_WHOLE || GROUPS * ROWS == 1;
    let_next_start();
    const u32 lane = lane_index(), last = 4 * n - 1, stride = (u32)L::stride(n);
    const u32 row = blockIdx.x * (GROUPS * ROWS), mine = group_index() * ROWS, left = rows - row;
    const u8* base = forget_origin(weights + (u64)stride * row);
    float sums[ROWS] = {};
    u32 first = lane;
    do {
        Inputs inputs;
        if (inputs_first) inputs = load_inputs(activations, n, min(first, last));
        Quarter quarters[ROWS][QUARTERS];
#pragma unroll
        for (int r = 0; r < ROWS; ++r) {
            const u32 offset = (whole ? mine + r : min(mine + r, left - 1)) * stride;
#pragma unroll
            for (int i = 0; i < QUARTERS; ++i)
                quarters[r][i] = load_quarter<L>(base, offset, n, min(first + i * LANES, last));
        }
        wait_for_previous();
#pragma unroll
        for (int i = 0; i < QUARTERS; ++i) {
            const u32 k = first + i * LANES;
            if (!inputs_first) inputs = load_inputs(activations, n, min(k, last));
#pragma unroll
            for (int r = 0; r < ROWS; ++r) {
                const float value = quarter_value(quarters[r][i], inputs, min(k, last));
                if (k <= last) sums[r] = __fadd_rn(sums[r], value);
            }
        }
        first += LANES * QUARTERS;
    } while (DPL_PLAN == 0 && first - lane <= last);
    store_sums<LANES, THREADS, ROWS, whole>(sums, out + row, mine, left);
}

// The same for a grid that the device holds at once: group g takes the rows g, g + G, g + 2 G, ..., keeps its activations
// in registers, and fetches a row while it adds up the one before. The warps of a row meet only once in CHUNK rows.
template <class L>
__device__ __forceinline__ void walk(const u8* weights, const u8* activations, float* out, u32 count, int n) {
    enum { CHUNK = 32, WARPS = THREADS / 32 };
    __shared__ float warps[CHUNK][WARPS];
    let_next_start();
    const u32 lane = lane_index(), last = 4 * n - 1, k = min(lane, last);
    const u32 step = gridDim.x * GROUPS, group = group_index(), stride = (u32)L::stride(n);
    u32 row = blockIdx.x * GROUPS + group, done = 0;
    Quarter quarter = load_quarter<L>(weights + (u64)stride * min(row, count - 1), 0, n, k);
    wait_for_previous();
    const Inputs inputs = load_inputs(activations, n, k);
    while (row - group < count) {
        float sum = __fadd_rn(0.0f, quarter_value(quarter, inputs, k));
        if (lane > last) sum = 0.0f;
        row += step;
        if (row < count) quarter = load_quarter<L>(weights + (u64)stride * row, 0, n, k);
        wait_for_previous();  // nothing to wait for: it keeps the loads here
        sum = fold<LANES>(sum);
        if (LANES <= 32 && lane == 0 && row - step < count) out[row - step] = sum;
        if (LANES > 32 && threadIdx.x % 32 == 0) warps[done][threadIdx.x / 32] = sum;
        if (LANES > 32 && (++done == CHUNK || row - group >= count)) {
            __syncthreads();
#pragma unroll 1
            for (u32 item = threadIdx.x; item < done * GROUPS; item += THREADS) {
                const u32 finished = row - group + item % GROUPS - (done - item / GROUPS) * step;
                const float total = add_warps<LANES>(warps[item / GROUPS] + item % GROUPS * (LANES / 32));
                if (finished < count) out[finished] = total;
            }
            __syncthreads();
            done = 0;
        }
    }
}

#define KERNEL(name, Layout)                                                                                     \
    extern "C" __global__ void __launch_bounds__(THREADS, BLOCKS)                                                \
        row_##name(const u8* weights, const u8* activations, float* out, long long rows, int n) {                \
        if (DPL_N) n = DPL_N;                                                                                    \
        if (DPL_PLAN == 2) walk<Layout>(weights, activations, out, (u32)rows, n);                                \
        else decode<Layout>(weights, activations, out, (u32)rows, n);                                            \
    }

KERNEL(native, Native)
KERNEL(padded, Early<Padded>)
KERNEL(dpl, Early<Dpl>)

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
extern "C" __global__ void __launch_bounds__(THREADS, BLOCKS)
    row_staged(const u8* weights, const u8* activations, float* out, long long rows, int n) {
    extern __shared__ uint4 stage[];
    const u32 lane = lane_index(), last = 4 * n - 1;
    const long long first = (long long)blockIdx.x * GROUPS, row = first + group_index(), source = row < rows ? row : rows - 1;
    const long long start = source * Native::stride(n), end = start + Native::stride(n);
    uint4* mine = stage + group_index() * ((BLOCK_BYTES * n + 47) / 16);
    for (long long item = start / 16 + lane; item < (end + 15) / 16; item += LANES)
        copy16(mine + (item - start / 16), (const uint4*)weights + item);
    wait_for_copies();
    float sum = 0.0f;
    for (u32 k = lane; k <= last; k += LANES) {
        const Quarter quarter = load_quarter<Staged>((const u8*)mine + start % 16, 0, n, k);
        sum = __fadd_rn(sum, quarter_value(quarter, load_inputs(activations, n, k), k));
    }
    store_sums<LANES, THREADS, 1>(&sum, out + first, group_index(), (u32)(rows - first));
}
