// AVX-512 with VNNI: sums of four products of bytes in one instruction.
//
// A code is taken out of its byte by a mask alone: plane p is worth 4^p times the code, has accumulators of its own, and one
// shift at the very end undoes it. For one row of activations the weights are read once, in order, and nothing else matters; for
// many, a panel is unpacked to bytes once and multiplied by twelve rows at a time.
#if defined(__AVX512F__) && defined(__AVX512VNNI__)
#include <immintrin.h>

#include "attention_avx512.h"
#include "generic.h"
#include "workspace.h"

namespace {

enum { STRETCH = 48 };  // steps of a panel that are multiplied by a few rows before the next

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

// Some steps of TILES tiles of a panel with N rows of activations: 4 * N * TILES accumulators.
template <int N, int TILES>
inline void stream_steps(const uint8_t *codes, int num_steps, const int8_t *const *a, __m512i (*sums)[TILES]) {
    const __m512i masks[4] = {_mm512_set1_epi8(3), _mm512_set1_epi8(12), _mm512_set1_epi8(48), _mm512_set1_epi8((char)192)};
    __m512i acc[N][TILES][4];
    for (int n = 0; n < N; n++)
        for (int t = 0; t < TILES; t++)
            for (int p = 0; p < 4; p++) acc[n][t][p] = _mm512_setzero_si512();
    for (int step = 0; step < num_steps; step++) {
#pragma GCC unroll 4
        for (int t = 0; t < TILES; t++) {
            const uint8_t *from = codes + step * 256 + t * 64;
            if (N > 1) _mm_prefetch((const char *)(from + STRETCH * 256), _MM_HINT_T0);
            const __m512i w = _mm512_loadu_si512(from);
#pragma GCC unroll 4
            for (int p = 0; p < 4; p++) {
                const __m512i plane = _mm512_and_si512(w, masks[p]);
#pragma GCC unroll 4
                for (int n = 0; n < N; n++)
                    acc[n][t][p] = _mm512_dpbusd_epi32(acc[n][t][p], plane, broadcast(a[n] + step * 16 + 4 * p));
            }
        }
    }
    for (int n = 0; n < N; n++)
        for (int t = 0; t < TILES; t++)
            sums[n][t] = _mm512_add_epi32(
                _mm512_add_epi32(acc[n][t][0], _mm512_srai_epi32(acc[n][t][1], 2)),
                _mm512_add_epi32(_mm512_srai_epi32(acc[n][t][2], 4), _mm512_srai_epi32(acc[n][t][3], 6)));
}

// One row: weights in one linear stream.
void stream_one(const OaMatrix &matrix, float zero, const Rounded &x, int first, int last, float *y) {
    const int num_steps = (matrix.num_inputs + 15) / 16;
    for (int panel = first; panel < last; panel++) {
        __m512i sums[1][4];
        stream_steps<1, 4>(matrix.codes + (int64_t)panel * num_steps * 256, num_steps, &x.integers, sums);
        for (int t = 0; t < 4; t++) {
            const int r = panel * PANEL_ROWS + t * 16;
            store(sums[0][t], zero, x.sums[0], x.scales[0], matrix.scales + r, matrix.num_outputs - r, y + r);
        }
    }
}

// The tiles of a stretch with N rows of activations.
template <int N>
void stream_stretch(const uint8_t *codes, int num_steps, const int8_t *first_row, int64_t stride, __m512i (*totals)[4]) {
    const int8_t *a[N];
    for (int n = 0; n < N; n++) a[n] = first_row + n * stride;
    for (int t = 0; t < 4; t++) {
        __m512i sums[N][1];
        stream_steps<N, 1>(codes + t * 64, num_steps, a, sums);
        for (int n = 0; n < N; n++) totals[n][t] = _mm512_add_epi32(totals[n][t], sums[n][0]);
    }
}

// A few rows, up to four at once: a stretch of a panel stays in the first cache while the next is fetched.
void stream_few(const OaMatrix &matrix, float zero, const Rounded &x, int first, int last, float *y, int64_t stride) {
    const int num_steps = (matrix.num_inputs + 15) / 16;
    for (int panel = first; panel < last; panel++) {
        const uint8_t *codes = matrix.codes + (int64_t)panel * num_steps * 256;
        __m512i totals[FEW_ROWS][4];
        for (int n = 0; n < x.num_rows; n++)
            for (int t = 0; t < 4; t++) totals[n][t] = _mm512_setzero_si512();
        for (int begin = 0; begin < num_steps; begin += STRETCH) {
            const int count = num_steps - begin < STRETCH ? num_steps - begin : STRETCH;
            for (int row = 0, rows; row < x.num_rows; row += rows) {
                const int left = x.num_rows - row;
                rows = left == 5 ? 3 : left < 4 ? left : 4;
                const auto multiply = rows == 4   ? stream_stretch<4>
                                      : rows == 3 ? stream_stretch<3>
                                      : rows == 2 ? stream_stretch<2>
                                                  : stream_stretch<1>;
                multiply(codes + begin * 256, count, x.integers + row * x.stride + begin * 16, x.stride, totals + row);
            }
        }
        for (int n = 0; n < x.num_rows; n++)
            for (int t = 0; t < 4; t++) {
                const int r = panel * PANEL_ROWS + t * 16;
                store(totals[n][t], zero, x.sums[n], x.scales[n], matrix.scales + r, matrix.num_outputs - r,
                      y + n * stride + r);
            }
    }
}

// Two unpacked tiles by N rows of activations, all sums in registers. `a` holds four inputs of each row beside each other.
template <int N>
inline void multiply(const uint8_t *tiles, const int8_t *a, int num_quads, __m512i *sums) {
    __m512i acc[N][2];
#pragma GCC unroll 12
    for (int n = 0; n < N; n++) acc[n][0] = acc[n][1] = _mm512_setzero_si512();
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

// Two tiles of a panel as bytes 0 to 3, in the order in which `multiply` reads them.
inline void unpack(const uint8_t *codes, int num_steps, uint8_t *tiles) {
    const __m512i mask = _mm512_set1_epi8(3);
    for (int step = 0; step < num_steps; step++)
        for (int t = 0; t < 2; t++) {
            __m512i w = _mm512_loadu_si512(codes + step * 256 + t * 64);
            for (int p = 0; p < 4; p++) {
                _mm512_store_si512(tiles + (step * 4 + p) * 128 + t * 64, _mm512_and_si512(w, mask));
                w = _mm512_srli_epi16(w, 2);
            }
        }
}

thread_local Workspace workspace;  // a panel half unpacked

void blocks(const OaMatrix &matrix, float zero, const Rounded &x, int first, int last, float *y, int64_t stride) {
    const int num_steps = (matrix.num_inputs + 15) / 16, num_quads = num_steps * 4;
    uint8_t *tiles = workspace.take((size_t)num_quads * 128);
    for (int panel = first; panel < last; panel++)
        for (int half = 0; half < 2; half++) {
            unpack(matrix.codes + (int64_t)panel * num_steps * 256 + half * 128, num_steps, tiles);
            for (int row = 0; row < x.num_rows; row += BLOCK_ROWS) {
                const int count = x.num_rows - row < BLOCK_ROWS ? x.num_rows - row : BLOCK_ROWS;
                __m512i sums[2 * BLOCK_ROWS];
                multiply_rows[count](tiles, x.packed + row * x.stride, num_quads, sums);
                for (int n = 0; n < count; n++)
                    for (int t = 0; t < 2; t++) {
                        const int r = panel * PANEL_ROWS + half * 32 + t * 16;
                        store(sums[2 * n + t], zero, x.sums[row + n], x.scales[row + n], matrix.scales + r,
                              matrix.num_outputs - r, y + (row + n) * stride + r);
                    }
            }
        }
}

void low_bit(const OaMatrix &matrix, float zero, const Rounded &x, int first, int last, float *y, int64_t stride) {
    if (x.num_rows == 1)
        stream_one(matrix, zero, x, first, last, y);
    else if (x.num_rows <= FEW_ROWS)
        stream_few(matrix, zero, x, first, last, y, stride);
    else
        blocks(matrix, zero, x, first, last, y, stride);
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
