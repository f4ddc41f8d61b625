// Conversion from the layout of a bundle's file to that of the kernels.
#include <string.h>

#include "kernels.h"

namespace {

// Transposes four bytes of four codes each: byte b of the result holds code b of every byte.
uint32_t transposed(uint32_t x) {
    uint32_t t = (x ^ x >> 6) & 0x00cc00cc;
    x ^= t ^ t << 6;
    t = (x ^ x >> 12) & 0x0000f0f0;
    return x ^ t ^ t << 12;
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

void oa_pack_tiles(const uint8_t *stored, const uint16_t *scales, const uint16_t *minima, int32_t vocab_size, int32_t dim,
                   uint8_t *tiles) {
    const int num_groups = dim / GROUP;
    const int64_t num_tiles = (vocab_size + TILE_ROWS - 1) / TILE_ROWS;
    memset(tiles, 0, num_tiles * num_groups * TILE_GROUP_BYTES);
    for (int64_t row = 0; row < vocab_size; row++)
        for (int g = 0; g < num_groups; g++) {
            uint8_t *group = tiles + (row / TILE_ROWS * num_groups + g) * TILE_GROUP_BYTES;
            const int lane = (int)(row % TILE_ROWS);
            const uint8_t *codes = stored + row * dim / 2 + g * (GROUP / 2);
            for (int i = 0; i < GROUP; i++) {
                const int code = codes[i / 2] >> (i % 2 * 4) & 15;
                group[i / 8 * 64 + lane * 4 + i % 4] |= (uint8_t)(code << (i % 8 / 4 * 4));
            }
            memcpy(group + 256 + 2 * lane, scales + row * num_groups + g, 2);
            memcpy(group + 288 + 2 * lane, minima + row * num_groups + g, 2);
        }
}
