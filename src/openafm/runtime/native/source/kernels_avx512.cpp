// AVX-512 with VNNI: sums of four products of bytes in one instruction.
//
// Two of the four codes in a byte are extracted with a mask and two after one shift; they are 1 or 4 times the code, have
// separate accumulators, and are corrected by one shift at the end. Weights are read in order and unpacked again for every one
// to four rows of activations, which is cheap compared with the products.
#if defined(__AVX512F__) && defined(__AVX512VNNI__)
#include <immintrin.h>

#include "attention_avx512.h"
#include "full.h"
#include "generic.h"
#include "vision.h"
#include "vnni.h"

namespace {

enum {
    STRETCH = 48,          // steps of a panel that are multiplied by all rows before the next steps
    MANY_ROWS = 128,       // rows whose sums stay in the cache
    ONE_ROW_AHEAD = 4096,  // prefetch distance in bytes where memory is the limit
    ROWS_AHEAD = 16384     // and where it is not
};

const bool IS_INTEL = (__builtin_cpu_init(), __builtin_cpu_is("intel"));

// Prefetches weights that are read once. Intel's non-temporal prefetches hold the few line buffers of the L1 cache until memory
// answers: a core of a Cascade Lake reads 6.5 GB/s with them and 11 with prefetches into all caches.
inline void fetch_once(const uint8_t *codes) {
    if (IS_INTEL)
        _mm_prefetch((const char *)codes + ONE_ROW_AHEAD, _MM_HINT_T0);
    else
        _mm_prefetch((const char *)codes + ONE_ROW_AHEAD, _MM_HINT_NTA);
}

}  // namespace

#include "groups_avx512.h"

namespace {

bool is_supported() {
    return __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512vl") &&
           __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vnni");
}

// Scales 16 sums and stores the rows that exist.
inline void store(__m512i sums, float zero, int32_t x_sum, float x_scale, const float *scales, int rows, float *y) {
    __m512 exact = _mm512_sub_ps(_mm512_cvtepi32_ps(sums), _mm512_set1_ps(zero * (float)x_sum));
    __m512 scaled = _mm512_mul_ps(exact, _mm512_mul_ps(_mm512_set1_ps(x_scale), _mm512_loadu_ps(scales)));
    _mm512_mask_storeu_ps(y, rows >= 16 ? 0xffff : (__mmask16)((1u << (rows < 0 ? 0 : rows)) - 1), scaled);
}

// Prefetches for a multiplication. One row of activations is bound by memory, and its reads are not reused. With more rows,
// computation dominates, so memory is prefetched early and the stretch is read from the L2 cache.
template <int N>
inline void fetch(const uint8_t *codes) {
    if (N == 1)
        fetch_once(codes);
    else
        _mm_prefetch((const char *)codes + ROWS_AHEAD, _MM_HINT_T1);
}

// Some steps of T of the four tiles of a panel times N rows of activations: N * T pairs of sums, which fill the registers.
template <int N, int T, bool FETCHES>
inline void multiply_tiles(const uint8_t *codes, int num_steps, const int8_t *const *a, int tile, __m512i (*totals)[4]) {
    const __m512i mask0 = _mm512_set1_epi8(3), mask1 = _mm512_set1_epi8(12);
    __m512i once[N][T], fourfold[N][T];
#pragma GCC unroll 4
    for (int n = 0; n < N; n++)
#pragma GCC unroll 4
        for (int t = 0; t < T; t++) once[n][t] = fourfold[n][t] = _mm512_setzero_si512();
    for (int step = 0; step < num_steps; step++) {
        __m512i w[T];
#pragma GCC unroll 4
        for (int t = 0; t < T; t++) {
            const uint8_t *from = codes + step * 256 + (tile + t) * 64;
            w[t] = _mm512_loadu_si512(from);
            if (FETCHES) fetch<N>(from);
        }
#pragma GCC unroll 4
        for (int p = 0; p < 4; p++) {
            __m512i plane[T];
#pragma GCC unroll 4
            for (int t = 0; t < T; t++) {
                if (p == 2) w[t] = _mm512_srli_epi16(w[t], 4);
                plane[t] = _mm512_and_si512(w[t], p % 2 ? mask1 : mask0);
            }
#pragma GCC unroll 4
            for (int n = 0; n < N; n++) {
                const __m512i x = broadcast(a[n] + step * 16 + p * 4);
#pragma GCC unroll 4
                for (int t = 0; t < T; t++) add_products(p % 2 ? fourfold[n][t] : once[n][t], plane[t], x);
            }
        }
    }
#pragma GCC unroll 4
    for (int n = 0; n < N; n++)
#pragma GCC unroll 4
        for (int t = 0; t < T; t++) {
            const __m512i sum = _mm512_add_epi32(once[n][t], _mm512_srai_epi32(fourfold[n][t], 2));
            totals[n][tile + t] = _mm512_add_epi32(totals[n][tile + t], sum);
        }
}

// Some steps of a panel times N rows of activations.
template <int N, bool FETCHES>
inline void multiply_rows(const uint8_t *codes, int num_steps, const int8_t *x, int64_t stride, __m512i (*totals)[4]) {
    enum { T = N <= 2 ? 4 : 2 };
    const int8_t *a[N];
    for (int n = 0; n < N; n++) a[n] = x + n * stride;
    for (int tile = 0; tile < 4; tile += T) multiply_tiles<N, T, FETCHES>(codes, num_steps, a, tile, totals);
}

template <bool FETCHES>
void multiply_some(int count, const uint8_t *codes, int num_steps, const int8_t *x, int64_t stride, __m512i (*totals)[4]) {
    if (count == 1) return multiply_rows<1, FETCHES>(codes, num_steps, x, stride, totals);
    if (count == 2) return multiply_rows<2, FETCHES>(codes, num_steps, x, stride, totals);
    if (count == 3) return multiply_rows<3, FETCHES>(codes, num_steps, x, stride, totals);
    multiply_rows<4, FETCHES>(codes, num_steps, x, stride, totals);
}

// A panel times rows of activations from `first` on. With more rows than one multiplication takes, a stretch of the panel stays
// in the L1 cache until all rows have been multiplied with it.
void multiply_panel(const OaMatrix &matrix, float zero, const Rounded &x, int panel, int first, int num_rows, float *y,
                    int64_t y_stride) {
    const int num_steps = (matrix.num_inputs + 15) / 16, stretch = num_rows <= 2 ? num_steps : STRETCH;
    const uint8_t *codes = matrix.codes + (int64_t)panel * num_steps * 256;
    __m512i totals[MANY_ROWS][4];
    memset(totals, 0, num_rows * sizeof totals[0]);
    for (int begin = 0; begin < num_steps; begin += stretch) {
        const int steps = num_steps - begin < stretch ? num_steps - begin : stretch;
        for (int row = 0, count; row < num_rows; row += count) {
            count = num_rows - row < 4 ? num_rows - row : 4;
            const auto multiply = row == 0 ? multiply_some<true> : multiply_some<false>;
            multiply(count, codes + begin * 256, steps, x.integers + (first + row) * x.stride + begin * 16, x.stride, totals + row);
        }
    }
    for (int n = 0; n < num_rows; n++)
        for (int t = 0; t < 4; t++) {
            const int r = panel * PANEL_ROWS + t * 16;
            store(totals[n][t], zero, x.sums[first + n], x.scales[first + n], matrix.scales + r, matrix.num_outputs - r,
                  y + (first + n) * y_stride + r);
        }
}

void low_bit(const OaMatrix &matrix, float zero, const Rounded &x, int first, int last, float *y, int64_t stride) {
    for (int panel = first; panel < last; panel++)
        for (int row = 0; row < x.num_rows; row += MANY_ROWS)
            multiply_panel(matrix, zero, x, panel, row, x.num_rows - row < MANY_ROWS ? x.num_rows - row : MANY_ROWS, y, stride);
}

void swiglu_of_8(float *gate, const float *up, int n) {
    int i = 0;
    for (; i + 8 <= n; i += 8) {
        const __m512d x = _mm512_cvtps_pd(_mm256_loadu_ps(gate + i)), y = _mm512_cvtps_pd(_mm256_loadu_ps(up + i));
        const __m512d power = _mm512_max_pd(_mm512_min_pd(x * all(-LOG2_OF_E), all(1000.0)), all(-1000.0));
        _mm256_storeu_ps(gate + i, _mm512_cvtpd_ps(x / (all(1.0) + exp2_of(power)) * y));
    }
    swiglu(gate + i, up + i, n - i);
}

}  // namespace

const Kernels avx512_kernels = {"avx512-vnni", is_supported, low_bit, grouped,    full,       round_row, rms_norm,
                                swiglu_of_8,   prepare,      attend,  adapter_in, adapter_out, attend_full, layer_norm, gelu, soften_row};
#endif
