// AVX-512 with VNNI: sums of four products of bytes in one instruction.
//
// A code is taken out of its byte by a mask alone: plane p is worth 4^p times the code, has accumulators of its own, and one
// shift at the very end undoes it. For one or two rows of activations the weights are read once, in order, and nothing else
// matters; for more, a panel is unpacked to bytes once and multiplied by twelve rows at a time.
#if defined(__AVX512F__) && defined(__AVX512VNNI__)
#include <immintrin.h>

#include "generic.h"

namespace {

bool is_supported() {
    return __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512vl") &&
           __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vnni");
}

inline __m512i broadcast(const int8_t *four) {
    int32_t word;
    memcpy(&word, four, 4);
    return _mm512_set1_epi32(word);
}

// Scale 16 sums and store those rows that exist.
inline void store(__m512i sums, float zero, int32_t x_sum, float x_scale, const float *scales, int rows, float *y) {
    __m512 exact = _mm512_sub_ps(_mm512_cvtepi32_ps(sums), _mm512_set1_ps(zero * (float)x_sum));
    __m512 scaled = _mm512_mul_ps(exact, _mm512_mul_ps(_mm512_set1_ps(x_scale), _mm512_loadu_ps(scales)));
    _mm512_mask_storeu_ps(y, rows >= 16 ? 0xffff : (__mmask16)((1u << (rows < 0 ? 0 : rows)) - 1), scaled);
}

// Four tiles of a panel with N rows of activations, N = 1 or 2: 16 accumulators a row, so two tiles at a time for two rows.
template <int N, int TILES>
inline void stream_tiles(const uint8_t *codes, int num_steps, const int8_t *const *a, __m512i (*sums)[TILES]) {
    const __m512i mask0 = _mm512_set1_epi8(3), mask1 = _mm512_set1_epi8(12), mask2 = _mm512_set1_epi8(48),
                  mask3 = _mm512_set1_epi8((char)192);
    __m512i acc[N][TILES][4];
    for (int n = 0; n < N; n++)
        for (int t = 0; t < TILES; t++)
            for (int p = 0; p < 4; p++) acc[n][t][p] = _mm512_setzero_si512();
    for (int step = 0; step < num_steps; step++) {
        __m512i x[N][4];
#pragma GCC unroll 2
        for (int n = 0; n < N; n++)
#pragma GCC unroll 4
            for (int p = 0; p < 4; p++) x[n][p] = broadcast(a[n] + step * 16 + 4 * p);
#pragma GCC unroll 4
        for (int t = 0; t < TILES; t++) {
            const __m512i w = _mm512_loadu_si512(codes + step * 256 + t * 64);
            const __m512i w0 = _mm512_and_si512(w, mask0), w1 = _mm512_and_si512(w, mask1),
                          w2 = _mm512_and_si512(w, mask2), w3 = _mm512_and_si512(w, mask3);
#pragma GCC unroll 2
            for (int n = 0; n < N; n++) {
                acc[n][t][0] = _mm512_dpbusd_epi32(acc[n][t][0], w0, x[n][0]);
                acc[n][t][1] = _mm512_dpbusd_epi32(acc[n][t][1], w1, x[n][1]);
                acc[n][t][2] = _mm512_dpbusd_epi32(acc[n][t][2], w2, x[n][2]);
                acc[n][t][3] = _mm512_dpbusd_epi32(acc[n][t][3], w3, x[n][3]);
            }
        }
    }
    for (int n = 0; n < N; n++)
        for (int t = 0; t < TILES; t++)
            sums[n][t] = _mm512_add_epi32(
                _mm512_add_epi32(acc[n][t][0], _mm512_srai_epi32(acc[n][t][1], 2)),
                _mm512_add_epi32(_mm512_srai_epi32(acc[n][t][2], 4), _mm512_srai_epi32(acc[n][t][3], 6)));
}

void stream_one(const OaMatrix &matrix, float zero, const Rounded &x, int row, int first, int last, float *y, int64_t stride) {
    const int num_steps = (matrix.num_inputs + 15) / 16;
    const int8_t *a[1] = {x.integers + row * x.stride};
    for (int panel = first; panel < last; panel++) {
        __m512i sums[1][4];
        stream_tiles<1, 4>(matrix.codes + (int64_t)panel * num_steps * 256, num_steps, a, sums);
        for (int t = 0; t < 4; t++) {
            const int r = panel * PANEL_ROWS + t * 16;
            store(sums[0][t], zero, x.sums[row], x.scales[row], matrix.scales + r, matrix.num_outputs - r,
                  y + row * stride + r);
        }
    }
}

// Two rows: a stretch of a panel that stays in the first cache is read once for each half of its tiles.
void stream_two(const OaMatrix &matrix, float zero, const Rounded &x, int first, int last, float *y, int64_t stride) {
    enum { STRETCH = 48 };
    const int num_steps = (matrix.num_inputs + 15) / 16;
    for (int panel = first; panel < last; panel++) {
        const uint8_t *codes = matrix.codes + (int64_t)panel * num_steps * 256;
        __m512i totals[2][4];
        for (int n = 0; n < 2; n++)
            for (int t = 0; t < 4; t++) totals[n][t] = _mm512_setzero_si512();
        for (int begin = 0; begin < num_steps; begin += STRETCH) {
            const int count = num_steps - begin < STRETCH ? num_steps - begin : STRETCH;
            const int8_t *a[2] = {x.integers + begin * 16, x.integers + x.stride + begin * 16};
            for (int half = 0; half < 2; half++) {
                __m512i sums[2][2];
                stream_tiles<2, 2>(codes + begin * 256 + half * 128, count, a, sums);
                for (int n = 0; n < 2; n++)
                    for (int t = 0; t < 2; t++)
                        totals[n][half * 2 + t] = _mm512_add_epi32(totals[n][half * 2 + t], sums[n][t]);
            }
        }
        for (int n = 0; n < 2; n++)
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

// A panel half unpacked, for each thread.
struct Workspace {
    uint8_t *bytes = nullptr;
    size_t size = 0;
    uint8_t *take(size_t wanted) {
        if (wanted > size) {
            _mm_free(bytes);
            bytes = (uint8_t *)_mm_malloc(wanted, 64);
            size = wanted;
        }
        return bytes;
    }
    ~Workspace() { _mm_free(bytes); }
};
thread_local Workspace workspace;

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
        stream_one(matrix, zero, x, 0, first, last, y, stride);
    else if (x.num_rows == 2)
        stream_two(matrix, zero, x, first, last, y, stride);
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
        __m512i acc[N];
        for (int n = 0; n < N; n++) acc[n] = _mm512_setzero_si512();
#pragma GCC unroll 4
        for (int v = 0; v < 4; v++) {
            const __m512i w = _mm512_loadu_si512(tile + v * 64);
            const __m512i low = _mm512_and_si512(w, mask), high = _mm512_and_si512(_mm512_srli_epi16(w, 4), mask);
#pragma GCC unroll 4
            for (int n = 0; n < N; n++) {
                const int8_t *a = x.integers + (row + n) * x.stride + g * GROUP + v * 8;
                acc[n] = _mm512_dpbusd_epi32(acc[n], low, broadcast(a));
                acc[n] = _mm512_dpbusd_epi32(acc[n], high, broadcast(a + 4));
            }
        }
        const __m512 scales = _mm512_cvtph_ps(_mm256_loadu_si256((const __m256i *)(tile + 256)));
        const __m512 minima = _mm512_cvtph_ps(_mm256_loadu_si256((const __m256i *)(tile + 288)));
        for (int n = 0; n < N; n++) {
            totals[n] = _mm512_fmadd_ps(scales, _mm512_cvtepi32_ps(acc[n]), totals[n]);
            const float group_sum = (float)x.group_sums[(row + n) * (x.stride / GROUP) + g];
            totals[n] = _mm512_fmadd_ps(minima, _mm512_set1_ps(group_sum), totals[n]);
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
        for (; row < x.num_rows; row++) head_tile<1>(codes, x, row, num_groups, rows, out, stride);
    }
}

// Attention in integers: a query is rounded to 23 bits, as fine as fp32, and split in three digits, so that a score is a sum of
// products of bytes; the weights of the values are rounded to 16 bits of the largest in a page, two digits.
struct PreparedQuery {
    float scale;
    int32_t sums[3];
    int32_t padding[12];
    // int8_t digits[3][C] follow
};

void prepare(const float *query, int head_dim, uint8_t *prepared) {
    PreparedQuery *header = (PreparedQuery *)prepared;
    int8_t *digits = (int8_t *)(header + 1);
    float largest = 0;
    for (int c = 0; c < head_dim; c++) largest = fabsf(query[c]) > largest ? fabsf(query[c]) : largest;
    const float scale = largest > 1e-30f ? largest / 8323072.0f : 1.0f;
    int32_t sums[3] = {};
    for (int c = 0; c < head_dim; c++) {
        int32_t q = (int32_t)rintf(query[c] / scale);
        for (int d = 2; d >= 0; d--) {
            const int32_t rest = (q + 128) >> 8, digit = d ? q - rest * 256 : q;
            digits[d * head_dim + c] = (int8_t)digit;
            sums[d] += digit;
            q = rest;
        }
    }
    header->scale = scale;
    memcpy(header->sums, sums, sizeof sums);
}

// Scores of a query with the keys of a page, but for the scales of the keys.
inline void score(const uint8_t *prepared, int head_dim, const uint8_t *keys, __m512 *scores) {
    const PreparedQuery *header = (const PreparedQuery *)prepared;
    const int8_t *digits = (const int8_t *)(header + 1);
    __m512i sums[3][4];
    for (int d = 0; d < 3; d++)
        for (int v = 0; v < 4; v++) sums[d][v] = _mm512_set1_epi32(-128 * header->sums[d]);
    for (int c = 0; c < head_dim; c += 4) {
        __m512i k[4];
#pragma GCC unroll 4
        for (int v = 0; v < 4; v++) k[v] = _mm512_loadu_si512(keys + (int64_t)c * PAGE + v * 64);
#pragma GCC unroll 3
        for (int d = 0; d < 3; d++) {
            const __m512i x = broadcast(digits + d * head_dim + c);
#pragma GCC unroll 4
            for (int v = 0; v < 4; v++) sums[d][v] = _mm512_dpbusd_epi32(sums[d][v], k[v], x);
        }
    }
    const __m512 base = _mm512_set1_ps(256.0f), scale = _mm512_set1_ps(header->scale);
    for (int v = 0; v < 4; v++) {
        __m512 total = _mm512_fmadd_ps(_mm512_cvtepi32_ps(sums[0][v]), base, _mm512_cvtepi32_ps(sums[1][v]));
        total = _mm512_fmadd_ps(total, base, _mm512_cvtepi32_ps(sums[2][v]));
        scores[v] = _mm512_mul_ps(total, scale);
    }
}

// 64 channels of the values of a page, weighted for N queries: out = out * shrink + factor * sum.
template <int N>
inline void weigh(const uint8_t (*digits)[2][PAGE], const int8_t *values, int head_dim, int num_keys, const float *shrinks,
                  const float *factors, float *const *out) {
    __m512i high[N][4], low[N][4];
    for (int n = 0; n < N; n++)
        for (int v = 0; v < 4; v++) high[n][v] = low[n][v] = _mm512_setzero_si512();
    for (int l = 0; l < num_keys; l += 4) {
        __m512i x[4];
#pragma GCC unroll 4
        for (int v = 0; v < 4; v++) x[v] = _mm512_loadu_si512(values + (int64_t)l * head_dim + v * 64);
#pragma GCC unroll 2
        for (int n = 0; n < N; n++) {
            const __m512i h = broadcast((const int8_t *)digits[n][0] + l), w = broadcast((const int8_t *)digits[n][1] + l);
#pragma GCC unroll 4
            for (int v = 0; v < 4; v++) {
                high[n][v] = _mm512_dpbusd_epi32(high[n][v], h, x[v]);
                low[n][v] = _mm512_dpbusd_epi32(low[n][v], w, x[v]);
            }
        }
    }
    for (int n = 0; n < N; n++)
        for (int v = 0; v < 4; v++) {
            const __m512 sum = _mm512_cvtepi32_ps(_mm512_add_epi32(_mm512_slli_epi32(high[n][v], 8), low[n][v]));
            const __m512 old = _mm512_mul_ps(_mm512_loadu_ps(out[n] + v * 16), _mm512_set1_ps(shrinks[n]));
            _mm512_storeu_ps(out[n] + v * 16, _mm512_fmadd_ps(sum, _mm512_set1_ps(factors[n]), old));
        }
}

template <int N>
inline void attend_some(const uint8_t *prepared, int head_dim, const KeysValuesPage &page, const float *key_scales,
                        const float *value_scales, int num_keys, float *state) {
    alignas(64) uint8_t digits[N][2][PAGE];
    float shrinks[N], factors[N], *out[N];
    for (int n = 0; n < N; n++) {
        float *top = state + (int64_t)n * (head_dim + 2), *sum = top + 1;
        out[n] = top + 2;
        __m512 scores[4];
        score(prepared + n * prepared_bytes(head_dim), head_dim, page.keys, scores);
        alignas(64) float x[PAGE];
        for (int v = 0; v < 4; v++)
            _mm512_store_ps(x + v * 16, _mm512_mul_ps(scores[v], _mm512_loadu_ps(key_scales + v * 16)));
        float highest = *top;
        for (int l = 0; l < num_keys; l++) highest = x[l] > highest ? x[l] : highest;
        float total = 0, largest = 0;
        for (int l = 0; l < PAGE; l++) {
            const float p = l < num_keys ? exp_of(x[l] - highest) : 0;
            x[l] = p * value_scales[l];
            total += p;
            largest = x[l] > largest ? x[l] : largest;
        }
        shrinks[n] = exp_of(*top - highest);
        *top = highest;
        *sum = *sum * shrinks[n] + total;
        const float inverse = largest > 1e-30f ? 65535.0f / largest : 0;
        factors[n] = largest / 65535.0f;
        for (int l = 0; l < PAGE; l++) {
            const int32_t w = (int32_t)rintf(x[l] * inverse);
            digits[n][0][l] = (uint8_t)(w >> 8);
            digits[n][1][l] = (uint8_t)w;
        }
    }
    for (int c = 0; c < head_dim; c += 64) {
        weigh<N>(digits, page.values + c * 4, head_dim, num_keys, shrinks, factors, out);
        for (int n = 0; n < N; n++) out[n] += 64;
    }
}

void attend(const uint8_t *prepared, int num_queries, int head_dim, const KeysValuesPage &page, int num_keys, float *state) {
    alignas(64) float key_scales[PAGE], value_scales[PAGE];
    for (int v = 0; v < PAGE; v += 16) {
        _mm512_store_ps(key_scales + v, _mm512_cvtph_ps(_mm256_loadu_si256((const __m256i *)(page.key_scales + v))));
        _mm512_store_ps(value_scales + v, _mm512_cvtph_ps(_mm256_loadu_si256((const __m256i *)(page.value_scales + v))));
    }
    const int stride = prepared_bytes(head_dim);
    int n = 0;
    for (; n + 2 <= num_queries; n += 2)
        attend_some<2>(prepared + n * stride, head_dim, page, key_scales, value_scales, num_keys, state + n * (head_dim + 2));
    if (n < num_queries)
        attend_some<1>(prepared + n * stride, head_dim, page, key_scales, value_scales, num_keys, state + n * (head_dim + 2));
}

void prepare_any(const float *query, int head_dim, uint8_t *prepared) {
    (head_dim % 64 ? prepare_query : prepare)(query, head_dim, prepared);
}

void attend_any(const uint8_t *prepared, int num_queries, int head_dim, const KeysValuesPage &page, int num_keys, float *state) {
    (head_dim % 64 ? attend_page : attend)(prepared, num_queries, head_dim, page, num_keys, state);
}

}  // namespace

const Kernels avx512_kernels = {"avx512-vnni", is_supported, low_bit,     head,      round_row,
                                rms_norm,      swiglu,       prepare_any, attend_any};
#endif
