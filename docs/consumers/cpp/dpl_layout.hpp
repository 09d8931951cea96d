// The layouts of docs/format.md, R1 to R4 and R14: a type's block in the GGUF and its planes in a row, for dpl.hpp.
#pragma once

#include <algorithm>
#include <set>
#include <stdexcept>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "dpl_json.hpp"

namespace dpl {

struct Plane {  // a field: `bytes` of each block, at `offset` of it in the GGUF
    std::string name;
    u64 bytes = 0, offset = 0;
    bool operator==(const Plane& other) const {
        return name == other.name && bytes == other.bytes && offset == other.offset;
    }
};

struct Layout {
    u64 type = 0;  // ggml's number
    std::string name;
    u64 weights = 0, block_bytes = 0;  // of a block
    std::vector<Plane> planes;         // in the order in which they stand in a row

    bool operator==(const Layout& other) const {
        return type == other.type && name == other.name && weights == other.weights &&
               block_bytes == other.block_bytes && planes == other.planes;
    }
    // Bytes from one row of n blocks to the next; refused where that is 2^63 or more.
    u64 row_stride(u64 n) const { return start(planes.size(), n); }
    // Where plane k begins in a row of n blocks.
    u64 start(std::size_t k, u64 n) const {
        u64 begin = 0;
        for (std::size_t j = 0; j < k; ++j) {
            require(!n || planes[j].bytes <= (LIMIT - 1) / n, "C9: more bytes than a file can have");
            begin += (planes[j].bytes * n + 15) / 16 * 16;
            require(begin < LIMIT, "C9: more bytes than a file can have");
        }
        return begin;
    }
    // The number of the plane of that name.
    std::size_t index(std::string_view plane) const {
        for (std::size_t k = 0; k < planes.size(); ++k)
            if (planes[k].name == plane) return k;
        throw std::out_of_range("no such plane");
    }
};

// R1. Planes d and dm hold fp16 scales, e an e8m0.
inline const Layout* known_type(u64 type) {
    static const std::vector<Layout> table{
        {2, "Q4_0", 32, 18, {{"qs", 16, 2}, {"d", 2, 0}}},
        {3, "Q4_1", 32, 20, {{"qs", 16, 4}, {"dm", 4, 0}}},
        {6, "Q5_0", 32, 22, {{"qs", 16, 6}, {"qh", 4, 2}, {"d", 2, 0}}},
        {7, "Q5_1", 32, 24, {{"qs", 16, 8}, {"qh", 4, 4}, {"dm", 4, 0}}},
        {8, "Q8_0", 32, 34, {{"qs", 32, 2}, {"d", 2, 0}}},
        {10, "Q2_K", 256, 84, {{"qs", 64, 16}, {"scales", 16, 0}, {"dm", 4, 80}}},
        {11, "Q3_K", 256, 110, {{"qs", 64, 32}, {"hmask", 32, 0}, {"scales", 12, 96}, {"d", 2, 108}}},
        {14, "Q6_K", 256, 210, {{"ql", 128, 0}, {"qh", 64, 128}, {"scales", 16, 192}, {"d", 2, 208}}},
        {20, "IQ4_NL", 32, 18, {{"qs", 16, 2}, {"d", 2, 0}}},
        {23, "IQ4_XS", 256, 136, {{"qs", 128, 8}, {"scales_l", 4, 4}, {"scales_h", 2, 2}, {"d", 2, 0}}},
        {39, "MXFP4", 32, 17, {{"qs", 16, 1}, {"e", 1, 0}}},
    };
    for (const Layout& layout : table)
        if (layout.type == type) return &layout;
    return nullptr;
}

// R14, C7: a member of `layouts`; there are no other members in it than these.
inline Layout read_layout(Json& json) {
    Layout layout;
    const auto other = [] { throw Refused("C7: a member that is not of a layout"); };
    const auto plane = [&] {
        Plane& one = layout.planes.emplace_back();
        json.object({{"bytes", [&] { one.bytes = json.integer(); }},
                     {"name", [&] { one.name = json.string(); }},
                     {"offset", [&] { one.offset = json.integer(); }}},
                    other);
    };
    json.object({{"block_bytes", [&] { layout.block_bytes = json.integer(); }},
                 {"block_weights", [&] { layout.weights = json.integer(); }},
                 {"name", [&] { layout.name = json.string(); }},
                 {"planes", [&] { json.array(plane); }},
                 {"type", [&] { layout.type = json.integer(); }}},
                other);
    const Layout* known = known_type(layout.type);
    require(!known || *known == layout, "C7: another layout of that type");
    require(layout.weights >= 1 && layout.weights <= 65536 && layout.block_bytes >= 1 && layout.block_bytes <= 65536,
            "C7: the size of a block");
    require(layout.planes.size() <= 16, "C7: too many planes");
    std::set<std::string> names;
    std::vector<std::pair<u64, u64>> pieces;
    for (const Plane& one : layout.planes) pieces.emplace_back(one.offset, one.bytes), names.insert(one.name);
    require(names.size() == layout.planes.size(), "C7: two planes of one name");
    std::sort(pieces.begin(), pieces.end());
    u64 end = 0;
    for (const auto& [offset, bytes] : pieces) {
        require(offset == end && bytes >= 1 && bytes <= layout.block_bytes, "C7: planes that do not make up the block");
        end += bytes;
    }
    require(end == layout.block_bytes, "C7: planes that do not make up the block");
    return layout;
}

}  // namespace dpl
