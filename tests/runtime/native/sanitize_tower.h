// The vision tower under the sanitizers: products, feed-forwards and attention give the same bits with any number of threads.
#pragma once
#include <stdint.h>

#include <memory>
#include <vector>

#include "sanitize_engine.h"

// A matrix of random weights, fp32 or 8 bits with a scale for each row.
struct TowerMatrix {
    std::vector<float> floats, bias, scales;
    std::vector<uint8_t> codes;
    OaMatrix matrix = {};

    TowerMatrix(Random &random, int num_outputs, int num_inputs, bool has_codes) {
        const size_t padded = (size_t)(num_outputs + 63) / 64 * 64;
        for (int i = 0; i < num_outputs; i++) bias.push_back((float)up_to(random, 100) / 100);
        if (has_codes) {
            std::vector<uint8_t> stored((size_t)num_outputs * num_inputs);
            for (uint8_t &code : stored) code = (uint8_t)(int8_t)(up_to(random, 254) - 127);
            codes.resize(padded * num_inputs), scales.resize(padded, 0.01f);
            oa_pack_groups(stored.data(), nullptr, nullptr, num_outputs, num_inputs, 8, 0, codes.data());
            matrix.codes = codes.data(), matrix.scales = scales.data();
        } else {
            std::vector<float> stored((size_t)num_outputs * num_inputs);
            for (float &number : stored) number = (float)(up_to(random, 200) - 100) / 100;
            floats.resize(padded * num_inputs);
            oa_pack_float32(stored.data(), num_outputs, num_inputs, floats.data());
            matrix.codes = (const uint8_t *)floats.data();
        }
        matrix.kind = has_codes ? OA_INT8 : OA_FLOAT32, matrix.bias = bias.data();
        matrix.num_outputs = num_outputs, matrix.num_inputs = num_inputs;
    }
};

typedef std::unique_ptr<OaTower, void (*)(OaTower *)> Tower;

// Returns everything that a tower computes of some rows.
inline std::vector<float> computed(OaTower *tower, const TowerMatrix &up, const TowerMatrix &down, const std::vector<float> &x,
                                   int num_rows, int dim, int num_shared, int num_windows) {
    const int hidden = up.matrix.num_outputs, window_tokens = (num_rows - num_shared) / num_windows;
    std::vector<float> ones((size_t)dim, 1.0f), y((size_t)num_rows * hidden), z(x.size()), normed(x.size());
    std::vector<float> qkv((size_t)num_rows * 3 * dim), o((size_t)num_windows * (num_shared + window_tokens) * dim);
    for (size_t i = 0; i < qkv.size(); i++) qkv[i] = x[i % x.size()];
    oa_tower_norm(tower, x.data(), ones.data(), ones.data(), num_rows, dim, 1e-6f, normed.data());
    CHECK(!oa_tower_product(tower, &up.matrix, 1, x.data(), num_rows, y.data()));
    CHECK(!oa_tower_feed_forward(tower, &up.matrix, &down.matrix, ones.data(), ones.data(), 1e-6f, x.data(), num_rows, z.data()));
    CHECK(!oa_tower_attend(tower, qkv.data(), num_shared, num_windows, window_tokens, 4, dim / 4, o.data()));
    for (const std::vector<float> *more : {&z, &normed, &o}) y.insert(y.end(), more->begin(), more->end());
    return y;
}

inline void towers(const char *kernels) {
    Random random(11);
    const int shapes[][4] = {{1, 32, 0, 1}, {7, 32, 1, 3}, {97, 64, 1, 4}, {200, 96, 0, 8}};
    for (const auto &[num_rows, dim, num_shared, num_windows] : shapes)
        for (const bool has_codes : {false, true}) {
            const TowerMatrix up(random, dim + 32, dim, has_codes), down(random, dim, dim + 32, has_codes);
            std::vector<float> x((size_t)num_rows * dim), first;
            for (float &number : x) number = (float)(up_to(random, 2000) - 1000) / 100;
            for (const int num_threads : {1, 3}) {
                const Tower tower(oa_tower_new(num_threads, kernels), oa_tower_free);
                CHECK(tower);
                const auto found = computed(tower.get(), up, down, x, num_rows, dim, num_shared, num_windows);
                if (first.empty()) first = found;
                CHECK(found == first);
            }
        }
}
