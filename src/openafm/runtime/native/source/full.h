// Weights, keys and values in floating point, in plain C++ vectors.
//
// Each sum is one chain of fused additions in the order of the inputs, so its bits do not depend on the number of rows.
// Several rows and tiles at once keep enough chains in flight.
#pragma once
#include "generic.h"

namespace {

#if defined(__AVX512F__)
enum { WIDTH = 16 };
#else
enum { WIDTH = 8 };
#endif
enum { FULL_ROWS = 6, VECTORS_OF_TILE = TILE_ROWS / WIDTH, PANEL_TILES = PANEL_ROWS / TILE_ROWS };
enum { QUERIES_TOGETHER = 4, KEYS_TOGETHER = 2 * WIDTH };
typedef float Singles __attribute__((vector_size(4 * WIDTH)));
typedef int32_t Integers __attribute__((vector_size(4 * WIDTH)));

inline void load_weights(const float *numbers, Singles &w) { memcpy(&w, numbers, sizeof w); }

inline void load_weights(const uint16_t *numbers, Singles &w) {
    typedef uint16_t Halves __attribute__((vector_size(2 * WIDTH)));
    typedef uint32_t Words __attribute__((vector_size(4 * WIDTH)));
    Halves halves;
    memcpy(&halves, numbers, sizeof halves);
    w = (Singles)(__builtin_convertvector(halves, Words) << 16);
}

// T tiles from `codes` on, times N rows of x.
template <class Number, int N, int T>
void full_tiles(const Number *codes, const float *x, int num_inputs, int num_outputs, float *y, int64_t y_stride) {
    enum { V = T * VECTORS_OF_TILE };
    Singles sums[N][V] = {};
    for (int64_t i = 0; i < num_inputs; i++) {
        Singles w[V];
#pragma GCC unroll 8
        for (int v = 0; v < V; v++)
            load_weights(codes + ((int64_t)(v / VECTORS_OF_TILE) * num_inputs + i) * TILE_ROWS + v % VECTORS_OF_TILE * WIDTH, w[v]);
#pragma GCC unroll 6
        for (int n = 0; n < N; n++) {
            const float input = x[n * (int64_t)num_inputs + i];
#pragma GCC unroll 8
            for (int v = 0; v < V; v++) sums[n][v] += w[v] * input;
        }
    }
    for (int n = 0; n < N; n++) {
        const int count = num_outputs < T * TILE_ROWS ? num_outputs : T * TILE_ROWS;
        memcpy(y + n * y_stride, sums[n], count * sizeof(float));
    }
}

// Tiles [first, last) of one panel times N rows.
template <class Number, int N>
void full_panel(const OaMatrix &matrix, const float *x, int first, int last, float *y, int64_t y_stride) {
    enum { T = WIDTH == 16 || N == 1 ? 4 : N <= 3 ? 2 : 1 };
    const auto at = [&](int tile) { return (const Number *)matrix.codes + (int64_t)tile * matrix.num_inputs * TILE_ROWS; };
    const auto left = [&](int tile) { return matrix.num_outputs - tile * TILE_ROWS; };
    int tile = first;
    for (; tile + T <= last; tile += T)
        full_tiles<Number, N, T>(at(tile), x, matrix.num_inputs, left(tile), y + tile * TILE_ROWS, y_stride);
    for (; tile < last; tile++)
        full_tiles<Number, N, 1>(at(tile), x, matrix.num_inputs, left(tile), y + tile * TILE_ROWS, y_stride);
}

typedef void (*FullPanel)(const OaMatrix &, const float *, int, int, float *, int64_t);
template <class Number>
const FullPanel full_panels[FULL_ROWS + 1] = {0,
                                              full_panel<Number, 1>,
                                              full_panel<Number, 2>,
                                              full_panel<Number, 3>,
                                              full_panel<Number, 4>,
                                              full_panel<Number, 5>,
                                              full_panel<Number, 6>};

void full(const OaMatrix &matrix, const float *x, int num_rows, int first, int last, float *y, int64_t y_stride) {
    const FullPanel *panels = matrix.kind == OA_FLOAT32 ? full_panels<float> : full_panels<uint16_t>;
    for (int tile = first, end; tile < last; tile = end) {
        end = tile + PANEL_TILES < last ? tile + PANEL_TILES : last;
        for (int n = 0, rows; n < num_rows; n += rows) {
            const int left = num_rows - n, parts = (left + FULL_ROWS - 1) / FULL_ROWS;
            rows = (left + parts - 1) / parts;
            panels[rows](matrix, x + (int64_t)n * matrix.num_inputs, tile, end, y + n * y_stride, y_stride);
        }
    }
}

// x = 2^x for x <= 0, at least 2^-126. The polynomial is that of exp2_of to fewer terms, exact to 2e-7.
inline void raise_2_to(Singles &x) {
    constexpr float FACTORS[] = {1.3333558e-3f, 9.6181291e-3f, 5.5504109e-2f, 2.4022651e-1f, 6.9314718e-1f, 1.0f};
    const Singles least = Singles{} - 126.0f;
    x = x > least ? x : least;
    const Singles whole = x + 12582912.0f - 12582912.0f, r = x - whole;
    Singles y = Singles{} + 1.5403530e-4f;
    for (const float factor : FACTORS) y = y * r + factor;
    x = y * (Singles)((__builtin_convertvector(whole, Integers) + 127) << 23);
}

// Scores of N queries with the keys [first, first + KEYS_TOGETHER) of a page, [C][PAGE].
template <int N>
inline void score_keys(const float *const *queries, int head_dim, const float *keys, int first, float (*scores)[PAGE]) {
    Singles sums[N][2] = {};
    for (int c = 0; c < head_dim; c++) {
        Singles k[2];
        load_weights(keys + c * PAGE + first, k[0]);
        load_weights(keys + c * PAGE + first + WIDTH, k[1]);
#pragma GCC unroll 4
        for (int n = 0; n < N; n++) {
            sums[n][0] += k[0] * queries[n][c];
            sums[n][1] += k[1] * queries[n][c];
        }
    }
    for (int n = 0; n < N; n++) memcpy(scores[n] + first, sums[n], sizeof sums[n]);
}

// Adds the values [PAGE][C] of keys [first, last), weighted, to V * WIDTH outputs of N queries from channel `c` on. Channels
// after the head dim are not stored.
template <int N, int V>
inline void add_values(const float (*weights)[PAGE], const float *values, int head_dim, int c, int first, int last,
                       const double *shrinks, double *const *outputs) {
    const int count = head_dim - c < V * WIDTH ? head_dim - c : V * WIDTH;
    Singles sums[N][V] = {};
    const auto add = [&](const float *from, int l) {
        Singles v[V];
#pragma GCC unroll 2
        for (int i = 0; i < V; i++) load_weights(from + i * WIDTH, v[i]);
#pragma GCC unroll 4
        for (int n = 0; n < N; n++)
#pragma GCC unroll 2
            for (int i = 0; i < V; i++) sums[n][i] += v[i] * weights[n][l];
    };
    if (count == V * WIDTH)
        for (int l = first; l < last; l++) add(values + (int64_t)l * head_dim + c, l);
    else
        for (int l = first; l < last; l++) {
            float some[V * WIDTH] = {};
            memcpy(some, values + (int64_t)l * head_dim + c, count * sizeof(float));
            add(some, l);
        }
    for (int n = 0; n < N; n++) {
        float numbers[V * WIDTH];
        memcpy(numbers, sums[n], sizeof numbers);
        for (int i = 0; i < count; i++) outputs[n][c + i] = outputs[n][c + i] * shrinks[n] + (double)numbers[i];
    }
}

// Scores of keys [first, last), to base 2, to weights; what is beside them in their vectors counts less than 2^-100. Updates the
// running maximum and sum, and returns the factor for earlier outputs.
inline double weigh(float *scores, float unit, int first, int last, double *top, double *sum) {
    const int begin = first / KEYS_TOGETHER * KEYS_TOGETHER, end = (last + KEYS_TOGETHER - 1) / KEYS_TOGETHER * KEYS_TOGETHER;
    for (int l = begin; l < first; l++) scores[l] = -INFINITY;
    for (int l = last; l < end; l++) scores[l] = -INFINITY;
    Singles largest = Singles{} - INFINITY, totals = {}, x;
    for (int l = begin; l < end; l += WIDTH) {
        load_weights(scores + l, x);
        largest = x > largest ? x : largest;
    }
    float highest = -INFINITY, total = 0;
    for (int j = 0; j < WIDTH; j++) highest = largest[j] > highest ? largest[j] : highest;
    const double before = *top, here = (double)(highest * unit);
    *top = here > before ? here : before;
    for (int l = begin; l < end; l += WIDTH) {
        load_weights(scores + l, x);
        x = x * unit - (float)*top;
        raise_2_to(x);
        memcpy(scores + l, &x, sizeof x);
        totals += x;
    }
    for (int j = 0; j < WIDTH; j++) total += totals[j];
    const double shrink = shrink_of(before - *top);
    *sum = *sum * shrink + (double)total;
    return shrink;
}

template <int N>
void attend_together(const uint8_t *prepared, int head_dim, const KeysValuesPage &page, int first, int last, double *state) {
    const float *keys = (const float *)page.keys, *values = (const float *)page.values, *queries[N];
    float scores[N][PAGE];
    double shrinks[N], *outputs[N];
    for (int n = 0; n < N; n++) queries[n] = (const float *)(prepared + (int64_t)n * prepared_bytes(head_dim));
    for (int l = first / KEYS_TOGETHER * KEYS_TOGETHER; l < last; l += KEYS_TOGETHER)
        score_keys<N>(queries, head_dim, keys, l, scores);
    for (int n = 0; n < N; n++) {
        double *top = state + (int64_t)n * (head_dim + 2);
        shrinks[n] = weigh(scores[n], (float)score_unit(head_dim), first, last, top, top + 1);
        outputs[n] = top + 2;
    }
    int c = 0;
    for (; c + 2 * WIDTH <= head_dim; c += 2 * WIDTH)
        add_values<N, 2>(scores, values, head_dim, c, first, last, shrinks, outputs);
    for (; c < head_dim; c += WIDTH) add_values<N, 1>(scores, values, head_dim, c, first, last, shrinks, outputs);
}

void attend_full(const uint8_t *prepared, int num_queries, int head_dim, const KeysValuesPage &page, int first, int last,
                 double *state) {
    for (int n = 0, count; n < num_queries; n += count) {
        count = n + QUERIES_TOGETHER <= num_queries ? QUERIES_TOGETHER : n + 2 <= num_queries ? 2 : 1;
        const auto attend = count == QUERIES_TOGETHER ? attend_together<QUERIES_TOGETHER> : count == 2 ? attend_together<2> : attend_together<1>;
        attend(prepared + (int64_t)n * prepared_bytes(head_dim), head_dim, page, first, last, state + (int64_t)n * (head_dim + 2));
    }
}

}  // namespace
