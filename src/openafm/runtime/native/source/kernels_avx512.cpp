// AVX-512 with VNNI: sums of four products of bytes in one instruction.
//
// Of the four codes in a byte two are taken out by a mask alone and two after one shift, worth 1 or 4 times the code: those have
// accumulators of their own, and one shift at the very end undoes it. For few rows of activations the weights are read once, in
// order, and nothing else matters; for many, a panel is unpacked to bytes once and multiplied by twelve rows at a time.
#if defined(__AVX512F__) && defined(__AVX512VNNI__)
#include <immintrin.h>

#include "attention_avx512.h"
#include "generic.h"

namespace {

enum {
    STRETCH = 48,                // steps of a panel that are multiplied by a few rows before the next
    UNPACKED_STEPS = 24,         // steps of a panel that lie unpacked in the first cache
    MANY_ROWS = 20 * BLOCK_ROWS  // rows whose sums stay in the second cache
};

bool is_supported() {
    return __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512vl") &&
           __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vnni");
}

// Scale 16 sums and store those rows that exist.
inline void store(__m512i sums, float zero, int32_t x_sum, float x_scale, const float *scales, int rows, float *y) {
    __m512 exact = _mm512_sub_ps(_mm512_cvtepi32_ps(sums), _mm512_set1_ps(zero * (float)x_sum));
    __m512 scaled = _mm512_mul_ps(exact, _mm512_mul_ps(_mm512_set1_ps(x_scale), _mm512_loadu_ps(scales)));
    _mm512_mask_storeu_ps(y, rows >= 16 ? 0xffff : (__mmask16)((1u << (rows < 0 ? 0 : rows)) - 1), scaled);
}

// Some steps of a panel with N rows of activations, in one linear stream, from which `ahead` bytes on are fetched.
template <int N>
inline void stream_steps(const uint8_t *codes, int num_steps, const int8_t *const *a, int ahead, __m512i (*sums)[4]) {
    const __m512i mask0 = _mm512_set1_epi8(3), mask1 = _mm512_set1_epi8(12);
    __m512i once[N][4], fourfold[N][4];
    for (int n = 0; n < N; n++)
        for (int t = 0; t < 4; t++) once[n][t] = fourfold[n][t] = _mm512_setzero_si512();
    for (int step = 0; step < num_steps; step++)
#pragma GCC unroll 4
        for (int t = 0; t < 4; t++) {
            const uint8_t *from = codes + step * 256 + t * 64;
            if (N > 1) _mm_prefetch((const char *)(from + ahead), _MM_HINT_T0);
            const __m512i w = _mm512_loadu_si512(from), shifted = _mm512_srli_epi16(w, 4);
            const __m512i w0 = _mm512_and_si512(w, mask0), w1 = _mm512_and_si512(w, mask1),
                          w2 = _mm512_and_si512(shifted, mask0), w3 = _mm512_and_si512(shifted, mask1);
#pragma GCC unroll 2
            for (int n = 0; n < N; n++) {
                const int8_t *x = a[n] + step * 16;
                once[n][t] = _mm512_dpbusd_epi32(once[n][t], w0, broadcast(x));
                fourfold[n][t] = _mm512_dpbusd_epi32(fourfold[n][t], w1, broadcast(x + 4));
                once[n][t] = _mm512_dpbusd_epi32(once[n][t], w2, broadcast(x + 8));
                fourfold[n][t] = _mm512_dpbusd_epi32(fourfold[n][t], w3, broadcast(x + 12));
            }
        }
    for (int n = 0; n < N; n++)
        for (int t = 0; t < 4; t++) sums[n][t] = _mm512_add_epi32(once[n][t], _mm512_srai_epi32(fourfold[n][t], 2));
}

// A few rows from `row` on: a stretch of a panel stays in the first cache until all have been multiplied with it.
template <int N>
inline void stream_stretch(const uint8_t *codes, int num_steps, const Rounded &x, int row, int begin, __m512i (*totals)[4]) {
    const int8_t *a[N];
    for (int n = 0; n < N; n++) a[n] = x.integers + (row + n) * x.stride + begin * 16;
    __m512i sums[N][4];
    stream_steps<N>(codes + begin * 256, num_steps, a, STRETCH * 256, sums);
    for (int n = 0; n < N; n++)
        for (int t = 0; t < 4; t++) totals[row + n][t] = _mm512_add_epi32(totals[row + n][t], sums[n][t]);
}

void stream(const OaMatrix &matrix, float zero, const Rounded &x, int first, int last, float *y, int64_t stride) {
    const int num_steps = (matrix.num_inputs + 15) / 16, stretch = x.num_rows == 1 ? num_steps : STRETCH;
    for (int panel = first; panel < last; panel++) {
        const uint8_t *codes = matrix.codes + (int64_t)panel * num_steps * 256;
        __m512i totals[FEW_ROWS][4];
        for (int n = 0; n < x.num_rows; n++)
            for (int t = 0; t < 4; t++) totals[n][t] = _mm512_setzero_si512();
        for (int begin = 0; begin < num_steps; begin += stretch) {
            const int count = num_steps - begin < stretch ? num_steps - begin : stretch;
            int row = 0;
            for (; row + 2 <= x.num_rows; row += 2) stream_stretch<2>(codes, count, x, row, begin, totals);
            if (row < x.num_rows) stream_stretch<1>(codes, count, x, row, begin, totals);
        }
        for (int n = 0; n < x.num_rows; n++)
            for (int t = 0; t < 4; t++) {
                const int r = panel * PANEL_ROWS + t * 16;
                store(totals[n][t], zero, x.sums[n], x.scales[n], matrix.scales + r, matrix.num_outputs - r,
                      y + n * stride + r);
            }
    }
}

// Two unpacked tiles by N rows of activations, added to `sums`. `a` holds four inputs of each row beside each other.
template <int N>
void multiply(const uint8_t *tiles, const int8_t *a, int num_quads, __m512i *sums) {
    __m512i acc[N][2];
#pragma GCC unroll 12
    for (int n = 0; n < N; n++) acc[n][0] = sums[2 * n], acc[n][1] = sums[2 * n + 1];
    for (int quad = 0; quad < num_quads; quad++) {
        const __m512i w0 = _mm512_load_si512(tiles + quad * 128), w1 = _mm512_load_si512(tiles + quad * 128 + 64);
#pragma GCC unroll 12
        for (int n = 0; n < N; n++) {
            const __m512i x = broadcast(a + (quad * N + n) * 4);
            acc[n][0] = _mm512_dpbusd_epi32(acc[n][0], w0, x);
            acc[n][1] = _mm512_dpbusd_epi32(acc[n][1], w1, x);
        }
    }
#pragma GCC unroll 12
    for (int n = 0; n < N; n++) sums[2 * n] = acc[n][0], sums[2 * n + 1] = acc[n][1];
}

typedef void (*Multiply)(const uint8_t *, const int8_t *, int, __m512i *);
const Multiply multiply_rows[BLOCK_ROWS + 1] = {0,           multiply<1>, multiply<2>,  multiply<3>,  multiply<4>,
                                                multiply<5>, multiply<6>, multiply<7>,  multiply<8>,  multiply<9>,
                                                multiply<10>, multiply<11>, multiply<12>};

// Some steps of a panel as bytes 0 to 3, its halves after each other, each in the order in which `multiply` reads it.
inline void unpack(const uint8_t *codes, int num_steps, uint8_t (*halves)[UNPACKED_STEPS * 512]) {
    const __m512i mask = _mm512_set1_epi8(3);
    for (int step = 0; step < num_steps; step++)
        for (int t = 0; t < 4; t++) {
            __m512i w = _mm512_loadu_si512(codes + step * 256 + t * 64);
            for (int p = 0; p < 4; p++) {
                _mm512_store_si512(halves[t / 2] + (step * 4 + p) * 128 + t % 2 * 64, _mm512_and_si512(w, mask));
                w = _mm512_srli_epi16(w, 2);
            }
        }
}

// Many rows, from `first_row` on, by a panel: weights are read and unpacked once, a stretch at a time.
void multiply_panel(const OaMatrix &matrix, float zero, const Rounded &x, int panel, int first_row, int num_rows, float *y,
                    int64_t stride) {
    const int num_steps = (matrix.num_inputs + 15) / 16;
    const uint8_t *codes = matrix.codes + (int64_t)panel * num_steps * 256;
    alignas(64) uint8_t unpacked[2][UNPACKED_STEPS * 512];
    __m512i sums[2][MANY_ROWS][2];
    for (int half = 0; half < 2; half++) memset(sums[half], 0, num_rows * sizeof sums[half][0]);
    for (int begin = 0; begin < num_steps; begin += UNPACKED_STEPS) {
        const int count = num_steps - begin < UNPACKED_STEPS ? num_steps - begin : UNPACKED_STEPS;
        unpack(codes + begin * 256, count, unpacked);
        for (int row = 0; row < num_rows; row += BLOCK_ROWS) {
            const int rows = num_rows - row < BLOCK_ROWS ? num_rows - row : BLOCK_ROWS;
            const int8_t *packed = x.packed + (first_row + row) * x.stride + begin * 16 * rows;
            for (int half = 0; half < 2; half++) multiply_rows[rows](unpacked[half], packed, count * 4, sums[half][row]);
        }
    }
    for (int n = 0; n < num_rows; n++)
        for (int t = 0; t < 4; t++) {
            const int row = first_row + n, r = panel * PANEL_ROWS + t * 16;
            store(sums[t / 2][n][t % 2], zero, x.sums[row], x.scales[row], matrix.scales + r, matrix.num_outputs - r,
                  y + row * stride + r);
        }
}

void low_bit(const OaMatrix &matrix, float zero, const Rounded &x, int first, int last, float *y, int64_t stride) {
    if (x.num_rows <= FEW_ROWS) return stream(matrix, zero, x, first, last, y, stride);
    for (int panel = first; panel < last; panel++)
        for (int row = 0; row < x.num_rows; row += MANY_ROWS)
            multiply_panel(matrix, zero, x, panel, row, x.num_rows - row < MANY_ROWS ? x.num_rows - row : MANY_ROWS, y, stride);
}

// N rows of activations by one tile of the embedding: sums of a group are integers, then scaled by the group.
template <int N>
inline void head_tile(const uint8_t *tile, const Rounded &x, int row, int num_groups, int rows, float *y, int64_t stride) {
    const __m512i mask = _mm512_set1_epi8(15);
    __m512 totals[N];
    for (int n = 0; n < N; n++) totals[n] = _mm512_setzero_ps();
    for (int g = 0; g < num_groups; g++, tile += TILE_GROUP_BYTES) {
        __m512i acc[N][2];
        for (int n = 0; n < N; n++) acc[n][0] = acc[n][1] = _mm512_setzero_si512();
#pragma GCC unroll 4
        for (int v = 0; v < 4; v++) {
            const __m512i w = _mm512_loadu_si512(tile + v * 64);
            const __m512i low = _mm512_and_si512(w, mask), high = _mm512_and_si512(_mm512_srli_epi16(w, 4), mask);
#pragma GCC unroll 4
            for (int n = 0; n < N; n++) {
                const int8_t *a = x.integers + (row + n) * x.stride + g * GROUP + v * 8;
                acc[n][0] = _mm512_dpbusd_epi32(acc[n][0], low, broadcast(a));
                acc[n][1] = _mm512_dpbusd_epi32(acc[n][1], high, broadcast(a + 4));
            }
        }
        const __m512 scales = _mm512_cvtph_ps(_mm256_loadu_si256((const __m256i *)(tile + 256)));
        const __m512 minima = _mm512_cvtph_ps(_mm256_loadu_si256((const __m256i *)(tile + 288)));
        for (int n = 0; n < N; n++) {
            const __m512i sums = _mm512_add_epi32(acc[n][0], acc[n][1]);
            const __m512i group_sum = _mm512_set1_epi32(x.group_sums[(row + n) * (x.stride / GROUP) + g]);
            totals[n] = _mm512_fmadd_ps(scales, _mm512_cvtepi32_ps(sums), totals[n]);
            totals[n] = _mm512_fmadd_ps(minima, _mm512_cvtepi32_ps(group_sum), totals[n]);
        }
    }
    const __mmask16 there = rows >= 16 ? 0xffff : (__mmask16)((1u << rows) - 1);
    for (int n = 0; n < N; n++)
        _mm512_mask_storeu_ps(y + (row + n) * stride, there, _mm512_mul_ps(totals[n], _mm512_set1_ps(x.scales[row + n])));
}

void head(const uint8_t *tiles, const Rounded &x, int first, int last, int vocab_size, float *y, int64_t stride) {
    const int num_groups = x.num_inputs / GROUP;
    for (int tile = first; tile < last; tile++) {
        const uint8_t *codes = tiles + (int64_t)tile * num_groups * TILE_GROUP_BYTES;
        const int rows = vocab_size - tile * TILE_ROWS;
        float *out = y + tile * TILE_ROWS;
        int row = 0;
        for (; row + 4 <= x.num_rows; row += 4) head_tile<4>(codes, x, row, num_groups, rows, out, stride);
        if (x.num_rows - row == 3) head_tile<3>(codes, x, row, num_groups, rows, out, stride);
        if (x.num_rows - row == 2) head_tile<2>(codes, x, row, num_groups, rows, out, stride);
        if (x.num_rows - row == 1) head_tile<1>(codes, x, row, num_groups, rows, out, stride);
    }
}

}  // namespace

const Kernels avx512_kernels = {"avx512-vnni", is_supported, low_bit,    head,       round_row,  rms_norm,
                                swiglu,        prepare,      attend,     adapter_in, adapter_out};
#endif
