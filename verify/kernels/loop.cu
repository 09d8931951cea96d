// The reference engine's mapping: one 256-thread block a row, one unit of 32 weights at a time, thread t takes the
// units t, t + 256, ... Forms `loop` and `pf` differ only in when the loads are issued, not in a single bit.
//
// Activations ("plain"): int8 quants [256 n], then fp16 scales [8 n], one for each unit.

#include "quants/q6_k.cuh"
#include "sum.cuh"

enum { THREADS = 256 };

// sum(q x) over 16 weights of one group: 0 and 1 are the low nibbles of their ql bytes, 2 and 3 the high ones; the upper
// two bits of group g are bits 2 g and 2 g + 1 of the qh bytes. Exact; q is 0..63, its offset of 32 is the caller's.
__device__ __forceinline__ int dot4(u32 ql, u32 qh, u32 x, int group, int sum) {
    const u32 q = (ql >> (group & 2) * 2 & 0x0f0f0f0fu) | (qh >> 2 * group << 4 & 0x30303030u);
    return __dp4a((int)q, (int)x, sum);
}

__device__ __forceinline__ int dot16(uint4 ql, uint4 qh, uint4 x, int group) {
    const int sum = dot4(ql.y, qh.y, x.y, group, dot4(ql.x, qh.x, x.x, group, 0));
    return dot4(ql.w, qh.w, x.w, group, dot4(ql.z, qh.z, x.z, group, sum));
}

// What a unit needs, loaded and not yet used.
struct LoopUnit {
    uint4 ql[2], qh[2], x[2];
    u16 scales, d, d8;
    int group;
};

// Unit u is group u & 3 of half (u >> 2) & 1 of block u >> 3. The four groups of a half share their 32 qh bytes, the
// groups 0 and 2 (low and high nibbles) their 32 ql bytes, and 1 and 3 theirs: hence 64 bytes of loads for 24.
template <class L>
__device__ __forceinline__ LoopUnit load_loop_unit(const u8* row, const u8* activations, int n, int u) {
    const int block = u >> 3, half = u >> 2 & 1, group = u & 3;
    const u8* ql = row + L::at(block, QL) + L::start(n, QL) + 64 * half + 32 * (group & 1);
    const u8* qh = row + L::at(block, QH) + L::start(n, QH) + 32 * half;
    const u8* x = activations + 32LL * u;
    LoopUnit unit;
    for (int i = 0; i < 2; ++i) {
        unit.ql[i] = L::template load16<QL>(ql + 16 * i);
        unit.qh[i] = L::template load16<QH>(qh + 16 * i);
        unit.x[i] = __ldg((const uint4*)(x + 16 * i));
    }
    unit.scales = L::template load2<SCALES>(row + L::at(block, SCALES) + L::start(n, SCALES) + 8 * half + 2 * group);
    unit.d = L::template load2<D>(row + L::at(block, D) + L::start(n, D));
    unit.d8 = __ldg((const u16*)(activations + 256LL * n + 2LL * u));
    unit.group = group;
    return unit;
}

__device__ __forceinline__ int sum16(uint4 x) {
    const int sum = __dp4a(0x01010101, (int)x.y, __dp4a(0x01010101, (int)x.x, 0));
    return __dp4a(0x01010101, (int)x.w, __dp4a(0x01010101, (int)x.z, sum));
}

// d d8 (scale0 dot0 + scale1 dot1): the integer is below 2^24 and d d8 has 22 bits, so only the last product rounds.
__device__ __forceinline__ float loop_value(const LoopUnit& unit) {
    const int dot0 = dot16(unit.ql[0], unit.qh[0], unit.x[0], unit.group) - 32 * sum16(unit.x[0]);
    const int dot1 = dot16(unit.ql[1], unit.qh[1], unit.x[1], unit.group) - 32 * sum16(unit.x[1]);
    const int sum = (signed char)unit.scales * dot0 + (signed char)(unit.scales >> 8) * dot1;
    return mul(mul(half_to_float(unit.d), half_to_float(unit.d8)), (float)sum);
}

template <class L>
__device__ __forceinline__ void loop(const u8* weights, const u8* activations, float* out, int n) {
    const u8* row = weights + (long long)blockIdx.x * L::stride(n);
    float sum = 0.0f;
    for (int u = threadIdx.x; u < 8 * n; u += THREADS)
        sum = add(sum, loop_value(load_loop_unit<L>(row, activations, n, u)));
    store_sums<THREADS, THREADS, 1>(&sum, out, blockIdx.x, 0);
}

// For 256 < 8 n <= 512: a thread has one or two units, and issues the loads of both before it uses either. One that has
// no second unit loads the row's last and does not use it: a branch would hold the loads behind it back.
template <class L>
__device__ __forceinline__ void pf(const u8* weights, const u8* activations, float* out, int n) {
    const u8* row = weights + (long long)blockIdx.x * L::stride(n);
    const int u = threadIdx.x, last = 8 * n - 1;
    const LoopUnit first = load_loop_unit<L>(row, activations, n, u);
    const LoopUnit second = load_loop_unit<L>(row, activations, n, min(u + THREADS, last));
    float sum = add(0.0f, loop_value(first));
    const float value = loop_value(second);
    if (u + THREADS <= last) sum = add(sum, value);
    store_sums<THREADS, THREADS, 1>(&sum, out, blockIdx.x, 0);
}

// One block a multiprocessor is all that is asked for: aiming for more, the compiler saves registers by sinking loads to
// their first use, and pf is pf only if it leaves them where they are.
#define KERNEL(form, name, Layout)                                                                               \
    extern "C" __global__ void __launch_bounds__(THREADS, 1)                                                     \
        form##_##name(const u8* weights, const u8* activations, float* out, long long, int n) {                  \
        form<Layout>(weights, activations, out, n);                                                              \
    }

KERNEL(loop, native, Native)
KERNEL(loop, padded, Padded<>)
KERNEL(loop, dpl, Dpl<>)
KERNEL(pf, native, Native)
KERNEL(pf, padded, Padded<>)
KERNEL(pf, dpl, Dpl<>)
