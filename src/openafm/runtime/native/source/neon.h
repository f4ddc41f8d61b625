// NEON kernels, with dot-product instructions if the including file is compiled for them.
#pragma once
#include <arm_neon.h>

#include "full.h"
#include "generic.h"
#include "vision.h"

namespace {

enum { VECTORS = PANEL_ROWS / 4 };  // of four rows, in a panel

inline int8x16_t broadcast(const int8_t *four) {
    int32_t word;
    memcpy(&word, four, 4);
    return vreinterpretq_s8_s32(vdupq_n_s32(word));
}

// sums of four rows += four products of bytes each; two products together stay below 2^15.
inline int32x4_t add_products(int32x4_t sums, int8x16_t w, int8x16_t x) {
#if defined(__ARM_FEATURE_DOTPROD)
    return vdotq_s32(sums, w, x);
#else
    const int16x8_t low = vmull_s8(vget_low_s8(w), vget_low_s8(x)), high = vmull_s8(vget_high_s8(w), vget_high_s8(x));
    return vpadalq_s16(sums, vpaddq_s16(low, high));
#endif
}

inline int8x16_t codes_of(uint8x16_t packed, int plane) {
    const uint8x16_t shifted = vshlq_u8(packed, vdupq_n_s8((int8_t)(-2 * plane)));
    return vreinterpretq_s8_u8(vandq_u8(shifted, vdupq_n_u8(3)));
}

// Stores the first `count` of four numbers.
inline void store_some(float32x4_t numbers, int count, float *y) {
    if (count >= 4) return vst1q_f32(y, numbers);
    float all[4];
    vst1q_f32(all, numbers);
    for (int i = 0; i < count; i++) y[i] = all[i];
}

// SOME vectors of four rows of a panel from `vector` on, times N rows of activations from `row` on.
template <int N, int SOME>
inline void multiply(const OaMatrix &matrix, float zero, const Rounded &x, int panel, int vector, int row, float *y,
                     int64_t stride) {
    const int num_steps = (matrix.num_inputs + 15) / 16;
    const uint8_t *codes = matrix.codes + (int64_t)panel * num_steps * 256 + vector * 16;
    int32x4_t sums[N][SOME];
    for (int n = 0; n < N; n++)
        for (int v = 0; v < SOME; v++) sums[n][v] = vdupq_n_s32(0);
    for (int step = 0; step < num_steps; step++)
        for (int v = 0; v < SOME; v++) {
            const uint8x16_t packed = vld1q_u8(codes + step * 256 + v * 16);
            for (int p = 0; p < 4; p++) {
                const int8x16_t w = codes_of(packed, p);
                for (int n = 0; n < N; n++)
                    sums[n][v] = add_products(sums[n][v], w, broadcast(x.integers + (row + n) * x.stride + step * 16 + 4 * p));
            }
        }
    for (int n = 0; n < N; n++)
        for (int v = 0; v < SOME; v++) {
            const int r = panel * PANEL_ROWS + (vector + v) * 4;
            const float32x4_t exact = vsubq_f32(vcvtq_f32_s32(sums[n][v]), vdupq_n_f32(zero * (float)x.sums[row + n]));
            const float32x4_t scales = vmulq_n_f32(vld1q_f32(matrix.scales + r), x.scales[row + n]);
            store_some(vmulq_f32(exact, scales), matrix.num_outputs - r, y + (row + n) * stride + r);
        }
}

// One row reads the weights in order; four rows process a quarter of a panel at once.
void low_bit(const OaMatrix &matrix, float zero, const Rounded &x, int first, int last, float *y, int64_t stride) {
    for (int panel = first; panel < last; panel++) {
        int row = 0;
        for (; row + 4 <= x.num_rows; row += 4)
            for (int v = 0; v < VECTORS; v += 4) multiply<4, 4>(matrix, zero, x, panel, v, row, y, stride);
        for (; row < x.num_rows; row++) multiply<1, VECTORS>(matrix, zero, x, panel, 0, row, y, stride);
    }
}

// Products of a block of 32 inputs and four rows.
template <int BITS>
inline int32x4_t add_block(int32x4_t sums, const uint8_t *codes, const int8_t *a) {
    for (int v = 0; v < BITS; v++) {
        const uint8x16_t packed = vld1q_u8(codes + v * 64);
        if (BITS == 4) {
            const int8x16_t low = vreinterpretq_s8_u8(vandq_u8(packed, vdupq_n_u8(15)));
            sums = add_products(sums, low, broadcast(a + v * 8));
            sums = add_products(sums, vreinterpretq_s8_u8(vshrq_n_u8(packed, 4)), broadcast(a + v * 8 + 4));
        } else {
            sums = add_products(sums, vreinterpretq_s8_u8(packed), broadcast(a + v * 4));
        }
    }
    return sums;
}

// One row of activations times a tile: integer sums within a group, then scaled.
template <int BITS>
void grouped_tile(const OaMatrix &matrix, const Groups &groups, int tile, const Rounded &x, int64_t n, float *y) {
    const int r = tile * TILE_ROWS, middle = BITS == 4 && !matrix.has_minimum ? INT4_MIDDLE : 0;
    const uint8_t *codes = groups.tile(matrix, tile);
    float32x4_t totals[4];
    for (int v = 0; v < 4; v++) totals[v] = vdupq_n_f32(0);
    for (int g = 0; g < groups.count; g++, codes += groups.bytes) {
        const int32_t group_sum = sum_of_group(x, n, groups, g);
        const uint16_t *halves = (const uint16_t *)(codes + groups.blocks * groups.block_bytes);
        for (int v = 0; v < 4; v++, halves += 4) {
            int32x4_t sums = vdupq_n_s32(-middle * group_sum);
            for (int block = 0; block < groups.blocks; block++)
                sums = add_block<BITS>(sums, codes + block * groups.block_bytes + v * 16,
                                       x.integers + n * x.stride + g * groups.inputs + block * GROUP);
            const float32x4_t exact = vcvtq_f32_s32(sums);
            if (!matrix.group) {
                totals[v] = vmulq_f32(exact, vmulq_n_f32(vld1q_f32(matrix.scales + r + v * 4), x.scales[n]));
                continue;
            }
            totals[v] = vfmaq_f32(totals[v], vcvt_f32_f16(vreinterpret_f16_u16(vld1_u16(halves))), exact);
            if (!matrix.has_minimum) continue;
            const float32x4_t minima = vcvt_f32_f16(vreinterpret_f16_u16(vld1_u16(halves + TILE_ROWS)));
            totals[v] = vfmaq_n_f32(totals[v], minima, (float)group_sum);
        }
    }
    for (int v = 0; v < 4; v++)
        store_some(matrix.group ? vmulq_n_f32(totals[v], x.scales[n]) : totals[v], matrix.num_outputs - r - v * 4, y + r + v * 4);
}

void grouped(const OaMatrix &matrix, const Rounded &x, int first, int last, float *y, int64_t stride) {
    const Groups groups(matrix);
    for (int tile = first; tile < last; tile++)
        for (int64_t n = 0; n < x.num_rows; n++)
            (matrix.kind == OA_INT4 ? grouped_tile<4> : grouped_tile<8>)(matrix, groups, tile, x, n, y + n * stride);
}

}  // namespace
