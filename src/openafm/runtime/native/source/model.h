// A model: the config's pointers, the threads, and room for the rows of a step.
#pragma once
#include <vector>

#include "cache.h"
#include "kernels.h"
#include "pool.h"

// Rows of activations rounded to 8 bits, with the memory that they take.
class RoundedRows {
public:
    void reserve(int num_rows, int num_inputs);
    const Rounded &view() const { return view_; }

    // Round rows [N, num_inputs] of x, `x_stride` apart.
    void round(const Kernels &kernels, Pool &pool, const float *x, int64_t x_stride, int num_rows, int num_inputs);

private:
    std::vector<int8_t> integers_;
    std::vector<float> scales_;
    std::vector<int32_t> sums_, group_sums_;
    Rounded view_ = {};
};

// One of several products of the same rows.
struct Product {
    const OaMatrix *matrix;
    float *y;
};

// A row of a step: a token of a sequence.
struct Row {
    OaCache *cache;
    int64_t position;
};

enum { ROWS_AT_ONCE = 4 };  // rows of a sequence that attend together

// Rows that follow each other in one sequence, ROWS_AT_ONCE at the most, with a key/value head.
struct AttentionPiece {
    int first_row, num_rows, head;
};

// What a thread lets queries attend in: each as the kernels want it, and its state.
class AttentionRoom {
public:
    void reserve(int num_queries, int head_dim);
    uint8_t *query(int i) { return (uint8_t *)queries_.data() + (size_t)i * prepared_bytes(head_dim_); }
    double *state(int i) { return states_.data() + (size_t)i * (head_dim_ + 2); }
    // The state before the first key, and the output after the last.
    void begin(int i);
    void end(int i, float *y);

private:
    struct alignas(64) Line {
        uint8_t bytes[64];
    };

    int head_dim_ = 0;
    std::vector<Line> queries_;
    std::vector<double> states_;
};

struct OaModel {
    OaModel(const OaConfig &model_config, int num_threads, const Kernels &chosen);

    PageShape page_shape() const { return {num_own_layers, config.num_kv_heads, config.head_dim}; }

    void reserve(int num_rows);
    void embed(const int32_t *tokens, int num_rows);
    // Rows of `states` through the norm into `normed`, rounded.
    void normalize(const float *weight, int num_rows);
    // Call work(first, last) on rows; of few, this thread does them all.
    template <class Work>
    void for_rows(int num_rows, const Work &work) {
        if (num_rows <= FEW_ROWS)
            work(0, num_rows);
        else
            pool.parallel(num_rows, work);
    }
    // Add rows of `normed`, an output of half a layer, to `states`.
    void add_to_states(int num_rows);
    // gate = silu(gate) * up of rows whose norm stands in `normed` and `rounded`.
    void open_gates(const OaLayer &layer, int num_rows);
    // Products of x [N, num_inputs], which `rounded` holds in 8 bits; their adapters' outputs added.
    void multiply(const std::vector<Product> &products, const float *x, int num_rows);
    void store_keys_values(int layer, const std::vector<Row> &rows);
    void read(int layer, const std::vector<Row> &rows);
    void feed_forward(const OaLayer &layer, int num_rows);
    // Cosines and sines of the rows' positions, in `turns`.
    void find_turns(const std::vector<Row> &rows);
    // Go on with those rows alone whose numbers are `wanted`, which ascend.
    void keep(const std::vector<int> &wanted, std::vector<Row> &rows);

    const OaConfig config;
    const std::vector<OaLayer> layers;
    const Kernels &kernels;
    Pool pool;
    std::vector<int> own_layers;  // place in a page of the keys and values that a layer reads
    int num_own_layers = 0;

    // Of N rows: hidden states and their norm [N, D], queries and what attention makes of them [N, H, C], keys and values
    // [N, K, C], both halves of the feed-forward [N, F], cosines and sines [N, C].
    std::vector<float> states, normed, queries, attended, keys, values, gate, up, turns;
    std::vector<double> low_rank;
    std::vector<AttentionRoom> rooms;  // of every thread
    RoundedRows rounded;

private:
    void turn(float *x, const float *turns, const float *norm) const;
    void attend(int layer, const std::vector<Row> &rows, const AttentionPiece &piece);
    void multiply_panels(const Product &product, int first, int last, const double *low, int num_rows);
    void add_up_adapters(const std::vector<Product> &products, const float *x, int num_rows);
};
