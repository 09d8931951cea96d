// A reader of dpl sidecars: C++17 and POSIX, nothing else but the three headers beside it. Written from docs/format.md, whose
// numbers (R1, C1, ...) it names. `dpl::Sidecar file("model.dpl")` maps the file, makes the checks C1 to C14 and hands out pointers;
// it throws dpl::Refused if the file is not sound. Nothing is copied: keep the Sidecar while its pointers are in use.
#pragma once

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <functional>
#include <set>
#include <stdexcept>
#include <string>
#include <string_view>
#include <vector>

#include "dpl_json.hpp"
#include "dpl_layout.hpp"
#include "dpl_sha256.hpp"

namespace dpl {

constexpr u64 MAX_HEADER = 1 << 25;

struct Shard {  // R16
    std::string name;
    u64 size = 0;
    std::string header_sha256;
};

struct Tensor {  // R15
    std::string name, literal;  // the name, and as the JSON string that stands in the file
    Layout layout;
    std::vector<u64> ne;  // row length first
    u64 n = 0, rows = 1, row_stride = 0, nbytes = 0, shard = 0, offset = 0;
    bool counted = false;  // whether the two counts are there
    u64 nonfinite_scales = 0, zero_scales = 0;
    std::string sha256;
    const u8* data = nullptr;  // rows * row_stride bytes, on a 16-byte boundary

    // Row r, counted over all outer dimensions; std::out_of_range if there is none.
    const u8* row(u64 r) const {
        if (r >= rows) throw std::out_of_range("no such row");
        return data + r * row_stride;
    }
    // Plane k of row r, layout.planes[k].bytes * n bytes; or the plane of that name.
    const u8* plane(u64 r, std::size_t k) const {
        if (k >= layout.planes.size()) throw std::out_of_range("no such plane");
        return row(r) + layout.start(k, n);
    }
    const u8* plane(u64 r, std::string_view plane_name) const { return plane(r, layout.index(plane_name)); }
    // Row r as it stands in the GGUF: layout.block_bytes * n bytes.
    void native_row(u64 r, u8* out) const {
        for (std::size_t k = 0; k < layout.planes.size(); ++k) {
            const auto& [plane_name, bytes, at] = layout.planes[k];
            const u8* from = plane(r, k);
            for (u64 i = 0; i < n; ++i) std::memcpy(out + layout.block_bytes * i + at, from + bytes * i, bytes);
        }
    }
};

class Sidecar {
public:
    explicit Sidecar(const std::string& path) {
        const int fd = ::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);
        struct stat status {};
        const bool regular = fd >= 0 && !::fstat(fd, &status) && S_ISREG(status.st_mode);
        size = regular ? u64(status.st_size) : 0;
        void* address = size >= 9 ? ::mmap(nullptr, size, PROT_READ, MAP_PRIVATE, fd, 0) : MAP_FAILED;
        if (fd >= 0) ::close(fd);
        require(address != MAP_FAILED, regular ? "C1: too short, or not to be mapped" : "not a file that can be read");
        base = static_cast<const u8*>(address);
        try {
            check();
        } catch (...) {
            ::munmap(address, size);
            throw;
        }
    }
    ~Sidecar() { ::munmap(const_cast<u8*>(base), size); }
    Sidecar(const Sidecar&) = delete;
    Sidecar& operator=(const Sidecar&) = delete;

    const Tensor* find(std::string_view name) const {
        for (const Tensor& tensor : tensors)
            if (tensor.name == name) return &tensor;
        return nullptr;
    }

    std::string manifest;
    std::vector<Layout> layouts;
    std::vector<Shard> shards;
    std::vector<Tensor> tensors;

private:
    void check() {
        u64 length = 0;
        for (int i = 0; i < 8; ++i) length |= u64(base[i]) << 8 * i;
        require(length && length <= MAX_HEADER && length <= size - 8, "C1: the header's length");
        Json header(std::string_view(reinterpret_cast<const char*>(base) + 8, length));
        require(header.take("{\"__metadata__\":{\"dpl\":"), "C3: the header's beginning");
        manifest = header.string();
        read_manifest();
        require((8 + length) % 4096 == 0, "C2: where the data begins");
        u64 begin = 0, left = size - 8 - length;
        header.expect("}");
        for (Tensor& tensor : tensors) {
            const u64 bytes = tensor.rows * tensor.row_stride;
            require(bytes <= left, "C14: the file is cut short");
            std::string shape = tensor.ne.size() == 1 ? "1," : "";
            for (std::size_t k = tensor.ne.size(); --k;) shape += std::to_string(tensor.ne[k]) + ",";
            require(header.take("," + tensor.literal + ":{\"dtype\":\"U8\",\"shape\":[" + shape +
                                std::to_string(tensor.row_stride) + "],\"data_offsets\":[" + std::to_string(begin) + "," +
                                std::to_string(begin + bytes) + "]}"),
                    "C13: the header does not follow from the manifest");
            tensor.data = base + 8 + length + begin;
            begin += bytes, left -= bytes;
        }
        require(header.take("}"), "C13: the header does not end with the last tensor");
        while (header.take(" ")) {}
        require(header.at == length, "C13: the header is not padded with spaces");
        require(left == 0, "C14: the file goes on after the last tensor");
    }

    void read_manifest() {
        Json json(manifest);
        std::set<std::string> left_out;
        std::vector<u64> asked;
        bool patterns = false;
        const auto text = [&] { json.string(); };
        const auto number = [&] { json.integer(); };
        const auto pattern = [&] { json.string(), patterns = true; };
        json.object({
            {"format", [&] { read_format(json); }},
            {"generator", [&] { json.object({{"name", text}, {"version", text}}); }},
            {"layouts", [&] {
                 json.array([&] {
                     layouts.push_back(read_layout(json));
                     const std::size_t last = layouts.size() - 1;
                     require(!last || layouts[last - 1].type < layouts[last].type, "C7: the order of the layouts");
                 });
             }},
            {"manifest_sha256", [&] { check_digest(json); }},
            {"selection", [&] {
                 json.object({{"exclude", [&] { json.array(pattern); }},
                              {"include", [&] { json.array(pattern); }},
                              {"left_out", [&] { json.array([&] { left_out.insert(json.string()); }); }},
                              {"types", [&] { json.array([&] { asked.push_back(json.integer()); }); }}});
             }},
            {"skipped", [&] {
                 const auto bytes = [&] { json.take("null") ? 0 : json.integer(); };
                 json.array([&] { json.object({{"name", text}, {"nbytes", bytes}, {"tensors", number}, {"type", number}}); });
             }},
            {"source", [&] {
                 json.object({{"general", [&] { json.object({}, text); }}, {"shards", [&] { json.array([&] { read_shard(json); }); }}});
             }},
            {"tensors", [&] { json.array([&] { read_tensor(json); }); }},
        });
        require(json.at == manifest.size(), "C4: something follows the manifest");
        require(!tensors.empty(), "C8: no tensor");
        std::set<std::string> seen{"__metadata__"};
        std::set<u64> used;
        for (const Tensor& tensor : tensors) {
            require(seen.insert(tensor.name).second, "C12: a name stands twice");
            require(!left_out.count(tensor.name), "C12: a tensor is listed and left out");
            used.insert(tensor.layout.type);
        }
        require(used.size() == layouts.size(), "C7: a layout that no tensor uses");
        require(std::adjacent_find(asked.begin(), asked.end(), std::greater_equal<>()) == asked.end() &&
                    std::includes(asked.begin(), asked.end(), used.begin(), used.end()),
                "C12: the types that were asked for");
        require(left_out.empty() || patterns, "C12: tensors are left out without a pattern");
    }

    static void read_format(Json& json) {
        json.object({{"major", [&] {
                          const u64 major = json.integer();
                          if (major == 2) return;
                          const char* advice = major < 2 ? ", convert again" : ", a newer version";
                          throw Refused("C5: format " + std::to_string(major) + advice);
                      }},
                     {"minor", [&] { json.integer(); }},
                     {"name", [&] { require(json.string() == "dpl", "C5: not dpl"); }}});
    }

    void check_digest(Json& json) const {  // R12
        std::string rest = manifest.substr(0, json.at - std::strlen("\"manifest_sha256\":"));
        const std::string digest = hex(json);
        rest += manifest.substr(std::min<u64>(json.at + 1, manifest.size()));
        require(digest == sha256(reinterpret_cast<const u8*>(rest.data()), rest.size()), "C6: the manifest's digest");
    }

    static std::string hex(Json& json) {
        std::string text = json.string();
        require(text.size() == 64 && text.find_first_not_of("0123456789abcdef") == std::string::npos, "C8: not a SHA-256");
        return text;
    }

    void read_shard(Json& json) {
        Shard& shard = shards.emplace_back();
        json.object({{"header_sha256", [&] { shard.header_sha256 = hex(json); }},
                     {"name", [&] { shard.name = json.string(); }},
                     {"size", [&] { shard.size = json.integer(); }}});
        const bool plain = shard.name.find_first_of(std::string_view("/\\\0", 3)) == std::string::npos;
        require(plain && !shard.name.empty() && shard.name != "." && shard.name != "..", "C11: no base name");
    }

    void read_tensor(Json& json) {
        Tensor& t = tensors.emplace_back();
        u64 n = 0, rows = 0, row_stride = 0, type = 0, counts = 0;
        const auto name = [&] {
            const u64 begin = json.at;
            t.name = json.string();
            t.literal = json.text.substr(begin, json.at - begin);
        };
        json.object({{"n", [&] { n = json.integer(); }},
                     {"name", name},
                     {"nbytes", [&] { t.nbytes = json.integer(); }},
                     {"ne", [&] { json.array([&] { t.ne.push_back(json.integer()); }); }},
                     {"nonfinite_scales", [&] { t.nonfinite_scales = json.integer(), ++counts; }, true},
                     {"offset", [&] { t.offset = json.integer(); }},
                     {"row_stride", [&] { row_stride = json.integer(); }},
                     {"rows", [&] { rows = json.integer(); }},
                     {"sha256", [&] { t.sha256 = hex(json); }},
                     {"shard", [&] { t.shard = json.integer(); }},
                     {"type", [&] { type = json.integer(); }},
                     {"zero_scales", [&] { t.zero_scales = json.integer(), ++counts; }, true}});
        const auto layout = std::find_if(layouts.begin(), layouts.end(), [&](const Layout& l) { return l.type == type; });
        require(layout != layouts.end(), "C10: a type that is not in `layouts`");
        t.layout = *layout;
        t.counted = counts == 2;
        require(t.counted || (!counts && !known_type(type)), "C8: a count is missing");
        u64 product = 1;
        for (u64 length : t.ne) {
            require(!length || length <= (LIMIT - 1) / product, "C9: larger than any file");
            product *= length ? length : 1;
        }
        require(t.ne.size() >= 1 && t.ne.size() <= 4 && t.ne[0] % t.layout.weights == 0, "C9: `ne`");
        t.n = t.ne[0] / t.layout.weights;
        for (std::size_t k = 1; k < t.ne.size(); ++k) t.rows *= t.ne[k];
        t.row_stride = t.layout.row_stride(t.n);
        require(!t.rows || t.row_stride <= (LIMIT - 1) / t.rows, "C9: more bytes than a file can have");
        require(n == t.n && rows == t.rows && row_stride == t.row_stride && t.nbytes == rows * n * t.layout.block_bytes,
                "C10: a value that does not follow from `ne`");
        require(t.shard < shards.size(), "C11: no such shard");
        require(!t.nbytes || t.offset + t.nbytes <= shards[t.shard].size, "C11: outside its shard");
    }

    const u8* base = nullptr;
    u64 size = 0;
};

}  // namespace dpl
