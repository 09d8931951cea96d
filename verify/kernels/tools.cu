// What verification needs besides decoding. One block a row where rows are involved: no 64-bit divisions.

#include "q6k.cuh"
#include "ptx.cuh"

// Padded rows from native ones: a thread writes 16 bytes, 14 such items a block, the last with one half-word of content.
extern "C" __global__ void pad(const u8* native, u8* padded, int n) {
    const u8* source = native + (long long)blockIdx.x * Native::stride(n);
    uint4* target = (uint4*)(padded + (long long)blockIdx.x * Padded::stride(n));
    for (int item = threadIdx.x; item < 14 * n; item += blockDim.x) {
        const int block = item / 14, column = item % 14 * 16;
        const u8* bytes = source + Native::at(n, block, column, 0);
        target[item] = column < D ? Native::load16(bytes) : make_uint4(Native::load2(bytes), 0, 0, 0);
    }
}

// Compare dpl rows with native ones, byte for byte, and the padding with zero. *first becomes the byte offset, counted
// over all dpl rows, of the first half-word that differs; it must come in as all ones.
extern "C" __global__ void compare(const u8* native, const u8* dpl, u64* first, int n) {
    const long long blocks = n, start = (long long)blockIdx.x * Dpl::stride(n);
    const u8* row = native + (long long)blockIdx.x * Native::stride(n);
    for (long long byte = 2 * threadIdx.x; byte < Dpl::stride(n); byte += 2 * blockDim.x) {
        u16 expected = 0;
        if (byte < (long long)BLOCK_BYTES * n) {
            const int field = byte < QH * blocks ? QL : byte < SCALES * blocks ? QH : byte < D * blocks ? SCALES : D;
            const int shift = field == QL ? 7 : field == QH ? 6 : field == SCALES ? 4 : 1;  // log2 of its bytes a block
            const long long offset = byte - field * blocks;
            const int column = field + (int)(offset & ((1 << shift) - 1));
            expected = Native::load2(row + Native::at(n, (int)(offset >> shift), column, 0));
        }
        if (Dpl::load2(dpl + start + byte) != expected) atomicMin(first, (u64)(start + byte));
    }
}

// first[0] becomes the first index at which two outputs differ, first[1] the first at which `found` still holds what the
// buffer was filled with; both must come in as all ones.
extern "C" __global__ void check(const u32* found, const u32* expected, long long count, u32 filled, u64* first) {
    const long long i = (long long)blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= count) return;
    if (found[i] != expected[i]) atomicMin(first, (u64)i);
    if (found[i] == filled) atomicMin(first + 1, (u64)i);
}

// Read everything and do nothing: the ceiling for any kernel that must read these bytes. A thread takes LOADS 16-byte
// items, all in flight at once, and before the wait of a dependent launch, as row.cu does. `never` is a value that the
// fold cannot be expected to take; it keeps the loads alive. With WORD it also reads one word after the wait and writes
// one for each block: then it depends on the kernel before as any decode must.
template <int LOADS, bool WORD>
__device__ __forceinline__ void read(const u8* bytes, u32* out, long long count, u32 never) {
    let_next_start();
    const long long first = (long long)blockIdx.x * blockDim.x * LOADS + threadIdx.x;
    uint4 loaded[LOADS];
#pragma unroll
    for (int i = 0; i < LOADS; ++i) {
        const long long item = first + i * blockDim.x;
        loaded[i] = make_uint4(0, 0, 0, 0);
        if (item < count) loaded[i] = early16<true>(bytes + 16 * item);
    }
    wait_for_previous();
    u32 fold = WORD ? late16((const u8*)out).x : 0;
#pragma unroll
    for (int i = 0; i < LOADS; ++i) fold ^= loaded[i].x ^ loaded[i].y ^ loaded[i].z ^ loaded[i].w;
    if (fold == never) out[0] = fold;
    if (WORD && threadIdx.x == 0) out[4 + blockIdx.x] = fold;
}

#define READ(name, loads, word)                                                                                  \
    extern "C" __global__ void name##loads(const u8* bytes, u32* out, long long count, u32 never) {              \
        read<loads, word>(bytes, out, count, never);                                                             \
    }

READ(read, 2, false)
READ(read, 4, false)
READ(read, 8, false)
READ(waiting, 2, true)
READ(waiting, 4, true)
READ(waiting, 8, true)
