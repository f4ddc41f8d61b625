// Attention in integers, for AVX-512 with VNNI and head dims that are multiples of 64 up to 256; the generic one for others.
//
// A query is rounded to 31 bits and split in four digits, so that a score is a sum of products of bytes; so are the weights of
// the values in a page, to 32 bits. What lies between is of double precision: the outcome is that of exact numbers, rounded
// once. Behind FINE_KEYS keys two digits are taken: what that adds is a hundredth of what keys and values of 8 bits already
// are off by, and a long context costs half.
#pragma once
#include <immintrin.h>

#include "generic.h"

namespace {

enum { FINE_KEYS = 1024, LARGEST_DIGITS_DIM = 256 };

inline __m512i broadcast(const void *four) {
    int32_t word;
    memcpy(&word, four, 4);
    return _mm512_set1_epi32(word);
}

struct PreparedQuery {
    double scale;
    int32_t num_digits;
    int32_t sums[4];  // of each digit, the highest first
    int32_t padding[9];
    // int8_t digits[4][C] follow
};

// Half of 16 numbers in double precision, and two halves put together.
inline __m512d wide(__m512i integers, int half) {
    return _mm512_cvtepi32_pd(half ? _mm512_extracti64x4_epi64(integers, 1) : _mm512_castsi512_si256(integers));
}

inline __m512d wide(__m512 singles, int half) {
    return _mm512_cvtps_pd(half ? _mm512_extractf32x8_ps(singles, 1) : _mm512_castps512_ps256(singles));
}

inline __m512i joined(__m256i low, __m256i high) {
    return _mm512_inserti64x4(_mm512_castsi256_si512(low), high, 1);
}

// Which of 16 numbers from `first` on are among the first `count`.
inline __mmask16 first_of(int count, int first) {
    return count >= first + 16 ? 0xffff : count <= first ? 0 : (__mmask16)((1u << (count - first)) - 1);
}

void prepare_digits(const float *query, int head_dim, int num_digits, PreparedQuery *header) {
    int8_t *digits = (int8_t *)(header + 1);
    const double largest = largest_of(query, head_dim), top = num_digits == 4 ? 127.0 * (1 << 24) : 127.0 * (1 << 8);
    header->scale = largest > 1e-30 ? LOG2_OF_E * largest / top : 1.0;
    header->num_digits = num_digits;
    const __m512d inverse = _mm512_set1_pd(largest > 1e-30 ? top / largest : 0.0);
    __m512i sums[4] = {};
    for (int c = 0; c < head_dim; c += 16) {
        const __m512 x = _mm512_loadu_ps(query + c);
        __m512i q = joined(_mm512_cvtpd_epi32(_mm512_mul_pd(wide(x, 0), inverse)),
                           _mm512_cvtpd_epi32(_mm512_mul_pd(wide(x, 1), inverse)));
        for (int d = num_digits - 1; d >= 0; d--) {
            const __m512i carried = _mm512_add_epi32(q, _mm512_set1_epi32(128));
            const __m512i rest = d ? _mm512_srai_epi32(carried, 8) : _mm512_setzero_si512();
            const __m512i digit = _mm512_sub_epi32(q, _mm512_slli_epi32(rest, 8));
            _mm_store_si128((__m128i *)(digits + d * head_dim + c), _mm512_cvtepi32_epi8(digit));
            sums[d] = _mm512_add_epi32(sums[d], digit);
            q = rest;
        }
    }
    for (int d = 0; d < num_digits; d++) header->sums[d] = _mm512_reduce_add_epi32(sums[d]);
}

void prepare(const float *query, int head_dim, int64_t num_keys, uint8_t *prepared) {
    if (head_dim % 64 || head_dim > LARGEST_DIGITS_DIM)
        prepare_query(query, head_dim, num_keys, prepared);
    else
        prepare_digits(query, head_dim, num_keys <= FINE_KEYS ? 4 : 2, (PreparedQuery *)prepared);
}

// Half of 16 sums of products with each digit, added up.
template <int DIGITS>
inline __m512d total(__m512i (*sums)[4], int v, int half) {
    const __m512i high = _mm512_add_epi32(_mm512_slli_epi32(sums[0][v], 8), sums[1][v]);
    if (DIGITS == 2) return wide(high, half);
    const __m512i low = _mm512_add_epi32(_mm512_slli_epi32(sums[DIGITS - 2][v], 8), sums[DIGITS - 1][v]);
    return _mm512_fmadd_pd(wide(high, half), _mm512_set1_pd(65536.0), wide(low, half));
}

// Scores of a query with the keys of a page, to base 2.
template <int DIGITS>
inline void score(const uint8_t *prepared, int head_dim, const uint8_t *keys, const double *key_scales, __m512d *scores) {
    const PreparedQuery *header = (const PreparedQuery *)prepared;
    const int8_t *digits = (const int8_t *)(header + 1);
    __m512i sums[DIGITS][4];
    for (int d = 0; d < DIGITS; d++)
        for (int v = 0; v < 4; v++) sums[d][v] = _mm512_set1_epi32(-128 * header->sums[d]);
    for (int c = 0; c < head_dim; c += 4) {
        __m512i k[4];
#pragma GCC unroll 4
        for (int v = 0; v < 4; v++) k[v] = _mm512_loadu_si512(keys + (int64_t)c * PAGE + v * 64);
#pragma GCC unroll 4
        for (int d = 0; d < DIGITS; d++) {
            const __m512i x = broadcast(digits + d * head_dim + c);
#pragma GCC unroll 4
            for (int v = 0; v < 4; v++) sums[d][v] = _mm512_dpbusd_epi32(sums[d][v], k[v], x);
        }
    }
    const __m512d scale = _mm512_set1_pd(header->scale);
#pragma GCC unroll 8
    for (int i = 0; i < 8; i++) {
        const __m512d exact = total<DIGITS>(sums, i / 2, i % 2);
        scores[i] = _mm512_mul_pd(_mm512_mul_pd(exact, scale), _mm512_load_pd(key_scales + i * 8));
    }
}

// exp2_of, of vectors.
inline __m512d exp2_8(__m512d x) {
    const __m512d n = _mm512_roundscale_pd(x, 8), r = _mm512_sub_pd(x, n);
    __m512d p = _mm512_set1_pd(EXP2[7]);
#pragma GCC unroll 7
    for (int i = 6; i >= 0; i--) p = _mm512_fmadd_pd(p, r, _mm512_set1_pd(EXP2[i]));
    return _mm512_scalef_pd(p, n);
}

// The scales of a page's keys, and those of its values in units that make a weight of 1 the largest of DIGITS digits.
struct PageScales {
    alignas(64) double keys[PAGE], values[PAGE];
    double unit;
};

template <int DIGITS>
inline void widen_page(const KeysValuesPage &page, int num_keys, PageScales &scales) {
    const double most = DIGITS == 4 ? 4294967295.0 : 65535.0;
    __m512 largest = _mm512_setzero_ps(), values[4];
    for (int v = 0; v < 4; v++) {
        const __m512 keys = _mm512_cvtph_ps(_mm256_loadu_si256((const __m256i *)page.key_scales + v));
        values[v] = _mm512_cvtph_ps(_mm256_loadu_si256((const __m256i *)page.value_scales + v));
        largest = _mm512_mask_max_ps(largest, first_of(num_keys, v * 16), largest, values[v]);
        for (int half = 0; half < 2; half++) _mm512_store_pd(scales.keys + v * 16 + half * 8, wide(keys, half));
    }
    scales.unit = _mm512_reduce_max_ps(largest) / most;
    const __m512d inverse = _mm512_set1_pd(1 / scales.unit);
    for (int i = 0; i < 8; i++)
        _mm512_store_pd(scales.values + i * 8, _mm512_mul_pd(wide(values[i / 2], i % 2), inverse));
}

// Digits of the weights of a page's values, and by what the outputs before it shrink.
template <int DIGITS>
struct Weights {
    alignas(64) uint8_t digits[DIGITS][PAGE];
    double shrink;
};

// Scores of a page to the weights of its values; `top` and `sum` as they are with this page.
template <int DIGITS>
inline void soften(__m512d *scores, const double *value_scales, int num_keys, double *top, double *sum,
                   Weights<DIGITS> &weights) {
    __mmask8 there[8];
    __m512d highest = _mm512_set1_pd(*top), added = _mm512_setzero_pd();
    for (int i = 0; i < 8; i++) {
        there[i] = (__mmask8)first_of(num_keys, i * 8);
        highest = _mm512_mask_max_pd(highest, there[i], highest, scores[i]);
    }
    const double new_top = _mm512_reduce_max_pd(highest);
    for (int v = 0; v < 4; v++) {
        __m256i w[2];
#pragma GCC unroll 2
        for (int h = 0; h < 2; h++) {
            const int i = 2 * v + h;
            const __m512d p = _mm512_maskz_mov_pd(there[i], exp2_8(_mm512_sub_pd(scores[i], _mm512_set1_pd(new_top))));
            added = _mm512_add_pd(added, p);
            w[h] = _mm512_cvtpd_epu32(_mm512_mul_pd(p, _mm512_load_pd(value_scales + i * 8)));
        }
        const __m512i both = joined(w[0], w[1]);
#pragma GCC unroll 4
        for (int d = 0; d < DIGITS; d++)
            _mm_store_si128((__m128i *)(weights.digits[d] + v * 16),
                            _mm512_cvtepi32_epi8(_mm512_srli_epi32(both, 8 * (DIGITS - 1 - d))));
    }
    weights.shrink = shrink_of(*top - new_top);
    *top = new_top;
    *sum = *sum * weights.shrink + _mm512_reduce_add_pd(added);
}

// 64 channels of the values of a page, weighted for N queries: out = out * shrink + unit * sum.
template <int N, int DIGITS>
inline void weigh(const Weights<DIGITS> *weights, double unit, const int8_t *values, int head_dim, int num_keys,
                  double *const *out) {
    __m512i sums[N][DIGITS][4];
    for (int n = 0; n < N; n++)
        for (int d = 0; d < DIGITS; d++)
            for (int v = 0; v < 4; v++) sums[n][d][v] = _mm512_setzero_si512();
    for (int l = 0; l < num_keys; l += 4) {
        __m512i x[4];
#pragma GCC unroll 4
        for (int v = 0; v < 4; v++) x[v] = _mm512_loadu_si512(values + (int64_t)l * head_dim + v * 64);
#pragma GCC unroll 2
        for (int n = 0; n < N; n++)
#pragma GCC unroll 4
            for (int d = 0; d < DIGITS; d++) {
                const __m512i digit = broadcast(weights[n].digits[d] + l);
#pragma GCC unroll 4
                for (int v = 0; v < 4; v++) sums[n][d][v] = _mm512_dpbusd_epi32(sums[n][d][v], digit, x[v]);
            }
    }
    for (int n = 0; n < N; n++)
        for (int i = 0; i < 8; i++) {
            const __m512d old = _mm512_mul_pd(_mm512_loadu_pd(out[n] + i * 8), _mm512_set1_pd(weights[n].shrink));
            const __m512d added = _mm512_mul_pd(total<DIGITS>(sums[n], i / 2, i % 2), _mm512_set1_pd(unit));
            _mm512_storeu_pd(out[n] + i * 8, _mm512_add_pd(old, added));
        }
}

template <int N, int DIGITS>
void attend_some(const uint8_t *prepared, int head_dim, const KeysValuesPage &page, const PageScales &scales, int num_keys,
                 double *state) {
    Weights<DIGITS> weights[N];
    double *out[N];
    for (int n = 0; n < N; n++) {
        double *top = state + (int64_t)n * (head_dim + 2);
        __m512d scores[8];
        score<DIGITS>(prepared + n * prepared_bytes(head_dim), head_dim, page.keys, scales.keys, scores);
        soften(scores, scales.values, num_keys, top, top + 1, weights[n]);
        out[n] = top + 2;
    }
    for (int c = 0; c < head_dim; c += 64) {
        weigh<N>(weights, scales.unit, page.values + c * 4, head_dim, num_keys, out);
        for (int n = 0; n < N; n++) out[n] += 64;
    }
}

void attend(const uint8_t *prepared, int num_queries, int head_dim, const KeysValuesPage &page, int num_keys, double *state) {
    if (head_dim % 64 || head_dim > LARGEST_DIGITS_DIM) return attend_page(prepared, num_queries, head_dim, page, num_keys, state);
    const int stride = prepared_bytes(head_dim);
    const auto digits_of = [&](int n) { return ((const PreparedQuery *)(prepared + n * stride))->num_digits; };
    PageScales fine, coarse;
    int num_fine = 0;
    while (num_fine < num_queries && digits_of(num_fine) == 4) num_fine++;
    if (num_fine) widen_page<4>(page, num_keys, fine);
    if (num_fine < num_queries) widen_page<2>(page, num_keys, coarse);
    for (int n = 0, count; n < num_queries; n += count) {
        count = n + 1 < num_queries && n >= num_fine ? 2 : 1;
        const auto some = n < num_fine ? attend_some<1, 4> : count == 2 ? attend_some<2, 2> : attend_some<1, 2>;
        some(prepared + n * stride, head_dim, page, n < num_fine ? fine : coarse, num_keys, state + (int64_t)n * (head_dim + 2));
    }
}

}  // namespace
