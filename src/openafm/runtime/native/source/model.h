// A model: config, thread pool and buffers for the rows of a step.
#pragma once
#include <vector>

#include "cache.h"
#include "kernels.h"
#include "pool.h"

// Rows of activations rounded to 8 bits, and their buffers.
class RoundedRows {
public:
    void reserve(int num_rows, int num_inputs);
    const Rounded &view() const { return view_; }

    // Rounds rows [N, num_inputs] of x, `x_stride` apart.
    void round(const Kernels &kernels, Pool &pool, const float *x, int64_t x_stride, int num_rows, int num_inputs);

private:
    std::vector<int8_t> integers_;
    std::vector<float> scales_;
    std::vector<int32_t> sums_, group_sums_;
    Rounded view_ = {};
};

// A product of the current rows with a matrix. `place` is that of the matrix in an adapter; -1: it has none.
struct Product {
    const OaMatrix *matrix;
    float *y;
    int place = -1;
};

// Consecutive rows with the same adapter.
struct AdaptedRows {
    const OaLowRank *adapter;
    int first, count;
};

// Rows of activations: in fp32, apart by the inputs of a matrix, and rounded if the model has integer codes.
struct Inputs {
    const float *x;
    Rounded rounded;
    int num_rows;

    // The rows [first, first + count).
    Inputs part(int first, int count, int num_inputs) const;
};

// A row of a step: a token of a sequence, the adapter of that or null, and the number of the row in the step.
struct Row {
    OaCache *cache;
    const OaLowRank *adapter;
    int64_t position;
    int64_t number;
};

// The experts of each row: row m of the sorted rows is one row and one of its experts.
struct Routing {
    std::vector<float> logits, weights;  // [N, E], [N, chosen]: weights of the chosen experts, in ascending order
    std::vector<int> experts, places;    // [N, chosen]: the chosen experts, ascending, and their sorted rows
    std::vector<int> begins, active;     // first sorted row of each expert [E + 1], and the experts that have any
};

enum { ROWS_AT_ONCE = 4 };  // rows of a sequence in one attention task

// An attention task: up to ROWS_AT_ONCE consecutive rows of one sequence and a key/value head.
struct AttentionPiece {
    int first_row, num_rows, head;
};

// A thread's attention buffers: prepared queries and their states.
class AttentionRoom {
public:
    void reserve(int num_queries, int head_dim);
    uint8_t *query(int i) { return (uint8_t *)queries_.data() + (size_t)i * prepared_bytes(head_dim_); }
    // A page with up to three keys of `page` from `first` on, of which its first quad has more.
    KeysValuesPage part_of_quad(const KeysValuesPage &page, int first, int count);
    double *state(int i) { return states_.data() + (size_t)i * (head_dim_ + 2); }
    // Initializes the state, and writes the output after the last key.
    void begin(int i);
    void end(int i, float *y);

private:
    struct alignas(64) Line {
        uint8_t bytes[64];
    };

    int head_dim_ = 0;
    std::vector<Line> queries_, page_;
    std::vector<double> states_;
};

// Inputs of a row of rounded activations, with their padding.
static inline int padded(int num_inputs) { return (num_inputs + 63) / 64 * 64; }

static inline int panels_of(const OaMatrix &matrix) { return (matrix.num_outputs + PANEL_ROWS - 1) / PANEL_ROWS; }

struct OaModel {
    OaModel(const OaConfig &model_config, int num_threads, const Kernels &chosen);

    PageShape page_shape() const { return {num_own_layers, config.num_kv_heads, config.head_dim, config.float_cache != 0}; }

    void reserve(int num_rows);
    void embed(const int32_t *tokens, int num_rows);
    // Rounds rows [N, num_inputs] of x into `rounded`, for matrices with integer codes.
    void round(const float *x, int num_rows, int num_inputs) {
        if (has_integers) rounded.round(kernels, pool, x, num_inputs, num_rows, num_inputs);
    }
    // Normalizes rows of `states` into `normed` and rounds them.
    void normalize(const float *weight, int num_rows);
    // Calls work(first, last) on rows; few rows are processed by this thread.
    template <class Work>
    void for_rows(int num_rows, const Work &work) {
        if (num_rows <= FEW_ROWS)
            work(0, num_rows);
        else
            pool.parallel(num_rows, work);
    }
    // Adds rows of `normed`, the output of attention or feed-forward, to `states`.
    void add_to_states(int num_rows);
    // gate = silu(gate) * up for the rows in `normed` and `rounded`.
    void open_gates(int layer, int num_rows);
    // Finds the rows with adapters, after every change of the current rows.
    void find_adapted(const std::vector<Row> &rows);
    // Products of x [N, num_inputs], whose rounded form is in `rounded`, plus the outputs of the rows' adapters.
    void multiply(const std::vector<Product> &products, const float *x, int num_rows);
    // Computes all layers for the rows in `states`; afterwards only rows with the ascending indices `wanted` are left.
    void compute_layers(std::vector<Row> &rows, const std::vector<int> &wanted);
    // Computes one layer of one track. If `wanted` is not null, the other rows only store keys and values.
    void compute_layer(int layer, std::vector<Row> &rows, const std::vector<int> *wanted);
    // Adds the states of a track to those of the earlier ones; after the last, `states` is their combination.
    void add_track(int track, const float *norm, int num_rows);
    void store_keys_values(int layer, const std::vector<Row> &rows);
    void read(int layer, const std::vector<Row> &rows);
    void feed_forward(int layer, int num_rows);
    // Adds the outputs of the chosen experts to `states`, for the rows in `normed` (experts.cpp).
    void mix_experts(const OaLayer &layer, int num_rows);
    // Computes cosines and sines of the rows' positions into `turns`.
    void find_turns(const std::vector<Row> &rows);
    // Returns the cosines and sines of a row for a layer; null without a rotary embedding.
    const float *turns_of(const OaLayer &layer, const Row &row) const {
        return layer.rotary < 0 ? nullptr : &turns[(layer.rotary * num_step_rows + row.number) * config.head_dim];
    }
    // Keeps only the rows with the ascending indices `wanted`.
    void keep(const std::vector<int> &wanted, std::vector<Row> &rows);

    const OaConfig config;
    const std::vector<OaLayer> layers;
    const Kernels &kernels;
    Pool pool;
    std::vector<int> own_layers;  // index in a page of the keys and values that a layer reads
    int num_own_layers = 0;
    int most_experts = 0, most_chosen = 0;  // of any layer
    bool has_track_norms = false;
    bool has_integers;  // a matrix of the layers or the head has integer codes
    int64_t num_step_rows = 0;

    // Buffers for N rows: hidden states and their norm [N, D], queries and attention outputs [N, H, C], keys and values
    // [N, K, C], gate and up projections [N, F], cosines and sines [num_rotaries, N, C]. With tracks the states at the start of
    // a block and the sum of its tracks [N, D]; with experts inputs and outputs of the sorted rows [N * chosen, D].
    std::vector<float> states, normed, queries, attended, keys, values, gate, up, turns;
    std::vector<float> block_input, combined, expert_input, expert_output;
    std::vector<double> low_rank;
    std::vector<AdaptedRows> adapted;
    Routing routing;
    std::vector<AttentionRoom> rooms;  // one for each thread
    RoundedRows rounded;

private:
    void turn(float *x, const float *turns, const float *norm) const;
    void attend(int layer, const std::vector<Row> &rows, const AttentionPiece &piece);
    void attend_some(AttentionRoom &room, int query, int count, const KeysValuesPage &page, int64_t first, int64_t last);
    Inputs inputs(const float *x, int num_rows) const { return {x, rounded.view(), num_rows}; }
    void multiply_panels(const Product &product, const Inputs &inputs, int first, int last, const double *low);
    void gate_panels(const Product &gates, const Product &ups, const Inputs &inputs, int first, int last, const double *low);
    void route(const OaLayer &layer, int num_rows);
    void choose(const OaLayer &layer, int64_t row);
    void sort_rows(const OaLayer &layer, int num_rows);
    // Calls work(expert, first, last) on the panels of all experts that have rows.
    template <class Work>
    void for_expert_panels(int num_panels, const Work &work);
    // The sums x a^T of all adapted rows for a product.
    size_t num_sums(const Product &product) const;
    void add_up_adapters(const std::vector<Product> &products, const float *x);
};
