// One step: tokens of several sequences through all layers, and the wanted logits.
#include <math.h>
#include <string.h>

#include <new>

#include "model.h"
#include "numbers.h"

namespace {

// Returns the attention tasks of all key/value heads.
std::vector<AttentionPiece> attention_pieces(const std::vector<Row> &rows, int num_kv_heads) {
    std::vector<AttentionPiece> pieces;
    for (int first = 0, stop; first < (int)rows.size(); first = stop) {
        stop = first + 1;
        while (stop < (int)rows.size() && stop < first + ROWS_AT_ONCE && rows[stop].cache == rows[first].cache) stop++;
        for (int head = 0; head < num_kv_heads; head++) pieces.push_back({first, stop - first, head});
    }
    return pieces;
}

}  // namespace

void OaModel::embed(const int32_t *tokens, int num_rows) {
    for (int64_t n = 0; n < num_rows; n++) oa_row(&config.embedding, tokens[n], &states[n * config.dim]);
}

void OaModel::find_turns(const std::vector<Row> &rows) {
    float *turn = turns.data();
    num_step_rows = (int64_t)rows.size();
    for (int rotary = 0; rotary < config.num_rotaries; rotary++)
        for (const Row &row : rows)
            for (int f = 0; f < config.head_dim / 2; f++) {
                const float angle = (float)row.position * config.frequencies[rotary * (config.head_dim / 2) + f];
                *turn++ = cosf(angle) * config.amplitudes[rotary];
                *turn++ = sinf(angle) * config.amplitudes[rotary];
            }
}

// Applies RoPE, if any, and the norm to one head, in the config's order.
void OaModel::turn(float *x, const float *cosines_sines, const float *norm) const {
    const int half = config.head_dim / 2;
    if (norm && config.norm_before_position) kernels.rms_norm(x, norm, config.head_dim, config.qk_norm_eps, x);
    for (int f = 0; cosines_sines && f < half; f++) {
        float &a = x[config.interleaved ? 2 * f : f], &b = x[config.interleaved ? 2 * f + 1 : f + half];
        const float cosine = cosines_sines[2 * f], sine = cosines_sines[2 * f + 1], turned = a * cosine - b * sine;
        b = a * sine + b * cosine;
        a = turned;
    }
    if (norm && !config.norm_before_position) kernels.rms_norm(x, norm, config.head_dim, config.qk_norm_eps, x);
}

void OaModel::store_keys_values(int layer, const std::vector<Row> &rows) {
    const OaLayer &l = layers[layer];
    const int num_rows = (int)rows.size(), dim = config.head_dim;
    for_rows(num_rows, [&](int first, int last) {
        for (int64_t n = first; n < last; n++)
            for (int head = 0; head < config.num_kv_heads; head++) {
                const int64_t at = (n * config.num_kv_heads + head) * dim;
                turn(&keys[at], turns_of(l, rows[n]), l.key_norm);
                rows[n].cache->store(rows[n].position, own_layers[layer], head, &keys[at], &values[at]);
            }
    });
}

void OaModel::add_to_states(int num_rows) {
    for_rows(num_rows, [&](int first, int last) {
        for (int64_t i = (int64_t)first * config.dim; i < (int64_t)last * config.dim; i++) states[i] += normed[i];
    });
}

// Attention and output projection of the rows in `queries`.
void OaModel::read(int layer, const std::vector<Row> &rows) {
    const int num_rows = (int)rows.size(), inner = config.num_heads * config.head_dim;
    const auto pieces = attention_pieces(rows, config.num_kv_heads);
    pool.parallel((int)pieces.size(), [&](int first, int last) {
        for (int i = first; i < last; i++) attend(layer, rows, pieces[i]);
    });
    round(attended.data(), num_rows, inner);
    multiply({{&layers[layer].output, normed.data(), layer * OA_ADAPTED + OA_OUTPUT}}, attended.data(), num_rows);
    add_to_states(num_rows);
}

// Attention of queries to the keys [first, last) of a page. Keys that share a quad with earlier ones are copied, because
// kernels read whole quads; the others are read where they are.
void OaModel::attend_some(AttentionRoom &room, int query, int count, const KeysValuesPage &page, int64_t first, int64_t last) {
    if (first >= last) return;
    if (config.float_cache)
        return kernels.attend_full(room.query(query), count, config.head_dim, page, (int)first, (int)last, room.state(query));
    if (first == 0) return kernels.attend(room.query(query), count, config.head_dim, page, (int)last, room.state(query));
    if (const int64_t rest = (4 - first % 4) % 4) {
        const int some = (int)(rest < last - first ? rest : last - first);
        kernels.attend(room.query(query), count, config.head_dim, room.part_of_quad(page, (int)first, some), some, room.state(query));
        first += rest;
    }
    if (first >= last) return;
    uint16_t scales[2][PAGE] = {};  // kernels read those of a whole page
    memcpy(scales[0], page.key_scales + first, (size_t)(last - first) * sizeof(uint16_t));
    memcpy(scales[1], page.value_scales + first, (size_t)(last - first) * sizeof(uint16_t));
    const KeysValuesPage shifted = {page.keys + first * 4, page.values + first * config.head_dim, scales[0], scales[1], page.next};
    kernels.attend(room.query(query), count, config.head_dim, shifted, (int)(last - first), room.state(query));
}

void OaModel::attend(int layer, const std::vector<Row> &rows, const AttentionPiece &piece) {
    AttentionRoom &room = rooms[Pool::this_thread()];
    const int dim = config.head_dim, queries_each = config.num_heads / config.num_kv_heads;
    const int num_queries = piece.num_rows * queries_each;
    const OaLayer &l = layers[layer];
    const auto row_of = [&](int query) { return piece.first_row + query / queries_each; };
    const auto place_of = [&](int query) {
        return ((int64_t)row_of(query) * config.num_heads + piece.head * queries_each + query % queries_each) * dim;
    };
    for (int query = 0; query < num_queries; query++) {
        float *x = &queries[place_of(query)];
        turn(x, turns_of(l, rows[row_of(query)]), l.query_norm);
        if (config.float_cache)
            memcpy(room.query(query), x, dim * sizeof(float));
        else
            kernels.prepare(x, dim, rows[row_of(query)].position + 1, room.query(query));
        room.begin(query);
    }
    const Row &begin = rows[piece.first_row], &end = rows[piece.first_row + piece.num_rows - 1];
    const auto first_key_of = [&](const Row &row) { return l.window && row.position >= l.window ? row.position + 1 - l.window : 0; };
    for (int64_t page = first_key_of(begin) / PAGE; page * PAGE <= end.position; page++) {
        const KeysValuesPage kv = begin.cache->at(page, own_layers[layer], piece.head);
        if (begin.position + 1 >= (page + 1) * PAGE && first_key_of(end) <= page * PAGE) {
            attend_some(room, 0, num_queries, kv, 0, PAGE);
            continue;
        }
        for (int query = 0; query < num_queries; query += queries_each) {
            const Row &row = rows[row_of(query)];
            const int64_t first = first_key_of(row) - page * PAGE, last = row.position + 1 - page * PAGE;
            attend_some(room, query, queries_each, kv, first < 0 ? 0 : first, last < PAGE ? last : (int64_t)PAGE);
        }
    }
    for (int query = 0; query < num_queries; query++) room.end(query, &attended[place_of(query)]);
}

void OaModel::feed_forward(int layer, int num_rows) {
    const OaLayer &l = layers[layer];
    normalize(l.feed_forward_norm, num_rows);
    if (l.num_experts) return mix_experts(l, num_rows);
    const OaMatrix &down = l.feed_forwards[0].down;
    open_gates(layer, num_rows);
    round(gate.data(), num_rows, down.num_inputs);
    multiply({{&down, normed.data(), layer * OA_ADAPTED + OA_DOWN}}, gate.data(), num_rows);
    add_to_states(num_rows);
}

void OaModel::keep(const std::vector<int> &wanted, std::vector<Row> &rows) {
    for (size_t i = 0; i < wanted.size(); i++) {
        const size_t from = wanted[i];
        rows[i] = rows[from];
        memmove(&states[i * config.dim], &states[from * config.dim], config.dim * sizeof(float));
    }
    rows.resize(wanted.size());
}

void OaModel::add_track(int track, const float *norm, int num_rows) {
    const int64_t dim = config.dim;
    const bool is_last = track == config.num_tracks - 1;
    for_rows(num_rows, [&](int first, int last) {
        for (int64_t n = first; n < last; n++) {
            float *x = &states[n * dim], *sum = &combined[n * dim];
            if (norm) kernels.rms_norm(x, norm, config.dim, config.track_norm_eps, x);
            for (int64_t i = 0; i < dim; i++) {
                sum[i] = track ? sum[i] + x[i] : x[i];
                if (is_last) x[i] = sum[i] / config.track_divisor;
            }
        }
    });
}

void OaModel::compute_layer(int layer, std::vector<Row> &rows, const std::vector<int> *wanted) {
    const OaLayer &l = layers[layer];
    const bool stores = l.source == layer;
    const int place = layer * OA_ADAPTED;
    const Product query = {&l.query, queries.data(), place + OA_QUERY}, key = {&l.key, keys.data(), place + OA_KEY};
    const Product value = {&l.value, values.data(), place + OA_VALUE};
    find_adapted(rows);
    normalize(l.attention_norm, (int)rows.size());
    if (stores) {
        multiply(wanted ? std::vector<Product>{key, value} : std::vector<Product>{query, key, value}, normed.data(), (int)rows.size());
        store_keys_values(layer, rows);
    }
    if (wanted) {
        keep(*wanted, rows);
        if (rows.empty()) return;
        find_adapted(rows);
        normalize(l.attention_norm, (int)rows.size());
    }
    if (wanted || !stores) multiply({query}, normed.data(), (int)rows.size());
    read(layer, rows);
    feed_forward(layer, (int)rows.size());
}

void OaModel::compute_layers(std::vector<Row> &rows, const std::vector<int> &wanted) {
    const bool is_combined = config.num_tracks > 1 || has_track_norms;
    for (int begin = 0; begin < config.num_layers && !rows.empty(); begin += config.block_depth) {
        // After the last layer that stores keys and values, the outputs of rows that are not wanted are not read.
        const int leaving = wanted.size() < rows.size() ? config.num_prefill_layers - 1 - begin : -1;
        const std::vector<Row> all = rows;
        const size_t num_bytes = all.size() * config.dim * sizeof(float);
        if (is_combined) memcpy(block_input.data(), states.data(), num_bytes);
        for (int track = 0; track < config.num_tracks; track++) {
            if (track) memcpy(states.data(), block_input.data(), num_bytes), rows = all;
            const int first = begin * config.num_tracks + track * config.block_depth;
            for (int place = 0; place < config.block_depth && !rows.empty(); place++)
                compute_layer(first + place, rows, place == leaving ? &wanted : nullptr);
            if (is_combined) add_track(track, layers[first + config.block_depth - 1].track_norm, (int)rows.size());
        }
    }
}

int32_t oa_step(OaModel *model, int32_t num_sequences, OaCache *const *caches, const OaLowRank *const *adapters, const int64_t *starts,
                const int32_t *counts, const int32_t *wanted_counts, const int32_t *tokens, int32_t num_inserted,
                const int32_t *inserted_rows, const float *inserted, float *logits) try {
    OaModel &m = *model;
    const OaConfig &config = m.config;
    std::vector<Row> rows;
    std::vector<int> wanted;
    for (int i = 0; i < num_sequences; i++) {
        caches[i]->prepare(starts[i], starts[i] + counts[i]);
        for (int n = 0; n < counts[i]; n++) {
            if (n >= counts[i] - wanted_counts[i]) wanted.push_back((int)rows.size());
            rows.push_back({caches[i], adapters[i], starts[i] + n, (int64_t)rows.size()});
        }
    }
    m.reserve((int)rows.size());
    m.embed(tokens, (int)rows.size());
    for (int64_t i = 0; i < num_inserted; i++)
        memcpy(&m.states[(int64_t)inserted_rows[i] * config.dim], inserted + i * config.dim, config.dim * sizeof(float));
    m.find_turns(rows);
    m.compute_layers(rows, wanted);
    if (rows.empty()) return 0;
    m.normalize(config.final_norm, (int)rows.size());
    if (logits) m.multiply({{&config.head, logits}}, m.normed.data(), (int)rows.size());
    return 0;
} catch (const std::bad_alloc &) {
    return 1;
}

void oa_states(const OaModel *model, int32_t num_rows, float *states) {
    memcpy(states, model->normed.data(), (size_t)num_rows * model->config.dim * sizeof(float));
}
