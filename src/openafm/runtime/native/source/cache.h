// Keys and values of one sequence in pages of PAGE tokens, each with all layers and heads. Forks share pages; a shared page is
// copied before a write.
#pragma once
#include <stdint.h>

#include <atomic>
#include <vector>

#include "kernels.h"

struct PageShape {
    int num_layers, num_kv_heads, head_dim;  // layers that store keys and values
    bool is_float;                           // fp32, otherwise 8 bits with scales

    size_t values_place() const { return (size_t)PAGE * head_dim * (is_float ? sizeof(float) : 1); }
    size_t head_bytes() const { return 2 * values_place() + (is_float ? 0 : 2 * PAGE * sizeof(uint16_t)); }
    size_t bytes() const { return head_bytes() * num_kv_heads * num_layers; }
};

struct Page {
    explicit Page(const PageShape &shape);
    Page(const Page &) = delete;
    ~Page();

    std::atomic<int> num_owners{1};
    uint8_t *const bytes;
};

struct OaCache {
    explicit OaCache(const PageShape &page_shape) : shape(page_shape) {}
    OaCache(const OaCache &) = delete;
    ~OaCache();

    // Makes positions [start, stop) writable without affecting other caches. Throws std::bad_alloc.
    void prepare(int64_t start, int64_t stop);

    // Returns the keys and values of one layer and head in a page, for reading.
    KeysValuesPage at(int64_t page, int layer, int head) const;

    // Stores a key and a value, in fp32 or rounded to 8 bits with one scale each.
    void store(int64_t position, int layer, int head, const float *key, const float *value);

    const PageShape shape;
    std::vector<Page *> pages;
};
