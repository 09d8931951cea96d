// A reader of dpl sidecars: C++17 and POSIX, nothing else but the two headers beside it. Written from docs/format.md, whose
// numbers (R1, C1, ...) it names. `dpl::Sidecar file("model.dpl")` maps the file, makes the checks C1 to C14 and hands out pointers;
// it throws dpl::Refused if the file is not sound. Nothing is copied: keep the Sidecar while its pointers are in use.
#pragma once

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "dpl_json.hpp"
#include "dpl_sha256.hpp"

namespace dpl {

// R1, R3, R4: a field is `bytes` at `offset` of a super-block; its plane is `bytes * n` at `offset * n` of a row.
struct Field {
    u64 offset, bytes;
};
constexpr Field QL{0, 128}, QH{128, 64}, SCALES{192, 16}, D{208, 2};
constexpr u64 BLOCK_BYTES = 210, MAX_HEADER = 1 << 25;
constexpr std::string_view LAYOUT =  // R13
    R"({"block_bytes":210,"block_weights":256,"fields":[{"block_bytes":128,"name":"ql","plane_offset":0},)"
    R"({"block_bytes":64,"name":"qh","plane_offset":128},{"block_bytes":16,"name":"scales","plane_offset":192},)"
    R"({"block_bytes":2,"name":"d","plane_offset":208}],"row_alignment":16})";
constexpr u64 row_stride(u64 n) { return (BLOCK_BYTES * n + 15) / 16 * 16; }

struct Shard {  // R15
    std::string name;
    u64 size = 0;
    std::string header_sha256;
};

struct Tensor {  // R14
    std::string name;
    std::vector<u64> ne;  // row length first
    u64 n = 0, rows = 1, row_stride = 0, nbytes = 0, shard = 0, offset = 0, nonfinite_d = 0, zero_d = 0;
    std::string sha256;
    const u8* data = nullptr;  // rows * row_stride bytes, on a 16-byte boundary

    const u8* row(u64 r) const { return data + r * row_stride; }
    const u8* plane(u64 r, Field field) const { return row(r) + field.offset * n; }
    void native_row(u64 r, u8* out) const {  // 210 n bytes, as in the GGUF
        for (Field field : {QL, QH, SCALES, D})
            for (u64 i = 0; i < n; ++i)
                std::memcpy(out + BLOCK_BYTES * i + field.offset, plane(r, field) + field.bytes * i, field.bytes);
    }
};

class Sidecar {
public:
    explicit Sidecar(const std::string& path) {
        const int fd = ::open(path.c_str(), O_RDONLY | O_CLOEXEC);
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
    std::vector<Shard> shards;
    std::vector<Tensor> tensors;

private:
    void check() {
        u64 length = 0;
        for (int i = 0; i < 8; ++i) length |= u64(base[i]) << 8 * i;
        require(length && length <= MAX_HEADER && length <= size - 8, "C1: the header's length");
        require((8 + length) % 4096 == 0, "C2: where the data begins");
        Json header(std::string_view(reinterpret_cast<const char*>(base) + 8, length));
        require(header.take("{\"__metadata__\":{\"dpl\":"), "C3: the header's beginning");
        manifest = header.string();
        read_manifest();
        u64 begin = 0, left = size - 8 - length;
        header.expect("}");
        for (u64 i = 0; i < tensors.size(); ++i) {
            Tensor& tensor = tensors[i];
            const u64 bytes = tensor.rows * tensor.row_stride;
            require(bytes <= left, "C14: the file is cut short");
            std::string shape = tensor.ne.size() == 1 ? "1," : "";
            for (u64 k = tensor.ne.size(); --k;) shape += std::to_string(tensor.ne[k]) + ",";
            require(header.take("," + std::string(names[i]) + ":{\"dtype\":\"U8\",\"shape\":[" + shape +
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
        std::string digest, rest;
        std::set<std::string> left_out;
        bool patterns = false;
        const auto text = [&] { json.string(); };
        const auto number = [&] { json.integer(); };
        const auto pattern = [&] { json.string(), patterns = true; };
        json.object({
            {"format", [&] {
                 json.object({{"major", [&] { require(json.integer() == 1, "C5: another format version"); }},
                              {"minor", number},
                              {"name", [&] { require(json.string() == "dpl", "C5: not dpl"); }}});
             }},
            {"generator", [&] { json.object({{"name", text}, {"version", text}}); }},
            {"layout", [&] { require(json.skip() == LAYOUT, "C7: another layout"); }},
            {"manifest_sha256", [&] {
                 rest = manifest.substr(0, json.at - std::strlen("\"manifest_sha256\":"));
                 digest = hex(json);
                 rest += manifest.substr(std::min(json.at + 1, u64(manifest.size())));
                 require(digest == dpl::sha256(reinterpret_cast<const u8*>(rest.data()), rest.size()), "C6: the digest");
             }},
            {"selection", [&] {
                 json.object({{"exclude", [&] { json.array(pattern); }},
                              {"include", [&] { json.array(pattern); }},
                              {"left_out", [&] { json.array([&] { left_out.insert(json.string()); }); }}});
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
        for (const Tensor& tensor : tensors)
            require(seen.insert(tensor.name).second && !left_out.count(tensor.name), "C12: a name stands twice");
        require(left_out.empty() || patterns, "C12: tensors are left out without a pattern");
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
    }

    void read_tensor(Json& json) {
        Tensor& t = tensors.emplace_back();
        u64 n = 0, rows = 0, row_stride = 0, type = 0;
        const auto name = [&] {
            const u64 begin = json.at;
            t.name = json.string();
            names.push_back(std::string_view(manifest).substr(begin, json.at - begin));
        };
        json.object({{"n", [&] { n = json.integer(); }},
                     {"name", name},
                     {"nbytes", [&] { t.nbytes = json.integer(); }},
                     {"ne", [&] { json.array([&] { t.ne.push_back(json.integer()); }); }},
                     {"nonfinite_d", [&] { t.nonfinite_d = json.integer(); }},
                     {"offset", [&] { t.offset = json.integer(); }},
                     {"row_stride", [&] { row_stride = json.integer(); }},
                     {"rows", [&] { rows = json.integer(); }},
                     {"sha256", [&] { t.sha256 = hex(json); }},
                     {"shard", [&] { t.shard = json.integer(); }},
                     {"type", [&] { type = json.integer(); }},
                     {"zero_d", [&] { t.zero_d = json.integer(); }}});
        u64 product = 1;
        for (u64 length : t.ne) {
            require(!length || length <= (LIMIT - 1) / product, "C9: larger than any file");
            product *= length ? length : 1;
        }
        require(t.ne.size() >= 1 && t.ne.size() <= 4 && t.ne[0] % 256 == 0, "C9: `ne`");
        t.n = t.ne[0] / 256;
        for (u64 k = 1; k < t.ne.size(); ++k) t.rows *= t.ne[k];
        t.row_stride = dpl::row_stride(t.n);
        require(type == 14 && n == t.n && rows == t.rows && row_stride == t.row_stride && t.nbytes == rows * n * BLOCK_BYTES,
                "C10: a value that does not follow from `ne`");
        require(t.shard < shards.size(), "C11: no such shard");
        require(!t.nbytes || t.offset + t.nbytes <= shards[t.shard].size, "C11: outside its shard");
    }

    const u8* base = nullptr;
    u64 size = 0;
    std::vector<std::string_view> names;  // as they stand in the manifest, escapes and all
};

}  // namespace dpl
