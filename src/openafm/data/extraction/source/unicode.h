// UTF-8 and white space as Python's `str` has it.
#pragma once

#include <cstdint>
#include <string_view>

namespace oa {

// Return the code point at `at` and advance. A byte that begins no character counts as one.
inline uint32_t next_code(std::string_view text, size_t &at) {
    const auto byte = static_cast<unsigned char>(text[at++]);
    if (byte < 0x80) return byte;
    const int more = byte >= 0xF0 ? 3 : byte >= 0xE0 ? 2 : byte >= 0xC0 ? 1 : 0;
    uint32_t code = more == 3 ? byte & 7u : more == 2 ? byte & 15u : byte & 31u;
    for (int index = 0; index < more && at < text.size(); ++index)
        code = code << 6 | (static_cast<unsigned char>(text[at++]) & 63u);
    return code;
}

inline bool is_space(uint32_t code) {
    if (code < 0x80) return code == ' ' || (code >= 9 && code <= 13) || (code >= 0x1C && code <= 0x1F);
    return code == 0x85 || code == 0xA0 || code == 0x1680 || (code >= 0x2000 && code <= 0x200A) || code == 0x2028 ||
           code == 0x2029 || code == 0x202F || code == 0x205F || code == 0x3000;
}

inline bool is_blank(std::string_view text) {
    for (size_t at = 0; at < text.size();)
        if (!is_space(next_code(text, at))) return false;
    return true;
}

inline int32_t num_chars(std::string_view text) {
    int32_t count = 0;
    for (const char byte : text) count += (static_cast<unsigned char>(byte) & 0xC0) != 0x80;
    return count;
}

}  // namespace oa
