// The C interface of the native runtime, used by Python through ctypes. Nothing else is exported.
//
// Shapes in comments: N rows (tokens of all sequences in a step), D model dim, H heads, K key/value heads, C head dim,
// V vocabulary, R outputs and I inputs of a matrix, T tracks, E experts.
#pragma once
#include <stddef.h>
#include <stdint.h>

#define OA_EXPORT extern "C" __attribute__((visibility("default")))

// Increases with every incompatible change of a struct, a function or the layout of weights.
#define OA_VERSION 13

extern "C" {

// Formats of a matrix (kernels.h): 2-bit codes, groups of 4 or 8 bits, bfloat16, or fp32.
enum { OA_INT2 = 0, OA_INT4 = 1, OA_INT8 = 2, OA_BFLOAT16 = 3, OA_FLOAT32 = 4 };

// A matrix. `scales` has one fp32 scale for each row, padded to whole panels; null if the scales are those of groups, among
// the codes. `group` is the number of inputs with a common scale, 0 for a scale for each row. `bias` [R] may be null.
typedef struct {
    const uint8_t *codes;
    const float *scales, *bias;
    int32_t kind, group, has_minimum, num_outputs, num_inputs;
} OaMatrix;

// What an adapter adds to the products of one matrix: scale * (x a^T) b^T. Numbers have `bits` (16 or 32): a [rank, I], and b in
// panels [R / 64][rank][64], padded with zeros. `rank` is 0 for a matrix without an adapter.
typedef struct {
    const void *a, *b;
    int32_t rank, bits;
    float scale;
} OaLowRank;

// The matrices of a layer that an adapter may have. An adapter is an array [layers][OA_ADAPTED] of OaLowRank, with layers in the
// order of OaConfig.layers. It belongs to the sequences of a step, not to a model.
enum { OA_QUERY = 0, OA_KEY = 1, OA_VALUE = 2, OA_OUTPUT = 3, OA_GATE = 4, OA_UP = 5, OA_DOWN = 6, OA_ADAPTED = 7 };

// A gated feed-forward. All experts of a layer have the same shapes and no adapters.
typedef struct {
    OaMatrix gate, up, down;
} OaFeedForward;

// One layer of one track. `source` is the entry of the list whose keys and values it reads: its own index if it stores some.
// `rotary` is the index of its frequencies, -1 for none. A position attends to the last `window` keys, its own included; 0: to
// all. With experts, `router` [E, D] chooses `num_chosen` of `num_experts` for each row by its logits, bounded by
// soft_cap * tanh(logit / soft_cap) unless `soft_cap` is 0; otherwise `feed_forwards` has one entry.
typedef struct {
    OaMatrix query, key, value, output, router;
    const OaFeedForward *feed_forwards;
    const float *attention_norm, *feed_forward_norm, *query_norm, *key_norm, *track_norm;
    int32_t source, rotary, window, num_experts, num_chosen;
    float soft_cap;
} OaLayer;

// Heads, layers and prefill layers are those of one track; a model without tracks has one. Every track receives the states at
// the start of a block of `block_depth` layers; at its end their states, normalized by the `track_norm` of the track's last layer
// if not null, are added in order and divided by `track_divisor`. `layers` are in the order of computation: [blocks, T, block_depth].
typedef struct {
    int32_t vocab_size, dim, num_layers, num_heads, num_kv_heads, head_dim;
    int32_t hidden_dim;       // the most numbers between gate and down for a row in any layer, of all its chosen experts
    int32_t num_prefill_layers, num_rotaries, num_tracks, block_depth;
    float track_divisor, track_norm_eps, norm_eps, qk_norm_eps;
    int32_t norm_before_position;
    int32_t interleaved;      // RoPE pairs are (0, 1), ...; otherwise (0, C / 2), ...
    int32_t float_cache;      // keys and values are stored in fp32, otherwise in 8 bits
    float level_zero;         // the level of a 2-bit code is code - level_zero
    const float *frequencies; // radians per position of each pair, [num_rotaries, C / 2]
    const float *amplitudes;  // factors of cosines and sines, [num_rotaries]
    const float *final_norm;
    OaMatrix embedding, head; // the same codes if the head is tied
    const OaLayer *layers;
} OaConfig;

typedef struct OaModel OaModel;
typedef struct OaCache OaCache;
typedef struct OaTower OaTower;

OA_EXPORT int32_t oa_version(void);

// The name of the i-th kernel set that this processor supports, best first; null after the last.
OA_EXPORT const char *oa_kernels(int32_t i);

// `kernels` by name; null for the best. Stores the pointers of the config, which must outlive the model. Returns null if
// memory is exhausted or the kernel set is not supported.
OA_EXPORT OaModel *oa_model_new(const OaConfig *config, int32_t num_threads, const char *kernels);
OA_EXPORT void oa_model_free(OaModel *model);

// Keys and values of one sequence, in pages that forks share until one of them writes.
OA_EXPORT OaCache *oa_cache_new(const OaModel *model);
OA_EXPORT OaCache *oa_cache_fork(OaCache *cache, int64_t length);
OA_EXPORT void oa_cache_free(OaCache *cache);

// The size of the first `length` tokens, and copies of them out of and into a cache, in an internal layout.
OA_EXPORT int64_t oa_cache_bytes(const OaCache *cache, int64_t length);
OA_EXPORT void oa_cache_save(const OaCache *cache, int64_t length, uint8_t *bytes);
OA_EXPORT int32_t oa_cache_load(OaCache *cache, int64_t length, const uint8_t *bytes);

// Returns the number of pages and writes their addresses unless `addresses` is null. Forks share addresses of shared pages.
OA_EXPORT int64_t oa_cache_pages(const OaCache *cache, uint64_t *addresses);

// Computes counts[i] tokens of sequence i from position starts[i] on, with adapters[i] unless that is null; `tokens` holds those
// of all sequences in order. An adapter is read once for all consecutive sequences that have it.
// Rows inserted_rows[0 .. num_inserted) have the embeddings inserted [num_inserted, D] instead of those of their tokens. Writes
// the logits after the last wanted[i] tokens of each, [rows, V]. Returns 0, or 1 if memory is exhausted. One call at a time.
// If `logits` is null, only the states are computed, for oa_states.
// Meanwhile other caches may be forked, freed, saved and loaded, whatever pages they share.
OA_EXPORT int32_t oa_step(OaModel *model, int32_t num_sequences, OaCache *const *caches, const OaLowRank *const *adapters,
                          const int64_t *starts, const int32_t *counts, const int32_t *wanted, const int32_t *tokens,
                          int32_t num_inserted, const int32_t *inserted_rows, const float *inserted, float *logits);

// Writes the normalized states [rows, D] from which the latest step computed its logits, at most one row for each of them.
OA_EXPORT void oa_states(const OaModel *model, int32_t num_rows, float *states);

// Converts stored matrices to the layouts of kernels.h: 2-bit codes (four a byte) to panels; codes of 4 bits (two a byte, low
// bits first) or 8 bits (signed) with scales and minima of groups [R, I / group] to tiles; bfloat16 and fp32 to tiles. `scales` is null
// for a scale for each row, `minima` if there are none.
OA_EXPORT void oa_pack_panels(const uint8_t *stored, int32_t num_outputs, int32_t num_inputs, uint8_t *panels);
OA_EXPORT void oa_pack_groups(const uint8_t *stored, const uint16_t *scales, const uint16_t *minima, int32_t num_outputs,
                              int32_t num_inputs, int32_t bits, int32_t group, uint8_t *tiles);
OA_EXPORT void oa_pack_bfloat16(const uint16_t *stored, int32_t num_outputs, int32_t num_inputs, uint16_t *tiles);
OA_EXPORT void oa_pack_float32(const float *stored, int32_t num_outputs, int32_t num_inputs, float *tiles);

// The parts of a vision encoder, in fp32 between products, with threads of its own. One call at a time. `kernels` as for a model; returns null if
// memory is exhausted or the kernel set is not supported.
OA_EXPORT OaTower *oa_tower_new(int32_t num_threads, const char *kernels);
OA_EXPORT void oa_tower_free(OaTower *tower);
// Layer norms y of rows x [N, dim].
OA_EXPORT void oa_tower_norm(OaTower *tower, const float *x, const float *weight, const float *bias, int32_t num_rows,
                             int32_t dim, float eps, float *y);
// y [N, R] = x [N, I] times a matrix plus its bias, and GELU of that with `has_gelu`. A matrix is fp32, or has 8 bits with a
// scale for each row; its inputs are then rounded to 8 bits. Returns 0, or 1 if memory is exhausted.
OA_EXPORT int32_t oa_tower_product(OaTower *tower, const OaMatrix *matrix, int32_t has_gelu, const float *x, int32_t num_rows,
                                   float *y);
// y [N, D] = x + down(gelu(up(layer norm of x))). Returns 0, or 1 if memory is exhausted.
OA_EXPORT int32_t oa_tower_feed_forward(OaTower *tower, const OaMatrix *up, const OaMatrix *down, const float *norm_weight,
                                        const float *norm_bias, float eps, const float *x, int32_t num_rows, float *y);
// Attention within each window, y [windows, tokens of a window, H, C], of qkv [rows, 3, H, C]. A window has the first `num_shared`
// rows and then `window_tokens` of its own. Returns 0, or 1 if memory is exhausted.
OA_EXPORT int32_t oa_tower_attend(OaTower *tower, const float *qkv, int32_t num_shared, int32_t num_windows,
                                  int32_t window_tokens, int32_t num_heads, int32_t head_dim, float *y);

// Single kernels, for tests and measurements, with the kernels and threads of a model (probe.cpp).
// Products y [N, R] of x [N, I]; x is rounded to 8 bits first, except for bfloat16 and fp32. `low_rank` may be null.
OA_EXPORT void oa_product(OaModel *model, const OaMatrix *matrix, const OaLowRank *low_rank, const float *x, int32_t num_rows,
                          float *y);
// Row `row` [I] of a matrix other than 2-bit ones, as the embedding is read.
OA_EXPORT void oa_row(const OaMatrix *matrix, int32_t row, float *y);
// Rounds x [n] to 8 bits, padded to a multiple of 64, and returns the scale and the sum of the integers.
OA_EXPORT void oa_round(OaModel *model, const float *x, int32_t n, int8_t *integers, float *scale, int32_t *sum);
OA_EXPORT void oa_norm(OaModel *model, const float *x, const float *weight, int32_t n, float eps, float *y);
OA_EXPORT void oa_swiglu(OaModel *model, float *gate, const float *up, int32_t n);
// Attention y [N, C] of queries [N, C] to all keys and values [L, C]. Returns 0, or 1 if memory is exhausted.
OA_EXPORT int32_t oa_attend(OaModel *model, const float *queries, int32_t num_queries, int32_t head_dim, const float *keys,
                            const float *values, int32_t num_keys, float *y);

}
