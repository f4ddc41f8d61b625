// The C interface of the native pass over a page. Strings are UTF-8; positions in `spans` count characters, others bytes.
#pragma once

#include <cstddef>
#include <cstdint>

extern "C" {

// Functions of Lexbor's C interface; the process that calls has loaded the library.
struct OaDom {
    void *(*next)(void *node);
    void *(*first_child)(void *node);
    int (*type)(void *node);
    uintptr_t (*tag_id)(void *node);
    const char *(*tag_name)(void *element, size_t *length);
    void *(*first_attribute)(void *element);
    void *(*next_attribute)(void *attribute);
    const char *(*attribute_name)(void *attribute, size_t *length);
    const char *(*attribute_value)(void *attribute, size_t *length);
    char *(*text)(void *node, size_t *length);
};

// What an element's name means: `kind` as in blocks.py, its number in BLOCK_TAGS or in the marks, the bits of its tag.
struct OaTag {
    const char *name;
    int32_t kind;
    int32_t code;
    uint64_t bits;
};

// Boosted symmetric trees as in trees.py.
struct OaTrees {
    const int32_t *features;   // [depth, trees]
    const float *thresholds;   // [depth, trees]
    const float *leaves;       // [trees, 2 ** depth]
    double bias;
    int32_t depth;
    int32_t num_trees;
};

struct OaRules {
    const OaDom *dom;
    const OaTag *tags;
    int32_t num_tags;
    int32_t num_block_tags;
    int32_t num_bits;           // NUM_BITS of blocks.py
    uint64_t pair_bit, hidden_bit;
    uint64_t (*word_bits)(const char *word, int32_t length);
    const uint64_t *counted;    // [65536], as in features.py
    const uint8_t *marks;       // [65536]
    const float *tag_rows;      // [tag_row_count, num_block_tags]
    int32_t num_tag_rows;
    int32_t first_heading;      // number of h1 in BLOCK_TAGS
    OaTrees local, context;
};

struct OaBlock {
    int32_t container, raw_start, raw_stop, text_start, text_stop;
    int32_t num_chars, link_chars, num_links, num_breaks, preformatted, first_span, num_spans;
};

struct OaSpan {
    int32_t start, stop, mark, url_start, url_stop;
};

struct OaContainer {
    uint64_t bits, inherited;
    int32_t parent, tag, depth, stop, names_start, names_stop;
};

struct OaImage {
    int32_t position, container, url_start, url_stop, alt_start, alt_stop;
};

struct OaPage {
    const OaBlock *blocks;
    const OaSpan *spans;
    const OaContainer *containers;
    const OaImage *images;
    const char *raw;      // raw texts of blocks
    const char *strings;  // collapsed texts, URLs, names
    const float *scores;
    int64_t num_blocks, num_spans, num_containers, num_images, num_raw, num_strings;
};

// `oa_page_read` returns the blocks and scores of a DOM; its next call with the same reader makes the result invalid.
void *oa_reader_new(const OaRules *rules);
void oa_reader_free(void *reader);
const OaPage *oa_page_read(void *reader, void *root, int64_t max_blocks);
}
