// Half precision without help from the processor, and without branches: loops over it become vectors.
#pragma once
#include <math.h>
#include <stdint.h>
#include <string.h>

namespace {

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

}  // namespace
