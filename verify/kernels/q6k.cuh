// Q6_K rows in device memory: the four places they may lie in, and the loads that each place allows.
//
// A layout says where in its row a field of a super-block stands (`at`, bytes) and how 16, 8 and 2 bytes are read there.
// Rows are found with 64-bit arithmetic; within a row (less than 2^31 bytes) 32 bits do, and cost half the instructions.
// The decode bodies know nothing else about it, so all layouts of a form run the same arithmetic.

typedef unsigned char u8;
typedef unsigned short u16;
typedef unsigned int u32;
typedef unsigned long long u64;

enum { BLOCK_BYTES = 210, PADDED_BYTES = 224 };
enum { QL = 0, QH = 128, SCALES = 192, D = 208 };  // offset in the block; times n, the plane in a dpl row

// fp16 bits to float, subnormals included. The instruction itself has no flush to zero for fp16 inputs, whatever
// the compiler was told, and needs no toolkit header.
__device__ __forceinline__ float half_to_float(u16 bits) {
    float value;
    asm("cvt.f32.f16 %0, %1;" : "=f"(value) : "h"(bits));
    return value;
}

// Rows and blocks on 16-byte boundaries: whole vectors, through the read-only path.
struct Aligned {
    static __device__ __forceinline__ uint4 load16(const u8* p) { return __ldg((const uint4*)p); }
    static __device__ __forceinline__ uint2 load8(const u8* p) { return __ldg((const uint2*)p); }
    static __device__ __forceinline__ u16 load2(const u8* p) { return __ldg((const u16*)p); }
};

// Dense split planes: [ql: 128 n][qh: 64 n][scales: 16 n][d: 2 n][pad].
struct Dpl : Aligned {
    static const bool SPARSE = false;
    static __device__ __forceinline__ long long stride(int n) { return (BLOCK_BYTES * (long long)n + 15) & ~15LL; }
    static __device__ __forceinline__ u32 at(int n, int block, int field, int size) {
        return (u32)(field * n + size * block);
    }
};

// Blocks padded to 224 bytes.
struct Padded : Aligned {
    static const bool SPARSE = true;  // bytes between the fields that no load needs
    static __device__ __forceinline__ long long stride(int n) { return PADDED_BYTES * (long long)n; }
    static __device__ __forceinline__ u32 at(int, int block, int field, int) {
        return (u32)(PADDED_BYTES * block + field);
    }
};

// Blocks as in the GGUF. Every second one starts 2 bytes off a word, so nothing wider than 2 bytes may be read.
struct Native {
    static __device__ __forceinline__ long long stride(int n) { return BLOCK_BYTES * (long long)n; }
    static __device__ __forceinline__ u32 at(int, int block, int field, int) {
        return (u32)(BLOCK_BYTES * block + field);
    }
    static __device__ __forceinline__ u16 load2(const u8* p) { return __ldg((const u16*)p); }
    static __device__ __forceinline__ u32 load4(const u8* p) { return load2(p) | (u32)load2(p + 2) << 16; }
    static __device__ __forceinline__ uint2 load8(const u8* p) { return make_uint2(load4(p), load4(p + 4)); }
    static __device__ __forceinline__ uint4 load16(const u8* p) {
        return make_uint4(load4(p), load4(p + 4), load4(p + 8), load4(p + 12));
    }
};

// A native row that was copied to shared memory as it is. There a whole word may be read at the address rounded down
// and shifted into place; the word after the last is read too, so the copy must be at least 4 bytes longer.
struct Staged : Native {
    static __device__ __forceinline__ u32 load4(const u32* words, int i, u32 shift) {
        return __funnelshift_r(words[i], words[i + 1], shift);
    }
    static __device__ __forceinline__ u16 load2(const u8* p) { return *(const u16*)p; }
    static __device__ __forceinline__ uint2 load8(const u8* p) {
        const u32* words = (const u32*)(p - ((u64)p & 2));
        const u32 shift = ((u32)(u64)p & 2) * 8;
        return make_uint2(load4(words, 0, shift), load4(words, 1, shift));
    }
    static __device__ __forceinline__ uint4 load16(const u8* p) {
        const u32* words = (const u32*)(p - ((u64)p & 2));
        const u32 shift = ((u32)(u64)p & 2) * 8;
        return make_uint4(load4(words, 0, shift), load4(words, 1, shift), load4(words, 2, shift), load4(words, 3, shift));
    }
};

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
