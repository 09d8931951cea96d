// Instructions that have no name in CUDA C++, or that the compiler would trade for slower ones here. On a CPU (the tests
// run these sources there) each is what it computes.

// Weights: a load that stays where it is written, before `wait_for_previous`. A load through the read-only path need not:
// the compiler moves it behind the wait, and towards its first use, where it is waited for alone.
__device__ __forceinline__ uint4 early16(const u8* p) {
#ifdef __CUDA_ARCH__
    uint4 v;
    asm volatile("ld.global.v4.u32 {%0, %1, %2, %3}, [%4];" : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w) : "l"(p));
    return v;
#else
    return *(const uint4*)p;
#endif
}

__device__ __forceinline__ uint2 early8(const u8* p) {
#ifdef __CUDA_ARCH__
    uint2 v;
    asm volatile("ld.global.v2.u32 {%0, %1}, [%2];" : "=r"(v.x), "=r"(v.y) : "l"(p));
    return v;
#else
    return *(const uint2*)p;
#endif
}

__device__ __forceinline__ u16 early2(const u8* p) {
#ifdef __CUDA_ARCH__
    u16 v;
    asm volatile("ld.global.u16 %0, [%1];" : "=h"(v) : "l"(p));
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

// Dependent launch: the next kernel on the stream, if it was launched so, may start, and waits for this one to end before
// it touches what this one writes. Both do nothing in an ordinary launch.
__device__ __forceinline__ void let_next_start() {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
#endif
}

__device__ __forceinline__ void wait_for_previous() {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
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
