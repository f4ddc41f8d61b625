// Compares every kernel set that this processor supports with the portable one on random inputs.
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <random>
#include <vector>

#include "abi.h"

namespace {

std::mt19937 generator(1);

std::vector<float> normal(size_t count, float scale) {
    std::normal_distribution<float> distribution(0, scale);
    std::vector<float> x(count);
    for (float &value : x) value = distribution(generator);
    return x;
}

std::vector<uint8_t> bytes(size_t count) {
    std::vector<uint8_t> x(count);
    for (uint8_t &value : x) value = (uint8_t)generator();
    return x;
}

// A model without layers: probes use its kernels and threads only.
struct Probe {
    explicit Probe(const char *kernels) {
        memset(&config, 0, sizeof config);
        config.num_heads = config.num_kv_heads = 1;
        config.level_zero = 1.5f;
        model = oa_model_new(&config, 2, kernels);
        if (!model) abort();
    }
    ~Probe() { oa_model_free(model); }

    OaConfig config;
    OaModel *model;
};

void compare(const char *kernels, const char *what, const std::vector<float> &expected, const std::vector<float> &found,
             float tolerance) {
    float largest = 0, difference = 0;
    for (size_t i = 0; i < expected.size(); i++) {
        largest = fmaxf(largest, fabsf(expected[i]));
        difference = fmaxf(difference, fabsf(expected[i] - found[i]));
    }
    if (!(difference <= tolerance * largest)) {
        printf("%s: %s differs by %g of %g\n", kernels, what, difference, largest);
        exit(1);
    }
}

void compare_with_portable(const char *kernels) {
    const Probe reference("portable"), probe(kernels);
    for (int num_rows : {1, 4, 7}) {
        const int num_outputs = 200, num_inputs = 352, head_dim = 64, num_keys = 150;
        const std::vector<uint8_t> stored = bytes((size_t)num_outputs * num_inputs / 4);
        std::vector<uint8_t> panels((num_outputs + 63) / 64 * ((num_inputs + 15) / 16) * 256);
        oa_pack_panels(stored.data(), num_outputs, num_inputs, panels.data());
        const std::vector<float> scales = normal(256, 0.01f), x = normal((size_t)num_rows * num_inputs, 1);
        OaMatrix matrix;
        memset(&matrix, 0, sizeof matrix);
        matrix.codes = panels.data(), matrix.scales = scales.data();
        matrix.num_outputs = num_outputs, matrix.num_inputs = num_inputs;
        std::vector<float> y[2];
        for (int i = 0; i < 2; i++) {
            y[i].resize((size_t)num_rows * num_outputs);
            oa_product((i ? probe : reference).model, &matrix, nullptr, x.data(), num_rows, y[i].data());
        }
        compare(kernels, "product", y[0], y[1], 0);  // integer sums are exact

        // Groups of 32 inputs: 4 bits with and without minima, 8 bits of groups and of rows. Bit-exact in every kernel set.
        for (int format = 0; format < 4; format++) {
            const int bits = format < 2 ? 4 : 8, group = format < 3 ? 32 : 0;
            std::vector<uint8_t> codes = bytes((size_t)num_outputs * num_inputs * bits / 8);
            for (uint8_t &code : codes) code = bits == 8 && code == 128 ? 0 : code;  // codes are from -127 to 127
            const std::vector<uint16_t> halves((size_t)num_outputs * num_inputs / 32, 0x2c00);  // 1 / 16
            std::vector<uint8_t> tiles((num_outputs + 15) / 16 * 16 * (num_inputs * bits / 8 + num_inputs / 32 * 4));
            oa_pack_groups(codes.data(), group ? halves.data() : nullptr, format ? nullptr : halves.data(), num_outputs, num_inputs,
                           bits, group, tiles.data());
            OaMatrix grouped = matrix;
            grouped.kind = bits == 4 ? OA_INT4 : OA_INT8, grouped.group = group, grouped.has_minimum = format == 0;
            grouped.codes = tiles.data(), grouped.scales = group ? nullptr : scales.data();
            for (int i = 0; i < 2; i++) oa_product((i ? probe : reference).model, &grouped, nullptr, x.data(), num_rows, y[i].data());
            compare(kernels, "groups", y[0], y[1], 0);
        }

        std::vector<uint16_t> numbers((size_t)num_outputs * num_inputs), tiles((num_outputs + 15) / 16 * 16 * num_inputs);
        for (uint16_t &number : numbers) number = (uint16_t)(0x3c00 + generator() % 0x200);
        oa_pack_bfloat16(numbers.data(), num_outputs, num_inputs, tiles.data());
        OaMatrix full = matrix;
        full.kind = OA_BFLOAT16, full.codes = (const uint8_t *)tiles.data(), full.scales = nullptr;
        for (int i = 0; i < 2; i++) oa_product((i ? probe : reference).model, &full, nullptr, x.data(), num_rows, y[i].data());
        compare(kernels, "bfloat16", y[0], y[1], 1e-5f);

        const std::vector<float> q = normal((size_t)num_rows * head_dim, 1), k = normal((size_t)num_keys * head_dim, 1),
                                 v = normal((size_t)num_keys * head_dim, 1);
        for (int i = 0; i < 2; i++) {
            y[i].resize((size_t)num_rows * head_dim);
            if (oa_attend((i ? probe : reference).model, q.data(), num_rows, head_dim, k.data(), v.data(), num_keys, y[i].data()))
                abort();
        }
        compare(kernels, "attention", y[0], y[1], 1e-6f);

        std::vector<float> gates[2] = {x, x};
        for (int i = 0; i < 2; i++) oa_swiglu((i ? probe : reference).model, gates[i].data(), x.data(), num_inputs);
        compare(kernels, "swiglu", gates[0], gates[1], 1e-6f);
    }
}

}  // namespace

int main() {
    for (int i = 0; oa_kernels(i); i++) {
        compare_with_portable(oa_kernels(i));
        printf("%s\n", oa_kernels(i));
    }
}
