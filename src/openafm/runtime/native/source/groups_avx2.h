// Groups of 4 and 8 bits for AVX2, with the helpers of kernels_avx2.cpp.
#pragma once

namespace {

// A tile's sums of one group, scaled and added: total = fma(scale, sum - middle * x, fma(minimum, x, total)) in this order.
class GroupScales {
public:
    GroupScales(const OaMatrix &matrix, const uint8_t *halves)
        : has_minimum_(matrix.has_minimum), middle_(matrix.kind == OA_INT4 && !matrix.has_minimum ? INT4_MIDDLE : 0) {
        for (int t = 0; t < (has_minimum_ ? 4 : 2); t++)
            numbers_[t] = _mm256_cvtph_ps(_mm_loadu_si128((const __m128i *)(halves + 16 * t)));
    }

    __m256 added(__m256 total, __m256i sums, int octet, int32_t group_sum) const {
        const __m256i exact = _mm256_sub_epi32(sums, _mm256_set1_epi32(middle_ * group_sum));
        total = _mm256_fmadd_ps(numbers_[octet], _mm256_cvtepi32_ps(exact), total);
        return has_minimum_ ? _mm256_fmadd_ps(numbers_[2 + octet], _mm256_set1_ps((float)group_sum), total) : total;
    }

private:
    const bool has_minimum_;
    const int32_t middle_;
    __m256 numbers_[4];
};

// Stores 8 rows of a product from their total in units of x's scale, or from their sum if each row has a scale.
inline void finish(const OaMatrix &matrix, int r, __m256 total, __m256i sums, float x_scale, float *y) {
    const __m256 scale = _mm256_set1_ps(x_scale);
    const __m256 scaled = matrix.group ? _mm256_mul_ps(total, scale)
                                       : _mm256_mul_ps(_mm256_cvtepi32_ps(sums), _mm256_mul_ps(scale, _mm256_loadu_ps(matrix.scales + r)));
    store_some(scaled, matrix.num_outputs - r, y + r);
}

// Sums of a block of 32 inputs of a tile times one row. With 4 bits they fit 16 bits: 8 * 2 * 15 * 128 < 2^15.
template <int BITS>
inline void add_block(const uint8_t *codes, const int8_t *a, __m256i *sums) {
    const __m256i mask = _mm256_set1_epi8(15);
    __m256i acc[2] = {_mm256_setzero_si256(), _mm256_setzero_si256()};
#pragma GCC unroll 8
    for (int v = 0; v < BITS; v++)
#pragma GCC unroll 2
        for (int t = 0; t < 2; t++) {
            const __m256i w = load(codes + v * 64 + t * 32);
            if (BITS == 4) {
                acc[t] = add_products<4>(acc[t], _mm256_and_si256(w, mask), broadcast(a + v * 8));
                acc[t] = add_products<4>(acc[t], _mm256_and_si256(_mm256_srli_epi16(w, 4), mask), broadcast(a + v * 8 + 4));
            } else {
                acc[t] = add_products<8>(acc[t], w, broadcast(a + v * 4));
            }
        }
    for (int t = 0; t < 2; t++) sums[t] = _mm256_add_epi32(sums[t], to_32_bits<BITS>(acc[t]));
}

// A tile times one row of activations: the weights are read once, in order.
template <int BITS>
void grouped_stream(const OaMatrix &matrix, const Groups &groups, int tile, const Rounded &x, int64_t n, float *y) {
    const uint8_t *codes = groups.tile(matrix, tile);
    const int8_t *a = x.integers + n * x.stride;
    __m256 totals[2] = {_mm256_setzero_ps(), _mm256_setzero_ps()};
    __m256i sums[2];
    for (int g = 0; g < groups.count; g++) {
        sums[0] = sums[1] = _mm256_setzero_si256();
        for (int block = 0; block < groups.blocks; block++, codes += groups.block_bytes, a += GROUP)
            add_block<BITS>(codes, a, sums);
        if (!matrix.group) break;  // one group of all inputs
        const GroupScales scales(matrix, codes);
        const int32_t group_sum = sum_of_group(x, n, groups, g);
        for (int t = 0; t < 2; t++) totals[t] = scales.added(totals[t], sums[t], t, group_sum);
        codes += groups.bytes - groups.blocks * groups.block_bytes;
    }
    for (int t = 0; t < 2; t++) finish(matrix, tile * TILE_ROWS + t * 8, totals[t], sums[t], x.scales[n], y);
}

// Unpacks a block of 32 inputs of a tile to bytes, by quads of inputs. Codes of 8 bits are used where they are.
template <int BITS>
inline const uint8_t *unpacked_block(const uint8_t *codes, uint8_t *bytes) {
    if (BITS == 8) return codes;
    const __m256i mask = _mm256_set1_epi8(15);
    for (int v = 0; v < 4; v++)
        for (int t = 0; t < 2; t++) {
            const __m256i w = load(codes + v * 64 + t * 32);
            _mm256_store_si256((__m256i *)(bytes + v * 128 + t * 32), _mm256_and_si256(w, mask));
            _mm256_store_si256((__m256i *)(bytes + v * 128 + 64 + t * 32), _mm256_and_si256(_mm256_srli_epi16(w, 4), mask));
        }
    return bytes;
}

// Many rows from `first` on, times a tile: each block is unpacked once.
template <int BITS>
void grouped_rows(const OaMatrix &matrix, const Groups &groups, int tile, const Rounded &x, int64_t first, int num_rows, float *y,
                  int64_t stride) {
    alignas(32) uint8_t bytes[GROUP * TILE_ROWS];
    __m256 totals[MANY_ROWS][2];
    __m256i sums[MANY_ROWS][2];
    const uint8_t *codes = groups.tile(matrix, tile);
    memset(totals, 0, num_rows * sizeof totals[0]);
    for (int g = 0; g < groups.count; g++) {
        memset(sums, 0, num_rows * sizeof sums[0]);
        for (int block = 0; block < groups.blocks; block++, codes += groups.block_bytes) {
            const uint8_t *unpacked = unpacked_block<BITS>(codes, bytes);
            const int8_t *a = x.integers + first * x.stride + g * groups.inputs + block * GROUP;
            for (int row = 0, rows; row < num_rows; row += rows) {
                rows = num_rows - row < ROWS_BESIDE ? num_rows - row : ROWS_BESIDE;
                multiply_rows<BITS>[rows](unpacked, a + row * x.stride, x.stride, GROUP / 4, sums + row);
            }
        }
        if (!matrix.group) break;
        const GroupScales scales(matrix, codes);
        for (int n = 0; n < num_rows; n++) {
            const int32_t group_sum = sum_of_group(x, first + n, groups, g);
            for (int t = 0; t < 2; t++) totals[n][t] = scales.added(totals[n][t], sums[n][t], t, group_sum);
        }
        codes += groups.bytes - groups.blocks * groups.block_bytes;
    }
    for (int n = 0; n < num_rows; n++)
        for (int t = 0; t < 2; t++)
            finish(matrix, tile * TILE_ROWS + t * 8, totals[n][t], sums[n][t], x.scales[first + n], y + (first + n) * stride);
}

template <int BITS>
void grouped_tiles(const OaMatrix &matrix, const Rounded &x, int first, int last, float *y, int64_t stride) {
    const Groups groups(matrix);
    for (int tile = first; tile < last; tile++) {
        if (x.num_rows == 1) {
            grouped_stream<BITS>(matrix, groups, tile, x, 0, y);
            continue;
        }
        for (int row = 0; row < x.num_rows; row += MANY_ROWS)
            grouped_rows<BITS>(matrix, groups, tile, x, row, x.num_rows - row < MANY_ROWS ? x.num_rows - row : MANY_ROWS, y, stride);
    }
}

void grouped(const OaMatrix &matrix, const Rounded &x, int first, int last, float *y, int64_t stride) {
    (matrix.kind == OA_INT4 ? grouped_tiles<4> : grouped_tiles<8>)(matrix, x, first, last, y, stride);
}

}  // namespace
