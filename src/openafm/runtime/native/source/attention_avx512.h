// Attention in integers, for AVX-512 with VNNI and head dims that are multiples of 64; the generic one for others.
//
// A query is rounded to 23 bits, as fine as fp32, and split in three digits, so that a score is a sum of products of bytes; so are
// the weights of the values in a page, to 24 bits of the largest. Behind FINE_KEYS keys two digits are taken: what that adds
// is a hundredth of what keys and values of 8 bits already are off by, and a long context costs a third less.
#pragma once
#include <immintrin.h>

#include "generic.h"

namespace {

enum { FINE_KEYS = 2048 };

inline __m512i broadcast(const void *four) {
    int32_t word;
    memcpy(&word, four, 4);
    return _mm512_set1_epi32(word);
}

struct PreparedQuery {
    float scale;
    int32_t num_digits;
    int32_t sums[3];  // of each digit, the highest first
    int32_t padding[11];
    // int8_t digits[3][C] follow
};

void prepare_digits(const float *query, int head_dim, int num_digits, PreparedQuery *header) {
    int8_t *digits = (int8_t *)(header + 1);
    const float largest = largest_of(query, head_dim), top = num_digits == 3 ? 8323072.0f : 32512.0f;
    header->scale = largest > 1e-30f ? largest / top : 1.0f;
    header->num_digits = num_digits;
    const __m512 inverse = _mm512_set1_ps(1.0f / header->scale);
    __m512i sums[3] = {};
    for (int c = 0; c < head_dim; c += 16) {
        __m512i q = _mm512_cvtps_epi32(_mm512_mul_ps(_mm512_loadu_ps(query + c), inverse));
        for (int d = num_digits - 1; d >= 0; d--) {
            const __m512i rest = d ? _mm512_srai_epi32(_mm512_add_epi32(q, _mm512_set1_epi32(128)), 8) : _mm512_setzero_si512();
            const __m512i digit = _mm512_sub_epi32(q, _mm512_slli_epi32(rest, 8));
            _mm_store_si128((__m128i *)(digits + d * head_dim + c), _mm512_cvtepi32_epi8(digit));
            sums[d] = _mm512_add_epi32(sums[d], digit);
            q = rest;
        }
    }
    for (int d = 0; d < num_digits; d++) header->sums[d] = _mm512_reduce_add_epi32(sums[d]);
}

void prepare(const float *query, int head_dim, int64_t num_keys, uint8_t *prepared) {
    if (head_dim % 64)
        prepare_query(query, head_dim, num_keys, prepared);
    else
        prepare_digits(query, head_dim, num_keys <= FINE_KEYS ? 3 : 2, (PreparedQuery *)prepared);
}

// Scores of a query with the keys of a page, but for the scales of the keys.
template <int DIGITS>
inline void score(const uint8_t *prepared, int head_dim, const uint8_t *keys, __m512 *scores) {
    const PreparedQuery *header = (const PreparedQuery *)prepared;
    const int8_t *digits = (const int8_t *)(header + 1);
    __m512i sums[DIGITS][4];
    for (int d = 0; d < DIGITS; d++)
        for (int v = 0; v < 4; v++) sums[d][v] = _mm512_set1_epi32(-128 * header->sums[d]);
    for (int c = 0; c < head_dim; c += 4) {
        __m512i k[4];
#pragma GCC unroll 4
        for (int v = 0; v < 4; v++) k[v] = _mm512_loadu_si512(keys + (int64_t)c * PAGE + v * 64);
#pragma GCC unroll 3
        for (int d = 0; d < DIGITS; d++) {
            const __m512i x = broadcast(digits + d * head_dim + c);
#pragma GCC unroll 4
            for (int v = 0; v < 4; v++) sums[d][v] = _mm512_dpbusd_epi32(sums[d][v], k[v], x);
        }
    }
    const __m512 base = _mm512_set1_ps(256.0f), scale = _mm512_set1_ps(header->scale);
    for (int v = 0; v < 4; v++) {
        __m512 total = _mm512_cvtepi32_ps(sums[0][v]);
        for (int d = 1; d < DIGITS; d++) total = _mm512_fmadd_ps(total, base, _mm512_cvtepi32_ps(sums[d][v]));
        scores[v] = _mm512_mul_ps(total, scale);
    }
}

// exp_of, of vectors.
inline __m512 exp_16(__m512 x) {
    x = _mm512_max_ps(x, _mm512_set1_ps(-87.0f));
    const __m512 n = _mm512_roundscale_ps(_mm512_mul_ps(x, _mm512_set1_ps(1.44269504088896341f)), 8);
    __m512 r = _mm512_fmadd_ps(n, _mm512_set1_ps(-0.693359375f), x);
    r = _mm512_fmadd_ps(n, _mm512_set1_ps(2.12194440e-4f), r);
    __m512 p = _mm512_set1_ps(1.9875691500e-4f);
    p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(1.3981999507e-3f));
    p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(8.3334519073e-3f));
    p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(4.1665795894e-2f));
    p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(1.6666665459e-1f));
    p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(5.0000001201e-1f));
    p = _mm512_fmadd_ps(p, _mm512_mul_ps(r, r), _mm512_add_ps(r, _mm512_set1_ps(1.0f)));
    return _mm512_scalef_ps(p, n);
}

// Digits of the weights of a page's values, and what they are worth.
template <int DIGITS>
struct Weights {
    alignas(64) uint8_t digits[DIGITS][PAGE];
    float shrink, factor;
};

// Scores of a page to the weights of its values; `top` and `sum` as they are with this page.
template <int DIGITS>
inline void soften(__m512 *scores, const float *value_scales, int num_keys, float *top, float *sum, Weights<DIGITS> &weights) {
    __mmask16 there[4];
    __m512 highest = _mm512_set1_ps(*top), total = _mm512_setzero_ps(), largest = _mm512_setzero_ps();
    for (int v = 0; v < 4; v++) {
        there[v] = num_keys >= 16 * (v + 1) ? 0xffff : num_keys <= 16 * v ? 0 : (__mmask16)((1u << (num_keys - 16 * v)) - 1);
        highest = _mm512_mask_max_ps(highest, there[v], highest, scores[v]);
    }
    const float new_top = _mm512_reduce_max_ps(highest);
    for (int v = 0; v < 4; v++) {
        const __m512 p = _mm512_maskz_mov_ps(there[v], exp_16(_mm512_sub_ps(scores[v], _mm512_set1_ps(new_top))));
        total = _mm512_add_ps(total, p);
        scores[v] = _mm512_mul_ps(p, _mm512_loadu_ps(value_scales + v * 16));
        largest = _mm512_max_ps(largest, scores[v]);
    }
    weights.shrink = exp_of(*top - new_top);
    *top = new_top;
    *sum = *sum * weights.shrink + _mm512_reduce_add_ps(total);
    const float most = DIGITS == 3 ? 65535.0f * 256 : 65535.0f, size = _mm512_reduce_max_ps(largest);
    weights.factor = size / most;
    const __m512 inverse = _mm512_set1_ps(size > 1e-30f ? most / size : 0);
    for (int v = 0; v < 4; v++) {
        const __m512i w = _mm512_cvtps_epi32(_mm512_mul_ps(scores[v], inverse));
        for (int d = 0; d < DIGITS; d++)
            _mm_store_si128((__m128i *)(weights.digits[d] + v * 16),
                            _mm512_cvtepi32_epi8(_mm512_srli_epi32(w, 8 * (DIGITS - 1 - d))));
    }
}

// 64 channels of the values of a page, weighted for N queries: out = out * shrink + factor * sum.
template <int N, int DIGITS>
inline void weigh(const Weights<DIGITS> *weights, const int8_t *values, int head_dim, int num_keys, float *const *out) {
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
#pragma GCC unroll 3
            for (int d = 0; d < DIGITS; d++) {
                const __m512i digit = broadcast(weights[n].digits[d] + l);
#pragma GCC unroll 4
                for (int v = 0; v < 4; v++) sums[n][d][v] = _mm512_dpbusd_epi32(sums[n][d][v], digit, x[v]);
            }
    }
    for (int n = 0; n < N; n++)
        for (int v = 0; v < 4; v++) {
            __m512 sum = _mm512_cvtepi32_ps(sums[n][0][v]);
            for (int d = 1; d < DIGITS; d++)
                sum = _mm512_fmadd_ps(sum, _mm512_set1_ps(256.0f), _mm512_cvtepi32_ps(sums[n][d][v]));
            const __m512 old = _mm512_mul_ps(_mm512_loadu_ps(out[n] + v * 16), _mm512_set1_ps(weights[n].shrink));
            _mm512_storeu_ps(out[n] + v * 16, _mm512_fmadd_ps(sum, _mm512_set1_ps(weights[n].factor), old));
        }
}

template <int N, int DIGITS>
void attend_some(const uint8_t *prepared, int head_dim, const KeysValuesPage &page, const float *key_scales,
                 const float *value_scales, int num_keys, float *state) {
    Weights<DIGITS> weights[N];
    float *out[N];
    for (int n = 0; n < N; n++) {
        float *top = state + (int64_t)n * (head_dim + 2);
        __m512 scores[4];
        score<DIGITS>(prepared + n * prepared_bytes(head_dim), head_dim, page.keys, scores);
        for (int v = 0; v < 4; v++) scores[v] = _mm512_mul_ps(scores[v], _mm512_loadu_ps(key_scales + v * 16));
        soften(scores, value_scales, num_keys, top, top + 1, weights[n]);
        out[n] = top + 2;
    }
    for (int c = 0; c < head_dim; c += 64) {
        weigh<N>(weights, page.values + c * 4, head_dim, num_keys, out);
        for (int n = 0; n < N; n++) out[n] += 64;
    }
}

void attend(const uint8_t *prepared, int num_queries, int head_dim, const KeysValuesPage &page, int num_keys, float *state) {
    if (head_dim % 64) return attend_page(prepared, num_queries, head_dim, page, num_keys, state);
    alignas(64) float key_scales[PAGE], value_scales[PAGE];
    widen_scales(page.key_scales, key_scales);
    widen_scales(page.value_scales, value_scales);
    const int stride = prepared_bytes(head_dim);
    const auto digits_of = [&](int n) { return ((const PreparedQuery *)(prepared + n * stride))->num_digits; };
    for (int n = 0, count; n < num_queries; n += count) {
        const int num_digits = digits_of(n);
        count = n + 1 < num_queries && digits_of(n + 1) == num_digits ? 2 : 1;
        const auto some = num_digits == 3 ? count == 2 ? attend_some<2, 3> : attend_some<1, 3>
                          : count == 2    ? attend_some<2, 2>
                                          : attend_some<1, 2>;
        some(prepared + n * stride, head_dim, page, key_scales, value_scales, num_keys, state + (int64_t)n * (head_dim + 2));
    }
}

}  // namespace
