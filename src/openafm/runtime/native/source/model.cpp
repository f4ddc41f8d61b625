#include "model.h"

#include <math.h>
#include <string.h>

#include <new>

namespace {

const Kernels *const all_kernels[] = {
#if defined(__x86_64__)
    &avx512_kernels,
    &avx2_kernels,
#elif defined(__aarch64__)
    &neon_dot_kernels,
    &neon_kernels,
#endif
    &portable_kernels,
};

bool is_integer(const OaMatrix &matrix) { return matrix.kind != OA_BFLOAT16 && matrix.kind != OA_FLOAT32; }

}  // namespace

const Kernels *find_kernels(const char *name) {
    for (const Kernels *kernels : all_kernels)
        if (kernels->is_supported() && (!name || !strcmp(name, kernels->name))) return kernels;
    return nullptr;
}

void RoundedRows::reserve(int num_rows, int num_inputs) {
    const size_t stride = padded(num_inputs), rows = num_rows;
    // The vector whose size is compared is resized last: an earlier resize may throw, and a later step repeats them.
    if (integers_.size() < rows * stride) group_sums_.resize(rows * stride / GROUP), integers_.resize(rows * stride);
    if (scales_.size() < rows) sums_.resize(rows), scales_.resize(rows);
}

void RoundedRows::round(const Kernels &kernels, Pool &pool, const float *x, int64_t x_stride, int num_rows, int num_inputs) {
    reserve(num_rows, num_inputs);
    const int stride = padded(num_inputs);
    view_ = {integers_.data(), scales_.data(), sums_.data(), group_sums_.data(), stride, num_rows, num_inputs};
    pool.parallel(num_rows, [&](int first, int last) {
        for (int64_t n = first; n < last; n++)
            kernels.round(x + n * x_stride, num_inputs, integers_.data() + n * stride, &scales_[n], &sums_[n],
                          group_sums_.data() + n * stride / GROUP);
    });
}

void AttentionRoom::reserve(int num_queries, int head_dim) {
    head_dim_ = head_dim;
    page_.resize((size_t)PAGE * (2 * head_dim + 4) / sizeof(Line) + 1);
    queries_.resize((size_t)num_queries * prepared_bytes(head_dim) / sizeof(Line));
    states_.resize((size_t)num_queries * (head_dim + 2));
}

void AttentionRoom::begin(int i) {
    memset(state(i), 0, (head_dim_ + 2) * sizeof(double));
    *state(i) = -INFINITY;
}

void AttentionRoom::end(int i, float *y) {
    const double *sum = state(i) + 1, *out = sum + 1;
    for (int c = 0; c < head_dim_; c++) y[c] = (float)(out[c] / *sum);
}

// Keys and values of a quad are three or fewer bytes apart. The other keys of the page stay what they were: they are not read.
KeysValuesPage AttentionRoom::part_of_quad(const KeysValuesPage &page, int first, int count) {
    uint8_t *keys = (uint8_t *)page_.data(), *values = keys + (size_t)PAGE * head_dim_;
    uint16_t *scales = (uint16_t *)(values + (size_t)PAGE * head_dim_);
    memset(page_.data(), 0, page_.size() * sizeof(Line));
    for (int i = 0; i < count; i++) {
        for (int c = 0; c < head_dim_; c += 4) memcpy(keys + (size_t)c * PAGE + i * 4, page.keys + (size_t)c * PAGE + (first + i) * 4, 4);
        const int8_t *from = page.values + (size_t)(first / 4) * head_dim_ * 4 + (first + i) % 4;
        for (int c = 0; c < head_dim_; c++) values[c * 4 + i] = (uint8_t)from[c * 4];
        scales[i] = page.key_scales[first + i], scales[PAGE + i] = page.value_scales[first + i];
    }
    return {keys, (const int8_t *)values, scales, scales + PAGE, nullptr};
}

Inputs Inputs::part(int first, int count, int num_inputs) const {
    const int64_t n = first, at = n * rounded.stride;
    Rounded some = rounded;
    some.num_rows = count;
    if (rounded.integers) {
        some.integers += at, some.group_sums += at / GROUP;
        some.scales += n, some.sums += n;
    }
    return {x + n * num_inputs, some, count};
}

OaModel::OaModel(const OaConfig &model_config, int num_threads, const Kernels &chosen)
    : config(model_config),
      layers(model_config.layers, model_config.layers + (int64_t)model_config.num_layers * model_config.num_tracks),
      kernels(chosen),
      pool(num_threads) {
    has_integers = is_integer(config.head);
    for (const OaLayer &l : layers) {
        const int layer = (int)own_layers.size();
        own_layers.push_back(l.source == layer ? num_own_layers++ : own_layers[l.source]);
        has_track_norms |= l.track_norm != nullptr;
        for (const OaMatrix *matrix : {&l.query, &l.key, &l.value, &l.output})
            has_integers |= matrix->codes && is_integer(*matrix);  // null: it reads keys and values of another layer
        for (int i = 0; i < (l.num_experts ? l.num_experts : 1); i++)
            for (const OaMatrix *matrix : {&l.feed_forwards[i].gate, &l.feed_forwards[i].up, &l.feed_forwards[i].down})
                has_integers |= is_integer(*matrix);
        most_experts = l.num_experts > most_experts ? l.num_experts : most_experts;
        most_chosen = l.num_chosen > most_chosen ? l.num_chosen : most_chosen;
    }
}

void OaModel::reserve(int num_rows) {
    const size_t rows = num_rows;
    if (states.size() >= rows * config.dim) return;
    rooms.resize(pool.num_threads());
    for (AttentionRoom &room : rooms)
        room.reserve(ROWS_AT_ONCE * (config.num_heads / config.num_kv_heads), config.head_dim);
    normed.resize(rows * config.dim);
    queries.resize(rows * config.num_heads * config.head_dim);
    attended.resize(rows * config.num_heads * config.head_dim);
    keys.resize(rows * config.num_kv_heads * config.head_dim);
    values.resize(rows * config.num_kv_heads * config.head_dim);
    gate.resize(rows * config.hidden_dim);
    up.resize(rows * config.hidden_dim);
    turns.resize(rows * config.head_dim * config.num_rotaries);
    if (config.num_tracks > 1 || has_track_norms) block_input.resize(rows * config.dim), combined.resize(rows * config.dim);
    for (std::vector<float> *each : {&expert_input, &expert_output}) each->resize(rows * most_chosen * config.dim);
    routing.logits.resize(rows * most_experts);
    routing.weights.resize(rows * most_chosen);
    for (std::vector<int> *each : {&routing.experts, &routing.places}) each->resize(rows * most_chosen);
    for (std::vector<int> *each : {&routing.begins, &routing.active}) each->resize(most_experts + 1);
    states.resize(rows * config.dim);  // last, because its size is compared above
}

void OaModel::normalize(const float *weight, int num_rows) {
    for_rows(num_rows, [&](int first, int last) {
        for (int64_t n = first; n < last; n++)
            kernels.rms_norm(&states[n * config.dim], weight, config.dim, config.norm_eps, &normed[n * config.dim]);
    });
    round(normed.data(), num_rows, config.dim);
}

void OaModel::multiply(const std::vector<Product> &products, const float *x, int num_rows) {
    add_up_adapters(products, x);
    const Inputs rows = inputs(x, num_rows);
    int num_panels = 0;
    for (const Product &product : products) num_panels += panels_of(*product.matrix);
    pool.parallel(num_panels, [&](int first, int last) {
        int begin = 0;
        size_t sums = 0;
        for (const Product &product : products) {
            const OaMatrix &matrix = *product.matrix;
            const int end = begin + panels_of(matrix), from = first > begin ? first : begin, to = last < end ? last : end;
            if (from < to) multiply_panels(product, rows, from - begin, to - begin, low_rank.data() + sums);
            begin = end;
            sums += num_sums(product);
        }
    });
}

// Computes panels of a product, adds the bias and the outputs of adapters, whose sums are `low`: for each run of rows [rows, rank].
void OaModel::multiply_panels(const Product &product, const Inputs &inputs, int first, int last, const double *low) {
    const OaMatrix &matrix = *product.matrix;
    const int num_rows = inputs.num_rows;
    const int r = first * PANEL_ROWS, stop = last * PANEL_ROWS < matrix.num_outputs ? last * PANEL_ROWS : matrix.num_outputs;
    const int first_tile = r / TILE_ROWS, last_tile = (stop + TILE_ROWS - 1) / TILE_ROWS;
    if (matrix.kind == OA_INT2)
        kernels.low_bit(matrix, config.level_zero, inputs.rounded, first, last, product.y, matrix.num_outputs);
    else if (!is_integer(matrix))
        kernels.full(matrix, inputs.x, num_rows, first_tile, last_tile, product.y, matrix.num_outputs);
    else
        kernels.grouped(matrix, inputs.rounded, first_tile, last_tile, product.y, matrix.num_outputs);
    for (int64_t n = 0; matrix.bias && n < num_rows; n++)
        for (int i = r; i < stop; i++) product.y[n * matrix.num_outputs + i] += matrix.bias[i];
    if (product.place < 0) return;
    for (const AdaptedRows &rows : adapted) {
        const OaLowRank &adapter = rows.adapter[product.place];
        float *y = product.y + (int64_t)rows.first * matrix.num_outputs;
        for (int panel = first; adapter.rank && panel < last; panel++)
            kernels.adapter_out(adapter, low, rows.count, matrix.num_outputs, panel, y);
        low += (int64_t)rows.count * adapter.rank;
    }
}

// Computes panels of both products and then SwiGLU, without a barrier in between. Few rows are bound by memory, which is read in
// order. With many rows, one panel at a time keeps both products in the cache for SwiGLU. `low` are the sums of adapters for the
// gate, followed by those for the other.
void OaModel::gate_panels(const Product &gates, const Product &ups, const Inputs &inputs, int first, int last, const double *low) {
    const int hidden_dim = gates.matrix->num_outputs, together = inputs.num_rows <= FEW_ROWS ? last - first : 1;
    const double *low_ups = low + num_sums(gates);
    for (int panel = first; panel < last; panel += together) {
        multiply_panels(gates, inputs, panel, panel + together, low);
        multiply_panels(ups, inputs, panel, panel + together, low_ups);
        const int r = panel * PANEL_ROWS, stop = r + together * PANEL_ROWS, count = (stop < hidden_dim ? stop : hidden_dim) - r;
        for (int64_t n = 0; n < inputs.num_rows; n++) kernels.swiglu(gates.y + n * hidden_dim + r, ups.y + n * hidden_dim + r, count);
    }
}

void OaModel::open_gates(int layer, int num_rows) {
    const OaFeedForward &dense = layers[layer].feed_forwards[0];
    const int place = layer * OA_ADAPTED;
    const Product gates = {&dense.gate, gate.data(), place + OA_GATE}, ups = {&dense.up, up.data(), place + OA_UP};
    add_up_adapters({gates, ups}, normed.data());
    const Inputs rows = inputs(normed.data(), num_rows);
    pool.parallel(panels_of(dense.gate),
                  [&](int first, int last) { gate_panels(gates, ups, rows, first, last, low_rank.data()); });
}

void OaModel::find_adapted(const std::vector<Row> &rows) {
    adapted.clear();
    for (int first = 0, stop; first < (int)rows.size(); first = stop) {
        for (stop = first + 1; stop < (int)rows.size() && rows[stop].adapter == rows[first].adapter; stop++);
        if (rows[first].adapter) adapted.push_back({rows[first].adapter, first, stop - first});
    }
}

size_t OaModel::num_sums(const Product &product) const {
    size_t count = 0;
    for (const AdaptedRows &rows : adapted)
        if (product.place >= 0) count += (size_t)rows.count * rows.adapter[product.place].rank;
    return count;
}

// Computes x a^T of all products and adapters into `low_rank`; threads divide the rows of all a.
void OaModel::add_up_adapters(const std::vector<Product> &products, const float *x) {
    size_t sums = 0;
    int num_ranks = 0;
    for (const Product &product : products) {
        sums += num_sums(product);
        for (const AdaptedRows &rows : adapted) num_ranks += product.place < 0 ? 0 : rows.adapter[product.place].rank;
    }
    if (!sums) return;
    if (low_rank.size() < sums) low_rank.resize(sums);
    pool.parallel(num_ranks, [&](int first, int last) {
        double *low = low_rank.data();
        int begin = 0;
        for (const Product &product : products)
            for (const AdaptedRows &rows : adapted) {
                if (product.place < 0) break;
                const OaLowRank &adapter = rows.adapter[product.place];
                const int64_t num_inputs = product.matrix->num_inputs;
                const int end = begin + adapter.rank, from = first > begin ? first : begin, to = last < end ? last : end;
                if (from < to)
                    kernels.adapter_in(adapter, x + rows.first * num_inputs, rows.count, (int)num_inputs, from - begin, to - begin, low);
                begin = end;
                low += (int64_t)rows.count * adapter.rank;
            }
    });
}

int32_t oa_version(void) { return OA_VERSION; }

const char *oa_kernels(int32_t i) {
    for (const Kernels *kernels : all_kernels)
        if (kernels->is_supported() && i-- == 0) return kernels->name;
    return nullptr;
}

OaModel *oa_model_new(const OaConfig *config, int32_t num_threads, const char *name) try {
    const Kernels *kernels = find_kernels(name);
    return kernels ? new OaModel(*config, num_threads, *kernels) : nullptr;
} catch (const std::bad_alloc &) {
    return nullptr;
}

void oa_model_free(OaModel *model) { delete model; }

OaCache *oa_cache_new(const OaModel *model) { return new (std::nothrow) OaCache(model->page_shape()); }
