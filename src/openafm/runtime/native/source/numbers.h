// Half precision, rounding and the largest of a row without help from the processor, so that loops become vectors everywhere.
//
// What is added up or compared goes into LANES partial results first: compilers may not change the order of operations.
#pragma once
#include <math.h>
#include <stdint.h>
#include <string.h>

namespace {

enum { LANES = 16 };

inline float float_of_bits(uint32_t bits) {
    float value;
    memcpy(&value, &bits, 4);
    return value;
}

inline uint32_t bits_of(float value) {
    uint32_t bits;
    memcpy(&bits, &value, 4);
    return bits;
}

inline double double_of_bits(uint64_t bits) {
    double value;
    memcpy(&value, &bits, 8);
    return value;
}

inline uint64_t bits_of(double value) {
    uint64_t bits;
    memcpy(&bits, &value, 8);
    return bits;
}

// Of finite numbers.
inline float half_to_float(uint16_t half) {
    const float magnitude = float_of_bits((uint32_t)(half & 0x7fff) << 13) * 0x1p112f;
    return float_of_bits(bits_of(magnitude) | (uint32_t)(half & 0x8000) << 16);
}

// To the nearest, ties to even, of a number from 2^-24 to 65504.
inline uint16_t float_to_half(float value) {
    if (value < 0x1p-14f) return (uint16_t)rintf(value * 0x1p24f);
    uint32_t bits = bits_of(value);
    bits += 0xfff + (bits >> 13 & 1);
    return (uint16_t)((bits >> 13) - (112 << 10));
}

// To the nearest integer from -128 to 127, ties to even: what is added has no bits below 1, and the integer is then in the
// lowest. Some integer or other of what is not finite.
inline int8_t nearest_byte(float x) { return (int8_t)bits_of(x + 12582912.0f); }

// The largest magnitude. Those of floats are ordered as their bits are.
inline float largest_of(const float *x, int n) {
    uint32_t parts[LANES] = {};
    int i = 0;
    for (; i + LANES <= n; i += LANES)
        for (int j = 0; j < LANES; j++) {
            const uint32_t bits = bits_of(x[i + j]) & 0x7fffffff;
            parts[j] = bits > parts[j] ? bits : parts[j];
        }
    for (; i < n; i++) {
        const uint32_t bits = bits_of(x[i]) & 0x7fffffff;
        parts[0] = bits > parts[0] ? bits : parts[0];
    }
    for (int width = LANES / 2; width; width /= 2)
        for (int j = 0; j < width; j++) parts[j] = parts[j + width] > parts[j] ? parts[j + width] : parts[j];
    return float_of_bits(parts[0]);
}

}  // namespace
