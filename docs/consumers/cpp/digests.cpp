// Checks dpl sidecars, data included, and prints what an independent program must print too.
//
//     g++ -std=c++17 -O2 -Wall -Wextra -Werror digests.cpp -o digests && ./digests MODEL.dpl ...
//
// For every tensor: the SHA-256 of its bytes, that of its bytes brought back to the GGUF's order, rows, row stride, name.
// The second digest stands nowhere in the file: compare it with that of the GGUF's own bytes.
// Exits with 3 if a file is refused or damaged.
#include <algorithm>
#include <cstdio>

#include "dpl.hpp"

// C15 to C17
static void check_data(const dpl::Tensor& tensor) {
    const dpl::u64 n = tensor.n, rows = n ? tensor.rows : 0;
    std::vector<dpl::u8> native(rows * n * dpl::BLOCK_BYTES);
    dpl::u64 bad = 0, zero = 0;
    for (dpl::u64 r = 0; r < rows; ++r) {
        const dpl::u8* row = tensor.row(r);
        dpl::require(std::all_of(row + dpl::BLOCK_BYTES * n, row + tensor.row_stride, [](dpl::u8 b) { return b == 0; }),
                     "C16: padding is not zero");
        tensor.native_row(r, native.data() + r * n * dpl::BLOCK_BYTES);
        for (dpl::u64 i = 0; i < n; ++i) {
            const dpl::u8* d = tensor.plane(r, dpl::D) + 2 * i;
            const int magnitude = (d[1] << 8 | d[0]) & 0x7fff;
            bad += magnitude >= 0x7c00, zero += magnitude == 0;
        }
    }
    const std::string own = dpl::sha256(tensor.data, rows * tensor.row_stride);
    const std::string back = dpl::sha256(native.data(), native.size());
    dpl::require(own == tensor.sha256, "C15: the bytes are not those of the manifest");
    dpl::require(bad == tensor.nonfinite_d && zero == tensor.zero_d, "C17: counts of d");
    std::string name = tensor.name;
    std::replace_if(name.begin(), name.end(), [](char c) { return c < ' ' || c > '~'; }, '?');
    std::printf("%s %s %llu %llu %s\n", own.c_str(), back.c_str(), static_cast<unsigned long long>(tensor.rows),
                static_cast<unsigned long long>(tensor.row_stride), name.c_str());
}

int main(int count, char** paths) {
    int code = 0;
    for (int i = 1; i < count; ++i) try {
            const dpl::Sidecar sidecar(paths[i]);
            for (const dpl::Tensor& tensor : sidecar.tensors) check_data(tensor);
            std::printf("%s: ok, %zu tensors\n", paths[i], sidecar.tensors.size());
        } catch (const dpl::Refused& error) {
            std::printf("%s: refused, %s\n", paths[i], error.what());
            code = 3;
        }
    return code;
}
