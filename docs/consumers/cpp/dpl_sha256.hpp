// SHA-256 (FIPS 180-4), for dpl.hpp. An engine that has one already puts it in place of this file.
#pragma once

#include <array>
#include <cstdint>
#include <cstring>
#include <string>

namespace dpl {

using u8 = std::uint8_t;
using u32 = std::uint32_t;
using u64 = std::uint64_t;

// The digest in lower-case hexadecimal.
inline std::string sha256(const u8* data, u64 size) {
    static constexpr u32 K[64] = {
        0x428a2f98, 0x71374491, 0xb5c0fbcf, 0xe9b5dba5, 0x3956c25b, 0x59f111f1, 0x923f82a4, 0xab1c5ed5,
        0xd807aa98, 0x12835b01, 0x243185be, 0x550c7dc3, 0x72be5d74, 0x80deb1fe, 0x9bdc06a7, 0xc19bf174,
        0xe49b69c1, 0xefbe4786, 0x0fc19dc6, 0x240ca1cc, 0x2de92c6f, 0x4a7484aa, 0x5cb0a9dc, 0x76f988da,
        0x983e5152, 0xa831c66d, 0xb00327c8, 0xbf597fc7, 0xc6e00bf3, 0xd5a79147, 0x06ca6351, 0x14292967,
        0x27b70a85, 0x2e1b2138, 0x4d2c6dfc, 0x53380d13, 0x650a7354, 0x766a0abb, 0x81c2c92e, 0x92722c85,
        0xa2bfe8a1, 0xa81a664b, 0xc24b8b70, 0xc76c51a3, 0xd192e819, 0xd6990624, 0xf40e3585, 0x106aa070,
        0x19a4c116, 0x1e376c08, 0x2748774c, 0x34b0bcb5, 0x391c0cb3, 0x4ed8aa4a, 0x5b9cca4f, 0x682e6ff3,
        0x748f82ee, 0x78a5636f, 0x84c87814, 0x8cc70208, 0x90befffa, 0xa4506ceb, 0xbef9a3f7, 0xc67178f2};
    u32 state[8] = {0x6a09e667, 0xbb67ae85, 0x3c6ef372, 0xa54ff53a, 0x510e527f, 0x9b05688c, 0x1f83d9ab, 0x5be0cd19};
    const auto turn = [](u32 x, int by) { return x >> by | x << (32 - by); };
    const auto block = [&](const u8* p) {
        u32 w[64], s[8];
        for (int i = 0; i < 16; ++i) w[i] = u32(p[4 * i]) << 24 | p[4 * i + 1] << 16 | p[4 * i + 2] << 8 | p[4 * i + 3];
        for (int i = 16; i < 64; ++i)
            w[i] = w[i - 16] + (turn(w[i - 15], 7) ^ turn(w[i - 15], 18) ^ w[i - 15] >> 3) + w[i - 7] +
                   (turn(w[i - 2], 17) ^ turn(w[i - 2], 19) ^ w[i - 2] >> 10);
        std::memcpy(s, state, sizeof s);
        for (int i = 0; i < 64; ++i) {
            const u32 sums[2] = {turn(s[0], 2) ^ turn(s[0], 13) ^ turn(s[0], 22), turn(s[4], 6) ^ turn(s[4], 11) ^ turn(s[4], 25)};
            const u32 choice = (s[4] & s[5]) ^ (~s[4] & s[6]), majority = (s[0] & s[1]) ^ (s[0] & s[2]) ^ (s[1] & s[2]);
            const u32 a = s[7] + sums[1] + choice + K[i] + w[i], b = sums[0] + majority;
            std::memmove(s + 1, s, 7 * sizeof(u32));
            s[0] = a + b, s[4] += a;
        }
        for (int i = 0; i < 8; ++i) state[i] += s[i];
    };
    const u64 whole = size / 64 * 64, tail = size - whole;
    for (u64 at = 0; at < whole; at += 64) block(data + at);
    std::array<u8, 128> last{};
    if (tail) std::memcpy(last.data(), data + whole, tail);
    last[tail] = 0x80;
    const u64 end = tail < 56 ? 64 : 128;
    for (int i = 0; i < 8; ++i) last[end - 1 - i] = u8(size * 8 >> 8 * i);
    for (u64 at = 0; at < end; at += 64) block(&last[at]);
    std::string hex;
    for (u32 word : state)
        for (int shift = 28; shift >= 0; shift -= 4) hex += "0123456789abcdef"[word >> shift & 15];
    return hex;
}

}  // namespace dpl
