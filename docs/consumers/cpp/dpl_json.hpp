// Canonical JSON (docs/format.md, R11), read from left to right and where it stands, for dpl.hpp.
#pragma once

#include <cstdint>
#include <cstring>
#include <functional>
#include <initializer_list>
#include <stdexcept>
#include <string>
#include <string_view>
#include <utility>

namespace dpl {

using u8 = std::uint8_t;
using u32 = std::uint32_t;
using u64 = std::uint64_t;

constexpr u64 LIMIT = u64(1) << 63;

struct Refused : std::runtime_error {
    using std::runtime_error::runtime_error;
};

inline void require(bool condition, const char* check) {
    if (!condition) throw Refused(check);
}

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

    u64 integer() {
        const u64 value = digits();
        require(value < LIMIT, "C8: an integer below 2^63 was expected");
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

    // Calls read[key] on the value of each key that it names, and skips the others or hands
    // them to `other`. Both go in ascending order.
    using Members = std::initializer_list<std::pair<std::string_view, std::function<void()>>>;
    void object(Members read) {
        object(read, [&] { skip(1); });
    }
    void object(Members read, const std::function<void()>& other) {
        auto known = read.begin();
        std::string before, key;
        require(take("{"), "C8: an object was expected");
        for (bool first = true; !take("}"); first = false) {
            if (!first) expect(",");
            key = string();
            require(first || before < key, "C4: keys not in ascending order");
            expect(":");
            const bool named = known != read.end() && known->first == key;
            require(known == read.end() || key <= known->first, "C8: a member is missing");
            named ? (known++)->second() : other();
            before = key;
        }
        require(known == read.end(), "C8: a member is missing");
    }

    void array(const std::function<void()>& read) {
        require(take("["), "C8: an array was expected");
        for (bool first = true; !take("]"); first = false) {
            if (!first) expect(",");
            read();
        }
    }

    std::string_view skip(int depth = 0) {  // any value; its text
        const u64 begin = at;
        require(depth < 32, "C4: nested too deeply");
        if (peek() == '"') string();
        else if (peek() == '{') object({}, [&] { skip(depth + 1); });
        else if (peek() == '[') array([&] { skip(depth + 1); });
        else if (!take("null") && !take("true") && !take("false")) {
            const bool negative = take("-");
            require(digits() || !negative, "C4: -0");
        }
        return text.substr(begin, at - begin);
    }

    std::string_view text;
    u64 at = 0;

private:
    u64 digits() {
        u64 value = 0, begin = at;
        for (; peek() >= '0' && peek() <= '9'; ++at) {
            require(at - begin < 19, "C4: a number is too long");
            value = 10 * value + u64(peek() - '0');
        }
        require(at > begin && (text[begin] != '0' || at == begin + 1), "C4: not an integer in canonical form");
        return value;
    }

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
