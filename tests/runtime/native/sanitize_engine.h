// The engine of sanitize.cpp: models of random weights, their sequences and steps, and reference results.
#pragma once
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <memory>
#include <random>
#include <vector>

#include "abi.h"

#define CHECK(condition) ((condition) ? (void)0 : failed(__LINE__, #condition))

namespace {

void failed(int line, const char *condition) {
    fprintf(stderr, "sanitize.cpp:%d: %s\n", line, condition);
    abort();
}

typedef std::mt19937 Random;
typedef std::vector<int32_t> Tokens;
typedef std::vector<float> Floats;

int up_to(Random &random, int most) { return (int)(random() % ((unsigned)most + 1)); }

Floats between(Random &random, size_t count, float least, float most) {
    Floats numbers(count);
    for (float &number : numbers) number = std::uniform_real_distribution<float>(least, most)(random);
    return numbers;
}

struct Shape {
    int vocab_size, dim, num_own, num_shared, num_heads, num_kv_heads, head_dim, hidden_dim, rank, lora_bits;
    int kind, group, window;  // of matrices whose inputs divide by 32 and the groups; the others are in 2 bits
    int num_tracks, num_experts;  // every second layer has experts; a block is the layers with their own keys and values
    bool float_cache;
};

const Shape shapes[] = {
    {83, 64, 2, 2, 4, 2, 16, 200, 3, 32, OA_INT4, 32, 0, 1, 0, false},
    {16, 32, 1, 0, 1, 1, 4, 4, 0, 0, OA_INT2, 0, 1, 1, 0, false},          // all sizes minimal
    {33, 96, 2, 3, 3, 1, 100, 68, 5, 16, OA_BFLOAT16, 0, 7, 1, 0, false},  // nothing whole
    {300, 160, 1, 2, 8, 2, 64, 452, 0, 0, OA_INT8, 32, 70, 1, 0, false},
    {40, 64, 2, 2, 2, 2, 16, 96, 2, 16, OA_INT4, 32, 5, 3, 4, false},      // tracks and experts in integers
    {50, 32, 2, 0, 2, 1, 20, 36, 3, 32, OA_FLOAT32, 0, 9, 2, 3, true},     // the same in fp32, with keys and values in fp32
    {30, 32, 1, 1, 2, 1, 12, 40, 0, 0, OA_FLOAT32, 0, 0, 1, 0, true},
};

// Random weights, each array in a separate allocation of its exact size.
class Weights {
public:
    Weights(const Shape &shape, int seed) : shape_(shape), random_(seed) {
        const int inner = shape.num_heads * shape.head_dim, kv = shape.num_kv_heads * shape.head_dim;
        const int depth = depth_of(shape), num_layers = shape.num_own + shape.num_shared;
        for (int first = 0; first < num_layers; first += depth)
            for (int track = 0; track < shape.num_tracks; track++)
                for (int i = first; i < first + depth; i++) layers_.push_back(layer(i, track, inner, kv));
        config = {};
        config.vocab_size = shape.vocab_size, config.dim = shape.dim, config.num_layers = num_layers;
        config.num_tracks = shape.num_tracks, config.block_depth = depth, config.track_divisor = (float)shape.num_tracks;
        config.float_cache = shape.float_cache;
        config.num_heads = shape.num_heads, config.num_kv_heads = shape.num_kv_heads, config.head_dim = shape.head_dim;
        config.hidden_dim = CHOSEN * shape.hidden_dim, config.num_prefill_layers = shape.num_own, config.num_rotaries = 2;
        config.norm_eps = config.qk_norm_eps = config.track_norm_eps = 1e-5f;
        config.norm_before_position = seed % 2, config.interleaved = seed / 2 % 2, config.level_zero = 1.5f;
        config.amplitudes = floats(2, 1, 2);
        config.frequencies = floats(shape.head_dim, 0, 1), config.final_norm = norm(shape.dim);
        config.embedding = grouped(shape.vocab_size, shape.dim, OA_INT4, 32, true), config.layers = layers_.data();
        config.head = seed % 3 ? config.embedding : grouped(shape.vocab_size, shape.dim, OA_INT8, 0, false);
        for (int i = 0; shape.rank && i < 2; i++) adapters_[i] = adapter(shape.rank + i, i == 1);
    }

    // One of two adapters, or null.
    const OaLowRank *adapter(int number) const { return number < 2 && shape_.rank ? adapters_[number].data() : nullptr; }

    OaConfig config;

private:
    enum { CHOSEN = 2 };

    static int depth_of(const Shape &shape) { return shape.num_tracks > 1 ? shape.num_own : shape.num_own + shape.num_shared; }

    // Returns layer number i of a track. A layer without keys and values reads those of the last one that has some.
    OaLayer layer(int i, int track, int inner, int kv) {
        const int depth = depth_of(shape_), source = i < shape_.num_own ? i : shape_.num_own - 1;
        const auto entry = [&](int number) { return number / depth * depth * shape_.num_tracks + track * depth + number % depth; };
        OaLayer layer = {};
        layer.source = entry(source);
        layer.window = i % 2 ? 0 : shape_.window, layer.rotary = i % 3 == 2 ? -1 : i % 2;
        layer.query = matrix(inner, shape_.dim), layer.output = matrix(shape_.dim, inner);
        if (source == i) layer.key = matrix(kv, shape_.dim), layer.value = matrix(kv, shape_.dim);
        layer.num_experts = i % 2 ? shape_.num_experts : 0;
        if (layer.num_experts) {
            layer.num_chosen = CHOSEN, layer.soft_cap = i % 4 == 1 ? 50.0f : 0.0f;
            layer.router = full(layer.num_experts, shape_.dim);
        }
        const int count = layer.num_experts ? layer.num_experts : 1;
        OaFeedForward *parts = (OaFeedForward *)bytes(count * sizeof(OaFeedForward));
        for (int e = 0; e < count; e++) {
            parts[e] = {matrix(shape_.hidden_dim, shape_.dim), matrix(shape_.hidden_dim, shape_.dim), matrix(shape_.dim, shape_.hidden_dim)};
        }
        layer.feed_forwards = parts;
        layer.attention_norm = norm(shape_.dim), layer.feed_forward_norm = norm(shape_.dim);
        layer.query_norm = norm(shape_.head_dim), layer.key_norm = norm(shape_.head_dim);
        if (shape_.num_tracks > 1 && i % depth == depth - 1) layer.track_norm = norm(shape_.dim);
        return layer;
    }

    OaMatrix full(int num_outputs, int num_inputs) {
        const Floats stored = between(random_, (size_t)num_outputs * num_inputs, -0.3f, 0.3f);
        float *tiles = (float *)bytes((size_t)(num_outputs + 15) / 16 * 16 * num_inputs * sizeof(float));
        oa_pack_float32(stored.data(), num_outputs, num_inputs, tiles);
        OaMatrix made = {};
        made.kind = OA_FLOAT32, made.codes = (const uint8_t *)tiles;
        made.num_outputs = num_outputs, made.num_inputs = num_inputs;
        return made;
    }

    OaMatrix matrix(int num_outputs, int num_inputs) {
        OaMatrix made = {};
        made.num_outputs = num_outputs, made.num_inputs = num_inputs;
        if (shape_.kind == OA_FLOAT32) {
            made = full(num_outputs, num_inputs);
        } else if (shape_.kind == OA_BFLOAT16) {
            const std::vector<uint16_t> stored((size_t)num_outputs * num_inputs, (uint16_t)(0xbc00 + up_to(random_, 255)));
            uint16_t *tiles = (uint16_t *)bytes((size_t)(num_outputs + 15) / 16 * 16 * num_inputs * 2);
            oa_pack_bfloat16(stored.data(), num_outputs, num_inputs, tiles);
            made.kind = OA_BFLOAT16, made.codes = (const uint8_t *)tiles;
        } else if (shape_.kind != OA_INT2 && num_inputs % 32 == 0) {
            made = grouped(num_outputs, num_inputs, shape_.kind, shape_.group, shape_.kind == OA_INT4 && num_outputs % 3 == 0);
        } else {
            pack_2_bits(made);
        }
        made.bias = num_outputs % 2 ? nullptr : floats(num_outputs, -0.1f, 0.1f);
        return made;
    }

    // An adapter of the layers' matrices; experts have none, and the last adapter has none for feed-forwards.
    std::vector<OaLowRank> adapter(int rank, bool is_last) {
        std::vector<OaLowRank> pairs;
        for (const OaLayer &layer : layers_) {
            const OaFeedForward &dense = layer.feed_forwards[0];
            const OaMatrix *adapted[OA_ADAPTED] = {&layer.query, &layer.key, &layer.value, &layer.output, &dense.gate, &dense.up, &dense.down};
            for (int i = 0; i < OA_ADAPTED; i++) {
                const bool has_none = !adapted[i]->codes || (i >= OA_GATE && (layer.num_experts || is_last));
                pairs.push_back(has_none ? OaLowRank{} : pair(*adapted[i], rank));
            }
        }
        return pairs;
    }

    OaLowRank pair(const OaMatrix &matrix, int rank) {
        const size_t inputs = (size_t)rank * matrix.num_inputs, outputs = (size_t)(matrix.num_outputs + 63) / 64 * 64 * rank;
        OaLowRank made = {nullptr, nullptr, rank, shape_.lora_bits, 0.5f};
        if (shape_.lora_bits == 32)
            made.a = floats(inputs, -0.1f, 0.1f), made.b = floats(outputs, -0.1f, 0.1f);
        else
            made.a = halves(inputs), made.b = halves(outputs);
        return made;
    }

    void pack_2_bits(OaMatrix &made) {
        const int num_outputs = made.num_outputs, num_inputs = made.num_inputs;
        const size_t panels = (num_outputs + 63) / 64;
        std::unique_ptr<uint8_t[]> stored(new uint8_t[(size_t)num_outputs * num_inputs / 4]);
        for (int i = 0; i < num_outputs * num_inputs / 4; i++) stored[i] = (uint8_t)random_();
        uint8_t *codes = bytes(panels * ((num_inputs + 15) / 16) * 256);
        oa_pack_panels(stored.get(), num_outputs, num_inputs, codes);
        made.codes = codes, made.scales = floats(panels * 64, 0.01f, 0.1f);
    }

    // Groups of 4 or 8 bits, or rows of 8 bits, with scales and minima of -0.03 to 0.03.
    OaMatrix grouped(int num_outputs, int num_inputs, int kind, int group, bool has_minimum) {
        OaMatrix made = {};
        made.kind = kind, made.group = group, made.has_minimum = has_minimum;
        made.num_outputs = num_outputs, made.num_inputs = num_inputs;
        const int bits = kind == OA_INT4 ? 4 : 8;
        const size_t num_groups = group ? (size_t)num_inputs / group : 0, rows = (num_outputs + 15) / 16 * 16;
        std::vector<uint8_t> stored((size_t)num_outputs * num_inputs * bits / 8);
        for (uint8_t &code : stored) code = (uint8_t)random_(), code = bits == 8 && code == 128 ? 0 : code;
        std::vector<uint16_t> numbers(num_outputs * num_groups);
        for (uint16_t &number : numbers) number = (uint16_t)(0x1c00 + up_to(random_, 0xbff));
        uint8_t *tiles = bytes(rows * (num_inputs * bits / 8 + num_groups * (has_minimum ? 4 : 2)));
        oa_pack_groups(stored.data(), group ? numbers.data() : nullptr, has_minimum ? numbers.data() : nullptr, num_outputs, num_inputs,
                       bits, group, tiles);
        made.codes = tiles;
        if (!group) made.scales = floats((num_outputs + 63) / 64 * 64, 0.001f, 0.01f);
        return made;
    }

    uint8_t *bytes(size_t count) {
        bytes_.emplace_back(new uint8_t[count]);
        for (size_t i = 0; i < count; i++) bytes_.back()[i] = (uint8_t)random_();
        return bytes_.back().get();
    }

    const float *floats(size_t count, float least, float most) {
        floats_.push_back(between(random_, count, least, most));
        return floats_.back().data();
    }

    const void *halves(size_t count) {
        uint16_t *made = (uint16_t *)bytes(2 * count);
        for (size_t i = 0; i < count; i++) made[i] = (uint16_t)((made[i] & 0x8000) + 0x2c00);  // a sixteenth, of either sign
        return made;
    }

    const float *norm(int count) { return floats(count, 0.5f, 1.5f); }

    const Shape shape_;
    Random random_;
    std::vector<OaLayer> layers_;
    std::vector<OaLowRank> adapters_[2];
    std::vector<std::unique_ptr<uint8_t[]>> bytes_;
    std::vector<Floats> floats_;
};

struct Freed {
    void operator()(OaModel *model) const { oa_model_free(model); }
    void operator()(OaCache *cache) const { oa_cache_free(cache); }
};
typedef std::unique_ptr<OaModel, Freed> Model;
typedef std::unique_ptr<OaCache, Freed> Cache;

// A sequence, all its tokens and its adapter.
struct Sequence {
    Cache cache;
    Tokens tokens;
    const OaLowRank *adapter;

    explicit operator bool() const { return (bool)cache; }
};

Sequence fork_of(const Sequence &sequence, size_t length) {
    Sequence forked = {Cache(oa_cache_fork(sequence.cache.get(), (int64_t)length)), {}, sequence.adapter};
    forked.tokens.assign(sequence.tokens.begin(), sequence.tokens.begin() + (int64_t)length);
    CHECK(forked.cache);
    return forked;
}

// A step: the arrays of one call, which must not move until it ends.
struct Step {
    std::vector<OaCache *> caches;
    std::vector<const OaLowRank *> adapters;
    std::vector<int64_t> starts;
    std::vector<int32_t> counts, wanted;
    Tokens tokens;
    Floats logits;

    void add(Sequence &sequence, const Tokens &more, int num_wanted, int vocab_size) {
        caches.push_back(sequence.cache.get()), adapters.push_back(sequence.adapter);
        starts.push_back((int64_t)sequence.tokens.size());
        counts.push_back((int32_t)more.size()), wanted.push_back(num_wanted);
        tokens.insert(tokens.end(), more.begin(), more.end());
        sequence.tokens.insert(sequence.tokens.end(), more.begin(), more.end());
        logits.resize(logits.size() + (size_t)num_wanted * vocab_size);
    }

    bool succeeds(OaModel *model) {
        return !oa_step(model, (int32_t)caches.size(), caches.data(), adapters.data(), starts.data(), counts.data(), wanted.data(),
                        tokens.data(), 0, nullptr, nullptr, logits.data());
    }

    void run(OaModel *model) { CHECK(succeeds(model)); }
};

// Two models of the same weights: one with several threads, and one with a single thread as reference.
class Engine {
public:
    Engine(const Shape &shape, int seed, int num_threads, const char *kernels)
        : weights(shape, seed),
          model(oa_model_new(&weights.config, num_threads, kernels)),
          random(seed),
          alone_(oa_model_new(&weights.config, 1, kernels)),
          opening_{Cache(oa_cache_new(alone_.get())), {}, nullptr} {}

    // Returns a sequence with one of two adapters or none.
    Sequence new_sequence(int number) const { return {Cache(oa_cache_new(model.get())), {}, weights.adapter(number)}; }

    Tokens some_tokens(int count) {
        Tokens tokens;
        for (int i = 0; i < count; i++) tokens.push_back(up_to(random, weights.config.vocab_size - 1));
        return tokens;
    }

    int few_or_many() {
        const int counts[] = {1, 2, 3, 5, 9, 20, 66};
        return counts[up_to(random, 6)];
    }

    // Returns the reference logits after the last token, computed by one thread; a common prefix is computed once.
    Floats alone(const Tokens &tokens, const OaLowRank *adapter) const {
        size_t length = 0;
        while (adapter == opening_.adapter && length + 1 < tokens.size() && length < opening_.tokens.size() && tokens[length] == opening_.tokens[length])
            length++;
        Sequence sequence = fork_of(opening_, length);
        sequence.adapter = adapter;
        Step step;
        step.add(sequence, Tokens(tokens.begin() + (int64_t)length, tokens.end()), 1, weights.config.vocab_size);
        step.run(alone_.get());
        return step.logits;
    }

    void most_begin_with(const Sequence &sequence) {
        Step step;
        opening_.adapter = sequence.adapter;
        step.add(opening_, sequence.tokens, 0, weights.config.vocab_size);
        step.run(alone_.get());
    }

    // Checks that the sequences of a step got the same logits as alone.
    void check(const Step &step, const std::vector<Sequence *> &sequences) const {
        const size_t vocab_size = weights.config.vocab_size;
        size_t row = 0;
        for (size_t i = 0; i < sequences.size(); i++) {
            row += step.wanted[i];
            if (!step.wanted[i]) continue;
            const Floats expected = alone(sequences[i]->tokens, sequences[i]->adapter);
            CHECK(!memcmp(expected.data(), &step.logits[(row - 1) * vocab_size], vocab_size * sizeof(float)));
            for (float number : expected) CHECK(number - number == 0);
        }
    }

    Weights weights;
    Model model;
    Random random;

private:
    Model alone_;
    Sequence opening_;
};

}  // namespace
