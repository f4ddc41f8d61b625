// Integer attention for AVX-512 with VNNI and head dims that are multiples of 64 up to 256; other head dims use the generic one.
//
// A query is rounded to 31 bits and split into four digits, so that a score is a sum of products of bytes; likewise the weights
// of the values in a page, to 32 bits. The softmax is computed in double precision, so the output is the exact one, rounded
// once. With more than FINE_KEYS keys two digits are used: this halves the cost of long contexts and adds a hundredth of the
// error of 8-bit keys and values. Choices may then differ from those of other kernel sets (docs/native-runtime.md).
#pragma once
#include <immintrin.h>

#include "generic.h"
#include "vnni.h"

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
    int32_t sums[4];  // of each digit, high digits first
    int32_t padding[9];
    // followed by int8_t digits[4][C]
};

// Converts half of 16 numbers to double precision, and two halves back.
inline __m512d wide(__m512i integers, int half) {
    return _mm512_cvtepi32_pd(half ? _mm512_extracti64x4_epi64(integers, 1) : _mm512_castsi512_si256(integers));
}

inline __m512d wide(__m512 singles, int half) {
    return _mm512_cvtps_pd(half ? _mm512_extractf32x8_ps(singles, 1) : _mm512_castps512_ps256(singles));
}

inline __m512i joined(__m256i low, __m256i high) {
    return _mm512_inserti64x4(_mm512_castsi256_si512(low), high, 1);
}

// The mask of those of 16 numbers from `first` on that are below `count`.
inline __mmask16 first_of(int count, int first) {
    return count >= first + 16 ? 0xffff : count <= first ? 0 : (__mmask16)((1u << (count - first)) - 1);
}

void prepare_digits(const float *query, int head_dim, int num_digits, PreparedQuery *header) {
    int8_t *digits = (int8_t *)(header + 1);
    const double largest = largest_of(query, head_dim), top = num_digits == 4 ? 127.0 * (1 << 24) : 127.0 * (1 << 8);
    header->scale = largest > 1e-30 ? score_unit(head_dim) * largest / top : 0.0;
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

// Precision of the scores and weights of a page: 16 keys are two vectors in double precision or one in single precision.
struct Fine {
    typedef double Number;
    typedef __m512d Vector;
    enum { DIGITS = 4, LANES_OF_KEYS = 8, VECTORS = PAGE / LANES_OF_KEYS };
    static constexpr double MOST = 4294967295.0;
};

struct Coarse {
    typedef float Number;
    typedef __m512 Vector;
    enum { DIGITS = 2, LANES_OF_KEYS = 16, VECTORS = PAGE / LANES_OF_KEYS };
    static constexpr double MOST = 65535.0;
};

inline __m512d all(double number) { return _mm512_set1_pd(number); }
inline __m512 all(float number) { return _mm512_set1_ps(number); }
inline __m512d at(const double *numbers) { return _mm512_load_pd(numbers); }
inline __m512 at(const float *numbers) { return _mm512_load_ps(numbers); }
inline __m512d those(__mmask16 lanes, __m512d x) { return _mm512_maskz_mov_pd((__mmask8)lanes, x); }
inline __m512 those(__mmask16 lanes, __m512 x) { return _mm512_maskz_mov_ps(lanes, x); }
inline __m512d highest_of(__m512d highest, __mmask16 lanes, __m512d x) {
    return _mm512_mask_max_pd(highest, (__mmask8)lanes, highest, x);
}
inline __m512 highest_of(__m512 highest, __mmask16 lanes, __m512 x) { return _mm512_mask_max_ps(highest, lanes, highest, x); }
inline double highest_of(__m512d x) { return _mm512_reduce_max_pd(x); }
inline double highest_of(__m512 x) { return (double)_mm512_reduce_max_ps(x); }
inline double sum_of(__m512d x) { return _mm512_reduce_add_pd(x); }
inline double sum_of(__m512 x) { return (double)_mm512_reduce_add_ps(x); }

// Multiplies 16 numbers by a factor.
inline void put(double *to, __m512 x, double factor) {
    for (int half = 0; half < 2; half++) _mm512_store_pd(to + half * 8, wide(x, half) * all(factor));
}
inline void put(float *to, __m512 x, double factor) { _mm512_store_ps(to, x * all((float)factor)); }

// exp2_of for vectors.
inline __m512d exp2_of(__m512d x) {
    const __m512d n = _mm512_roundscale_pd(x, 8), r = x - n;
    __m512d p = all(EXP2[7]);
#pragma GCC unroll 7
    for (int i = 6; i >= 0; i--) p = _mm512_fmadd_pd(p, r, all(EXP2[i]));
    return _mm512_scalef_pd(p, n);
}

inline __m512 exp2_of(__m512 x) {
    const __m512 n = _mm512_roundscale_ps(x, 8), r = x - n;
    __m512 p = all((float)EXP2[6]);
#pragma GCC unroll 6
    for (int i = 5; i >= 0; i--) p = _mm512_fmadd_ps(p, r, all((float)EXP2[i]));
    return _mm512_scalef_ps(p, n);
}

// Combines the i-th vectors of sums of all digits.
inline __m512d total(const Fine &, const __m512i (*sums)[4], int i) {
    const __m512i high = _mm512_add_epi32(_mm512_slli_epi32(sums[0][i / 2], 8), sums[1][i / 2]);
    const __m512i low = _mm512_add_epi32(_mm512_slli_epi32(sums[2][i / 2], 8), sums[3][i / 2]);
    return _mm512_fmadd_pd(wide(high, i % 2), all(65536.0), wide(low, i % 2));
}

inline __m512 total(const Coarse &, const __m512i (*sums)[4], int i) {
    return _mm512_cvtepi32_ps(_mm512_add_epi32(_mm512_slli_epi32(sums[0][i], 8), sums[1][i]));
}

// The weights of the v-th 16 keys as integers.
inline __m512i integers(const Fine &, const __m512d *weights, int v) {
    return joined(_mm512_cvtpd_epu32(weights[2 * v]), _mm512_cvtpd_epu32(weights[2 * v + 1]));
}

inline __m512i integers(const Coarse &, const __m512 *weights, int v) { return _mm512_cvtps_epu32(weights[v]); }

// Loads the scales of a page's keys and values; the latter in units that make a weight of 1 the largest integer.
template <class Kind>
struct PageScales {
    alignas(64) typename Kind::Number keys[PAGE], values[PAGE];
    double unit;

    PageScales(const KeysValuesPage &page, int num_keys) {
        __m512 largest = _mm512_setzero_ps(), wide_values[4];
        for (int v = 0; v < 4; v++) {
            wide_values[v] = _mm512_cvtph_ps(_mm256_loadu_si256((const __m256i *)page.value_scales + v));
            largest = highest_of(largest, first_of(num_keys, v * 16), wide_values[v]);
            put(keys + v * 16, _mm512_cvtph_ps(_mm256_loadu_si256((const __m256i *)page.key_scales + v)), 1);
        }
        unit = highest_of(largest) / Kind::MOST;
        for (int v = 0; v < 4; v++) put(values + v * 16, wide_values[v], 1 / unit);
    }
};

// Scores of a query with the keys of a page, in base 2.
template <class Kind>
inline void score(const uint8_t *prepared, int head_dim, const uint8_t *keys, const typename Kind::Number *key_scales,
                  typename Kind::Vector *scores) {
    const PreparedQuery *header = (const PreparedQuery *)prepared;
    const int8_t *digits = (const int8_t *)(header + 1);
    __m512i sums[Kind::DIGITS][4];
#pragma GCC unroll 4
    for (int d = 0; d < Kind::DIGITS; d++)
#pragma GCC unroll 4
        for (int v = 0; v < 4; v++) sums[d][v] = _mm512_set1_epi32(-128 * header->sums[d]);
    for (int c = 0; c < head_dim; c += 4) {
        __m512i k[4];
#pragma GCC unroll 4
        for (int v = 0; v < 4; v++) k[v] = _mm512_loadu_si512(keys + (int64_t)c * PAGE + v * 64);
#pragma GCC unroll 4
        for (int d = 0; d < Kind::DIGITS; d++) {
            const __m512i x = broadcast(digits + d * head_dim + c);
#pragma GCC unroll 4
            for (int v = 0; v < 4; v++) add_products(sums[d][v], k[v], x);
        }
    }
    const typename Kind::Vector scale = all((typename Kind::Number)header->scale);
#pragma GCC unroll 8
    for (int i = 0; i < Kind::VECTORS; i++) scores[i] = total(Kind(), sums, i) * scale * at(key_scales + i * Kind::LANES_OF_KEYS);
}

// Digits of the weights of a page's values relative to the page's maximum. `grown` is the page's maximum relative to that of
// all pages so far; earlier sums are multiplied by `shrink`.
template <class Kind>
struct Weights {
    alignas(64) uint8_t digits[Kind::DIGITS][PAGE];
    double shrink, grown;
};

// Converts the scores of a page to weights of its values, and updates `top` and `sum`.
template <class Kind>
inline void soften(typename Kind::Vector *scores, const typename Kind::Number *value_scales, int num_keys, double *top,
                   double *sum, Weights<Kind> &weights) {
    typedef typename Kind::Number Number;
    __mmask16 there[Kind::VECTORS];
    typename Kind::Vector highest = all((Number)-INFINITY), added = all((Number)0);
#pragma GCC unroll 8
    for (int i = 0; i < Kind::VECTORS; i++) {
        there[i] = first_of(num_keys, i * Kind::LANES_OF_KEYS);
        highest = highest_of(highest, there[i], scores[i]);
    }
    const double page_top = highest_of(highest), new_top = page_top > *top ? page_top : *top;
#pragma GCC unroll 8
    for (int i = 0; i < Kind::VECTORS; i++) {
        const typename Kind::Vector p = those(there[i], exp2_of(scores[i] - all((Number)page_top)));
        added += p;
        scores[i] = p * at(value_scales + i * Kind::LANES_OF_KEYS);
    }
#pragma GCC unroll 4
    for (int v = 0; v < 4; v++) {
        const __m512i w = integers(Kind(), scores, v);
#pragma GCC unroll 4
        for (int d = 0; d < Kind::DIGITS; d++)
            _mm_store_si128((__m128i *)(weights.digits[d] + v * 16),
                            _mm512_cvtepi32_epi8(_mm512_srli_epi32(w, 8 * (Kind::DIGITS - 1 - d))));
    }
    weights.shrink = shrink_of(*top - new_top);
    weights.grown = shrink_of(page_top - new_top);
    *top = new_top;
    *sum = *sum * weights.shrink + weights.grown * sum_of(added);
}

// Sums in double precision, half of them at a time.
inline __m512d half_of(const Fine &kind, const __m512i (*sums)[4], int i) { return total(kind, sums, i); }

inline __m512d half_of(const Coarse &, const __m512i (*sums)[4], int i) {
    return wide(_mm512_add_epi32(_mm512_slli_epi32(sums[0][i / 2], 8), sums[1][i / 2]), i % 2);
}

// Weighted sum of 64 channels of a page's values for N queries: out = out * shrink + unit * grown * sum.
template <int N, class Kind>
inline void weigh(const Weights<Kind> *weights, double unit, const int8_t *values, int head_dim, int num_keys,
                  double *const *out) {
    __m512i sums[N][Kind::DIGITS][4];
#pragma GCC unroll 2
    for (int n = 0; n < N; n++)
#pragma GCC unroll 4
        for (int d = 0; d < Kind::DIGITS; d++)
#pragma GCC unroll 4
            for (int v = 0; v < 4; v++) sums[n][d][v] = _mm512_setzero_si512();
    for (int l = 0; l < num_keys; l += 4) {
        __m512i x[4];
#pragma GCC unroll 4
        for (int v = 0; v < 4; v++) x[v] = _mm512_loadu_si512(values + (int64_t)l * head_dim + v * 64);
#pragma GCC unroll 2
        for (int n = 0; n < N; n++)
#pragma GCC unroll 4
            for (int d = 0; d < Kind::DIGITS; d++) {
                const __m512i digit = broadcast(weights[n].digits[d] + l);
#pragma GCC unroll 4
                for (int v = 0; v < 4; v++) add_products(sums[n][d][v], digit, x[v]);
            }
    }
#pragma GCC unroll 2
    for (int n = 0; n < N; n++) {
        const __m512d worth = all(unit * weights[n].grown), shrink = all(weights[n].shrink);
#pragma GCC unroll 8
        for (int i = 0; i < 8; i++)
            _mm512_storeu_pd(out[n] + i * 8, _mm512_loadu_pd(out[n] + i * 8) * shrink + half_of(Kind(), sums[n], i) * worth);
    }
}

template <int N, class Kind>
void attend_some(const uint8_t *prepared, int head_dim, const KeysValuesPage &page, const PageScales<Kind> &scales,
                 int num_keys, double *state) {
    Weights<Kind> weights[N];
    double *out[N];
    for (int n = 0; n < N; n++) {
        double *top = state + (int64_t)n * (head_dim + 2);
        typename Kind::Vector scores[Kind::VECTORS];
        score<Kind>(prepared + n * prepared_bytes(head_dim), head_dim, page.keys, scales.keys, scores);
        soften<Kind>(scores, scales.values, num_keys, top, top + 1, weights[n]);
        out[n] = top + 2;
    }
    for (int c = 0; c < head_dim; c += 64) {
        weigh<N, Kind>(weights, scales.unit, page.values + c * 4, head_dim, num_keys, out);
        for (int n = 0; n < N; n++) out[n] += 64;
    }
}

void attend(const uint8_t *prepared, int num_queries, int head_dim, const KeysValuesPage &page, int num_keys, double *state) {
    if (head_dim % 64 || head_dim > LARGEST_DIGITS_DIM) return attend_page(prepared, num_queries, head_dim, page, num_keys, state);
    const int stride = prepared_bytes(head_dim);
    const auto digits_of = [&](int n) { return ((const PreparedQuery *)(prepared + n * stride))->num_digits; };
    const auto state_of = [&](int n) { return state + (int64_t)n * (head_dim + 2); };
    const int num_lines = PAGE * (2 * head_dim + 4) / 64;
    const auto fetch_next = [&](int n, int count) {
        for (int line = n * num_lines / num_queries; page.next && line < (n + count) * num_lines / num_queries; line++)
            _mm_prefetch((const char *)page.next + line * 64, _MM_HINT_T1);
    };
    int n = 0;
    if (digits_of(0) == Fine::DIGITS) {
        const PageScales<Fine> scales(page, num_keys);
        for (; n < num_queries && digits_of(n) == Fine::DIGITS; n++) {
            fetch_next(n, 1);
            attend_some<1, Fine>(prepared + n * stride, head_dim, page, scales, num_keys, state_of(n));
        }
    }
    if (n == num_queries) return;
    const PageScales<Coarse> scales(page, num_keys);
    for (; n + 1 < num_queries; n += 2) {
        fetch_next(n, 2);
        attend_some<2, Coarse>(prepared + n * stride, head_dim, page, scales, num_keys, state_of(n));
    }
    if (n < num_queries) attend_some<1, Coarse>(prepared + n * stride, head_dim, page, scales, num_keys, state_of(n));
}

}  // namespace
