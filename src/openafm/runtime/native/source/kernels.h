// The table of kernels that depend on the processor: one for each instruction set, in kernels_*.cpp.
//
// 2-bit weights are stored in panels of 64 rows: for every 16 inputs, four vectors of 64 bytes for 16 rows each. Lane r of
// a vector holds the 16 codes of row r in four bytes; bits 2p and 2p + 1 of byte b are the code of input 4p + b.
//
// Groups of 4 or 8 bits are stored in tiles of 16 rows. For every 32 inputs there is a block of 4 or 8 vectors of 64 bytes. With
// 4 bits, lane r of vector v holds 8 codes of row r: the low half of byte b is the code of input 8v + b, the high half that of
// input 8v + 4 + b. With 8 bits, lane r of vector v holds the signed codes of inputs 4v to 4v + 3. The blocks of a group are
// followed by 16 scales and, if there are any, 16 minima in fp16. Scales of rows are stored elsewhere.
// A weight is code * scale + minimum; without minima (code - 8) * scale with 4 bits and code * scale with 8.
//
// bfloat16 and fp32 are stored in tiles of 16 rows: for each input the 16 numbers of the rows.
#pragma once
#include <stdint.h>

#include "abi.h"

enum {
    PANEL_ROWS = 64,
    TILE_ROWS = 16,
    GROUP = 32,
    FEW_ROWS = 8,
    INT4_MIDDLE = 8,  // the code of zero without minima
    PAGE = 64,
    LARGEST_HEAD_DIM = 1024
};

// Rows of activations in 8 bits: integers [N, stride], a scale and a sum for each row, sums of groups of 32 [N, stride / 32].
struct Rounded {
    const int8_t *integers;
    const float *scales;
    const int32_t *sums;
    const int32_t *group_sums;
    int64_t stride;
    int32_t num_rows, num_inputs;
};

// Keys of one page and head, [C / 4][PAGE][4] as unsigned with 128 added, values [PAGE / 4][C][4] signed; one scale a token.
// These are contiguous. In fp32 they are floats, keys [C][PAGE] and values [PAGE][C], without scales. `next` is the address of the next page, for prefetching; null after the last.
struct KeysValuesPage {
    const uint8_t *keys;
    const int8_t *values;
    const uint16_t *key_scales, *value_scales;
    const uint8_t *next;
};

struct Kernels {
    const char *name;
    bool (*is_supported)();
    // y[n, r] of panels [first, last) for all rows n: y = (sum of code * x - zero * sum of x) * (scale of x * scale of row).
    void (*low_bit)(const OaMatrix &matrix, float zero, const Rounded &x, int first, int last, float *y, int64_t y_stride);
    // y[n, r] of tiles [first, last) of 4 or 8 bits. Sums of a group are integers; groups are added in order, each with one
    // fused multiply-add for the scale and one for the minimum, and the scale of x is multiplied last.
    void (*grouped)(const OaMatrix &matrix, const Rounded &x, int first, int last, float *y, int64_t y_stride);
    // y[n, r] of tiles [first, last) of bfloat16 or fp32, for unrounded rows x [N, I].
    void (*full)(const OaMatrix &matrix, const float *x, int num_rows, int first, int last, float *y, int64_t y_stride);
    // Rounds one row to 8 bits; pads it with zeros to a multiple of 64.
    void (*round)(const float *x, int n, int8_t *integers, float *scale, int32_t *sum, int32_t *group_sums);
    void (*rms_norm)(const float *x, const float *weight, int n, float eps, float *y);
    // gate = silu(gate) * up.
    void (*swiglu)(float *gate, const float *up, int n);
    // Converts a query [C] that sees `num_keys` keys to the input of `attend`: prepared_bytes(C), aligned to 64.
    void (*prepare)(const float *query, int head_dim, int64_t num_keys, uint8_t *prepared);
    // Online softmax of q k / sqrt(C) for prepared queries over the first `num_keys` keys of a page. `state` holds for each
    // query its maximum (base 2), its sum and C partial outputs in double precision, so that the output is the exact one,
    // rounded once. The result of a query does not depend on the others.
    void (*attend)(const uint8_t *prepared, int num_queries, int head_dim, const KeysValuesPage &page, int num_keys,
                   double *state);
    // Products of rows x [N, I] with rows [first, last) of an adapter's a, into low [N, rank].
    void (*adapter_in)(const OaLowRank &adapter, const float *x, int num_rows, int num_inputs, int first, int last, double *low);
    // Adds an adapter's output for one panel, from its sums low [N, rank], to y [N, R].
    void (*adapter_out)(const OaLowRank &adapter, const double *low, int num_rows, int num_outputs, int panel, float *y);
    // As `attend`, in fp32, for keys [first, last) of a page of floats, at least one. Queries are floats [C].
    void (*attend_full)(const uint8_t *prepared, int num_queries, int head_dim, const KeysValuesPage &page, int first, int last,
                        double *state);
    // The parts of a vision encoder, in fp32. y = layer norm of a row; x = gelu(x), the exact form within 2e-7.
    void (*layer_norm)(const float *x, const float *weight, const float *bias, int n, float eps, float *y);
    void (*gelu)(float *x, int n);
    // x = 2^(x - the largest of x); returns the sum.
    float (*soften_row)(float *x, int n);
};

// The kernels with a name; null for the best. Returns null if the processor does not support them.
const Kernels *find_kernels(const char *name);

// Sizes of the groups of a matrix; one group of all inputs if the scales are those of rows.
struct Groups {
    int inputs, count, blocks, block_bytes, bytes;  // inputs and blocks of a group, bytes with its scales

    explicit Groups(const OaMatrix &matrix)
        : inputs(matrix.group ? matrix.group : matrix.num_inputs),
          count(matrix.num_inputs / inputs),
          blocks(inputs / GROUP),
          block_bytes(matrix.kind == OA_INT4 ? 4 * 64 : 8 * 64),
          bytes(blocks * block_bytes + (matrix.group ? 2 * TILE_ROWS * (matrix.has_minimum ? 2 : 1) : 0)) {}

    const uint8_t *tile(const OaMatrix &matrix, int number) const { return matrix.codes + (int64_t)number * count * bytes; }
};

// Sum of the integers of a row over the inputs of a group.
static inline int32_t sum_of_group(const Rounded &x, int64_t row, const Groups &groups, int group) {
    const int32_t *sums = x.group_sums + row * (x.stride / GROUP) + (int64_t)group * groups.blocks;
    int32_t total = 0;
    for (int block = 0; block < groups.blocks; block++) total += sums[block];
    return total;
}

static inline int prepared_bytes(int head_dim) { return (4 * head_dim + 64 + 63) / 64 * 64; }

extern const Kernels portable_kernels, avx2_kernels, avx512_kernels, neon_kernels, neon_dot_kernels;
