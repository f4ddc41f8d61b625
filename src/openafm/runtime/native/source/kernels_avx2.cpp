// AVX2: products of bytes in pairs, whose 16-bit sums must not overflow.
//
// Two of the four codes in a byte are extracted with a mask and two after one shift; they are 1 or 4 times the code, so a
// product with a byte of activations stays below 4 * 3 * 128. Sums of a few steps are kept in 16 bits and then widened.
#if defined(__AVX2__) && defined(__FMA__) && defined(__F16C__)
#include <cpuid.h>
#include <immintrin.h>

#include "full.h"
#include "generic.h"
#include "vision.h"

namespace {

enum {
    WIDE_STEPS = 4,       // steps of a panel whose sums fit 16 bits: 4 * 2 * 2 * (4 * 3) * 128 < 2^15
    WIDE_QUADS = 32,      // unpacked quads of inputs whose sums fit: 32 * 2 * 3 * 128 < 2^15
    ROWS_BESIDE = 6,      // rows of activations whose sums fit the registers
    MANY_ROWS = 20 * ROWS_BESIDE,  // rows whose sums stay in the L2 cache
    KEYS_BESIDE = 16,     // keys, or channels of values, widened at once
    QUERIES_BESIDE = 16,  // queries that use them
};

// Queries the processor, because not every compiler's __builtin_cpu_supports has this feature.
bool has_half_precision() {
    unsigned a, b, c, d;
    return __get_cpuid(1, &a, &b, &c, &d) && (c & bit_F16C);
}

bool is_supported() {
    return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && has_half_precision();
}

inline __m256i load(const void *bytes) { return _mm256_loadu_si256((const __m256i *)bytes); }

inline __m256i broadcast(const int8_t *four) {
    int32_t word;
    memcpy(&word, four, 4);
    return _mm256_set1_epi32(word);
}

// Adds pairs of 16-bit sums to 32 bits.
inline __m256i widened(__m256i sums) { return _mm256_madd_epi16(sums, _mm256_set1_epi16(1)); }

// Stores the first `count` of 8 numbers.
inline void store_some(__m256 numbers, int count, float *y) {
    if (count >= 8) return _mm256_storeu_ps(y, numbers);
    alignas(32) float all[8];
    _mm256_store_ps(all, numbers);
    for (int i = 0; i < count; i++) y[i] = all[i];
}

// Scales 8 sums and stores the rows that exist.
inline void store(__m256i sums, float zero, int32_t x_sum, float x_scale, const float *scales, int rows, float *y) {
    const __m256 exact = _mm256_sub_ps(_mm256_cvtepi32_ps(sums), _mm256_set1_ps(zero * (float)x_sum));
    store_some(_mm256_mul_ps(exact, _mm256_mul_ps(_mm256_set1_ps(x_scale), _mm256_loadu_ps(scales))), rows, y);
}

// Some steps of OCTETS times 8 rows of a panel from `first` on, times N rows of activations.
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

// A panel times N rows of activations from `row` on: the weights are read once, in order.
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

// sums += pairs of products. Codes of at most 4 bits give 16-bit sums, which the caller widens. Signed bytes of up to 127 give
// 32-bit sums; the sign of x is moved to the weights, because the instruction needs an unsigned factor.
template <int BITS>
inline __m256i add_products(__m256i sums, __m256i w, __m256i x) {
    if (BITS < 8) return _mm256_add_epi16(sums, _mm256_maddubs_epi16(w, x));
    return _mm256_add_epi32(sums, widened(_mm256_maddubs_epi16(_mm256_abs_epi8(x), _mm256_sign_epi8(w, x))));
}

template <int BITS>
inline __m256i to_32_bits(__m256i sums) {
    return BITS < 8 ? widened(sums) : sums;
}

// Some quads of an unpacked tile of 16 rows times N rows of activations.
template <int BITS, int N>
void multiply(const uint8_t *tile, const int8_t *a, int64_t stride, int num_quads, __m256i (*sums)[2]) {
    __m256i acc[N][2];
#pragma GCC unroll 6
    for (int n = 0; n < N; n++) acc[n][0] = acc[n][1] = _mm256_setzero_si256();
    for (int quad = 0; quad < num_quads; quad++) {
        const __m256i w0 = load(tile + quad * 64), w1 = load(tile + quad * 64 + 32);
#pragma GCC unroll 6
        for (int n = 0; n < N; n++) {
            const __m256i x = broadcast(a + n * stride + quad * 4);
            acc[n][0] = add_products<BITS>(acc[n][0], w0, x);
            acc[n][1] = add_products<BITS>(acc[n][1], w1, x);
        }
    }
#pragma GCC unroll 6
    for (int n = 0; n < N; n++)
        for (int t = 0; t < 2; t++) sums[n][t] = _mm256_add_epi32(sums[n][t], to_32_bits<BITS>(acc[n][t]));
}

typedef void (*Multiply)(const uint8_t *, const int8_t *, int64_t, int, __m256i (*)[2]);
template <int BITS>
const Multiply multiply_rows[ROWS_BESIDE + 1] = {0,
                                                 multiply<BITS, 1>,
                                                 multiply<BITS, 2>,
                                                 multiply<BITS, 3>,
                                                 multiply<BITS, 4>,
                                                 multiply<BITS, 5>,
                                                 multiply<BITS, 6>};

// Unpacks some steps of a panel to bytes 0 to 3, by tiles and by four inputs of 16 rows.
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

// Many rows from `first_row` on, times a panel: weights are read and unpacked once, one stretch at a time.
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
            for (int t = 0; t < 4; t++) multiply_rows<2>[rows](unpacked[t], a, x.stride, count * 4, sums[t] + row);
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

}  // namespace

#include "groups_avx2.h"

namespace {

// Attention: 32-bit numbers are split into two 16-bit digits, whose products with bytes of up to 512 channels fit 32 bits.
enum { DIGIT_BITS = 16, LARGEST_NUMBER = 32767 << DIGIT_BITS, LARGEST_DIGITS_DIM = 512 };

inline void split(const double *numbers, double factor, int count, int16_t *high, int16_t *low) {
    for (int i = 0; i < count; i += 4) {
        const __m256d number = _mm256_mul_pd(_mm256_loadu_pd(numbers + i), _mm256_set1_pd(factor));
        const __m128i whole = _mm256_cvtpd_epi32(number);
        const __m128i lows = _mm_srai_epi32(_mm_slli_epi32(whole, DIGIT_BITS), DIGIT_BITS);
        const __m128i highs = _mm_srai_epi32(_mm_sub_epi32(whole, lows), DIGIT_BITS);
        _mm_storel_epi64((__m128i *)(low + i), _mm_packs_epi32(lows, lows));
        _mm_storel_epi64((__m128i *)(high + i), _mm_packs_epi32(highs, highs));
    }
}

inline double largest_weight(const double *weights) {
    __m256d largest = _mm256_setzero_pd();
    for (int l = 0; l < PAGE; l += 4) largest = _mm256_max_pd(largest, _mm256_loadu_pd(weights + l));
    const __m128d half = _mm_max_pd(_mm256_castpd256_pd128(largest), _mm256_extractf128_pd(largest, 1));
    return _mm_cvtsd_f64(_mm_max_pd(half, _mm_unpackhi_pd(half, half)));
}

inline bool takes_digits(int head_dim) { return head_dim % KEYS_BESIDE == 0 && head_dim <= LARGEST_DIGITS_DIM; }

struct PreparedQuery {
    double scale;
    int32_t padding[14];
    // followed by int16_t digits[2][C], high digits first
};

void prepare(const float *query, int head_dim, int64_t num_keys, uint8_t *prepared) {
    if (!takes_digits(head_dim)) return prepare_query(query, head_dim, num_keys, prepared);
    PreparedQuery *header = (PreparedQuery *)prepared;
    int16_t *high = (int16_t *)(header + 1), *low = high + head_dim;
    const double largest = (double)largest_of(query, head_dim), inverse = largest > 1e-30 ? LARGEST_NUMBER / largest : 0;
    header->scale = largest > 1e-30 ? score_unit(head_dim) * largest / LARGEST_NUMBER : 0;
    double wide[LARGEST_DIGITS_DIM];
    for (int c = 0; c < head_dim; c++) wide[c] = (double)query[c];
    split(wide, inverse, head_dim, high, low);
}

// Extracts a half whose index is not a constant expression.
inline __m128i half_of(__m256i x, int half) { return half ? _mm256_extracti128_si256(x, 1) : _mm256_castsi256_si128(x); }

// Products of quads of four numbers, in two digits, with 16 columns of widened bytes [quad][16][4].
inline void multiply_quads(const int16_t *high, const int16_t *low, const int16_t *columns, int num_quads, double *y) {
    __m256i sums[2][4];
#pragma GCC unroll 4
    for (int v = 0; v < 4; v++) sums[0][v] = sums[1][v] = _mm256_setzero_si256();
    for (int quad = 0; quad < num_quads; quad++) {
        int64_t quads[2];
        memcpy(quads, high + quad * 4, 8);
        memcpy(quads + 1, low + quad * 4, 8);
        const __m256i x[2] = {_mm256_set1_epi64x(quads[0]), _mm256_set1_epi64x(quads[1])};
#pragma GCC unroll 4
        for (int v = 0; v < 4; v++) {
            const __m256i column = load(columns + quad * 64 + v * 16);
#pragma GCC unroll 2
            for (int d = 0; d < 2; d++) sums[d][v] = _mm256_add_epi32(sums[d][v], _mm256_madd_epi16(column, x[d]));
        }
    }
#pragma GCC unroll 2
    for (int v = 0; v < 4; v += 2) {
        __m256i digits[2];
#pragma GCC unroll 2
        for (int d = 0; d < 2; d++)
            digits[d] = _mm256_permute4x64_epi64(_mm256_hadd_epi32(sums[d][v], sums[d][v + 1]), 0xd8);
#pragma GCC unroll 2
        for (int half = 0; half < 2; half++) {
            const __m256d above = _mm256_cvtepi32_pd(half_of(digits[0], half));
            const __m256d below = _mm256_cvtepi32_pd(half_of(digits[1], half));
            _mm256_storeu_pd(y + v * 4 + half * 4, _mm256_fmadd_pd(above, _mm256_set1_pd(1 << DIGIT_BITS), below));
        }
    }
}

// Widens 16 columns of quads of bytes, `stride` bytes apart, to 16 bits; `flip` makes keys signed.
inline void widen(const uint8_t *bytes, int64_t stride, int num_quads, uint8_t flip, int16_t *columns) {
    const __m128i flips = _mm_set1_epi8((char)flip);
    for (int quad = 0; quad < num_quads; quad++)
#pragma GCC unroll 4
        for (int v = 0; v < 4; v++) {
            const __m128i some = _mm_xor_si128(_mm_loadu_si128((const __m128i *)(bytes + quad * stride) + v), flips);
            _mm256_store_si256((__m256i *)(columns + quad * 64) + v, _mm256_cvtepi8_epi16(some));
        }
}

// Keys and values are widened once for several queries, 16 keys or 16 channels at a time.
void attend_some(const uint8_t *prepared, int num_queries, int head_dim, const KeysValuesPage &page, const float *key_scales,
                 const float *value_scales, int num_keys, double *state) {
    alignas(32) int16_t columns[KEYS_BESIDE * LARGEST_DIGITS_DIM];
    double weights[QUERIES_BESIDE][PAGE] = {}, shrinks[QUERIES_BESIDE], units[QUERIES_BESIDE];
    int16_t digits[QUERIES_BESIDE][2][PAGE];
    const auto query = [&](int n) { return (const PreparedQuery *)(prepared + n * prepared_bytes(head_dim)); };
    for (int l = 0; l < num_keys; l += KEYS_BESIDE) {
        widen(page.keys + l * 4, PAGE * 4, head_dim / 4, 128, columns);
        for (int n = 0; n < num_queries; n++) {
            const int16_t *high = (const int16_t *)(query(n) + 1);
            multiply_quads(high, high + head_dim, columns, head_dim / 4, weights[n] + l);
        }
    }
    for (int n = 0; n < num_queries; n++) {
        double *top = state + (int64_t)n * (head_dim + 2);
        for (int l = 0; l < PAGE; l++) weights[n][l] *= query(n)->scale * (double)key_scales[l];
        shrinks[n] = soften(weights[n], value_scales, num_keys, top, top + 1);
        const double largest = largest_weight(weights[n]);
        units[n] = largest / LARGEST_NUMBER;
        split(weights[n], largest > 1e-30 ? LARGEST_NUMBER / largest : 0, PAGE, digits[n][0], digits[n][1]);
    }
    for (int c = 0; c < head_dim; c += KEYS_BESIDE) {
        widen((const uint8_t *)page.values + c * 4, head_dim * 4, (num_keys + 3) / 4, 0, columns);
        for (int n = 0; n < num_queries; n++) {
            double *out = state + (int64_t)n * (head_dim + 2) + 2 + c, added[KEYS_BESIDE];
            multiply_quads(digits[n][0], digits[n][1], columns, (num_keys + 3) / 4, added);
            for (int i = 0; i < KEYS_BESIDE; i++) out[i] = out[i] * shrinks[n] + added[i] * units[n];
        }
    }
}

void attend(const uint8_t *prepared, int num_queries, int head_dim, const KeysValuesPage &page, int num_keys, double *state) {
    if (!takes_digits(head_dim)) return attend_page(prepared, num_queries, head_dim, page, num_keys, state);
    float key_scales[PAGE], value_scales[PAGE];
    widen_scales(page.key_scales, key_scales);
    widen_scales(page.value_scales, value_scales);
    for (int n = 0; n < num_queries; n += QUERIES_BESIDE)
        attend_some(prepared + n * prepared_bytes(head_dim), num_queries - n < QUERIES_BESIDE ? num_queries - n : QUERIES_BESIDE,
                    head_dim, page, key_scales, value_scales, num_keys, state + (int64_t)n * (head_dim + 2));
}

}  // namespace

const Kernels avx2_kernels = {"avx2", is_supported, low_bit, grouped,    full,       round_row, rms_norm,
                              swiglu, prepare,      attend,  adapter_in, adapter_out, attend_full, layer_norm, gelu, soften_row};
#endif
