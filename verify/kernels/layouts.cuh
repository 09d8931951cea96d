// Rows in device memory: the four places they may lie in, and the loads that each place allows.
//
// A type names its fields by DPL_FIELDS(F): F(name, number, bytes in a block, offset in the block), numbered in the order of
// their planes, and says at which multiples its blocks' fields stand (ALIGN, bytes: the largest that holds for all of them).
//
// A layout says where in its row a field of a block stands, in two parts: `at` (bytes, varies with the block) and `start` (the
// same for all blocks: where n is known it is part of the load instruction). And it says how 16, 8, 4, 2 and 1 bytes are read
// there. Rows are found with 64-bit arithmetic; within a row (less than 2^31 bytes) 32 bits do, and cost half the instructions.
// The decode bodies know nothing else about it, so all layouts of a form run the same arithmetic.
#pragma once

#include "ptx.cuh"

#define DPL_NAME(name, number, bytes, offset) name = number,
#define DPL_COUNT(name, number, bytes, offset) +1
#define DPL_SUM(name, number, bytes, offset) +bytes
#define DPL_BYTES(name, number, bytes, offset) field == number ? bytes:
#define DPL_OFFSET(name, number, bytes, offset) field == number ? offset:
#define DPL_BEFORE(name, number, bytes, offset) +(number < field ? (bytes * n + 15) / 16 * 16 : 0)

enum { DPL_FIELDS(DPL_NAME) FIELDS };
enum { BLOCK_BYTES = 0 DPL_FIELDS(DPL_SUM), PADDED_BYTES = (BLOCK_BYTES + 15) / 16 * 16 };

__device__ constexpr u32 field_bytes(int field) { return DPL_FIELDS(DPL_BYTES) 0; }
__device__ constexpr u32 field_offset(int field) { return DPL_FIELDS(DPL_OFFSET) 0; }
// Where plane `field` of a row of n blocks begins; with `field` = FIELDS, the row's length.
__device__ constexpr u32 plane_start(int field, u32 n) { return 0 DPL_FIELDS(DPL_BEFORE); }

// How bytes are fetched: here through the read-only path; row.cu has another way. The place is a multiple of the size.
struct Cached {
    static __device__ __forceinline__ uint4 get16(const u8* p) { return __ldg((const uint4*)p); }
    static __device__ __forceinline__ uint2 get8(const u8* p) { return __ldg((const uint2*)p); }
    static __device__ __forceinline__ u32 get4(const u8* p) { return __ldg((const u32*)p); }
    static __device__ __forceinline__ u16 get2(const u8* p) { return __ldg((const u16*)p); }
    static __device__ __forceinline__ u8 get1(const u8* p) { return __ldg(p); }
};

// Dense split planes, each followed by zeros up to the next multiple of 16 bytes: any load at its natural place.
template <class Fetch = Cached>
struct Dpl {
    static const bool PLANES = true;
    static __device__ __forceinline__ long long stride(int n) {
        long long bytes = 0;
        for (int field = 0; field < FIELDS; ++field) bytes += ((long long)field_bytes(field) * n + 15) / 16 * 16;
        return bytes;
    }
    static __device__ __forceinline__ u32 at(u32 block, int field) { return field_bytes(field) * block; }
    static __device__ __forceinline__ u32 start(int n, int field) { return plane_start(field, n); }
    template <int> static __device__ __forceinline__ uint4 load16(const u8* p) { return Fetch::get16(p); }
    template <int> static __device__ __forceinline__ uint2 load8(const u8* p) { return Fetch::get8(p); }
    template <int> static __device__ __forceinline__ u32 load4(const u8* p) { return Fetch::get4(p); }
    template <int> static __device__ __forceinline__ u16 load2(const u8* p) { return Fetch::get2(p); }
    template <int> static __device__ __forceinline__ u8 load1(const u8* p) { return Fetch::get1(p); }
};

// The words of two vectors, `shift` bytes in.
__device__ __forceinline__ uint4 shifted(uint4 a, uint4 b, int shift) {
    const u32 words[8] = {a.x, a.y, a.z, a.w, b.x, b.y, b.z, b.w};
    const int first = shift / 4, bits = shift % 4 * 8;
    if (bits == 0) return make_uint4(words[first], words[first + 1], words[first + 2], words[first + 3]);
    return make_uint4(__funnelshift_r(words[first], words[first + 1], bits), __funnelshift_r(words[first + 1], words[first + 2], bits),
                      __funnelshift_r(words[first + 2], words[first + 3], bits), __funnelshift_r(words[first + 3], words[first + 4], bits));
}

// Blocks padded to a multiple of 16 bytes. A field may stand off its alignment in there: then the two vectors that hold it are
// fetched and shifted into place, by a number that the compiler knows.
template <class Fetch = Cached>
struct Padded {
    static const bool PLANES = false;
    static __device__ __forceinline__ long long stride(int n) { return PADDED_BYTES * (long long)n; }
    static __device__ __forceinline__ u32 at(u32 block, int) { return PADDED_BYTES * block; }
    static __device__ __forceinline__ u32 start(int, int field) { return field_offset(field); }
    template <int FIELD> static __device__ __forceinline__ uint4 load16(const u8* p) {
        const int shift = field_offset(FIELD) % 16;
        if (shift == 0) return Fetch::get16(p);
        return shifted(Fetch::get16(p - shift), Fetch::get16(p - shift + 16), shift);
    }
    template <int FIELD> static __device__ __forceinline__ uint2 load8(const u8* p) {
        static_assert(field_offset(FIELD) % 8 == 0, "no such field is read so");
        return Fetch::get8(p);
    }
    template <int FIELD> static __device__ __forceinline__ u32 load4(const u8* p) {
        return field_offset(FIELD) % 4 == 0 ? Fetch::get4(p) : Fetch::get2(p) | (u32)Fetch::get2(p + 2) << 16;
    }
    template <int> static __device__ __forceinline__ u16 load2(const u8* p) { return Fetch::get2(p); }
    template <int> static __device__ __forceinline__ u8 load1(const u8* p) { return Fetch::get1(p); }
};

// Blocks as in the GGUF: nothing wider than ALIGN bytes may be read.
struct Native {
    static const bool PLANES = false;
    static __device__ __forceinline__ long long stride(int n) { return BLOCK_BYTES * (long long)n; }
    static __device__ __forceinline__ u32 at(u32 block, int) { return BLOCK_BYTES * block; }
    static __device__ __forceinline__ u32 start(int, int field) { return field_offset(field); }
    template <int> static __device__ __forceinline__ u8 load1(const u8* p) { return Cached::get1(p); }
    template <int F> static __device__ __forceinline__ u16 load2(const u8* p) {
        return ALIGN >= 2 ? Cached::get2(p) : (u16)(load1<F>(p) | load1<F>(p + 1) << 8);
    }
    template <int F> static __device__ __forceinline__ u32 load4(const u8* p) {
        return ALIGN >= 4 ? Cached::get4(p) : load2<F>(p) | (u32)load2<F>(p + 2) << 16;
    }
    template <int F> static __device__ __forceinline__ uint2 load8(const u8* p) {
        return ALIGN >= 8 ? Cached::get8(p) : make_uint2(load4<F>(p), load4<F>(p + 4));
    }
    template <int F> static __device__ __forceinline__ uint4 load16(const u8* p) {
        const uint2 low = load8<F>(p), high = load8<F>(p + 8);
        return make_uint4(low.x, low.y, high.x, high.y);
    }
};

// A native row that was copied to shared memory as it is. There the whole words around a place may be read and shifted; the
// word after the last is read too, so the copy must be at least 4 bytes longer.
struct Staged : Native {
    static __device__ __forceinline__ u32 word(const u8* p, int i) {
        const u32* words = (const u32*)(p - ((u64)p & 3));
        return ALIGN >= 4 ? words[i] : __funnelshift_r(words[i], words[i + 1], (u32)((u64)p & 3) * 8);
    }
    template <int> static __device__ __forceinline__ u8 load1(const u8* p) { return *p; }
    template <int> static __device__ __forceinline__ u16 load2(const u8* p) {
        return ALIGN >= 2 ? *(const u16*)p : (u16)(p[0] | p[1] << 8);
    }
    template <int> static __device__ __forceinline__ u32 load4(const u8* p) { return word(p, 0); }
    template <int> static __device__ __forceinline__ uint2 load8(const u8* p) { return make_uint2(word(p, 0), word(p, 1)); }
    template <int> static __device__ __forceinline__ uint4 load16(const u8* p) {
        return make_uint4(word(p, 0), word(p, 1), word(p, 2), word(p, 3));
    }
};
