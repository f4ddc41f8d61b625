// Kernels written once for every instruction set: kernels_*.cpp include this under their own compiler flags, so that loops
// become that set's vectors. Everything is in an anonymous namespace: no two of these may be taken for one another.
#pragma once
#include <math.h>
#include <string.h>

#include "kernels.h"
#include "numbers.h"

namespace {

// exp of what is at most 88, to about one unit in the last place; 1e-38 below -87.
inline float exp_of(float x) {
    x = x < -87.0f ? -87.0f : x > 88.0f ? 88.0f : x;
    float n = nearest(x * 1.44269504088896341f);
    float r = n * -0.693359375f + x;
    r = n * 2.12194440e-4f + r;
    float p = 1.9875691500e-4f;
    p = p * r + 1.3981999507e-3f;
    p = p * r + 8.3334519073e-3f;
    p = p * r + 4.1665795894e-2f;
    p = p * r + 1.6666665459e-1f;
    p = p * r + 5.0000001201e-1f;
    p = p * (r * r) + (r + 1.0f);
    return p * float_of_bits((uint32_t)((int32_t)n + 127) << 23);
}

void round_row(const float *x, int n, int8_t *integers, float *scale, int32_t *sum, int32_t *group_sums) {
    const float exact = largest_of(x, n) / 127.0f, s = exact < 1.17549435e-38f ? 1.17549435e-38f : exact;
    for (int i = 0; i < n; i++) integers[i] = (int8_t)(int32_t)nearest(x[i] / s);
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

// y = (x * factor) * weight with the factor to the nearest.
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
    for (int i = 0; i < n; i++) gate[i] = gate[i] / (1.0f + exp_of(-gate[i])) * up[i];
}

void prepare_query(const float *query, int head_dim, int64_t, uint8_t *prepared) {
    memcpy(prepared, query, head_dim * sizeof(float));
}

// Scores of a page's keys to the weights of its values, each times its scale; 0 behind the first `num_keys`. Brings the
// maximum and the sum of what came before up to date, and returns by what its outputs shrink.
inline float soften(float *scores, const float *value_scales, int num_keys, float *top, float *sum) {
    float highest[LANES], totals[LANES] = {};
    for (int j = 0; j < LANES; j++) highest[j] = *top;
    for (int l = 0; l < PAGE; l += LANES)
        for (int j = 0; j < LANES; j++) {
            const float score = l + j < num_keys ? scores[l + j] : -INFINITY;
            highest[j] = score > highest[j] ? score : highest[j];
        }
    for (int width = LANES / 2; width; width /= 2)
        for (int j = 0; j < width; j++) highest[j] = highest[j + width] > highest[j] ? highest[j + width] : highest[j];
    const float shrink = exp_of(*top - highest[0]);
    *top = highest[0];
    for (int l = 0; l < PAGE; l += LANES)
        for (int j = 0; j < LANES; j++) {
            const float weight = exp_of(scores[l + j] - *top), p = l + j < num_keys ? weight : 0;
            totals[j] += p;
            scores[l + j] = p * value_scales[l + j];
        }
    for (int width = LANES / 2; width; width /= 2)
        for (int j = 0; j < width; j++) totals[j] += totals[j + width];
    *sum = *sum * shrink + totals[0];
    return shrink;
}

// The scales of a page's keys or values; those behind the first `num_keys` are of no key.
inline void widen_scales(const uint16_t *halves, float *scales) {
    for (int l = 0; l < PAGE; l++) scales[l] = half_to_float(halves[l]);
}

// Of an adapter's a and b, in half or single precision.
inline float widened(uint16_t half) { return half_to_float(half); }
inline float widened(float single) { return single; }

// A row of activations by rows [first, last) of a [rank, I]: short sums in fp32, theirs in double precision.
template <class Number>
void adapter_sums(const Number *a, const float *x, int num_inputs, int first, int last, float *low) {
    enum { SHORT = 512 };
    for (int r = first; r < last; r++) {
        const Number *row = a + (int64_t)r * num_inputs;
        double total = 0;
        for (int begin = 0; begin < num_inputs; begin += SHORT) {
            const int end = num_inputs < begin + SHORT ? num_inputs : begin + SHORT;
            float parts[2 * LANES] = {};
            int i = begin;
            for (; i + 2 * LANES <= end; i += 2 * LANES)
                for (int j = 0; j < 2 * LANES; j++) parts[j] += x[i + j] * widened(row[i + j]);
            for (; i < end; i++) parts[0] += x[i] * widened(row[i]);
            for (int j = 0; j < 2 * LANES; j++) total += (double)parts[j];
        }
        low[r] = (float)total;
    }
}

// y[r] += scale * sum of low * b for the rows of a panel of b [rank, 64].
template <class Number>
void adapter_adds(const Number *b, const float *low, int rank, float scale, int num_rows, float *y) {
    float sums[PANEL_ROWS] = {};
    for (int i = 0; i < rank; i++)
        for (int r = 0; r < PANEL_ROWS; r++) sums[r] += low[i] * widened(b[i * PANEL_ROWS + r]);
    for (int r = 0; r < num_rows; r++) y[r] += scale * sums[r];
}

void adapter_in(const OaMatrix &matrix, const float *x, int first, int last, float *low) {
    if (matrix.lora_bits == 16)
        adapter_sums((const uint16_t *)matrix.lora_a, x, matrix.num_inputs, first, last, low);
    else
        adapter_sums((const float *)matrix.lora_a, x, matrix.num_inputs, first, last, low);
}

void adapter_out(const OaMatrix &matrix, const float *low, int panel, float *y) {
    const int r = panel * PANEL_ROWS, left = matrix.num_outputs - r, num_rows = left < PANEL_ROWS ? left : PANEL_ROWS;
    const int64_t at = (int64_t)r * matrix.rank;
    if (matrix.lora_bits == 16)
        adapter_adds((const uint16_t *)matrix.lora_b + at, low, matrix.rank, matrix.lora_scale, num_rows, y + r);
    else
        adapter_adds((const float *)matrix.lora_b + at, low, matrix.rank, matrix.lora_scale, num_rows, y + r);
}

// One page for one query after the other; scores first, then the weighted values.
void attend_page(const uint8_t *prepared, int num_queries, int head_dim, const KeysValuesPage &page, int num_keys, float *state) {
    float key_scales[PAGE], value_scales[PAGE];
    widen_scales(page.key_scales, key_scales);
    widen_scales(page.value_scales, value_scales);
    for (int i = 0; i < num_queries; i++) {
        const float *q = (const float *)(prepared + (int64_t)i * prepared_bytes(head_dim));
        float *top = state + (int64_t)i * (head_dim + 2), *sum = top + 1, *out = top + 2;
        float scores[PAGE] = {};
        for (int c = 0; c < head_dim; c += 4)
            for (int l = 0; l < PAGE; l++) {
                const uint8_t *k = page.keys + (int64_t)c * PAGE + l * 4;
                scores[l] += q[c] * (float)(k[0] - 128) + q[c + 1] * (float)(k[1] - 128) +
                             q[c + 2] * (float)(k[2] - 128) + q[c + 3] * (float)(k[3] - 128);
            }
        for (int l = 0; l < PAGE; l++) scores[l] *= key_scales[l];
        const float shrink = soften(scores, value_scales, num_keys, top, sum);
        for (int c = 0; c < head_dim; c++) out[c] *= shrink;
        for (int l = 0; l < num_keys; l += 4)
            for (int c = 0; c < head_dim; c++) {
                const int8_t *v = page.values + (int64_t)l * head_dim + c * 4;
                out[c] += scores[l] * (float)v[0] + scores[l + 1] * (float)v[1] + scores[l + 2] * (float)v[2] +
                          scores[l + 3] * (float)v[3];
            }
    }
}

}  // namespace
