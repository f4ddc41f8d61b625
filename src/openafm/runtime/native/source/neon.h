// NEON kernels, with dot-product instructions if the including file is compiled for them.
#pragma once
#include <arm_neon.h>

#include "generic.h"

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

// One row of activations times a tile of the embedding: integer sums within a group, then scaled.
void head_tile(const uint8_t *tile, const Rounded &x, int row, int rows, float *y) {
    float32x4_t totals[4];
    for (int v = 0; v < 4; v++) totals[v] = vdupq_n_f32(0);
    for (int g = 0; g < x.num_inputs / GROUP; g++, tile += TILE_GROUP_BYTES) {
        const int8_t *a = x.integers + row * x.stride + g * GROUP;
        const float group_sum = (float)x.group_sums[row * (x.stride / GROUP) + g];
        for (int v = 0; v < 4; v++) {
            int32x4_t sums = vdupq_n_s32(0);
            for (int quads = 0; quads < 4; quads++) {
                const uint8x16_t packed = vld1q_u8(tile + quads * 64 + v * 16);
                const int8x16_t low = vreinterpretq_s8_u8(vandq_u8(packed, vdupq_n_u8(15)));
                sums = add_products(sums, low, broadcast(a + quads * 8));
                sums = add_products(sums, vreinterpretq_s8_u8(vshrq_n_u8(packed, 4)), broadcast(a + quads * 8 + 4));
            }
            const uint16_t *halves = (const uint16_t *)(tile + 256) + v * 4;
            const float32x4_t scales = vcvt_f32_f16(vreinterpret_f16_u16(vld1_u16(halves)));
            const float32x4_t minima = vcvt_f32_f16(vreinterpret_f16_u16(vld1_u16(halves + TILE_ROWS)));
            totals[v] = vfmaq_f32(totals[v], scales, vcvtq_f32_s32(sums));
            totals[v] = vfmaq_n_f32(totals[v], minima, group_sum);
        }
    }
    for (int v = 0; v < 4; v++) store_some(vmulq_n_f32(totals[v], x.scales[row]), rows - v * 4, y + v * 4);
}

void head(const uint8_t *tiles, const Rounded &x, int first, int last, int vocab_size, float *y, int64_t stride) {
    const int64_t tile_bytes = (int64_t)(x.num_inputs / GROUP) * TILE_GROUP_BYTES;
    for (int tile = first; tile < last; tile++)
        for (int row = 0; row < x.num_rows; row++)
            head_tile(tiles + tile * tile_bytes, x, row, vocab_size - tile * TILE_ROWS, y + row * stride + tile * TILE_ROWS);
}

}  // namespace
