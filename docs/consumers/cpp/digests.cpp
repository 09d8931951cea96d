// Checks dpl sidecars, data included, and prints what an independent program must print too.
//
//     g++ -std=c++17 -O2 -Wall -Wextra -Werror digests.cpp -o digests && ./digests MODEL.dpl ...
//
// For every tensor: the SHA-256 of its bytes, that of its bytes brought back to the GGUF's order, type, rows, row stride, and
// the name as a JSON string. The second digest stands nowhere in the file: compare it with that of the GGUF's own bytes.
// Exits with 3 if a file is refused or damaged; the reason goes to stderr.
#include <algorithm>
#include <cstdio>

#include "dpl.hpp"

using u64 = unsigned long long;

// C16, and the counts of C17, for one row.
static void check_row(const dpl::Tensor& tensor, u64 r, u64& bad, u64& zero) {
    for (std::size_t k = 0; k < tensor.layout.planes.size(); ++k) {
        const dpl::Plane& plane = tensor.layout.planes[k];
        const dpl::u8 *begin = tensor.plane(r, k), *end = begin + plane.bytes * tensor.n;
        const dpl::u8* next = tensor.row(r) + tensor.layout.start(k + 1, tensor.n);
        dpl::require(std::all_of(end, next, [](dpl::u8 b) { return b == 0; }), "C16: padding is not zero");
        if (plane.name == "e") bad += u64(std::count(begin, end, 255));
        if (plane.name != "d" && plane.name != "dm") continue;
        for (const dpl::u8* half = begin; half + 1 < end; half += 2) {
            const int magnitude = (half[1] << 8 | half[0]) & 0x7fff;
            bad += magnitude >= 0x7c00, zero += magnitude == 0;
        }
    }
}

// C15 to C17
static void check_data(const dpl::Tensor& tensor) {
    const dpl::u64 row_bytes = tensor.n * tensor.layout.block_bytes, rows = tensor.n ? tensor.rows : 0;
    std::vector<dpl::u8> native(rows * row_bytes);
    u64 bad = 0, zero = 0;
    for (dpl::u64 r = 0; r < rows; ++r) {
        check_row(tensor, r, bad, zero);
        tensor.native_row(r, native.data() + r * row_bytes);
    }
    const std::string own = dpl::sha256(tensor.data, rows * tensor.row_stride);
    const std::string back = dpl::sha256(native.data(), native.size());
    dpl::require(own == tensor.sha256, "C15: the bytes are not those of the manifest");
    dpl::require(!dpl::known_type(tensor.layout.type) || (bad == tensor.nonfinite_scales && zero == tensor.zero_scales),
                 "C17: counts of scales");
    std::printf("%s %s %llu %llu %llu %s\n", own.c_str(), back.c_str(), u64(tensor.layout.type), u64(tensor.rows),
                u64(tensor.row_stride), tensor.literal.c_str());
}

int main(int count, char** paths) {
    int code = 0;
    for (int i = 1; i < count; ++i) try {
            const dpl::Sidecar sidecar(paths[i]);
            for (const dpl::Tensor& tensor : sidecar.tensors) check_data(tensor);
            std::printf("%s: ok, %zu tensors\n", paths[i], sidecar.tensors.size());
        } catch (const dpl::Refused& error) {
            std::printf("%s: refused\n", paths[i]);
            std::fprintf(stderr, "%s: %s\n", paths[i], error.what());
            code = 3;
        }
    return code;
}
