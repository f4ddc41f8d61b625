// Calls of single kernels, for tests and measurements.
#include <string.h>

#include <new>

#include "model.h"

void oa_product(OaModel *model, const OaMatrix *matrix, const OaLowRank *low_rank, const float *x, int32_t num_rows, float *y) {
    model->adapted.assign(low_rank ? 1 : 0, {low_rank, 0, num_rows});
    model->rounded.round(model->kernels, model->pool, x, matrix->num_inputs, num_rows, matrix->num_inputs);
    model->multiply({{matrix, y, 0}}, x, num_rows);
    model->adapted.clear();
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
                  const float *values, int32_t num_keys, float *y) try {
    OaCache cache(PageShape{1, 1, head_dim, model->config.float_cache != 0});
    cache.prepare(0, num_keys);
    for (int l = 0; l < num_keys; l++)
        cache.store(l, 0, 0, keys + (int64_t)l * head_dim, values + (int64_t)l * head_dim);
    AttentionRoom room;
    room.reserve(num_queries, head_dim);
    for (int n = 0; n < num_queries; n++) {
        if (cache.shape.is_float)
            memcpy(room.query(n), queries + (int64_t)n * head_dim, head_dim * sizeof(float));
        else
            model->kernels.prepare(queries + (int64_t)n * head_dim, head_dim, num_keys, room.query(n));
        room.begin(n);
    }
    for (int l = 0; l < num_keys; l += PAGE) {
        const int count = num_keys - l < PAGE ? num_keys - l : PAGE;
        const KeysValuesPage page = cache.at(l / PAGE, 0, 0);
        if (cache.shape.is_float)
            model->kernels.attend_full(room.query(0), num_queries, head_dim, page, 0, count, room.state(0));
        else
            model->kernels.attend(room.query(0), num_queries, head_dim, page, count, room.state(0));
    }
    for (int n = 0; n < num_queries; n++) room.end(n, y + (int64_t)n * head_dim);
    return 0;
} catch (const std::bad_alloc &) {
    return 1;
}
