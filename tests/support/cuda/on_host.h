// Just enough of CUDA to run the kernel sources on a CPU, for the tests: the threads of a block are fibers that run in
// turn, and a barrier or a shuffle is a turn. Slow, but the same source, and every misaligned load traps.
#include <ucontext.h>

#include <cmath>
#include <cstdint>
#include <functional>
#include <vector>

#define __device__
#define __global__
#define __forceinline__ inline
#define __launch_bounds__(...)
#define __shared__ static

struct Index { int x, y = 1; };
struct uint2 { unsigned x, y; };
struct alignas(16) uint4 { unsigned x, y, z, w; };
static uint2 make_uint2(unsigned x, unsigned y) { return {x, y}; }
static uint4 make_uint4(unsigned x, unsigned y, unsigned z, unsigned w) { return {x, y, z, w}; }

static Index threadIdx, blockIdx, blockDim, gridDim;
static std::vector<ucontext_t> fibers;
static ucontext_t scheduler;
static float exchanged[1024];

static void turn() {
    const int self = threadIdx.x;
    swapcontext(&fibers[self], &scheduler);
    threadIdx.x = self;
}
static void __syncthreads() { turn(); }
static float __shfl_xor_sync(unsigned, float value, int mask) {
    exchanged[threadIdx.x] = value;
    turn();
    const float other = exchanged[threadIdx.x ^ mask];
    turn();
    return other;
}

template <class T> static T __ldg(const T* p) { return *p; }
static float __fmul_rn(float a, float b) { return a * b; }
static float __fadd_rn(float a, float b) { return a + b; }
static float __fsub_rn(float a, float b) { return a - b; }
static float __uint_as_float(unsigned bits) {
    float value;
    __builtin_memcpy(&value, &bits, 4);
    return value;
}
static unsigned __funnelshift_r(unsigned low, unsigned high, unsigned shift) {
    return (unsigned)(((uint64_t)high << 32 | low) >> (shift & 31));
}
static int __dp4a(int a, int b, int sum) {
    for (int shift = 0; shift < 32; shift += 8) sum += (int8_t)(a >> shift) * (int8_t)(b >> shift);
    return sum;
}
static int __dp2a_lo(int a, int b, int sum) { return sum + (int16_t)a * (int8_t)b + (a >> 16) * (int8_t)(b >> 8); }
static int __dp2a_hi(int a, int b, int sum) { return __dp2a_lo(a, b >> 16, sum); }
static unsigned __byte_perm(unsigned a, unsigned b, unsigned selector) {
    const uint64_t bytes = (uint64_t)b << 32 | a;
    unsigned v = 0;
    for (int i = 0; i < 4; ++i) v |= (unsigned)(bytes >> 8 * (selector >> 4 * i & 7) & 255) << 8 * i;
    return v;
}
static int min(int a, int b) { return a < b ? a : b; }
static unsigned min(unsigned a, unsigned b) { return a < b ? a : b; }
static void atomicMin(unsigned long long* p, unsigned long long value) { if (value < *p) *p = value; }

static float host_half_to_float(uint16_t bits) {
    const int exponent = bits >> 10 & 31, fraction = bits & 1023;
    const float size = exponent == 31 ? (fraction ? NAN : INFINITY)
                     : exponent ? ldexpf(1024 + fraction, exponent - 25) : ldexpf(fraction, -24);
    return bits & 0x8000 ? -size : size;
}
#define asm(...) value = host_half_to_float(bits)  // the one instruction that is written out: cvt.f32.f16

static std::function<void()> body;
static bool running[1024];

static void fiber(int thread) {
    threadIdx.x = thread;
    body();
    running[thread] = false;
}

template <class... Args>
static void launch(void (*kernel)(Args...), int grid, int block, Args... args) {
    static std::vector<std::vector<char>> stacks(1024, std::vector<char>(1 << 16));
    body = [=] { kernel(args...); };
    blockDim.x = block;
    for (blockIdx.x = 0; blockIdx.x < grid; ++blockIdx.x) {
        fibers.assign(block, {});
        for (int thread = 0; thread < block; ++thread) {
            getcontext(&fibers[thread]);
            fibers[thread].uc_stack.ss_sp = stacks[thread].data();
            fibers[thread].uc_stack.ss_size = stacks[thread].size();
            fibers[thread].uc_link = &scheduler;
            makecontext(&fibers[thread], (void (*)())fiber, 1, thread);
            running[thread] = true;
        }
        for (bool any = true; any;) {
            any = false;
            for (int thread = 0; thread < block; ++thread)
                if (running[thread]) swapcontext(&scheduler, &fibers[thread]), any = true;
        }
    }
}
