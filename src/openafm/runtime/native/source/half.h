// Half precision without help from the processor.
#pragma once
#include <math.h>
#include <stdint.h>
#include <string.h>

namespace {

inline float half_to_float(uint16_t half) {
    const uint32_t sign = (uint32_t)(half & 0x8000) << 16, exponent = half >> 10 & 31, mantissa = half & 1023;
    uint32_t bits;
    if (exponent == 31) {
        bits = sign | 0x7f800000 | mantissa << 13;
    } else if (exponent == 0) {
        const float value = ldexpf((float)mantissa, -24);
        memcpy(&bits, &value, 4);
        bits |= sign;
    } else {
        bits = sign | (exponent + 112) << 23 | mantissa << 13;
    }
    float value;
    memcpy(&value, &bits, 4);
    return value;
}

// To the nearest, ties to even, of a number from 2^-24 to 65504.
inline uint16_t float_to_half(float value) {
    if (value < 0x1p-14f) return (uint16_t)rintf(ldexpf(value, 24));
    uint32_t bits;
    memcpy(&bits, &value, 4);
    bits += 0xfff + (bits >> 13 & 1);
    return (uint16_t)((bits >> 13) - (112 << 10));
}

}  // namespace
