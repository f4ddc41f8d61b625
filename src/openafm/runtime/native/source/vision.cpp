// The parts of a vision encoder and its adapter: norms, products and attention of the tokens of one view. All is fp32 but products
// with codes of 8 bits, whose inputs are rounded to 8 bits.
#include <math.h>
#include <string.h>

#include <new>

#include "model.h"

namespace {

enum {
    QUERIES_OF_BLOCK = 48,
    ROWS_OF_BLOCK = 96,  // rows whose inputs and outputs stay in the L2 cache from product to product
    ROWS_TOGETHER = 6,   // rows that the kernels multiply at once
    TILES_OF_PANEL = PANEL_ROWS / TILE_ROWS
};

int tiles_of(int num_rows) { return (num_rows + TILE_ROWS - 1) / TILE_ROWS; }

// Keys and values of one head and window as matrices, and the scores of some queries.
struct Head {
    std::vector<float> queries, keys, values, scores;

    void reserve(int num_tokens, int head_dim) {
        queries.resize((size_t)QUERIES_OF_BLOCK * head_dim);
        keys.resize((size_t)tiles_of(num_tokens) * TILE_ROWS * head_dim);
        values.resize((size_t)tiles_of(head_dim) * TILE_ROWS * num_tokens);
        scores.resize((size_t)QUERIES_OF_BLOCK * num_tokens);
    }
};

OaMatrix matrix_of(const std::vector<float> &tiles, int num_outputs, int num_inputs) {
    return {(const uint8_t *)tiles.data(), nullptr, nullptr, OA_FLOAT32, 0, 0, num_outputs, num_inputs};
}

// Rows of a block, normalized, rounded to 8 bits, and between the two products of a feed-forward.
struct Room {
    std::vector<float> normed, hidden, scales;
    std::vector<int8_t> integers;
    std::vector<int32_t> sums, group_sums;

    void reserve(const OaMatrix &matrix) {
        if (matrix.kind != OA_INT8) return;
        const int stride = padded(matrix.num_inputs);
        if (integers.size() < (size_t)ROWS_OF_BLOCK * stride) integers.resize((size_t)ROWS_OF_BLOCK * stride);
        if (group_sums.size() < (size_t)ROWS_OF_BLOCK * stride / GROUP) group_sums.resize((size_t)ROWS_OF_BLOCK * stride / GROUP);
        scales.resize(ROWS_OF_BLOCK), sums.resize(ROWS_OF_BLOCK);
    }

    Rounded round(const Kernels &kernels, const float *x, int num_rows, int num_inputs) {
        const int stride = padded(num_inputs);
        for (int64_t n = 0; n < num_rows; n++)
            kernels.round(x + n * num_inputs, num_inputs, &integers[n * stride], &scales[n], &sums[n], &group_sums[n * stride / GROUP]);
        return {integers.data(), scales.data(), sums.data(), group_sums.data(), stride, num_rows, num_inputs};
    }
};

// y [N, R] of the rows of a block, `y_stride` apart; see oa_tower_product.
void multiply(const Kernels &kernels, const OaMatrix &matrix, bool has_gelu, const float *x, int num_rows, Room &room, float *y,
              int64_t y_stride) {
    const bool has_codes = matrix.kind == OA_INT8;
    const Rounded rounded = has_codes ? room.round(kernels, x, num_rows, matrix.num_inputs) : Rounded{};
    const int num_outputs = matrix.num_outputs, num_tiles = tiles_of(num_outputs);
    for (int tile = 0; tile < num_tiles; tile += TILES_OF_PANEL) {
        const int end = tile + TILES_OF_PANEL < num_tiles ? tile + TILES_OF_PANEL : num_tiles, r = tile * TILE_ROWS;
        const int count = num_outputs - r < PANEL_ROWS ? num_outputs - r : PANEL_ROWS;
        if (has_codes)
            kernels.grouped(matrix, rounded, tile, end, y, y_stride);
        else
            kernels.full(matrix, x, num_rows, tile, end, y, y_stride);
        for (int64_t n = 0; n < num_rows; n++) {
            float *row = y + n * y_stride + r;
            for (int i = 0; i < count; i++) row[i] += matrix.bias[r + i];
            if (has_gelu) kernels.gelu(row, count);
        }
    }
}

// Queries, keys and values of the tokens of a view [tokens, 3, H, C]. Each window has its own tokens and the first `num_shared`.
struct Attention {
    const float *qkv;
    int num_shared, window_tokens, num_heads, head_dim;

    int num_tokens() const { return num_shared + window_tokens; }

    const float *token(int window, int number, int part, int head) const {
        const int64_t row = number < num_shared ? number : number + (int64_t)window * window_tokens;
        return qkv + ((row * 3 + part) * num_heads + head) * head_dim;
    }

    void load(int window, int head, Head &to) const {
        for (int l = 0; l < num_tokens(); l++) {
            const float *key = token(window, l, 1, head), *value = token(window, l, 2, head);
            float *keys = &to.keys[(size_t)(l / TILE_ROWS) * TILE_ROWS * head_dim + l % TILE_ROWS];
            for (int c = 0; c < head_dim; c++) keys[(size_t)c * TILE_ROWS] = key[c];
            for (int c = 0; c < head_dim; c += TILE_ROWS) {
                const int count = head_dim - c < TILE_ROWS ? head_dim - c : TILE_ROWS;
                memcpy(&to.values[(size_t)c * num_tokens() + (size_t)l * TILE_ROWS], value + c, count * sizeof(float));
            }
        }
    }

    // y [tokens of a window, H, C]. `unit` is the factor from a product to a score in base 2.
    void attend(const Kernels &kernels, int window, int head, float unit, Head &with, float *y) const {
        const int tokens = num_tokens(), y_stride = num_heads * head_dim;
        const OaMatrix keys = matrix_of(with.keys, tokens, head_dim), values = matrix_of(with.values, head_dim, tokens);
        for (int first = 0; first < tokens; first += QUERIES_OF_BLOCK) {
            const int count = tokens - first < QUERIES_OF_BLOCK ? tokens - first : QUERIES_OF_BLOCK;
            for (int n = 0; n < count; n++) {
                const float *query = token(window, first + n, 0, head);
                for (int c = 0; c < head_dim; c++) with.queries[(size_t)n * head_dim + c] = query[c] * unit;
            }
            float sums[QUERIES_OF_BLOCK], *out = y + (int64_t)first * y_stride + head * head_dim;
            kernels.full(keys, with.queries.data(), count, 0, tiles_of(tokens), with.scores.data(), tokens);
            for (int n = 0; n < count; n++) sums[n] = kernels.soften_row(&with.scores[(size_t)n * tokens], tokens);
            kernels.full(values, with.scores.data(), count, 0, tiles_of(head_dim), out, y_stride);
            for (int n = 0; n < count; n++, out += y_stride)
                for (int c = 0; c < head_dim; c++) out[c] /= sums[n];
        }
    }
};

}  // namespace

struct OaTower {
    const Kernels &kernels;
    Pool pool;
    std::vector<Head> heads;  // one for each thread
    std::vector<Room> rooms;  // one for each thread

    OaTower(const Kernels &of, int num_threads)
        : kernels(of), pool(num_threads), heads(pool.num_threads()), rooms(pool.num_threads()) {}

    // Calls work(room, first row, number of rows) for all rows. Blocks are smaller where some threads would have none.
    template <class Work>
    void by_blocks(int num_rows, const Work &work) {
        if (num_rows < 1) return;
        const int share = (num_rows + pool.num_threads() - 1) / pool.num_threads();
        const int whole = (share + ROWS_TOGETHER - 1) / ROWS_TOGETHER * ROWS_TOGETHER, rows = whole < ROWS_OF_BLOCK ? whole : ROWS_OF_BLOCK;
        pool.parallel((num_rows + rows - 1) / rows, [&](int begin, int end) {
            for (int first = begin * rows; first < num_rows && first < end * rows; first += rows)
                work(rooms[Pool::this_thread()], first, num_rows - first < rows ? num_rows - first : rows);
        });
    }
};

OaTower *oa_tower_new(int32_t num_threads, const char *name) try {
    const Kernels *kernels = find_kernels(name);
    return kernels ? new OaTower(*kernels, num_threads) : nullptr;
} catch (const std::bad_alloc &) {
    return nullptr;
}

void oa_tower_free(OaTower *tower) { delete tower; }

void oa_tower_norm(OaTower *tower, const float *x, const float *weight, const float *bias, int32_t num_rows, int32_t dim,
                   float eps, float *y) {
    tower->pool.parallel(num_rows, [&](int first, int last) {
        for (int64_t n = first; n < last; n++) tower->kernels.layer_norm(x + n * dim, weight, bias, dim, eps, y + n * dim);
    });
}

int32_t oa_tower_product(OaTower *tower, const OaMatrix *matrix, int32_t has_gelu, const float *x, int32_t num_rows,
                         float *y) try {
    for (Room &room : tower->rooms) room.reserve(*matrix);
    tower->by_blocks(num_rows, [&](Room &room, int64_t first, int count) {
        multiply(tower->kernels, *matrix, has_gelu, x + first * matrix->num_inputs, count, room,
                 y + first * matrix->num_outputs, matrix->num_outputs);
    });
    return 0;
} catch (const std::bad_alloc &) {
    return 1;
}

int32_t oa_tower_feed_forward(OaTower *tower, const OaMatrix *up, const OaMatrix *down, const float *norm_weight,
                              const float *norm_bias, float eps, const float *x, int32_t num_rows, float *y) try {
    const int dim = down->num_outputs;
    for (Room &room : tower->rooms) {
        room.reserve(*up), room.reserve(*down);
        room.normed.resize((size_t)ROWS_OF_BLOCK * dim);
        room.hidden.resize((size_t)ROWS_OF_BLOCK * up->num_outputs);
    }
    tower->by_blocks(num_rows, [&](Room &room, int64_t first, int count) {
        const Kernels &kernels = tower->kernels;
        const float *from = x + first * dim;
        float *to = y + first * dim;
        for (int64_t n = 0; n < count; n++)
            kernels.layer_norm(from + n * dim, norm_weight, norm_bias, dim, eps, &room.normed[n * dim]);
        multiply(kernels, *up, true, room.normed.data(), count, room, room.hidden.data(), up->num_outputs);
        multiply(kernels, *down, false, room.hidden.data(), count, room, to, dim);
        for (int64_t i = 0; i < (int64_t)count * dim; i++) to[i] += from[i];
    });
    return 0;
} catch (const std::bad_alloc &) {
    return 1;
}

int32_t oa_tower_attend(OaTower *tower, const float *qkv, int32_t num_shared, int32_t num_windows, int32_t window_tokens,
                        int32_t num_heads, int32_t head_dim, float *y) try {
    const Attention attention = {qkv, num_shared, window_tokens, num_heads, head_dim};
    const float unit = (float)(1.44269504088896341 / sqrt((double)head_dim));
    const int64_t y_window = (int64_t)attention.num_tokens() * num_heads * head_dim;
    for (Head &head : tower->heads) head.reserve(attention.num_tokens(), head_dim);
    tower->pool.parallel(num_windows * num_heads, [&](int first, int last) {
        Head &room = tower->heads[Pool::this_thread()];
        for (int item = first; item < last; item++) {
            const int window = item / num_heads, head = item % num_heads;
            attention.load(window, head, room);
            attention.attend(tower->kernels, window, head, unit, room, y + window * y_window);
        }
    });
    return 0;
} catch (const std::bad_alloc &) {
    return 1;
}
