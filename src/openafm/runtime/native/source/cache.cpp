#include "cache.h"

#include <string.h>

#include <memory>
#include <new>

#include "numbers.h"

namespace {

// Cache lines, so that no vector crosses one.
const std::align_val_t PAGE_ALIGNMENT{64};

void release(Page *page) {
    if (page->num_owners.fetch_sub(1) == 1) delete page;
}

// Symmetric 8 bits with an fp16 scale (numerics int8_per_token_head).
void round_to_8_bits(const float *x, int n, int8_t *integers, uint16_t *scale) {
    const float exact = largest_of(x, n) / 127.0f;
    *scale = float_to_half(exact < 0x1p-24f ? 0x1p-24f : exact > 65504.0f ? 65504.0f : exact);
    const float s = half_to_float(*scale);
    for (int i = 0; i < n; i++) {
        const float ratio = x[i] / s;
        integers[i] = nearest_byte(ratio < -127.0f ? -127.0f : ratio > 127.0f ? 127.0f : ratio);
    }
}

}  // namespace

Page::Page(const PageShape &shape) : bytes((uint8_t *)operator new(shape.bytes(), PAGE_ALIGNMENT)) {
    memset(bytes, 0, shape.bytes());
}

Page::~Page() { operator delete(bytes, PAGE_ALIGNMENT); }

OaCache::~OaCache() {
    for (Page *page : pages) release(page);
}

void OaCache::prepare(int64_t start, int64_t stop) {
    if (stop > (int64_t)pages.size() * PAGE) pages.reserve((size_t)((stop + PAGE - 1) / PAGE));
    for (int64_t number = start / PAGE; number * PAGE < stop; number++) {
        if (number == (int64_t)pages.size()) {
            pages.push_back(new Page(shape));
        } else if (pages[number]->num_owners.load() > 1) {
            Page *page = new Page(shape);
            memcpy(page->bytes, pages[number]->bytes, shape.bytes());
            release(pages[number]);
            pages[number] = page;
        }
    }
}

KeysValuesPage OaCache::at(int64_t page, int layer, int head) const {
    const size_t place = shape.head_bytes() * ((size_t)layer * shape.num_kv_heads + head);
    const uint8_t *bytes = pages[page]->bytes + place, *values = bytes + shape.values_place();
    const uint16_t *scales = (const uint16_t *)(values + shape.values_place());
    const uint8_t *next = page + 1 < (int64_t)pages.size() ? pages[page + 1]->bytes + place : nullptr;
    return {bytes, (const int8_t *)values, scales, scales + PAGE, next};
}

void OaCache::store(int64_t position, int layer, int head, const float *key, const float *value) {
    const KeysValuesPage page = at(position / PAGE, layer, head);
    const int place = (int)(position % PAGE), dim = shape.head_dim;
    if (shape.is_float) {
        float *keys = (float *)page.keys + place;
        for (int c = 0; c < dim; c++) keys[(size_t)c * PAGE] = key[c];
        memcpy((float *)page.values + (size_t)place * dim, value, dim * sizeof(float));
        return;
    }
    int8_t integers[LARGEST_HEAD_DIM];
    round_to_8_bits(key, dim, integers, (uint16_t *)page.key_scales + place);
    uint8_t *keys = (uint8_t *)page.keys + place * 4;
    for (int c = 0; c < dim; c += 4)
        for (int i = 0; i < 4; i++) keys[(size_t)c * PAGE + i] = (uint8_t)(integers[c + i] + 128);
    round_to_8_bits(value, dim, integers, (uint16_t *)page.value_scales + place);
    int8_t *values = (int8_t *)page.values + (size_t)(place / 4) * dim * 4 + place % 4;
    for (int c = 0; c < dim; c++) values[c * 4] = integers[c];
}

OaCache *oa_cache_fork(OaCache *cache, int64_t length) try {
    std::unique_ptr<OaCache> forked(new OaCache(cache->shape));
    forked->pages.assign(cache->pages.begin(), cache->pages.begin() + (length + PAGE - 1) / PAGE);
    for (Page *page : forked->pages) page->num_owners.fetch_add(1);
    return forked.release();
} catch (const std::bad_alloc &) {
    return nullptr;
}

void oa_cache_free(OaCache *cache) { delete cache; }

int64_t oa_cache_bytes(const OaCache *cache, int64_t length) {
    return (length + PAGE - 1) / PAGE * (int64_t)cache->shape.bytes();
}

void oa_cache_save(const OaCache *cache, int64_t length, uint8_t *bytes) {
    for (int64_t number = 0; number * PAGE < length; number++)
        memcpy(bytes + number * cache->shape.bytes(), cache->pages[number]->bytes, cache->shape.bytes());
}

int32_t oa_cache_load(OaCache *cache, int64_t length, const uint8_t *bytes) try {
    cache->prepare(0, length);
    for (int64_t number = 0; number * PAGE < length; number++)
        memcpy(cache->pages[number]->bytes, bytes + number * cache->shape.bytes(), cache->shape.bytes());
    return 0;
} catch (const std::bad_alloc &) {
    return 1;
}

int64_t oa_cache_pages(const OaCache *cache, uint64_t *addresses) {
    if (addresses)
        for (const Page *page : cache->pages) *addresses++ = (uint64_t)(uintptr_t)page->bytes;
    return (int64_t)cache->pages.size();
}
