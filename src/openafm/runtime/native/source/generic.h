// Kernels that compilers vectorize: kernels_*.cpp include this with the flags of their instruction set. The anonymous namespace
// keeps the linker from merging the versions.
#pragma once
#if defined(__F16C__)
#include <immintrin.h>
#endif
#include <math.h>
#include <string.h>

#include "kernels.h"
#include "numbers.h"

namespace {

constexpr double LOG2_OF_E = 1.44269504088896341;
// The factor from a product of query and key to a score in base 2.
inline double score_unit(int head_dim) { return LOG2_OF_E / sqrt((double)head_dim); }

// Minimax polynomial of 2^r for r in -1/2..1/2.
constexpr double EXP2[] = {0x1.ffffffffabbd0p-1, 0x1.62e42ff116289p-1,  0x1.ebfbe0a4be81bp-3,  0x1.c6b08aaf2eee4p-5,
                           0x1.3b29dc40d6fbep-7, 0x1.5d8a70884c0fdp-10, 0x1.446a1fda1858cp-13, 0x1.fe1783e109957p-17};

// 2^x for x in -1000..1000 with a relative error of 4e-11: after rounding to fp32, all but one in a thousand are exact.
inline double exp2_of(double x) {
    const double shifted = x + 0x1.8p52, r = x - (shifted - 0x1.8p52);  // the nearest integer in the lowest bits
    double p = EXP2[7];
    for (int i = 6; i >= 0; i--) p = p * r + EXP2[i];
    return reinterpreted<double>(reinterpreted<uint64_t>(p) + (reinterpreted<uint64_t>(shifted) << 52));
}

void round_row(const float *x, int n, int8_t *integers, float *scale, int32_t *sum, int32_t *group_sums) {
    const float exact = largest_of(x, n) / 127.0f, s = exact < 1.17549435e-38f ? 1.17549435e-38f : exact;
    for (int i = 0; i < n; i++) integers[i] = nearest_byte(x[i] / s);
    memset(integers + n, 0, (size_t)((n + 63) / 64 * 64 - n));
    int32_t total = 0;
    for (int g = 0; g < (n + GROUP - 1) / GROUP; g++) {
        int32_t part = 0;
        for (int i = 0; i < GROUP; i++) part += integers[g * GROUP + i];
        group_sums[g] = part;
        total += part;
    }
    *scale = s;
    *sum = total;
}

// y = (x * factor) * weight, with a correctly rounded factor.
void rms_norm(const float *x, const float *weight, int n, float eps, float *y) {
    double parts[LANES] = {};
    int i = 0;
    for (; i + LANES <= n; i += LANES)
        for (int j = 0; j < LANES; j++) parts[j] += (double)x[i + j] * (double)x[i + j];
    for (; i < n; i++) parts[0] += (double)x[i] * (double)x[i];
    double sum = 0;
    for (int j = 0; j < LANES; j++) sum += parts[j];
    const float factor = (float)(1.0 / sqrt(sum / n + (double)eps));
    for (int j = 0; j < n; j++) y[j] = x[j] * factor * weight[j];
}

void swiglu(float *gate, const float *up, int n) {
    for (int i = 0; i < n; i++) {
        double x = -LOG2_OF_E * (double)gate[i];
        x = x < -1000.0 ? -1000.0 : x > 1000.0 ? 1000.0 : x;
        gate[i] = (float)((double)gate[i] / (1.0 + exp2_of(x)) * (double)up[i]);
    }
}

void prepare_query(const float *query, int head_dim, int64_t, uint8_t *prepared) {
    memcpy(prepared, query, head_dim * sizeof(float));
}

// The factor for partial sums when the maximum score (base 2) changes by `difference`.
inline double shrink_of(double difference) {
    return exp2_of(difference < -1000.0 ? -1000.0 : difference > 0 ? 0 : difference);
}

// Scores of a page's keys, to base 2, to the weights of its values, each times its scale; 0 after the first `num_keys`.
// Updates the running maximum and sum, and returns the factor for earlier outputs.
inline double soften(double *scores, const float *value_scales, int num_keys, double *top, double *sum) {
    double highest[LANES], totals[LANES] = {};
    for (int j = 0; j < LANES; j++) highest[j] = *top;
    for (int l = 0; l < PAGE; l += LANES)
        for (int j = 0; j < LANES; j++) {
            const double score = l + j < num_keys ? scores[l + j] : -INFINITY;
            highest[j] = score > highest[j] ? score : highest[j];
        }
    for (int width = LANES / 2; width; width /= 2)
        for (int j = 0; j < width; j++) highest[j] = highest[j + width] > highest[j] ? highest[j + width] : highest[j];
    const double shrink = shrink_of(*top - highest[0]);
    *top = highest[0];
    for (int l = 0; l < PAGE; l += LANES)
        for (int j = 0; j < LANES; j++) {
            const double weight = shrink_of(scores[l + j] - *top), p = l + j < num_keys ? weight : 0;
            totals[j] += p;
            scores[l + j] = p * (double)value_scales[l + j];
        }
    for (int width = LANES / 2; width; width /= 2)
        for (int j = 0; j < width; j++) totals[j] += totals[j + width];
    *sum = *sum * shrink + totals[0];
    return shrink;
}

// Widens the scales of a page's keys or values.
inline void widen_scales(const uint16_t *halves, float *scales) {
    for (int l = 0; l < PAGE; l++) scales[l] = half_to_float(halves[l]);
}

#if defined(__AVX512F__)
enum { NUMBERS = 8 };
#else
enum { NUMBERS = 4 };
#endif
typedef float Floats __attribute__((vector_size(4 * NUMBERS)));
typedef double Doubles __attribute__((vector_size(8 * NUMBERS)));

// Loads numbers of an adapter's a or b in half or single precision.
inline void load(const float *singles, Doubles &numbers) {
    Floats x;
    memcpy(&x, singles, sizeof x);
    numbers = __builtin_convertvector(x, Doubles);
}

inline void load(const uint16_t *halves, Doubles &numbers) {
#if defined(__AVX512F__)
    numbers = __builtin_convertvector((Floats)_mm256_cvtph_ps(_mm_loadu_si128((const __m128i *)halves)), Doubles);
#elif defined(__F16C__)
    numbers = __builtin_convertvector((Floats)_mm_cvtph_ps(_mm_loadl_epi64((const __m128i *)halves)), Doubles);
#else
    for (int j = 0; j < NUMBERS; j++) numbers[j] = (double)half_to_float(halves[j]);
#endif
}

// Rows of activations, and of a, that are processed together: limited by the registers for sums.
#if defined(__AVX512F__)
enum { ADAPTER_ROWS = 4 };
#else
enum { ADAPTER_ROWS = 2 };
#endif

// Products of N rows of activations with K rows of a [rank, I], into low [N, rank].
template <int N, int K, class Number>
inline void adapter_sums(const Number *a, const float *x, int num_inputs, int rank, double *low) {
    Doubles sums[N][K] = {};
    const auto add = [&](const auto *inputs, int64_t input_stride, const auto *numbers, int64_t number_stride) {
        Doubles input[N], number;
#pragma GCC unroll 4
        for (int n = 0; n < N; n++) load(inputs + n * input_stride, input[n]);
#pragma GCC unroll 4
        for (int k = 0; k < K; k++) {
            load(numbers + k * number_stride, number);
#pragma GCC unroll 4
            for (int n = 0; n < N; n++) sums[n][k] += input[n] * number;
        }
    };
    int i = 0;
    for (; i + NUMBERS <= num_inputs; i += NUMBERS) add(x + i, num_inputs, a + i, num_inputs);
    if (i < num_inputs) {
        float inputs[N][NUMBERS] = {};
        Number numbers[K][NUMBERS] = {};
        for (int n = 0; n < N; n++) memcpy(inputs[n], x + (int64_t)n * num_inputs + i, (num_inputs - i) * sizeof(float));
        for (int k = 0; k < K; k++) memcpy(numbers[k], a + (int64_t)k * num_inputs + i, (num_inputs - i) * sizeof(Number));
        add(inputs[0], NUMBERS, numbers[0], NUMBERS);
    }
    for (int n = 0; n < N; n++)
        for (int k = 0; k < K; k++) {
            double sum = 0;
            for (int j = 0; j < NUMBERS; j++) sum += sums[n][k][j];
            low[(int64_t)n * rank + k] = sum;
        }
}

// The same for all rows of activations and rows [first, last) of a.
template <class Number>
void adapter_sums(const Number *a, const float *x, int num_rows, int num_inputs, int rank, int first, int last, double *low) {
    for (int n = 0, rows; n < num_rows; n += rows) {
        rows = n + ADAPTER_ROWS <= num_rows ? ADAPTER_ROWS : n + 2 <= num_rows ? 2 : 1;
        for (int k = first, count; k < last; k += count) {
            count = k + ADAPTER_ROWS <= last ? ADAPTER_ROWS : 1;
            const auto sum = rows == 1   ? count == 1 ? adapter_sums<1, 1, Number> : adapter_sums<1, ADAPTER_ROWS, Number>
                             : rows == 2 ? count == 1 ? adapter_sums<2, 1, Number> : adapter_sums<2, ADAPTER_ROWS, Number>
                             : count == 1 ? adapter_sums<ADAPTER_ROWS, 1, Number>
                                          : adapter_sums<ADAPTER_ROWS, ADAPTER_ROWS, Number>;
            sum(a + (int64_t)k * num_inputs, x + (int64_t)n * num_inputs, num_inputs, rank, low + (int64_t)n * rank + k);
        }
    }
}

// y[n, r] += scale * sum of low * b for N rows of activations and `count` rows of a panel of b [rank, 64].
template <int N, class Number>
void adapter_adds(const OaLowRank &adapter, const Number *b, const double *low, int num_outputs, int count, float *y) {
    enum { VECTORS = 8 / N };  // sums that stay in registers
    float added[N][PANEL_ROWS];
    for (int first = 0; first < PANEL_ROWS; first += VECTORS * NUMBERS) {
        Doubles sums[N][VECTORS] = {}, number;
        for (int i = 0; i < adapter.rank; i++)
#pragma GCC unroll 8
            for (int v = 0; v < VECTORS; v++) {
                load(b + i * PANEL_ROWS + first + v * NUMBERS, number);
#pragma GCC unroll 2
                for (int n = 0; n < N; n++) sums[n][v] += low[(int64_t)n * adapter.rank + i] * number;
            }
        for (int n = 0; n < N; n++)
            for (int v = 0; v < VECTORS; v++) {
                const Floats singles = __builtin_convertvector((double)adapter.scale * sums[n][v], Floats);
                memcpy(added[n] + first + v * NUMBERS, &singles, sizeof singles);
            }
    }
    for (int n = 0; n < N; n++) {
        float *to = y + (int64_t)n * num_outputs;
        for (int r = 0; r < count; r++) to[r] += added[n][r];
    }
}

template <class Number>
void adapter_adds(const OaLowRank &adapter, const double *low, int num_rows, int num_outputs, int panel, float *y) {
    const int r = panel * PANEL_ROWS, left = num_outputs - r, count = left < PANEL_ROWS ? left : PANEL_ROWS;
    for (int64_t n = 0, rows; n < num_rows; n += rows) {
        rows = n + 2 <= num_rows ? 2 : 1;
        const auto add = rows == 2 ? adapter_adds<2, Number> : adapter_adds<1, Number>;
        add(adapter, (const Number *)adapter.b + (int64_t)r * adapter.rank, low + n * adapter.rank, num_outputs, count,
            y + n * num_outputs + r);
    }
}

void adapter_in(const OaLowRank &adapter, const float *x, int num_rows, int num_inputs, int first, int last, double *low) {
    if (adapter.bits == 16)
        adapter_sums((const uint16_t *)adapter.a, x, num_rows, num_inputs, adapter.rank, first, last, low);
    else
        adapter_sums((const float *)adapter.a, x, num_rows, num_inputs, adapter.rank, first, last, low);
}

void adapter_out(const OaLowRank &adapter, const double *low, int num_rows, int num_outputs, int panel, float *y) {
    if (adapter.bits == 16)
        adapter_adds<uint16_t>(adapter, low, num_rows, num_outputs, panel, y);
    else
        adapter_adds<float>(adapter, low, num_rows, num_outputs, panel, y);
}

// Processes one page for each query: scores first, then the weighted values.
void attend_page(const uint8_t *prepared, int num_queries, int head_dim, const KeysValuesPage &page, int num_keys, double *state) {
    float key_scales[PAGE], value_scales[PAGE];
    widen_scales(page.key_scales, key_scales);
    widen_scales(page.value_scales, value_scales);
    for (int i = 0; i < num_queries; i++) {
        const float *q = (const float *)(prepared + (int64_t)i * prepared_bytes(head_dim));
        double *top = state + (int64_t)i * (head_dim + 2), *sum = top + 1, *out = top + 2;
        double scores[PAGE] = {};
        for (int c = 0; c < head_dim; c += 4)
            for (int l = 0; l < PAGE; l++) {
                const uint8_t *k = page.keys + (int64_t)c * PAGE + l * 4;
                scores[l] += (double)q[c] * (k[0] - 128) + (double)q[c + 1] * (k[1] - 128) +
                             (double)q[c + 2] * (k[2] - 128) + (double)q[c + 3] * (k[3] - 128);
            }
        for (int l = 0; l < PAGE; l++) scores[l] *= score_unit(head_dim) * (double)key_scales[l];
        const double shrink = soften(scores, value_scales, num_keys, top, sum);
        for (int c = 0; c < head_dim; c++) out[c] *= shrink;
        for (int l = 0; l < num_keys; l += 4)
            for (int c = 0; c < head_dim; c++) {
                const int8_t *v = page.values + (int64_t)l * head_dim + c * 4;
                out[c] += scores[l] * v[0] + scores[l + 1] * v[1] + scores[l + 2] * v[2] + scores[l + 3] * v[3];
            }
    }
}

}  // namespace
