// Half precision, rounding and row maxima in plain C++ that compilers vectorize for every processor.
//
// Sums and maxima use LANES partial results, because compilers must not reorder floating-point operations.
#pragma once
#include <math.h>
#include <stdint.h>
#include <string.h>

namespace {

enum { LANES = 16 };

// The same bits as a value of another type (C++20's std::bit_cast).
template <class To, class From>
inline To reinterpreted(From from) {
    static_assert(sizeof(To) == sizeof(From), "types of equal size");
    To to;
    memcpy(&to, &from, sizeof to);
    return to;
}

// Converts finite numbers.
inline float half_to_float(uint16_t half) {
    const float magnitude = reinterpreted<float>((uint32_t)(half & 0x7fff) << 13) * 0x1p112f;
    return reinterpreted<float>(reinterpreted<uint32_t>(magnitude) | (uint32_t)(half & 0x8000) << 16);
}

// Rounds a number from 2^-24 to 65504 to the nearest half, ties to even.
inline uint16_t float_to_half(float value) {
    if (value < 0x1p-14f) return (uint16_t)rintf(value * 0x1p24f);
    uint32_t bits = reinterpreted<uint32_t>(value);
    bits += 0xfff + (bits >> 13 & 1);
    return (uint16_t)((bits >> 13) - (112 << 10));
}

// Rounds to the nearest integer from -128 to 127, ties to even: at 1.5 * 2^23 the last bit of a float is worth 1, so the
// lowest byte of the sum is the integer. The result is unspecified for numbers that are not finite.
inline int8_t nearest_byte(float x) { return (int8_t)reinterpreted<uint32_t>(x + 12582912.0f); }

// Returns the largest magnitude. Magnitudes of floats are ordered as their bits.
inline float largest_of(const float *x, int n) {
    uint32_t parts[LANES] = {};
    int i = 0;
    for (; i + LANES <= n; i += LANES)
        for (int j = 0; j < LANES; j++) {
            const uint32_t bits = reinterpreted<uint32_t>(x[i + j]) & 0x7fffffff;
            parts[j] = bits > parts[j] ? bits : parts[j];
        }
    for (; i < n; i++) {
        const uint32_t bits = reinterpreted<uint32_t>(x[i]) & 0x7fffffff;
        parts[0] = bits > parts[0] ? bits : parts[0];
    }
    for (int width = LANES / 2; width; width /= 2)
        for (int j = 0; j < width; j++) parts[j] = parts[j + width] > parts[j] ? parts[j + width] : parts[j];
    return reinterpreted<float>(parts[0]);
}

}  // namespace
