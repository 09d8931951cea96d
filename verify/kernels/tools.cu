// What verification needs besides decoding. One block a row where rows are involved: no 64-bit divisions by the row.

#include DPL_QUANT
#include "ptx.cuh"

// Padded rows from native ones: a thread writes 16 bytes, of which the last of a block may hold less than 16 of content.
extern "C" __global__ void pad(const u8* native, u8* padded, int n) {
    enum { ITEMS = PADDED_BYTES / 16 };
    const u8* source = native + (long long)blockIdx.x * Native::stride(n);
    uint4* target = (uint4*)(padded + (long long)blockIdx.x * Padded<>::stride(n));
    for (int item = threadIdx.x; item < ITEMS * n; item += blockDim.x) {
        const int block = item / ITEMS, column = item % ITEMS * 16;
        const u8* bytes = source + Native::at(block, 0) + column;
        u32 words[4] = {};
        for (int i = 0; i < 16; i += ALIGN)
            if (column + i < BLOCK_BYTES)
                for (int byte = i; byte < i + ALIGN; ++byte) words[byte / 4] |= (u32)bytes[byte] << byte % 4 * 8;
        target[item] = make_uint4(words[0], words[1], words[2], words[3]);
    }
}

// One plane of a dpl row, its padding included: the first byte that is not what the native row says.
template <int FIELD>
__device__ __forceinline__ void compare_plane(const u8* native, const u8* dpl, u64 begin, u64* first, int n) {
    const u32 size = field_bytes(FIELD), content = size * n;
    const u8* plane = dpl + begin + plane_start(FIELD, n);
    for (u32 byte = threadIdx.x; byte < (content + 15) / 16 * 16; byte += blockDim.x) {
        const u8 expected = byte < content ? native[Native::at(byte / size, FIELD) + field_offset(FIELD) + byte % size] : 0;
        if (plane[byte] != expected) atomicMin(first, begin + plane_start(FIELD, n) + byte);
    }
}

// Compare dpl rows with native ones, byte for byte, and the padding with zero. *first becomes the offset of the first byte that
// differs, counted over all dpl rows; it must come in as all ones.
extern "C" __global__ void compare(const u8* native, const u8* dpl, u64* first, int n) {
    const u64 begin = (u64)blockIdx.x * Dpl<>::stride(n);
    const u8* row = native + (long long)blockIdx.x * Native::stride(n);
#define DPL_COMPARE(name, number, bytes, offset) compare_plane<number>(row, dpl, begin, first, n);
    DPL_FIELDS(DPL_COMPARE)
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
