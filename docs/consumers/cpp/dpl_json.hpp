// Canonical JSON (docs/format.md, R11), read from left to right and where it stands, for dpl.hpp.
#pragma once

#include <cstdint>
#include <cstring>
#include <functional>
#include <initializer_list>
#include <stdexcept>
#include <string>
#include <string_view>

namespace dpl {

using u8 = std::uint8_t;
using u32 = std::uint32_t;
using u64 = std::uint64_t;

constexpr u64 LIMIT = u64(1) << 63, MAX_MARKS = 1 << 20;
constexpr int MAX_DEPTH = 16;

struct Refused : std::runtime_error {
    using std::runtime_error::runtime_error;
};

inline void require(bool condition, const char* check) {
    if (!condition) throw Refused(check);
}

// A member of an object: its key, what reads its value, and whether it may be absent.
struct Member {
    std::string_view key;
    std::function<void()> read;
    bool optional = false;
};

class Json {
public:
    explicit Json(std::string_view json) : text(json) {}

    char peek() const { return at < text.size() ? text[at] : '\0'; }
    bool take(std::string_view word) {
        const bool there = text.substr(at, word.size()) == word;
        if (there) at += word.size();
        return there;
    }
    void expect(std::string_view word) { require(take(word), "C4: not canonical JSON"); }

    u64 integer() {  // from 0 to 2^63 - 1
        u64 value = 0, begin = at;
        for (; peek() >= '0' && peek() <= '9'; ++at) {
            require(at - begin < 19, "C4: an integer out of range");
            value = 10 * value + u64(peek() - '0');
        }
        require(at > begin && (text[begin] != '0' || at == begin + 1), "C8: an integer was expected");
        require(value < LIMIT, "C4: an integer out of range");
        return value;
    }

    std::string string() {  // as UTF-8
        require(peek() == '"', "C8: a string was expected");
        std::string out;
        for (++at; peek() != '"';) {
            const char c = peek();
            require(c >= ' ' && c <= '~', "C4: a character that must be escaped");
            ++at;
            out += c == '\\' ? escaped() : std::string(1, c);
        }
        ++at;
        return out;
    }

    // Calls `read` of each member that is named, and skips the others or hands them to `other`. Both go in ascending order.
    void object(std::initializer_list<Member> members) {
        object(members, [&] { skip(); });
    }
    void object(std::initializer_list<Member> members, const std::function<void()>& other) {
        auto known = members.begin();
        std::string before, key;
        open("{", "C8: an object was expected");
        for (bool first = true; !take("}"); first = false) {
            if (!first) comma();
            key = string();
            require(first || before < key, "C4: keys not in ascending order");  // as UTF-8, so by code point
            expect(":");
            while (known != members.end() && known->key < key) require((known++)->optional, "C8: a member is missing");
            known != members.end() && known->key == key ? (known++)->read() : other();
            before = key;
        }
        while (known != members.end()) require((known++)->optional, "C8: a member is missing");
        --depth;
    }

    void array(const std::function<void()>& read) {
        open("[", "C8: an array was expected");
        for (bool first = true; !take("]"); first = false) {
            if (!first) comma();
            read();
        }
        --depth;
    }

    void skip() {  // any value
        if (peek() == '"') string();
        else if (peek() == '{') object({});
        else if (peek() == '[') array([&] { skip(); });
        else if (!take("null") && !take("true") && !take("false")) {
            const bool negative = take("-");
            require(integer() || !negative, "C4: -0");
        }
    }

    std::string_view text;
    u64 at = 0;

private:
    void open(std::string_view bracket, const char* check) {
        require(take(bracket), check);
        require(++depth <= MAX_DEPTH, "C4: nested too deeply");
        require(++marks <= MAX_MARKS, "C4: too many values");
    }
    void comma() {
        expect(",");
        require(++marks <= MAX_MARKS, "C4: too many values");
    }

    u64 marks = 0;  // commas and opening brackets so far
    int depth = 0;

    u32 unit() {
        u32 value = 0;
        for (int i = 0; i < 4; ++i, ++at) {
            const auto digit = std::string_view("0123456789abcdef").find(peek());
            require(peek() && digit != std::string_view::npos, "C4: an escape");
            value = value << 4 | u32(digit);
        }
        return value;
    }

    std::string escaped() {
        const auto plain = std::string_view("\"\\nrtbf").find(peek());
        require(peek() != '\0', "C4: an escape");
        ++at;
        if (plain != std::string_view::npos) return std::string(1, "\"\\\n\r\t\b\f"[plain]);
        require(text[at - 1] == 'u', "C4: an escape");
        u32 code = unit();
        require(code < 0x20 ? !std::strchr("\n\r\t\b\f", int(code)) || !code : code > 0x7e, "C4: an escape that is none");
        if (code >= 0xd800 && code < 0xe000) {
            require(code < 0xdc00 && take("\\u"), "C4: an unpaired surrogate");
            const u32 low = unit();
            require(low >= 0xdc00 && low < 0xe000, "C4: an unpaired surrogate");
            code = 0x10000 + ((code - 0xd800) << 10 | (low - 0xdc00));
        }
        if (code < 0x80) return std::string(1, char(code));
        std::string out;
        const int more = code < 0x800 ? 1 : code < 0x10000 ? 2 : 3;
        out += char("\xc0\xe0\xf0"[more - 1] | char(code >> 6 * more));
        for (int i = more - 1; i >= 0; --i) out += char(0x80 | (code >> 6 * i & 0x3f));
        return out;
    }
};

}  // namespace dpl
