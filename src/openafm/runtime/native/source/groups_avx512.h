// Groups of 4 and 8 bits for AVX-512 with VNNI. The including file provides the intrinsics, `add_products`, `broadcast` and
// `fetch_once`; tests/runtime/native/emulated_avx512.cpp emulates them.
#pragma once
#include <vector>

#include "kernels.h"

namespace {

enum { WHOLE_ROWS = 6 };

// Products of a block of 32 inputs of T tiles with N rows, into A sums each. Signed codes of 8 bits become unsigned by adding 128.
template <int BITS, int N, int T, int A>
inline void add_block(const uint8_t *const *codes, const int8_t *const *a, int at, __m512i (*acc)[N][A]) {
    const __m512i mask = _mm512_set1_epi8(15), flip = _mm512_set1_epi8((char)128);
    enum { PARTS = BITS == 4 ? 2 : 1 };
#pragma GCC unroll 8
    for (int v = 0; v < BITS; v++) {
        __m512i bytes[T][2];
#pragma GCC unroll 4
        for (int t = 0; t < T; t++) {
            const __m512i w = _mm512_loadu_si512(codes[t] + v * 64);
            if (N == 1) fetch_once(codes[t] + v * 64);
            bytes[t][0] = BITS == 4 ? _mm512_and_si512(w, mask) : _mm512_xor_si512(w, flip);
            if (BITS == 4) bytes[t][1] = _mm512_and_si512(_mm512_srli_epi16(w, 4), mask);
        }
#pragma GCC unroll 6
        for (int n = 0; n < N; n++)
#pragma GCC unroll 2
            for (int part = 0; part < PARTS; part++) {
                const __m512i x = broadcast(a[n] + at + (v * PARTS + part) * 4);
#pragma GCC unroll 4
                for (int t = 0; t < T; t++) add_products(acc[t][n][(v * PARTS + part) % A], bytes[t][part], x);
            }
    }
}

// N rows of activations times T tiles: integer sums within a group, then scaled. `sums` are those of `sums_of_groups`. With one
// row memory is the limit; with more, each broadcast serves two or four tiles, and their sums are chains enough.
template <int BITS, int N, int T>
void grouped_tile(const OaMatrix &matrix, const Groups &groups, int tile, const Rounded &x, const int32_t *sums, int64_t row, float *y,
                  int64_t stride) {
    enum { A = T == 1 ? 2 : 1 };
    const uint8_t *codes[T];
    const int8_t *a[N];
    __m512 totals[T][N];
    for (int n = 0; n < N; n++) a[n] = x.integers + (row + n) * x.stride;
    for (int t = 0; t < T; t++) {
        codes[t] = groups.tile(matrix, tile + t);
        for (int n = 0; n < N; n++) totals[t][n] = _mm512_setzero_ps();
    }
    for (int g = 0; g < groups.count; g++) {
        __m512i acc[T][N][A];
        const int32_t *group_sums = sums + row * groups.count + g;
#pragma GCC unroll 4
        for (int t = 0; t < T; t++)
#pragma GCC unroll 6
            for (int n = 0; n < N; n++) {
                acc[t][n][A - 1] = _mm512_setzero_si512();
                acc[t][n][0] = matrix.has_minimum ? _mm512_setzero_si512() : _mm512_set1_epi32(group_sums[n * groups.count]);
            }
        for (int block = 0; block < groups.blocks; block++) {
            add_block<BITS, N, T, A>(codes, a, g * groups.inputs + block * GROUP, acc);
            for (int t = 0; t < T; t++) codes[t] += groups.block_bytes;
        }
#pragma GCC unroll 2
        for (int t = 0; t < T; t++) {
            __m512 scales = _mm512_setzero_ps(), minima = scales;
            if (matrix.group) scales = _mm512_cvtph_ps(_mm256_loadu_si256((const __m256i *)codes[t])), codes[t] += 2 * TILE_ROWS;
            if (matrix.has_minimum) minima = _mm512_cvtph_ps(_mm256_loadu_si256((const __m256i *)codes[t])), codes[t] += 2 * TILE_ROWS;
#pragma GCC unroll 4
            for (int n = 0; n < N; n++) {
                const __m512 exact = _mm512_cvtepi32_ps(A == 1 ? acc[t][n][0] : _mm512_add_epi32(acc[t][n][0], acc[t][n][A - 1]));
                totals[t][n] = matrix.group ? _mm512_fmadd_ps(scales, exact, totals[t][n]) : exact;
                if (!matrix.has_minimum) continue;
                const __m512 group_sum = _mm512_cvtepi32_ps(_mm512_set1_epi32(group_sums[n * groups.count]));
                totals[t][n] = _mm512_fmadd_ps(minima, group_sum, totals[t][n]);
            }
        }
    }
    for (int t = 0; t < T; t++) {
        const int r = (tile + t) * TILE_ROWS, rows = matrix.num_outputs - r;
        const __mmask16 there = rows >= 16 ? 0xffff : (__mmask16)((1u << rows) - 1);
        for (int n = 0; n < N; n++) {
            __m512 factor = _mm512_set1_ps(x.scales[row + n]);
            if (!matrix.group) factor = _mm512_mul_ps(factor, _mm512_loadu_ps(matrix.scales + r));
            _mm512_mask_storeu_ps(y + (row + n) * stride + r, there, _mm512_mul_ps(totals[t][n], factor));
        }
    }
}

// What the sums of groups of a row add, [N, groups]: to the products with unsigned codes, or as factors of minima.
void sums_of_groups(const OaMatrix &matrix, const Groups &groups, const Rounded &x, std::vector<int32_t> &sums) {
    const int32_t factor = matrix.has_minimum ? 1 : -(matrix.kind == OA_INT4 ? (int32_t)INT4_MIDDLE : 128);
    sums.resize((size_t)x.num_rows * groups.count);
    for (int64_t row = 0; row < x.num_rows; row++)
        for (int g = 0; g < groups.count; g++)
            sums[row * groups.count + g] = factor * (groups.count == 1 ? x.sums[row] : sum_of_group(x, row, groups, g));
}

template <int BITS, int T>
void grouped_rows(const OaMatrix &matrix, const Groups &groups, int tile, const Rounded &x, const int32_t *sums, float *y, int64_t stride) {
    for (int row = 0, count; row < x.num_rows; row += count) {
        count = x.num_rows - row < 4 ? x.num_rows - row : 4;
        const auto multiply = count == 1   ? grouped_tile<BITS, 1, T>
                              : count == 2 ? grouped_tile<BITS, 2, T>
                              : count == 3 ? grouped_tile<BITS, 3, T>
                                           : grouped_tile<BITS, 4, T>;
        multiply(matrix, groups, tile, x, sums, row, y, stride);
    }
}

// Codes of 8 bits with a scale for each row, times many rows: the sums of WHOLE_ROWS rows and four tiles fill the registers.
void whole_rows(const OaMatrix &matrix, const Groups &groups, int tile, const Rounded &x, const int32_t *sums, float *y, int64_t stride) {
    typedef void (*Multiply)(const OaMatrix &, const Groups &, int, const Rounded &, const int32_t *, int64_t, float *, int64_t);
    // Equal parts of WHOLE_ROWS or more rows have at least three.
    static const Multiply multiply[WHOLE_ROWS + 1] = {
        0, 0, 0, grouped_tile<8, 3, 4>, grouped_tile<8, 4, 4>, grouped_tile<8, 5, 4>, grouped_tile<8, 6, 4>};
    for (int row = 0, count; row < x.num_rows; row += count) {
        const int left = x.num_rows - row, parts = (left + WHOLE_ROWS - 1) / WHOLE_ROWS;
        count = (left + parts - 1) / parts;
        multiply[count](matrix, groups, tile, x, sums, row, y, stride);
    }
}

template <int BITS>
void grouped_tiles(const OaMatrix &matrix, const Rounded &x, int first, int last, float *y, int64_t stride) {
    static thread_local std::vector<int32_t> sums;
    const Groups groups(matrix);
    sums_of_groups(matrix, groups, x, sums);
    int tile = first;
    if (BITS == 8 && !matrix.group && x.num_rows >= WHOLE_ROWS)
        for (; tile + 4 <= last; tile += 4) whole_rows(matrix, groups, tile, x, sums.data(), y, stride);
    if (x.num_rows > 1)
        for (; tile + 2 <= last; tile += 2) grouped_rows<BITS, 2>(matrix, groups, tile, x, sums.data(), y, stride);
    for (; tile < last; tile++) grouped_rows<BITS, 1>(matrix, groups, tile, x, sums.data(), y, stride);
}

void grouped(const OaMatrix &matrix, const Rounded &x, int first, int last, float *y, int64_t stride) {
    (matrix.kind == OA_INT4 ? grouped_tiles<4> : grouped_tiles<8>)(matrix, x, first, last, y, stride);
}

}  // namespace
