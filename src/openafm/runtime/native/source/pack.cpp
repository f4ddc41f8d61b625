// Conversion from the layout of a bundle's file to that of the kernels.
#include <string.h>

#include "kernels.h"
#include "numbers.h"

namespace {

// Transposes four bytes of four codes each: byte b of the result holds code b of every byte.
uint32_t transposed(uint32_t x) {
    uint32_t t = (x ^ x >> 6) & 0x00cc00cc;
    x ^= t ^ t << 6;
    t = (x ^ x >> 12) & 0x0000f0f0;
    return x ^ t ^ t << 12;
}

template <class Number>
void pack_numbers(const Number *stored, int32_t num_outputs, int32_t num_inputs, Number *tiles) {
    for (int64_t tile = 0; tile * TILE_ROWS < num_outputs; tile++)
        for (int64_t i = 0; i < num_inputs; i++)
            for (int64_t lane = 0, row = tile * TILE_ROWS; lane < TILE_ROWS; lane++, row++)
                tiles[(tile * num_inputs + i) * TILE_ROWS + lane] = row < num_outputs ? stored[row * num_inputs + i] : Number{};
}

}  // namespace

void oa_pack_panels(const uint8_t *stored, int32_t num_outputs, int32_t num_inputs, uint8_t *panels) {
    const int num_steps = (num_inputs + 15) / 16, stride = num_inputs / 4;
    const int64_t num_panels = (num_outputs + PANEL_ROWS - 1) / PANEL_ROWS;
    memset(panels, 0, num_panels * num_steps * 256);
    for (int64_t r = 0; r < num_outputs; r++) {
        uint8_t *lane = panels + r / PANEL_ROWS * num_steps * 256 + r % PANEL_ROWS * 4;
        for (int step = 0; step < num_steps; step++) {
            const int left = stride - step * 4;
            uint32_t word = 0;
            memcpy(&word, stored + r * stride + step * 4, left < 4 ? left : 4);
            word = transposed(word);
            memcpy(lane + step * 256, &word, 4);
        }
    }
}

void oa_pack_groups(const uint8_t *stored, const uint16_t *scales, const uint16_t *minima, int32_t num_outputs,
                    int32_t num_inputs, int32_t bits, int32_t group, uint8_t *tiles) {
    OaMatrix matrix = {};
    matrix.kind = bits == 4 ? OA_INT4 : OA_INT8, matrix.group = scales ? group : 0, matrix.has_minimum = minima != nullptr;
    matrix.num_outputs = num_outputs, matrix.num_inputs = num_inputs;
    const Groups groups(matrix);
    const int64_t num_tiles = (num_outputs + TILE_ROWS - 1) / TILE_ROWS, stride = (int64_t)num_inputs * bits / 8;
    memset(tiles, 0, num_tiles * groups.count * groups.bytes);
    for (int64_t row = 0; row < num_outputs; row++)
        for (int g = 0; g < groups.count; g++) {
            uint8_t *at = tiles + (row / TILE_ROWS * groups.count + g) * groups.bytes;
            const int lane = (int)(row % TILE_ROWS);
            const uint8_t *codes = stored + row * stride + (int64_t)g * groups.inputs * bits / 8;
            for (int i = 0; i < groups.inputs; i++)
                if (bits == 4)
                    at[i / 8 * 64 + lane * 4 + i % 4] |= (uint8_t)((codes[i / 2] >> (i % 2 * 4) & 15) << (i % 8 / 4 * 4));
                else
                    at[i / 4 * 64 + lane * 4 + i % 4] = codes[i];
            uint8_t *halves = at + groups.blocks * groups.block_bytes + 2 * lane;
            if (scales) memcpy(halves, scales + row * groups.count + g, 2);
            if (minima) memcpy(halves + 2 * TILE_ROWS, minima + row * groups.count + g, 2);
        }
}

void oa_pack_bfloat16(const uint16_t *stored, int32_t num_outputs, int32_t num_inputs, uint16_t *tiles) {
    pack_numbers(stored, num_outputs, num_inputs, tiles);
}

void oa_pack_float32(const float *stored, int32_t num_outputs, int32_t num_inputs, float *tiles) {
    pack_numbers(stored, num_outputs, num_inputs, tiles);
}

void oa_row(const OaMatrix *matrix, int32_t row, float *y) {
    const int lane = row % TILE_ROWS, tile = row / TILE_ROWS;
    if (matrix->kind == OA_BFLOAT16) {
        const uint16_t *at = (const uint16_t *)matrix->codes + (int64_t)tile * matrix->num_inputs * TILE_ROWS + lane;
        for (int i = 0; i < matrix->num_inputs; i++) y[i] = reinterpreted<float>((uint32_t)at[(int64_t)i * TILE_ROWS] << 16);
        return;
    }
    if (matrix->kind == OA_FLOAT32) {
        const float *at = (const float *)matrix->codes + (int64_t)tile * matrix->num_inputs * TILE_ROWS + lane;
        for (int i = 0; i < matrix->num_inputs; i++) y[i] = at[(int64_t)i * TILE_ROWS];
        return;
    }
    const Groups groups(*matrix);
    const uint8_t *at = groups.tile(*matrix, tile);
    for (int g = 0; g < groups.count; g++, at += groups.bytes) {
        const uint16_t *halves = (const uint16_t *)(at + groups.blocks * groups.block_bytes) + lane;
        const float scale = matrix->group ? half_to_float(halves[0]) : matrix->scales[row];
        const float minimum = matrix->has_minimum ? half_to_float(halves[TILE_ROWS]) : 0;
        const int middle = matrix->has_minimum ? 0 : INT4_MIDDLE;
        for (int i = 0; i < groups.inputs; i++, y++) {
            if (matrix->kind == OA_INT4)
                *y = minimum + (float)((at[i / 8 * 64 + lane * 4 + i % 4] >> (i % 8 / 4 * 4) & 15) - middle) * scale;
            else
                *y = minimum + (float)(int8_t)at[i / 4 * 64 + lane * 4 + i % 4] * scale;
        }
    }
}
