// Kernels written once for every instruction set: kernels_*.cpp include this under their own compiler flags, so that loops
// become that set's vectors. Everything is in an anonymous namespace: no two of these may be taken for one another.
#pragma once
#include <math.h>
#include <string.h>

#include "half.h"
#include "kernels.h"

namespace {

// exp of what is at most 88, to about one unit in the last place; flushes to zero below -87.
inline float exp_of(float x) {
    x = x < -87.0f ? -87.0f : x > 88.0f ? 88.0f : x;
    float n = rintf(x * 1.44269504088896341f);
    float r = fmaf(n, -0.693359375f, x);
    r = fmaf(n, 2.12194440e-4f, r);
    float p = 1.9875691500e-4f;
    p = fmaf(p, r, 1.3981999507e-3f);
    p = fmaf(p, r, 8.3334519073e-3f);
    p = fmaf(p, r, 4.1665795894e-2f);
    p = fmaf(p, r, 1.6666665459e-1f);
    p = fmaf(p, r, 5.0000001201e-1f);
    p = fmaf(p, r * r, r + 1.0f);
    int32_t bits = ((int32_t)n + 127) << 23;
    float power;
    memcpy(&power, &bits, 4);
    return p * power;
}

void round_row(const float *x, int n, int8_t *integers, float *scale, int32_t *sum, int32_t *group_sums) {
    float largest = 0;
    for (int i = 0; i < n; i++) {
        float a = fabsf(x[i]);
        largest = a > largest ? a : largest;
    }
    float s = largest / 127.0f;
    s = s < 1.17549435e-38f ? 1.17549435e-38f : s;
    for (int i = 0; i < n; i++) integers[i] = (int8_t)rintf(x[i] / s);
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

void rms_norm(const float *x, const float *weight, int n, float eps, float *y) {
    float parts[16] = {};
    int i = 0;
    for (; i + 16 <= n; i += 16)
        for (int j = 0; j < 16; j++) parts[j] += x[i + j] * x[i + j];
    double sum = 0;
    for (int j = 0; j < 16; j++) sum += parts[j];
    for (; i < n; i++) sum += (double)x[i] * x[i];
    float factor = (float)(1.0 / sqrt(sum / n + (double)eps));
    for (int j = 0; j < n; j++) y[j] = x[j] * factor * weight[j];
}

void swiglu(float *gate, const float *up, int n) {
    for (int i = 0; i < n; i++) gate[i] = gate[i] / (1.0f + exp_of(-gate[i])) * up[i];
}

void prepare_query(const float *query, int head_dim, uint8_t *prepared) {
    memcpy(prepared, query, head_dim * sizeof(float));
}

// One page for one query after the other; scores first, then the weighted values.
void attend_page(const uint8_t *prepared, int num_queries, int head_dim, const KeysValuesPage &page, int num_keys, float *state) {
    float key_scales[PAGE], value_scales[PAGE];
    for (int l = 0; l < num_keys; l++) {
        key_scales[l] = half_to_float(page.key_scales[l]);
        value_scales[l] = half_to_float(page.value_scales[l]);
    }
    for (int l = num_keys; l < PAGE; l++) key_scales[l] = value_scales[l] = 0;
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
        float highest = *top;
        for (int l = 0; l < num_keys; l++) {
            scores[l] *= key_scales[l];
            highest = scores[l] > highest ? scores[l] : highest;
        }
        float shrink = exp_of(*top - highest), total = 0;
        for (int l = 0; l < PAGE; l++) {
            float p = l < num_keys ? exp_of(scores[l] - highest) : 0;
            total += p;
            scores[l] = p * value_scales[l];
        }
        *top = highest;
        *sum = *sum * shrink + total;
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
