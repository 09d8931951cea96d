// Instructions that have no name in CUDA C++, or that the compiler would trade for slower ones here. On a CPU (the tests
// run these sources there) each is what it computes.
#pragma once

typedef unsigned char u8;
typedef unsigned short u16;
typedef unsigned int u32;
typedef unsigned long long u64;

// fp16 bits to float, subnormals included. The instruction itself has no flush to zero for fp16 inputs, whatever
// the compiler was told, and needs no toolkit header.
__device__ __forceinline__ float half_to_float(u16 bits) {
    float value;
    asm("cvt.f32.f16 %0, %1;" : "=f"(value) : "h"(bits));
    return value;
}

// Arithmetic of the decode contract: rounded once, subnormals kept. CuPy always compiles with -ftz=true, which turns __fmul_rn and its
// kind into instructions that flush them, and 2^(e - 128) of MXFP4 is subnormal for small e; what is written out stays as it is.
__device__ __forceinline__ float mul(float a, float b) {
#ifdef __CUDA_ARCH__
    float v;
    asm("mul.rn.f32 %0, %1, %2;" : "=f"(v) : "f"(a), "f"(b));
    return v;
#else
    return a * b;
#endif
}

__device__ __forceinline__ float add(float a, float b) {
#ifdef __CUDA_ARCH__
    float v;
    asm("add.rn.f32 %0, %1, %2;" : "=f"(v) : "f"(a), "f"(b));
    return v;
#else
    return a + b;
#endif
}

__device__ __forceinline__ float sub(float a, float b) {
#ifdef __CUDA_ARCH__
    float v;
    asm("sub.rn.f32 %0, %1, %2;" : "=f"(v) : "f"(a), "f"(b));
    return v;
#else
    return a - b;
#endif
}

// Weights: a load that stays where it is written, before `wait_for_previous`. A load through the read-only path need not:
// the compiler moves it behind the wait, and towards its first use, where it is waited for alone. KEEP: in the L1, too.
// All fields of a row by the same policy: with two, benchmarks that rotate over copies find the favoured field still in
// the L2 (docs/lab/levers.md).
template <bool KEEP>
__device__ __forceinline__ uint4 early16(const u8* p) {
#ifdef __CUDA_ARCH__
    uint4 v;
    if (KEEP)
        asm volatile("ld.global.v4.u32 {%0, %1, %2, %3}, [%4];" : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w) : "l"(p));
    else
        asm volatile("ld.global.L1::no_allocate.v4.u32 {%0, %1, %2, %3}, [%4];"
                     : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w) : "l"(p));
    return v;
#else
    return *(const uint4*)p;
#endif
}

template <bool KEEP>
__device__ __forceinline__ uint2 early8(const u8* p) {
#ifdef __CUDA_ARCH__
    uint2 v;
    if (KEEP) asm volatile("ld.global.v2.u32 {%0, %1}, [%2];" : "=r"(v.x), "=r"(v.y) : "l"(p));
    else asm volatile("ld.global.L1::no_allocate.v2.u32 {%0, %1}, [%2];" : "=r"(v.x), "=r"(v.y) : "l"(p));
    return v;
#else
    return *(const uint2*)p;
#endif
}

template <bool KEEP>
__device__ __forceinline__ u32 early4(const u8* p) {
#ifdef __CUDA_ARCH__
    u32 v;
    if (KEEP) asm volatile("ld.global.u32 %0, [%1];" : "=r"(v) : "l"(p));
    else asm volatile("ld.global.L1::no_allocate.u32 %0, [%1];" : "=r"(v) : "l"(p));
    return v;
#else
    return *(const u32*)p;
#endif
}

template <bool KEEP>
__device__ __forceinline__ u8 early1(const u8* p) {
#ifdef __CUDA_ARCH__
    u32 v;
    if (KEEP) asm volatile("ld.global.u8 %0, [%1];" : "=r"(v) : "l"(p));
    else asm volatile("ld.global.L1::no_allocate.u8 %0, [%1];" : "=r"(v) : "l"(p));
    return (u8)v;
#else
    return *p;
#endif
}

template <bool KEEP>
__device__ __forceinline__ u16 early2(const u8* p) {
#ifdef __CUDA_ARCH__
    u16 v;
    if (KEEP) asm volatile("ld.global.u16 %0, [%1];" : "=h"(v) : "l"(p));
    else asm volatile("ld.global.L1::no_allocate.u16 %0, [%1];" : "=h"(v) : "l"(p));
    return v;
#else
    return *(const u16*)p;
#endif
}

// Activations: may be the previous kernel's output, so never before `wait_for_previous` nor through the read-only path.
__device__ __forceinline__ uint4 late16(const u8* p) {
#ifdef __CUDA_ARCH__
    uint4 v;
    asm volatile("ld.global.v4.u32 {%0, %1, %2, %3}, [%4];"
                 : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w) : "l"(p) : "memory");
    return v;
#else
    return *(const uint4*)p;
#endif
}

__device__ __forceinline__ u32 late4(const u8* p) {
#ifdef __CUDA_ARCH__
    u32 v;
    asm volatile("ld.global.u32 %0, [%1];" : "=r"(v) : "l"(p) : "memory");
    return v;
#else
    return *(const u32*)p;
#endif
}

__device__ __forceinline__ uint2 late8(const u8* p) {
#ifdef __CUDA_ARCH__
    uint2 v;
    asm volatile("ld.global.v2.u32 {%0, %1}, [%2];" : "=r"(v.x), "=r"(v.y) : "l"(p) : "memory");
    return v;
#else
    return *(const uint2*)p;
#endif
}

__device__ __forceinline__ u16 late2(const u8* p) {
#ifdef __CUDA_ARCH__
    u16 v;
    asm volatile("ld.global.u16 %0, [%1];" : "=h"(v) : "l"(p) : "memory");
    return v;
#else
    return *(const u16*)p;
#endif
}

// Dependent launch: the next kernel on the stream, if it was launched so, may start, and waits for this one to end before
// it touches what this one writes. Both do nothing in an ordinary launch, yet cost a little there: DPL_DEPENDENT=0 leaves
// them out, and such a kernel must not be launched as dependent.
#ifndef DPL_DEPENDENT
#define DPL_DEPENDENT 1
#endif
#if DPL_DEPENDENT && defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
#define GRID_CONTROL(instruction) asm volatile("griddepcontrol." instruction ";" ::: "memory")
#else
#define GRID_CONTROL(instruction) (void)0
#endif
__device__ __forceinline__ void let_next_start() { GRID_CONTROL("launch_dependents"); }
__device__ __forceinline__ void wait_for_previous() { GRID_CONTROL("wait"); }

// The pointer as it is, and whence it came forgotten: the compiler would multiply the row's number once for each plane.
__device__ __forceinline__ const u8* forget_origin(const u8* p) {
#ifdef __CUDA_ARCH__
    asm volatile("" : "+l"(p));
#endif
    return p;
}

// Bits 0..3 of each byte from a, 4..7 from b: one instruction, which the compiler does not find.
__device__ __forceinline__ u32 join_nibbles(u32 a, u32 b) {
#ifdef __CUDA_ARCH__
    u32 v;
    asm("lop3.b32 %0, %1, %2, 0x0f0f0f0f, 0xe4;" : "=r"(v) : "r"(a), "r"(b));
    return v;
#else
    return (a & 0x0f0f0f0fu) | (b & 0xf0f0f0f0u);
#endif
}

// a & 0x33333333, kept as it is: the compiler would mask once more after every shift of it.
__device__ __forceinline__ u32 even_pairs(u32 a) {
#ifdef __CUDA_ARCH__
    u32 v;
    asm("and.b32 %0, %1, 0x33333333;" : "=r"(v) : "r"(a));
    return v;
#else
    return a & 0x33333333u;
#endif
}

// Byte `byte` (0..3) of a word, as a signed number.
__device__ __forceinline__ int signed_byte(u32 word, u32 byte) {
#ifdef __CUDA_ARCH__
    int v;
    asm("prmt.b32 %0, %1, 0, %2;" : "=r"(v) : "r"(word), "r"(0x8880 + 0x1111 * byte));
    return v;
#else
    return (signed char)(word >> 8 * byte);
#endif
}

// Four bytes chosen by the four lowest nibbles of `nibbles`, each by its three lower bits from the eight bytes of (a, b). A nibble
// whose upper bit is set takes the sign of its byte instead: 0 if all bytes are below 128.
__device__ __forceinline__ u32 look_up(u32 a, u32 b, u32 nibbles) {
#ifdef __CUDA_ARCH__
    u32 v;
    asm("prmt.b32 %0, %1, %2, %3;" : "=r"(v) : "r"(a), "r"(b), "r"(nibbles));
    return v;
#else
    u32 v = 0;
    for (int i = 0; i < 4; ++i) {
        const u32 nibble = nibbles >> 4 * i & 15, byte = (nibble & 4 ? b : a) >> 8 * (nibble & 3) & 255;
        v |= (nibble & 8 ? byte >> 7 ? 255u : 0u : byte) << 8 * i;
    }
    return v;
#endif
}

// sum + the dot product of four unsigned and four signed bytes.
__device__ __forceinline__ int dot_unsigned(u32 a, u32 x, int sum) {
#ifdef __CUDA_ARCH__
    int v;
    asm("dp4a.u32.s32 %0, %1, %2, %3;" : "=r"(v) : "r"(a), "r"(x), "r"(sum));
    return v;
#else
    for (int i = 0; i < 32; i += 8) sum += (int)(a >> i & 255) * (signed char)(x >> i);
    return sum;
#endif
}

// A constant that the compiler cannot see through: it stays in its register instead of being made again for every use. (Grids are
// one block high, which is known at the launch alone.)
__device__ __forceinline__ u32 opaque(u32 value) { return value + (gridDim.y - 1); }
