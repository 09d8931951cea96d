// The tuned form. LANES lanes share a row, a lane takes UNITS units of it at once, all their loads in flight before the first is
// used; THREADS / LANES such groups a block. verify/contract/forms.py has the table.
//
// The type comes in by DPL_QUANT, the name of its file in quants/. That says what a unit is, how it is loaded from a row of any layout
// and multiplied with the activations, in the order in which it wants them. What is here is the same for all types.

#ifndef DPL_ROWS
#define DPL_ROWS 1  // rows that a group takes at once: they share the activations, and twice the loads are in flight
#endif
#ifndef DPL_BLOCKS
#define DPL_BLOCKS 1  // blocks a multiprocessor that the compiler must leave registers for
#endif
// 0: rows of any length, in as many turns as it takes. 1: rows of at most LANES * UNITS units, and no loop. 2: the same rows; a
// grid that the device holds at once walks over them.
#ifndef DPL_PLAN
#define DPL_PLAN 0
#endif
#ifndef DPL_N
#define DPL_N 0  // if not 0, the only n that the kernels are for: a seventh fewer instructions
#endif
#ifndef DPL_WHOLE
#define DPL_WHOLE 0  // 1: only for numbers of rows that leave no group of the grid without one
#endif

#ifndef DPL_ADD
#define DPL_ADD 0  // 1: kernels take a further vector, after the activations, which is added to the outputs (a bias, a residual)
#endif

#include DPL_QUANT
#ifndef DPL_KEEP
#define DPL_KEEP 0  // 1: the type's weights go through the L1
#endif
#include "ptx.cuh"
#include "sum.cuh"

enum { LANES = DPL_LANES, UNITS = DPL_UNITS, THREADS = DPL_THREADS, ROWS = DPL_ROWS, GROUPS = THREADS / LANES };

// Measured on Hopper; other chips' compilers need other numbers of registers, and decide for themselves.
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ == 900
enum { BLOCKS = DPL_BLOCKS };
#else
enum { BLOCKS = 1 };
#endif

// Loads that stay where they are written (ptx.cuh). The native layout has too many of them to insist.
// Activations are read again for every row: they stay in the L1 if weights, which are read once, do not pass through it.
// A walk has them in registers, and with few lanes the L1 serves it better, as it does padded blocks: loads share sectors.
template <bool KEEP>
struct Early {
    static __device__ __forceinline__ uint4 get16(const u8* p) { return early16<KEEP>(p); }
    static __device__ __forceinline__ uint2 get8(const u8* p) { return early8<KEEP>(p); }
    static __device__ __forceinline__ u32 get4(const u8* p) { return early4<KEEP>(p); }
    static __device__ __forceinline__ u16 get2(const u8* p) { return early2<KEEP>(p); }
    static __device__ __forceinline__ u8 get1(const u8* p) { return early1<KEEP>(p); }
};

__device__ __forceinline__ u32 lane_index() { return LANES == THREADS ? threadIdx.x : threadIdx.x % LANES; }
__device__ __forceinline__ u32 group_index() { return LANES == THREADS ? 0 : threadIdx.x / LANES; }

// Each row is decoded once and by one group: lane i adds the units i, i + LANES, ... in this order, whatever UNITS
// is. Nothing branches on what a lane has to do: one that has no unit left loads the row's last one and does not use
// it, a row behind the last is the last, and the loads all fly together. A kernel that need not wait asks for the
// activations first: they are near, and out of the way when the weights arrive.
template <class L>
__device__ __forceinline__ void decode(const u8* weights, const u8* activations, const float* addend, float* out, u32 rows,
                                       int n) {
    const bool inputs_first = !DPL_DEPENDENT && UNITS == 1, whole = DPL_WHOLE || GROUPS * ROWS == 1;
    let_next_start();
    const u32 lane = lane_index(), last = UNITS_A_BLOCK * n - 1, stride = (u32)L::stride(n);
    const u32 row = blockIdx.x * (GROUPS * ROWS), mine = group_index() * ROWS, left = rows - row;
    const u8* base = forget_origin(weights + (u64)stride * row);
    float sums[ROWS] = {}, added = 0.0f;
    u32 first = lane;
    do {
        Inputs inputs;
        if (inputs_first) inputs = load_inputs(activations, n, min(first, last));
        Unit units[ROWS][UNITS];
#pragma unroll
        for (int r = 0; r < ROWS; ++r) {
            const u32 offset = (whole ? mine + r : min(mine + r, left - 1)) * stride;
#pragma unroll
            for (int i = 0; i < UNITS; ++i)
                units[r][i] = load_unit<L>(base, offset, n, min(first + i * LANES, last));
        }
        wait_for_previous();
        if (DPL_ADD) added = __uint_as_float(late4((const u8*)(addend + row + min(mine + min(lane, ROWS - 1u), left - 1))));
#pragma unroll
        for (int i = 0; i < UNITS; ++i) {
            const u32 k = first + i * LANES;
            if (!inputs_first) inputs = load_inputs(activations, n, min(k, last));
#pragma unroll
            for (int r = 0; r < ROWS; ++r) {
                const float value = unit_value(units[r][i], inputs, min(k, last));
                if (k <= last) sums[r] = add(sums[r], value);
            }
        }
        first += LANES * UNITS;
    } while (DPL_PLAN == 0 && first - lane <= last);
    store_sums<LANES, THREADS, ROWS, whole, DPL_ADD>(sums, out + row, mine, left, added);
}

// A lane's units of a row, if there is such a row.
template <class L>
__device__ __forceinline__ void fetch(const u8* weights, u32 row, u32 count, u32 stride, int n, Unit* units) {
    if (row >= count) return;
#pragma unroll
    for (int i = 0; i < UNITS; ++i)
        units[i] = load_unit<L>(weights + (u64)stride * row, 0, n, min(lane_index() + i * LANES, UNITS_A_BLOCK * n - 1u));
}

__device__ __forceinline__ float with_addend(float sum, const float* addend, u32 row) {
    return DPL_ADD ? add(sum, __uint_as_float(late4((const u8*)(addend + row)))) : sum;
}

// The same for a grid that the device holds at once: group g takes the rows g, g + G, g + 2 G, ..., keeps its activations
// in registers, and has the next ROWS rows in flight while it adds one up. The warps of a row meet only once in CHUNK rows.
template <class L>
__device__ __forceinline__ void walk(const u8* weights, const u8* activations, const float* addend, float* out, u32 count, int n) {
    enum { CHUNK = 32, WARPS = THREADS / 32 };
    __shared__ float warps[CHUNK][WARPS];
    let_next_start();
    const u32 lane = lane_index(), last = UNITS_A_BLOCK * n - 1, stride = (u32)L::stride(n);
    const u32 step = gridDim.x * GROUPS, group = group_index();
    u32 row = blockIdx.x * GROUPS + group, done = 0;
    Unit units[ROWS][UNITS];
#pragma unroll
    for (int r = 0; r < ROWS; ++r) fetch<L>(weights, row + r * step, count, stride, n, units[r]);
    wait_for_previous();
    Inputs inputs[UNITS];
#pragma unroll
    for (int i = 0; i < UNITS; ++i) inputs[i] = load_inputs(activations, n, min(lane + i * LANES, last));
    while (true) {
#pragma unroll
        for (int r = 0; r < ROWS; ++r) {
            if (row - group >= count) return;
            float sum = 0.0f;
#pragma unroll
            for (int i = 0; i < UNITS; ++i) {
                const u32 k = lane + i * LANES;
                const float value = unit_value(units[r][i], inputs[i], min(k, last));
                if (k <= last) sum = add(sum, value);
            }
            row += step;
            fetch<L>(weights, row + (ROWS - 1) * step, count, stride, n, units[r]);
            wait_for_previous();  // nothing to wait for: it keeps the loads here
            sum = fold<LANES>(sum);
            if (LANES <= 32 && lane == 0 && row - step < count) out[row - step] = with_addend(sum, addend, row - step);
            if (LANES > 32 && threadIdx.x % 32 == 0) warps[done][threadIdx.x / 32] = sum;
            if (LANES > 32 && (++done == CHUNK || row - group >= count)) {
                __syncthreads();
#pragma unroll 1
                for (u32 item = threadIdx.x; item < done * GROUPS; item += THREADS) {
                    const u32 finished = row - group + item % GROUPS - (done - item / GROUPS) * step;
                    const float total = add_warps<LANES>(warps[item / GROUPS] + item % GROUPS * (LANES / 32));
                    if (finished < count) out[finished] = with_addend(total, addend, finished);
                }
                __syncthreads();
                done = 0;
            }
        }
    }
}

#if DPL_ADD
#define ADDEND const float* addend,
#define ADDEND_OR_NONE
#else
#define ADDEND
#define ADDEND_OR_NONE const float* const addend = 0;
#endif
#define KERNEL(name, ...)                                                                                        \
    extern "C" __global__ void __launch_bounds__(THREADS, BLOCKS)                                                \
        row_##name(const u8* weights, const u8* activations, ADDEND float* out, long long rows, int n) {         \
        ADDEND_OR_NONE                                                                                           \
        if (DPL_N) n = DPL_N;                                                                                    \
        if (DPL_PLAN == 2) walk<__VA_ARGS__>(weights, activations, addend, out, (u32)rows, n);                   \
        else decode<__VA_ARGS__>(weights, activations, addend, out, (u32)rows, n);                               \
    }

KERNEL(native, Native)
KERNEL(padded, Padded<Early<true>>)
KERNEL(dpl, Dpl<Early<DPL_KEEP || (DPL_PLAN == 2 && LANES <= 192)>>)

#if !DPL_ADD

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
// Shared memory: THREADS / LANES times (BLOCK_BYTES n + 47) / 16 items (up to 15 bytes before the row, and a word after it).
extern "C" __global__ void __launch_bounds__(THREADS, BLOCKS)
    row_staged(const u8* weights, const u8* activations, float* out, long long rows, int n) {
    extern __shared__ uint4 stage[];
    const u32 lane = lane_index(), last = UNITS_A_BLOCK * n - 1;
    const long long first = (long long)blockIdx.x * GROUPS, row = first + group_index(), source = row < rows ? row : rows - 1;
    const long long start = source * Native::stride(n), end = start + Native::stride(n);
    uint4* mine = stage + group_index() * ((BLOCK_BYTES * n + 47) / 16);
    for (long long item = start / 16 + lane; item < (end + 15) / 16; item += LANES)
        copy16(mine + (item - start / 16), (const uint4*)weights + item);
    wait_for_copies();
    float sum = 0.0f;
    for (u32 k = lane; k <= last; k += LANES) {
        const Unit unit = load_unit<Staged>((const u8*)mine + start % 16, 0, n, k);
        sum = add(sum, unit_value(unit, load_inputs(activations, n, k), k));
    }
    store_sums<LANES, THREADS, 1>(&sum, out + first, group_index(), (u32)(rows - first));
}

#endif
