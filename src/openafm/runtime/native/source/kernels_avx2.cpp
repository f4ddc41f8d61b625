// AVX2: products of bytes in pairs, whose sums of 16 bits must not overflow.
//
// Of the four codes in a byte two are taken out by a mask alone and two after one shift: worth 1 or 4 times the code, so that
// what a byte of activations gives stays below 4 * 3 * 128. Sums of a few steps are kept in 16 bits and then widened.
#if defined(__AVX2__) && defined(__FMA__) && defined(__F16C__)
#include <immintrin.h>

#include "generic.h"

namespace {

enum {
    WIDE_STEPS = 4,       // steps of a panel whose sums fit 16 bits: 4 * 2 * 2 * (4 * 3) * 128 < 2^15
    WIDE_QUADS = 32,      // unpacked quads of inputs whose sums fit: 32 * 2 * 3 * 128 < 2^15
    ROWS_BESIDE = 6,      // rows of activations whose sums fit the registers
    MANY_ROWS = 20 * ROWS_BESIDE,  // rows whose sums stay in the second cache
    KEYS_BESIDE = 8,      // keys, and channels of values, that are widened at once
    QUERIES_BESIDE = 16,  // queries for which they are
};

bool is_supported() {
    return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && __builtin_cpu_supports("f16c");
}

inline __m256i load(const void *bytes) { return _mm256_loadu_si256((const __m256i *)bytes); }

inline __m256i broadcast(const int8_t *four) {
    int32_t word;
    memcpy(&word, four, 4);
    return _mm256_set1_epi32(word);
}

// Sums of 16 bits in pairs to 32 bits.
inline __m256i widened(__m256i sums) { return _mm256_madd_epi16(sums, _mm256_set1_epi16(1)); }

// Those of 8 numbers that exist.
inline void store_some(__m256 numbers, int count, float *y) {
    if (count >= 8) return _mm256_storeu_ps(y, numbers);
    alignas(32) float all[8];
    _mm256_store_ps(all, numbers);
    for (int i = 0; i < count; i++) y[i] = all[i];
}

// Scale 8 sums and store those rows that exist.
inline void store(__m256i sums, float zero, int32_t x_sum, float x_scale, const float *scales, int rows, float *y) {
    const __m256 exact = _mm256_sub_ps(_mm256_cvtepi32_ps(sums), _mm256_set1_ps(zero * (float)x_sum));
    store_some(_mm256_mul_ps(exact, _mm256_mul_ps(_mm256_set1_ps(x_scale), _mm256_loadu_ps(scales))), rows, y);
}

// Some steps of OCTETS times 8 rows of a panel, from the `first` on, with N rows of activations.
template <int N, int OCTETS>
inline void stream_steps(const uint8_t *codes, int count, const int8_t *const *a, int first, __m256i (*totals)[8]) {
    const __m256i mask0 = _mm256_set1_epi8(3), mask1 = _mm256_set1_epi8(12);
    __m256i once[N][OCTETS], fourfold[N][OCTETS];
    for (int n = 0; n < N; n++)
        for (int t = 0; t < OCTETS; t++) once[n][t] = fourfold[n][t] = _mm256_setzero_si256();
    for (int step = 0; step < count; step++) {
        __m256i x[N][4];
#pragma GCC unroll 2
        for (int n = 0; n < N; n++)
#pragma GCC unroll 4
            for (int p = 0; p < 4; p++) x[n][p] = broadcast(a[n] + step * 16 + 4 * p);
#pragma GCC unroll 2
        for (int t = 0; t < OCTETS; t++) {
            const __m256i w = load(codes + step * 256 + (first + t) * 32), shifted = _mm256_srli_epi16(w, 4);
            const __m256i w0 = _mm256_and_si256(w, mask0), w1 = _mm256_and_si256(w, mask1),
                          w2 = _mm256_and_si256(shifted, mask0), w3 = _mm256_and_si256(shifted, mask1);
#pragma GCC unroll 2
            for (int n = 0; n < N; n++) {
                once[n][t] = _mm256_add_epi16(once[n][t], _mm256_maddubs_epi16(w0, x[n][0]));
                fourfold[n][t] = _mm256_add_epi16(fourfold[n][t], _mm256_maddubs_epi16(w1, x[n][1]));
                once[n][t] = _mm256_add_epi16(once[n][t], _mm256_maddubs_epi16(w2, x[n][2]));
                fourfold[n][t] = _mm256_add_epi16(fourfold[n][t], _mm256_maddubs_epi16(w3, x[n][3]));
            }
        }
    }
    for (int n = 0; n < N; n++)
        for (int t = 0; t < OCTETS; t++) {
            const __m256i sums = _mm256_add_epi16(once[n][t], _mm256_srai_epi16(fourfold[n][t], 2));
            totals[n][first + t] = _mm256_add_epi32(totals[n][first + t], widened(sums));
        }
}

// A panel with N rows of activations, from `row` on: the weights are read once, in order.
template <int N>
void stream(const OaMatrix &matrix, float zero, const Rounded &x, int row, int panel, float *y, int64_t stride) {
    enum { OCTETS = N == 1 ? 2 : 1 };
    const int num_steps = (matrix.num_inputs + 15) / 16;
    const uint8_t *codes = matrix.codes + (int64_t)panel * num_steps * 256;
    __m256i totals[N][8];
    for (int n = 0; n < N; n++)
        for (int t = 0; t < 8; t++) totals[n][t] = _mm256_setzero_si256();
    for (int begin = 0; begin < num_steps; begin += WIDE_STEPS) {
        const int8_t *a[N];
        for (int n = 0; n < N; n++) a[n] = x.integers + (row + n) * x.stride + begin * 16;
        const int left = num_steps - begin;
        for (int t = 0; t < 8; t += OCTETS)
            if (left >= WIDE_STEPS)
                stream_steps<N, OCTETS>(codes + begin * 256, WIDE_STEPS, a, t, totals);
            else
                stream_steps<N, OCTETS>(codes + begin * 256, left, a, t, totals);
    }
    for (int n = 0; n < N; n++)
        for (int t = 0; t < 8; t++) {
            const int r = panel * PANEL_ROWS + t * 8;
            store(totals[n][t], zero, x.sums[row + n], x.scales[row + n], matrix.scales + r, matrix.num_outputs - r,
                  y + n * stride + r);
        }
}

// Some quads of an unpacked tile of 16 rows by N rows of activations.
template <int N>
void multiply(const uint8_t *tile, const int8_t *a, int64_t stride, int num_quads, __m256i (*sums)[2]) {
    __m256i acc[N][2];
#pragma GCC unroll 6
    for (int n = 0; n < N; n++) acc[n][0] = acc[n][1] = _mm256_setzero_si256();
    for (int quad = 0; quad < num_quads; quad++) {
        const __m256i w0 = load(tile + quad * 64), w1 = load(tile + quad * 64 + 32);
#pragma GCC unroll 6
        for (int n = 0; n < N; n++) {
            const __m256i x = broadcast(a + n * stride + quad * 4);
            acc[n][0] = _mm256_add_epi16(acc[n][0], _mm256_maddubs_epi16(w0, x));
            acc[n][1] = _mm256_add_epi16(acc[n][1], _mm256_maddubs_epi16(w1, x));
        }
    }
#pragma GCC unroll 6
    for (int n = 0; n < N; n++)
        for (int t = 0; t < 2; t++) sums[n][t] = _mm256_add_epi32(sums[n][t], widened(acc[n][t]));
}

typedef void (*Multiply)(const uint8_t *, const int8_t *, int64_t, int, __m256i (*)[2]);
const Multiply multiply_rows[ROWS_BESIDE + 1] = {0,           multiply<1>, multiply<2>, multiply<3>,
                                                 multiply<4>, multiply<5>, multiply<6>};

// Some steps of a panel as bytes 0 to 3: tile after tile, four inputs of 16 rows after the other.
inline void unpack(const uint8_t *codes, int num_steps, uint8_t (*tiles)[WIDE_QUADS * 64]) {
    const __m256i mask = _mm256_set1_epi8(3);
    for (int step = 0; step < num_steps; step++)
        for (int t = 0; t < 8; t++) {
            __m256i w = load(codes + step * 256 + t * 32);
            for (int p = 0; p < 4; p++) {
                _mm256_store_si256((__m256i *)(tiles[t / 2] + (step * 4 + p) * 64 + t % 2 * 32), _mm256_and_si256(w, mask));
                w = _mm256_srli_epi16(w, 2);
            }
        }
}

// Many rows, from `first_row` on, by a panel: weights are read and unpacked once, a stretch at a time.
void multiply_panel(const OaMatrix &matrix, float zero, const Rounded &x, int panel, int first_row, int num_rows, float *y,
                    int64_t stride) {
    const int num_steps = (matrix.num_inputs + 15) / 16;
    const uint8_t *codes = matrix.codes + (int64_t)panel * num_steps * 256;
    alignas(32) uint8_t unpacked[4][WIDE_QUADS * 64];
    __m256i sums[4][MANY_ROWS][2];
    for (int t = 0; t < 4; t++) memset(sums[t], 0, num_rows * sizeof sums[t][0]);
    for (int begin = 0; begin < num_steps; begin += WIDE_QUADS / 4) {
        const int count = num_steps - begin < WIDE_QUADS / 4 ? num_steps - begin : WIDE_QUADS / 4;
        unpack(codes + begin * 256, count, unpacked);
        for (int row = 0, rows; row < num_rows; row += rows) {
            rows = num_rows - row < ROWS_BESIDE ? num_rows - row : ROWS_BESIDE;
            const int8_t *a = x.integers + (first_row + row) * x.stride + begin * 16;
            for (int t = 0; t < 4; t++) multiply_rows[rows](unpacked[t], a, x.stride, count * 4, sums[t] + row);
        }
    }
    for (int n = 0; n < num_rows; n++)
        for (int t = 0; t < 8; t++) {
            const int row = first_row + n, r = panel * PANEL_ROWS + t * 8;
            store(sums[t / 2][n][t % 2], zero, x.sums[row], x.scales[row], matrix.scales + r, matrix.num_outputs - r,
                  y + row * stride + r);
        }
}

void low_bit(const OaMatrix &matrix, float zero, const Rounded &x, int first, int last, float *y, int64_t stride) {
    for (int panel = first; x.num_rows > FEW_ROWS && panel < last; panel++)
        for (int row = 0; row < x.num_rows; row += MANY_ROWS)
            multiply_panel(matrix, zero, x, panel, row, x.num_rows - row < MANY_ROWS ? x.num_rows - row : MANY_ROWS, y, stride);
    if (x.num_rows > FEW_ROWS) return;
    for (int panel = first; panel < last; panel++) {
        int row = 0;
        for (; row + 2 <= x.num_rows; row += 2) stream<2>(matrix, zero, x, row, panel, y + row * stride, stride);
        if (row < x.num_rows) stream<1>(matrix, zero, x, row, panel, y + row * stride, stride);
    }
}

// N rows of activations by half a tile of the embedding. The sums of a group just fit: 8 * 2 * 15 * 128 < 2^15.
template <int N>
inline void head_half(const uint8_t *tile, int half, const Rounded &x, int row, int rows, float *y, int64_t stride) {
    const __m256i mask = _mm256_set1_epi8(15);
    __m256 totals[N];
    for (int n = 0; n < N; n++) totals[n] = _mm256_setzero_ps();
    for (int g = 0; g < x.num_inputs / GROUP; g++, tile += TILE_GROUP_BYTES) {
        __m256i acc[N];
        for (int n = 0; n < N; n++) acc[n] = _mm256_setzero_si256();
#pragma GCC unroll 4
        for (int v = 0; v < 4; v++) {
            const __m256i w = load(tile + v * 64 + half * 32);
            const __m256i low = _mm256_and_si256(w, mask), high = _mm256_and_si256(_mm256_srli_epi16(w, 4), mask);
#pragma GCC unroll 4
            for (int n = 0; n < N; n++) {
                const int8_t *a = x.integers + (row + n) * x.stride + g * GROUP + v * 8;
                acc[n] = _mm256_add_epi16(acc[n], _mm256_maddubs_epi16(low, broadcast(a)));
                acc[n] = _mm256_add_epi16(acc[n], _mm256_maddubs_epi16(high, broadcast(a + 4)));
            }
        }
        const __m256 scales = _mm256_cvtph_ps(_mm_loadu_si128((const __m128i *)(tile + 256 + half * 16)));
        const __m256 minima = _mm256_cvtph_ps(_mm_loadu_si128((const __m128i *)(tile + 288 + half * 16)));
        for (int n = 0; n < N; n++) {
            totals[n] = _mm256_fmadd_ps(scales, _mm256_cvtepi32_ps(widened(acc[n])), totals[n]);
            const float group_sum = (float)x.group_sums[(row + n) * (x.stride / GROUP) + g];
            totals[n] = _mm256_fmadd_ps(minima, _mm256_set1_ps(group_sum), totals[n]);
        }
    }
    for (int n = 0; n < N; n++)
        store_some(_mm256_mul_ps(totals[n], _mm256_set1_ps(x.scales[row + n])), rows, y + (row + n) * stride);
}

void head(const uint8_t *tiles, const Rounded &x, int first, int last, int vocab_size, float *y, int64_t stride) {
    const int64_t tile_bytes = (int64_t)(x.num_inputs / GROUP) * TILE_GROUP_BYTES;
    for (int tile = first; tile < last; tile++)
        for (int half = 0; half < 2; half++) {
            const int r = tile * TILE_ROWS + half * 8;
            int row = 0;
            for (; row + 4 <= x.num_rows; row += 4)
                head_half<4>(tiles + tile * tile_bytes, half, x, row, vocab_size - r, y + r, stride);
            for (; row < x.num_rows; row++)
                head_half<1>(tiles + tile * tile_bytes, half, x, row, vocab_size - r, y + r, stride);
        }
}

inline __m256d load_quad(const float *numbers) { return _mm256_cvtps_pd(_mm_loadu_ps(numbers)); }
inline __m256d load_quad(const double *numbers) { return _mm256_loadu_pd(numbers); }

// Sums over quads of four numbers by 8 columns of widened bytes [quad][8][4].
template <class Number>
inline void multiply_quads(const Number *numbers, const double *columns, int num_quads, double *y) {
    __m256d sums[8];
#pragma GCC unroll 8
    for (int v = 0; v < 8; v++) sums[v] = _mm256_setzero_pd();
    for (int quad = 0; quad < num_quads; quad++) {
        const __m256d x = load_quad(numbers + quad * 4);
#pragma GCC unroll 8
        for (int v = 0; v < 8; v++) sums[v] = _mm256_fmadd_pd(x, _mm256_load_pd(columns + quad * 32 + v * 4), sums[v]);
    }
    for (int i = 0; i < 2; i++) {
        const __m256d a = _mm256_hadd_pd(sums[4 * i], sums[4 * i + 1]), b = _mm256_hadd_pd(sums[4 * i + 2], sums[4 * i + 3]);
        _mm256_storeu_pd(y + 4 * i, _mm256_add_pd(_mm256_permute2f128_pd(a, b, 0x20), _mm256_permute2f128_pd(a, b, 0x31)));
    }
}

// 8 columns of quads of bytes, `stride` bytes from quad to quad, in double precision; `flip` makes keys signed.
inline void widen(const uint8_t *bytes, int64_t stride, int num_quads, uint8_t flip, double *columns) {
    const __m128i flips = _mm_set1_epi8((char)flip);
    for (int quad = 0; quad < num_quads; quad++)
        for (int v = 0; v < 8; v += 4) {
            const __m128i bytes_16 = _mm_loadu_si128((const __m128i *)(bytes + quad * stride + v * 4));
            __m128i rest = _mm_xor_si128(bytes_16, flips);
#pragma GCC unroll 4
            for (int i = 0; i < 4; i++, rest = _mm_srli_si128(rest, 4))
                _mm256_store_pd(columns + quad * 32 + (v + i) * 4, _mm256_cvtepi32_pd(_mm_cvtepi8_epi32(rest)));
        }
}

// Keys and values are widened once for some queries, 8 keys or 8 channels at a time.
void attend_some(const uint8_t *prepared, int num_queries, int head_dim, const KeysValuesPage &page, const double *key_scales,
                 const float *value_scales, int num_keys, double *state) {
    alignas(32) double columns[KEYS_BESIDE * (LARGEST_HEAD_DIM > PAGE ? LARGEST_HEAD_DIM : PAGE)];
    double weights[QUERIES_BESIDE][PAGE] = {}, shrinks[QUERIES_BESIDE];
    for (int l = 0; l < num_keys; l += KEYS_BESIDE) {
        widen(page.keys + l * 4, PAGE * 4, head_dim / 4, 128, columns);
        for (int n = 0; n < num_queries; n++)
            multiply_quads((const float *)(prepared + n * prepared_bytes(head_dim)), columns, head_dim / 4, weights[n] + l);
    }
    for (int n = 0; n < num_queries; n++) {
        double *top = state + (int64_t)n * (head_dim + 2);
        for (int l = 0; l < PAGE; l++) weights[n][l] *= key_scales[l];
        shrinks[n] = soften(weights[n], value_scales, num_keys, top, top + 1);
    }
    for (int c = 0; c < head_dim; c += KEYS_BESIDE) {
        widen((const uint8_t *)page.values + c * 4, head_dim * 4, (num_keys + 3) / 4, 0, columns);
        for (int n = 0; n < num_queries; n++) {
            double *out = state + (int64_t)n * (head_dim + 2) + 2 + c, added[KEYS_BESIDE];
            multiply_quads(weights[n], columns, (num_keys + 3) / 4, added);
            for (int i = 0; i < KEYS_BESIDE; i++) out[i] = out[i] * shrinks[n] + added[i];
        }
    }
}

void attend(const uint8_t *prepared, int num_queries, int head_dim, const KeysValuesPage &page, int num_keys, double *state) {
    if (head_dim % KEYS_BESIDE) return attend_page(prepared, num_queries, head_dim, page, num_keys, state);
    float scales[PAGE], value_scales[PAGE];
    double key_scales[PAGE];
    widen_scales(page.key_scales, scales);
    widen_scales(page.value_scales, value_scales);
    for (int l = 0; l < PAGE; l++) key_scales[l] = score_unit(head_dim) * (double)scales[l];
    for (int n = 0; n < num_queries; n += QUERIES_BESIDE)
        attend_some(prepared + n * prepared_bytes(head_dim), num_queries - n < QUERIES_BESIDE ? num_queries - n : QUERIES_BESIDE,
                    head_dim, page, key_scales, value_scales, num_keys, state + (int64_t)n * (head_dim + 2));
}

}  // namespace

const Kernels avx2_kernels = {"avx2", is_supported,  low_bit, head,       round_row,  rms_norm,
                              swiglu, prepare_query, attend,  adapter_in, adapter_out};
#endif
