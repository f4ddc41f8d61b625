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
};

const Shape shapes[] = {
    {83, 64, 2, 2, 4, 2, 16, 200, 3, 32},
    {16, 32, 1, 0, 1, 1, 4, 4, 0, 0},      // all sizes minimal
    {33, 96, 2, 3, 3, 1, 100, 68, 5, 16},  // nothing whole
    {300, 160, 1, 2, 8, 2, 64, 452, 0, 0},
};

// Random weights, each array in a separate allocation of its exact size.
class Weights {
public:
    Weights(const Shape &shape, int seed) : shape_(shape), random_(seed) {
        const int inner = shape.num_heads * shape.head_dim, kv = shape.num_kv_heads * shape.head_dim;
        for (int i = 0; i < shape.num_own + shape.num_shared; i++) {
            OaLayer layer = {};
            layer.source = i < shape.num_own ? i : shape.num_own - 1;
            layer.query = matrix(inner, shape.dim), layer.output = matrix(shape.dim, inner);
            if (layer.source == i) layer.key = matrix(kv, shape.dim), layer.value = matrix(kv, shape.dim);
            layer.gate = matrix(shape.hidden_dim, shape.dim), layer.up = matrix(shape.hidden_dim, shape.dim);
            layer.down = matrix(shape.dim, shape.hidden_dim);
            layer.attention_norm = norm(shape.dim), layer.feed_forward_norm = norm(shape.dim);
            layer.query_norm = norm(shape.head_dim), layer.key_norm = norm(shape.head_dim);
            layers_.push_back(layer);
        }
        const int num_tiles = (shape.vocab_size + 15) / 16, num_groups = shape.dim / 32;
        uint8_t *embedding = bytes((size_t)num_tiles * num_groups * 320);
        for (int group = 0; group < num_tiles * num_groups; group++)
            for (int i = 256; i < 320; i += 2) {  // scales and minima in fp16, of -0.03 to 0.03
                const uint16_t half = (uint16_t)(0x1c00 + up_to(random_, 0xbff) + (i >= 288) * 0x8000);
                memcpy(embedding + group * 320 + i, &half, 2);
            }
        config = {};
        config.vocab_size = shape.vocab_size, config.dim = shape.dim, config.num_layers = (int)layers_.size();
        config.num_heads = shape.num_heads, config.num_kv_heads = shape.num_kv_heads, config.head_dim = shape.head_dim;
        config.hidden_dim = shape.hidden_dim, config.num_prefill_layers = shape.num_own;
        config.norm_eps = config.qk_norm_eps = 1e-5f;
        config.norm_before_position = seed % 2, config.interleaved = seed / 2 % 2, config.level_zero = 1.5f;
        config.frequencies = floats(shape.head_dim / 2, 0, 1), config.final_norm = norm(shape.dim);
        config.embedding = embedding, config.layers = layers_.data();
    }

    OaConfig config;

private:
    OaMatrix matrix(int num_outputs, int num_inputs) {
        const size_t panels = (num_outputs + 63) / 64;
        OaMatrix made = {};
        made.num_outputs = num_outputs, made.num_inputs = num_inputs;
        std::unique_ptr<uint8_t[]> stored(new uint8_t[(size_t)num_outputs * num_inputs / 4]);
        for (int i = 0; i < num_outputs * num_inputs / 4; i++) stored[i] = (uint8_t)random_();
        uint8_t *codes = bytes(panels * ((num_inputs + 15) / 16) * 256);
        oa_pack_panels(stored.get(), num_outputs, num_inputs, codes);
        made.codes = codes, made.scales = floats(panels * 64, 0.01f, 0.1f);
        made.rank = shape_.rank, made.lora_bits = shape_.lora_bits, made.lora_scale = 0.5f;
        if (made.rank && made.lora_bits == 32) {
            made.lora_a = floats((size_t)made.rank * num_inputs, -0.1f, 0.1f);
            made.lora_b = floats(panels * 64 * made.rank, -0.1f, 0.1f);
        } else if (made.rank) {
            made.lora_a = halves((size_t)made.rank * num_inputs), made.lora_b = halves(panels * 64 * made.rank);
        }
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
    std::vector<std::unique_ptr<uint8_t[]>> bytes_;
    std::vector<Floats> floats_;
};

struct Freed {
    void operator()(OaModel *model) const { oa_model_free(model); }
    void operator()(OaCache *cache) const { oa_cache_free(cache); }
};
typedef std::unique_ptr<OaModel, Freed> Model;
typedef std::unique_ptr<OaCache, Freed> Cache;

// A sequence and all its tokens.
struct Sequence {
    Cache cache;
    Tokens tokens;

    explicit operator bool() const { return (bool)cache; }
};

Sequence fork_of(const Sequence &sequence, size_t length) {
    Sequence forked = {Cache(oa_cache_fork(sequence.cache.get(), (int64_t)length)), {}};
    forked.tokens.assign(sequence.tokens.begin(), sequence.tokens.begin() + (int64_t)length);
    CHECK(forked.cache);
    return forked;
}

// A step: the arrays of one call, which must not move until it ends.
struct Step {
    std::vector<OaCache *> caches;
    std::vector<int64_t> starts;
    std::vector<int32_t> counts, wanted;
    Tokens tokens;
    Floats logits;

    void add(Sequence &sequence, const Tokens &more, int num_wanted, int vocab_size) {
        caches.push_back(sequence.cache.get()), starts.push_back((int64_t)sequence.tokens.size());
        counts.push_back((int32_t)more.size()), wanted.push_back(num_wanted);
        tokens.insert(tokens.end(), more.begin(), more.end());
        sequence.tokens.insert(sequence.tokens.end(), more.begin(), more.end());
        logits.resize(logits.size() + (size_t)num_wanted * vocab_size);
    }

    bool succeeds(OaModel *model) {
        return !oa_step(model, (int32_t)caches.size(), caches.data(), starts.data(), counts.data(), wanted.data(), tokens.data(),
                        0, nullptr, nullptr,
                        logits.data());
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
          opening_{Cache(oa_cache_new(alone_.get())), {}} {}

    Sequence new_sequence() const { return {Cache(oa_cache_new(model.get())), {}}; }

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
    Floats alone(const Tokens &tokens) const {
        size_t length = 0;
        while (length + 1 < tokens.size() && length < opening_.tokens.size() && tokens[length] == opening_.tokens[length])
            length++;
        Sequence sequence = fork_of(opening_, length);
        Step step;
        step.add(sequence, Tokens(tokens.begin() + (int64_t)length, tokens.end()), 1, weights.config.vocab_size);
        step.run(alone_.get());
        return step.logits;
    }

    void most_begin_with(const Tokens &tokens) {
        Step step;
        step.add(opening_, tokens, 0, weights.config.vocab_size);
        step.run(alone_.get());
    }

    // Checks that the sequences of a step got the same logits as alone.
    void check(const Step &step, const std::vector<Sequence *> &sequences) const {
        const size_t vocab_size = weights.config.vocab_size;
        size_t row = 0;
        for (size_t i = 0; i < sequences.size(); i++) {
            row += step.wanted[i];
            if (!step.wanted[i]) continue;
            const Floats expected = alone(sequences[i]->tokens);
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
