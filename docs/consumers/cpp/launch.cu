// Multiplies every Q6_K tensor of a sidecar with a vector on the GPU, with the project's kernel as it is, and compares each
// result, bit for bit, with a computation on the CPU that docs/decode.md describes. Exits with 1 if one bit differs.
//
//     nvcc -std=c++17 -O3 --fmad=false -Xcompiler -ffp-contract=off -arch=native -I verify/kernels
//         -DDPL_LANES=32 -DDPL_UNITS=1 -DDPL_THREADS=64 docs/consumers/cpp/launch.cu -o launch && ./launch MODEL.dpl
//
// The three numbers suit rows of 8 blocks and are right for any; `row_form` in verify/contract/forms.py has the best ones for a
// shape. An engine compiles the kernel once for each type and each set of numbers that its model needs.
#include <cuda_runtime.h>

#include <cmath>
#include <cstdio>
#include <cstdlib>

#include "dpl.hpp"

#define DPL_QUANT "quants/q6_k.cuh"  // the type that the kernel is compiled for
#include "row.cu"

static void check(cudaError_t error, const char* what) {
    if (error == cudaSuccess) return;
    std::fprintf(stderr, "error: %s: %s\n", what, cudaGetErrorString(error));
    std::exit(4);
}

// Device memory with its contents. cudaMalloc aligns to 256 bytes, so rows keep their 16-byte alignment.
struct Device {
    Device(const void* host, size_t bytes) {
        check(cudaMalloc(&data, bytes), "allocating");
        check(cudaMemcpy(data, host, bytes, cudaMemcpyHostToDevice), "uploading");
    }
    ~Device() { cudaFree(data); }
    Device(const Device&) = delete;
    void* data = nullptr;
};

// A vector of 256 n activations: int8 quants, and an fp16 scale for every 32 of them.
struct Vector {
    explicit Vector(int n) : quants(256 * n), d8(8 * n) {
        u32 state = 8;
        const auto next = [&state] { return (state = state * 1664525u + 1013904223u) >> 8; };
        for (auto& quant : quants) quant = (signed char)(next() % 255 - 127);
        for (auto& scale : d8) scale = (u16)(0x1400 + next() % 0x1800);  // 2^-10 to 2^-4
    }

    // As the kernel reads it for Q6_K: planes 0 to 3 are the quants of a group, plane 4 scales and sums, one item for each quarter.
    std::vector<u8> packed() const {
        const size_t items = d8.size() / 2;
        std::vector<u8> out(5 * 16 * items);
        for (size_t k = 0; k < items; ++k)
            for (int group = 0; group < 4; ++group) {
                const signed char* from = at((int)k, group);
                short sum = 0;
                for (int i = 0; i < 16; ++i) sum = (short)(sum + from[i]);
                std::memcpy(&out[16 * (group * items + k)], from, 16);
                std::memcpy(&out[16 * (4 * items + k) + 2 * group], &d8[k / 2 * 4 + group], 2);
                std::memcpy(&out[16 * (4 * items + k) + 8 + 2 * group], &sum, 2);
            }
        return out;
    }
    const signed char* at(int k, int group) const { return &quants[128 * (k / 2) + 32 * group + 16 * (k % 2)]; }

    std::vector<signed char> quants;
    std::vector<u16> d8;
};

static float half(const u8* bytes) {
    const int bits = bytes[0] | bytes[1] << 8, exponent = bits >> 10 & 31, fraction = bits & 1023;
    const float size = exponent == 31 ? (fraction ? NAN : INFINITY)
                       : exponent     ? std::ldexp(1024.0f + (float)fraction, exponent - 25)
                                      : std::ldexp((float)fraction, -24);
    return bits & 0x8000 ? -size : size;
}

// Quarter k of a row times its activations, in the order of unit_value in quants/q6_k.cuh.
static float quarter_on_cpu(const dpl::Tensor& tensor, dpl::u64 r, const Vector& x, int k) {
    const int block = k / 4, h = k / 2 % 2, column = 16 * (k % 2);
    const u8* ql = tensor.plane(r, "ql") + 128 * block + 64 * h + column;
    const u8* qh = tensor.plane(r, "qh") + 64 * block + 32 * h + column;
    const u8* scales = tensor.plane(r, "scales") + 16 * block + 8 * h + k % 2;
    float sum = 0;
    for (int group = 0; group < 4; ++group) {
        int dot = 0;
        for (int i = 0; i < 16; ++i) {
            const int low = ql[32 * (group % 2) + i] >> 4 * (group / 2) & 15, high = qh[i] >> 2 * group & 3;
            dot += ((low | high << 4) - 32) * x.at(k, group)[i];
        }
        const float product = half((const u8*)&x.d8[k / 2 * 4 + group]) * (float)((signed char)scales[2 * group] * dot);
        sum = group ? sum + product : product;
    }
    return half(tensor.plane(r, "d") + 2 * block) * sum;
}

// A row's sum: each lane its own quarters, then the lanes as sum.cuh adds them.
static float row_on_cpu(const dpl::Tensor& tensor, dpl::u64 r, const Vector& x) {
    float lanes[LANES] = {};
    for (int k = 0; k < 4 * (int)tensor.n; ++k) lanes[k % LANES] += quarter_on_cpu(tensor, r, x, k);
    const int warp = LANES < 32 ? LANES : 32;
    float total = 0;
    for (int first = 0; first < LANES; first += warp) {
        for (int width = warp / 2; width; width /= 2)
            for (int lane = 0; lane < width; ++lane) lanes[first + lane] += lanes[first + lane + width];
        total = first ? total + lanes[first] : lanes[first];
    }
    return total;
}

// The number of rows whose bits differ; any NaN is as good as another, but not the one that nothing was written over.
static long long differing(const dpl::Tensor& tensor) {
    const int n = (int)tensor.n;
    const long long rows = (long long)tensor.rows;
    const Vector x(n);
    const std::vector<u8> packed = x.packed();
    std::vector<u32> found(rows, 0xffffffff);
    const Device weights(tensor.data, tensor.rows * tensor.row_stride), activations(packed.data(), packed.size());
    const Device out(found.data(), 4 * found.size());
    const int grid = (int)((rows * LANES + THREADS - 1) / THREADS);
    row_dpl<<<grid, THREADS>>>((const u8*)weights.data, (const u8*)activations.data, (float*)out.data, rows, n);
    check(cudaGetLastError(), "launching");
    check(cudaMemcpy(found.data(), out.data, 4 * found.size(), cudaMemcpyDeviceToHost), "running");
    long long count = 0;
    for (long long r = 0; r < rows; ++r) {
        const float expected = row_on_cpu(tensor, (dpl::u64)r, x);
        u32 bits;
        std::memcpy(&bits, &expected, 4);
        const bool both_nan = std::isnan(expected) && (found[r] & 0x7fffffff) > 0x7f800000 && found[r] != 0xffffffff;
        count += found[r] != bits && !both_nan;
    }
    std::printf("%s: %lld rows, %lld differ from the CPU\n", tensor.name.c_str(), rows, count);
    return count;
}

int main(int count, char** paths) try {
    long long different = 0, compared = 0;
    for (int i = 1; i < count; ++i) {
        const dpl::Sidecar sidecar(paths[i]);
        for (const dpl::Tensor& tensor : sidecar.tensors)
            if (tensor.layout.name == "Q6_K" && tensor.n && tensor.rows)
                different += differing(tensor), compared += (long long)tensor.rows;
    }
    std::printf("%lld rows compared, %lld differ\n", compared, different);
    return different || !compared;
} catch (const dpl::Refused& error) {
    std::fprintf(stderr, "error: %s\n", error.what());
    return 3;
}
