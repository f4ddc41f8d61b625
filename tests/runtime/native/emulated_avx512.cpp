// Runs the AVX-512 kernels of groups on any processor: each intrinsic is emulated by a loop. Their results must be bit-identical
// to those of the portable kernels.
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <random>
#include <vector>

#include "kernels.h"
#include "numbers.h"

enum { NEAREST };

void fetch_once(const uint8_t *) {}

struct Integers {
    int32_t lane[16];
};
struct Singles {
    float lane[16];
};
struct HalfWidth {
    uint16_t lane[16];
};
#define __m512i Integers
#define __m512 Singles
#define __m256i HalfWidth
#define __mmask16 uint16_t

template <class Vector, class Work>
Vector lanes(const Work &work) {
    Vector made;
    for (int i = 0; i < 16; i++) made.lane[i] = work(i);
    return made;
}

Integers _mm512_loadu_si512(const void *from) {
    Integers x;
    memcpy(&x, from, sizeof x);
    return x;
}
Integers _mm512_set1_epi8(char byte) {
    Integers x;
    memset(&x, byte, sizeof x);
    return x;
}
Integers _mm512_set1_epi32(int32_t number) {
    return lanes<Integers>([&](int) { return number; });
}
Integers _mm512_setzero_si512() { return _mm512_set1_epi32(0); }
Integers _mm512_and_si512(Integers a, Integers b) {
    return lanes<Integers>([&](int i) { return a.lane[i] & b.lane[i]; });
}
Integers _mm512_xor_si512(Integers a, Integers b) {
    return lanes<Integers>([&](int i) { return a.lane[i] ^ b.lane[i]; });
}
Integers _mm512_add_epi32(Integers a, Integers b) {
    return lanes<Integers>([&](int i) { return (int32_t)((uint32_t)a.lane[i] + (uint32_t)b.lane[i]); });
}
Integers _mm512_sub_epi32(Integers a, Integers b) {
    return lanes<Integers>([&](int i) { return (int32_t)((uint32_t)a.lane[i] - (uint32_t)b.lane[i]); });
}
Integers _mm512_srli_epi16(Integers a, int count) {
    uint16_t halves[32];
    memcpy(halves, &a, sizeof a);
    for (uint16_t &half : halves) half = (uint16_t)(half >> count);
    memcpy(&a, halves, sizeof a);
    return a;
}
Singles _mm512_setzero_ps() { return {}; }
Singles _mm512_set1_ps(float number) {
    return lanes<Singles>([&](int) { return number; });
}
Singles _mm512_loadu_ps(const void *from) {
    Singles x;
    memcpy(&x, from, sizeof x);
    return x;
}
Singles _mm512_mul_ps(Singles a, Singles b) {
    return lanes<Singles>([&](int i) { return a.lane[i] * b.lane[i]; });
}
Singles _mm512_fmadd_ps(Singles a, Singles b, Singles c) {
    return lanes<Singles>([&](int i) { return fmaf(a.lane[i], b.lane[i], c.lane[i]); });
}
Singles _mm512_cvtepi32_ps(Integers a) {
    return lanes<Singles>([&](int i) { return (float)a.lane[i]; });
}
HalfWidth _mm256_loadu_si256(const HalfWidth *from) {
    HalfWidth x;
    memcpy(&x, from, sizeof x);
    return x;
}
Singles _mm512_cvtph_ps(HalfWidth a) {
    return lanes<Singles>([&](int i) { return half_to_float(a.lane[i]); });
}
void _mm512_mask_storeu_ps(float *to, uint16_t mask, Singles x) {
    for (int i = 0; i < 16; i++)
        if (mask >> i & 1) to[i] = x.lane[i];
}

void add_products(Integers &sum, Integers unsigned_bytes, Integers signed_bytes) {
    const uint8_t *a = (const uint8_t *)&unsigned_bytes;
    const int8_t *b = (const int8_t *)&signed_bytes;
    for (int i = 0; i < 64; i++) sum.lane[i / 4] = (int32_t)((uint32_t)sum.lane[i / 4] + (uint32_t)(a[i] * b[i]));
}

Integers broadcast(const void *four) {
    int32_t word;
    memcpy(&word, four, 4);
    return _mm512_set1_epi32(word);
}

#include "groups_avx512.h"

namespace {

std::mt19937 generator(5);

void check(int bits, int group, bool has_minimum, int num_rows) {
    const int num_outputs = 101, num_tiles = 7, num_inputs = 256, num_groups = group ? num_inputs / group : 0;
    std::vector<uint8_t> codes((size_t)num_outputs * num_inputs * bits / 8), tiles((size_t)num_tiles * TILE_ROWS * (num_inputs * bits / 8 + num_groups * 4));
    for (uint8_t &code : codes) code = (uint8_t)generator(), code = bits == 8 && code == 128 ? 0 : code;
    std::vector<uint16_t> halves((size_t)num_outputs * num_groups);
    for (uint16_t &half : halves) half = (uint16_t)(generator() % 0x3000);
    std::vector<float> scales(num_tiles * TILE_ROWS), found((size_t)num_rows * num_outputs), expected(found), x_scales(num_rows);
    for (float &scale : scales) scale = (float)(generator() % 1000) / 7;
    for (float &scale : x_scales) scale = (float)(generator() % 1000) / 3;
    std::vector<int8_t> integers((size_t)num_rows * num_inputs);
    for (int8_t &integer : integers) integer = (int8_t)((int)(generator() % 255) - 127);
    std::vector<int32_t> sums(num_rows), group_sums(integers.size() / GROUP);
    for (size_t i = 0; i < integers.size(); i++) group_sums[i / GROUP] += integers[i], sums[i / num_inputs] += integers[i];
    oa_pack_groups(codes.data(), group ? halves.data() : nullptr, has_minimum ? halves.data() : nullptr, num_outputs, num_inputs,
                   bits, group, tiles.data());
    OaMatrix matrix = {};
    matrix.kind = bits == 4 ? OA_INT4 : OA_INT8, matrix.group = group, matrix.has_minimum = has_minimum;
    matrix.codes = tiles.data(), matrix.scales = group ? nullptr : scales.data();
    matrix.num_outputs = num_outputs, matrix.num_inputs = num_inputs;
    const Rounded x = {integers.data(), x_scales.data(), sums.data(), group_sums.data(), num_inputs, num_rows, num_inputs};
    grouped(matrix, x, 0, num_tiles, found.data(), num_outputs);
    portable_kernels.grouped(matrix, x, 0, num_tiles, expected.data(), num_outputs);
    if (memcmp(found.data(), expected.data(), found.size() * sizeof(float))) {
        printf("%d bits, groups of %d, %d rows: different bits\n", bits, group, num_rows);
        exit(1);
    }
}

}  // namespace

int main() {
    for (int num_rows = 1; num_rows <= 14; num_rows++) {
        for (int group : {32, 64, 128}) check(4, group, true, num_rows), check(4, group, false, num_rows), check(8, group, false, num_rows);
        check(8, 0, false, num_rows);
    }
    puts("equal");
    return 0;
}
