// Layer norm, GELU and softmax of the vision encoder in fp32, in plain C++ vectors.
#pragma once
#include "full.h"

namespace {

// Calls each(i, count, numbers) for the vectors of a row. Lanes after the row are `beyond`.
template <class Each>
inline void by_vectors(const float *x, int n, float beyond, const Each &each) {
    Singles numbers;
    int i = 0;
    for (; i + WIDTH <= n; i += WIDTH) {
        memcpy(&numbers, x + i, sizeof numbers);
        each(i, (int)WIDTH, numbers);
    }
    if (i == n) return;
    numbers = Singles{} + beyond;
    memcpy(&numbers, x + i, (n - i) * sizeof(float));
    each(i, n - i, numbers);
}

inline void store_lanes(const Singles &x, int count, float *y) {
    if (count == WIDTH)
        memcpy(y, &x, sizeof x);
    else
        memcpy(y, &x, count * sizeof(float));
}

inline float sum_of_lanes(const Singles &x) {
    float total = 0;
    for (int j = 0; j < WIDTH; j++) total += x[j];
    return total;
}

void layer_norm(const float *x, const float *weight, const float *bias, int n, float eps, float *y) {
    Singles sums = {}, squares = {};
    by_vectors(x, n, 0, [&](int, int, const Singles &numbers) { sums += numbers; });
    const float mean = sum_of_lanes(sums) / (float)n;
    by_vectors(x, n, mean, [&](int, int, const Singles &numbers) { squares += (numbers - mean) * (numbers - mean); });
    const float factor = 1 / sqrtf(sum_of_lanes(squares) / (float)n + eps);
    for (int i = 0; i < n; i++) y[i] = (x[i] - mean) * factor * weight[i] + bias[i];
}

// erf(x) = 1 - (a1 t + ... + a5 t^5) exp(-x^2) with t = 1 / (1 + p x), within 1.5e-7 (Abramowitz and Stegun 7.1.26).
void gelu(float *x, int n) {
    constexpr float P = (float)(0.3275911 * 0.70710678118654752);
    constexpr float FACTORS[] = {-1.453152027f, 1.421413741f, -0.284496736f, 0.254829592f};
    constexpr float LEAST_POWER = -80;
    constexpr float HALF_LOG2_OF_E = (float)(LOG2_OF_E / 2);
    by_vectors(x, n, 0, [&](int i, int count, const Singles &numbers) {
        const Singles size = numbers < 0 ? -numbers : numbers, t = 1 / (size * P + 1);
        Singles tail = Singles{} + 1.061405429f, power = -HALF_LOG2_OF_E * size * size;
        // Products of smaller numbers would be subnormal, which is slow.
        power = power > LEAST_POWER ? power : Singles{} + LEAST_POWER;
        for (const float factor : FACTORS) tail = tail * t + factor;
        raise_2_to(power);
        store_lanes((numbers > 0 ? numbers : 0 * numbers) - tail * t * power * size * 0.5f, count, x + i);
    });
}

// x = 2^(x - the largest of x); returns the sum.
float soften_row(float *x, int n) {
    Singles largest = Singles{} - INFINITY, sums = {};
    by_vectors(x, n, -INFINITY, [&](int, int, const Singles &numbers) { largest = numbers > largest ? numbers : largest; });
    float highest = largest[0];
    for (int j = 1; j < WIDTH; j++) highest = largest[j] > highest ? largest[j] : highest;
    by_vectors(x, n, -INFINITY, [&](int i, int count, Singles numbers) {
        numbers -= highest;
        raise_2_to(numbers);
        sums += numbers;
        store_lanes(numbers, count, x + i);
    });
    return sum_of_lanes(sums);
}

}  // namespace
