// Plain C++ for any processor: the reference for tests, and the fallback.
#include "full.h"
#include "generic.h"
#include "vision.h"

namespace {

bool always() { return true; }

void low_bit(const OaMatrix &matrix, float zero, const Rounded &x, int first, int last, float *y, int64_t y_stride) {
    const int num_steps = (matrix.num_inputs + 15) / 16;
    for (int panel = first; panel < last; panel++) {
        const uint8_t *codes = matrix.codes + (int64_t)panel * num_steps * 256;
        for (int n = 0; n < x.num_rows; n++) {
            int32_t sums[PANEL_ROWS] = {};
            const int8_t *a = x.integers + n * x.stride;
            for (int step = 0; step < num_steps; step++)
                for (int row = 0; row < PANEL_ROWS; row++)
                    for (int b = 0; b < 4; b++) {
                        int packed = codes[step * 256 + row * 4 + b];
                        for (int p = 0; p < 4; p++) sums[row] += (packed >> 2 * p & 3) * a[step * 16 + 4 * p + b];
                    }
            for (int row = 0; row < PANEL_ROWS; row++) {
                int r = panel * PANEL_ROWS + row;
                if (r >= matrix.num_outputs) break;
                y[n * y_stride + r] = ((float)sums[row] - zero * (float)x.sums[n]) * (x.scales[n] * matrix.scales[r]);
            }
        }
    }
}

// total + a * b, rounded once. The product is exact in double precision.
inline float fused(float a, float b, float total) { return (float)((double)a * (double)b + (double)total); }

template <int BITS>
int32_t sum_of_codes(const uint8_t *codes, int row, const int8_t *a, int num_inputs) {
    int32_t sum = 0;
    for (int i = 0; i < num_inputs; i++) {
        if (BITS == 4)
            sum += (codes[i / 8 * 64 + row * 4 + i % 4] >> (i % 8 / 4 * 4) & 15) * a[i];
        else
            sum += (int8_t)codes[i / 4 * 64 + row * 4 + i % 4] * a[i];
    }
    return sum;
}

void grouped(const OaMatrix &matrix, const Rounded &x, int first, int last, float *y, int64_t y_stride) {
    const Groups groups(matrix);
    const auto sum_of = matrix.kind == OA_INT4 ? sum_of_codes<4> : sum_of_codes<8>;
    const int middle = matrix.kind == OA_INT4 && !matrix.has_minimum ? INT4_MIDDLE : 0;
    for (int tile = first; tile < last; tile++)
        for (int64_t n = 0; n < x.num_rows; n++)
            for (int row = 0; row < TILE_ROWS && tile * TILE_ROWS + row < matrix.num_outputs; row++) {
                const int r = tile * TILE_ROWS + row;
                float total = 0;
                int32_t sum = 0;
                for (int g = 0; g < groups.count; g++) {
                    const uint8_t *codes = groups.tile(matrix, tile) + (int64_t)g * groups.bytes;
                    const uint16_t *halves = (const uint16_t *)(codes + groups.blocks * groups.block_bytes) + row;
                    const int32_t group_sum = sum_of_group(x, n, groups, g);
                    sum = sum_of(codes, row, x.integers + n * x.stride + g * groups.inputs, groups.inputs) - middle * group_sum;
                    if (matrix.group) total = fused(half_to_float(halves[0]), (float)sum, total);
                    if (matrix.has_minimum) total = fused(half_to_float(halves[TILE_ROWS]), (float)group_sum, total);
                }
                y[n * y_stride + r] = matrix.group ? total * x.scales[n] : (float)sum * (x.scales[n] * matrix.scales[r]);
            }
}

}  // namespace

const Kernels portable_kernels = {"portable", always, low_bit,       grouped,     full,       round_row,  rms_norm,
                                  swiglu,     prepare_query, attend_page, adapter_in, adapter_out, attend_full, layer_norm, gelu, soften_row};
