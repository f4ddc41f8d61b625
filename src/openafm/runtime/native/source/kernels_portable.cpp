// Plain C++ for any processor: the reference for tests, and the fallback.
#include "generic.h"

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

void head(const uint8_t *tiles, const Rounded &x, int first, int last, int vocab_size, float *y, int64_t y_stride) {
    const int num_groups = x.num_inputs / GROUP;
    for (int tile = first; tile < last; tile++)
        for (int n = 0; n < x.num_rows; n++)
            for (int row = 0; row < TILE_ROWS && tile * TILE_ROWS + row < vocab_size; row++) {
                float total = 0;
                for (int g = 0; g < num_groups; g++) {
                    const uint8_t *codes = tiles + ((int64_t)tile * num_groups + g) * TILE_GROUP_BYTES;
                    const uint16_t *halves = (const uint16_t *)(codes + 256);
                    const int8_t *a = x.integers + n * x.stride + g * GROUP;
                    int32_t sum = 0;
                    for (int v = 0; v < 4; v++)
                        for (int b = 0; b < 4; b++) {
                            int packed = codes[v * 64 + row * 4 + b];
                            sum += (packed & 15) * a[v * 8 + b] + (packed >> 4) * a[v * 8 + 4 + b];
                        }
                    total += half_to_float(halves[row]) * (float)sum +
                             half_to_float(halves[16 + row]) * (float)x.group_sums[n * (x.stride / GROUP) + g];
                }
                y[n * y_stride + tile * TILE_ROWS + row] = total * x.scales[n];
            }
}

}  // namespace

const Kernels portable_kernels = {"portable", always,        low_bit,     head,       round_row,  rms_norm,
                                  swiglu,     prepare_query, attend_page, adapter_in, adapter_out};
