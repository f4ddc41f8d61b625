// Single kernels, for tests and measurements.
#include <math.h>
#include <string.h>

#include "model.h"

void oa_product(OaModel *model, const OaMatrix *matrix, const float *x, int32_t num_rows, float *y) {
    model->rounded.round(model->kernels, model->pool, x, matrix->num_inputs, num_rows, matrix->num_inputs);
    model->multiply({{matrix, y}}, x, num_rows);
}

void oa_head(OaModel *model, const uint8_t *tiles, int32_t vocab_size, int32_t dim, const float *x, int32_t num_rows, float *y) {
    model->rounded.round(model->kernels, model->pool, x, dim, num_rows, dim);
    model->pool.parallel((vocab_size + TILE_ROWS - 1) / TILE_ROWS, [&](int first, int last) {
        model->kernels.head(tiles, model->rounded.view(), first, last, vocab_size, y, vocab_size);
    });
}

void oa_round(OaModel *model, const float *x, int32_t n, int8_t *integers, float *scale, int32_t *sum) {
    std::vector<int32_t> group_sums(((size_t)n + 63) / GROUP);
    model->kernels.round(x, n, integers, scale, sum, group_sums.data());
}

void oa_norm(OaModel *model, const float *x, const float *weight, int32_t n, float eps, float *y) {
    model->kernels.rms_norm(x, weight, n, eps, y);
}

void oa_swiglu(OaModel *model, float *gate, const float *up, int32_t n) { model->kernels.swiglu(gate, up, n); }

int32_t oa_attend(OaModel *model, const float *queries, int32_t num_queries, int32_t head_dim, const float *keys,
                  const float *values, int32_t num_keys, float *y) {
    OaCache cache(PageShape{1, 1, head_dim});
    if (!cache.prepare(0, num_keys)) return 1;
    for (int l = 0; l < num_keys; l++)
        cache.store(l, 0, 0, keys + (int64_t)l * head_dim, values + (int64_t)l * head_dim);
    const int query_bytes = prepared_bytes(head_dim), state_size = head_dim + 2;
    std::vector<uint8_t> room((size_t)num_queries * query_bytes + 64);
    uint8_t *prepared = room.data() + (64 - (uintptr_t)room.data() % 64) % 64;
    std::vector<double> state((size_t)num_queries * state_size);
    for (int n = 0; n < num_queries; n++) {
        model->kernels.prepare(queries + (int64_t)n * head_dim, head_dim, num_keys, prepared + (int64_t)n * query_bytes);
        state[(size_t)n * state_size] = -INFINITY;
    }
    for (int l = 0; l < num_keys; l += PAGE)
        model->kernels.attend(prepared, num_queries, head_dim, cache.at(l / PAGE, 0, 0),
                              num_keys - l < PAGE ? num_keys - l : PAGE, state.data());
    for (int n = 0; n < num_queries; n++)
        for (int c = 0; c < head_dim; c++) {
            const double *s = &state[(size_t)n * state_size];
            y[(int64_t)n * head_dim + c] = (float)(s[2 + c] / s[1]);
        }
    return 0;
}
