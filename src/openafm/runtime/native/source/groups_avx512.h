// Groups of 4 and 8 bits for AVX-512 with VNNI. The including file provides the intrinsics, `add_products` and `broadcast`;
// tests/runtime/native/emulated_avx512.cpp emulates them.
#pragma once
#include "kernels.h"

namespace {

// Products of a block of 32 inputs of a tile with N rows. Signed codes of 8 bits become unsigned by adding 128.
template <int BITS, int N>
inline void add_block(const uint8_t *codes, const int8_t *const *a, int at, __m512i (*acc)[2]) {
    const __m512i mask = _mm512_set1_epi8(15), flip = _mm512_set1_epi8((char)128);
#pragma GCC unroll 8
    for (int v = 0; v < BITS; v++) {
        const __m512i w = _mm512_loadu_si512(codes + v * 64);
        if (N == 1) _mm_prefetch((const char *)codes + v * 64 + ONE_ROW_AHEAD, _MM_HINT_NTA);
        if (BITS == 4) {
            const __m512i low = _mm512_and_si512(w, mask), high = _mm512_and_si512(_mm512_srli_epi16(w, 4), mask);
#pragma GCC unroll 4
            for (int n = 0; n < N; n++) {
                add_products(acc[n][0], low, broadcast(a[n] + at + v * 8));
                add_products(acc[n][1], high, broadcast(a[n] + at + v * 8 + 4));
            }
        } else {
            const __m512i bytes = _mm512_xor_si512(w, flip);
#pragma GCC unroll 4
            for (int n = 0; n < N; n++) add_products(acc[n][v % 2], bytes, broadcast(a[n] + at + v * 4));
        }
    }
}

// N rows of activations times one tile: integer sums within a group, then scaled.
template <int BITS, int N>
void grouped_tile(const OaMatrix &matrix, const Groups &groups, int tile, const Rounded &x, int64_t row, float *y, int64_t stride) {
    const int r = tile * TILE_ROWS, rows = matrix.num_outputs - r;
    const int32_t middle = BITS == 8 ? 128 : matrix.has_minimum ? 0 : INT4_MIDDLE;
    const __mmask16 there = rows >= 16 ? 0xffff : (__mmask16)((1u << rows) - 1);
    const uint8_t *codes = groups.tile(matrix, tile);
    const int8_t *a[N];
    __m512 totals[N];
    for (int n = 0; n < N; n++) a[n] = x.integers + (row + n) * x.stride, totals[n] = _mm512_setzero_ps();
    for (int g = 0; g < groups.count; g++) {
        __m512i acc[N][2];
#pragma GCC unroll 4
        for (int n = 0; n < N; n++) acc[n][0] = acc[n][1] = _mm512_setzero_si512();
        for (int block = 0; block < groups.blocks; block++, codes += groups.block_bytes)
            add_block<BITS, N>(codes, a, g * groups.inputs + block * GROUP, acc);
        __m512 scales = _mm512_setzero_ps(), minima = scales;
        if (matrix.group) scales = _mm512_cvtph_ps(_mm256_loadu_si256((const __m256i *)codes)), codes += 2 * TILE_ROWS;
        if (matrix.has_minimum) minima = _mm512_cvtph_ps(_mm256_loadu_si256((const __m256i *)codes)), codes += 2 * TILE_ROWS;
        for (int n = 0; n < N; n++) {
            const int32_t group_sum = sum_of_group(x, row + n, groups, g);
            const __m512i sums = _mm512_sub_epi32(_mm512_add_epi32(acc[n][0], acc[n][1]), _mm512_set1_epi32(middle * group_sum));
            const __m512 exact = _mm512_cvtepi32_ps(sums);
            if (!matrix.group) {
                const __m512 factor = _mm512_mul_ps(_mm512_set1_ps(x.scales[row + n]), _mm512_loadu_ps(matrix.scales + r));
                totals[n] = _mm512_mul_ps(exact, factor);
                continue;
            }
            totals[n] = _mm512_fmadd_ps(scales, exact, totals[n]);
            if (matrix.has_minimum) totals[n] = _mm512_fmadd_ps(minima, _mm512_set1_ps((float)group_sum), totals[n]);
        }
    }
    for (int n = 0; n < N; n++) {
        const __m512 scaled = matrix.group ? _mm512_mul_ps(totals[n], _mm512_set1_ps(x.scales[row + n])) : totals[n];
        _mm512_mask_storeu_ps(y + (row + n) * stride + r, there, scaled);
    }
}

template <int BITS>
void grouped_tiles(const OaMatrix &matrix, const Rounded &x, int first, int last, float *y, int64_t stride) {
    const Groups groups(matrix);
    for (int tile = first; tile < last; tile++)
        for (int row = 0, count; row < x.num_rows; row += count) {
            count = x.num_rows - row < 4 ? x.num_rows - row : 4;
            const auto multiply = count == 1   ? grouped_tile<BITS, 1>
                                  : count == 2 ? grouped_tile<BITS, 2>
                                  : count == 3 ? grouped_tile<BITS, 3>
                                               : grouped_tile<BITS, 4>;
            multiply(matrix, groups, tile, x, row, y, stride);
        }
}

void grouped(const OaMatrix &matrix, const Rounded &x, int first, int last, float *y, int64_t stride) {
    (matrix.kind == OA_INT4 ? grouped_tiles<4> : grouped_tiles<8>)(matrix, x, first, last, y, stride);
}

}  // namespace
