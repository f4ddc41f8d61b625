// The state of one pass over a DOM, and what it found.
#pragma once

#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "abi.h"

namespace oa {

enum Kind : int32_t { OTHER, BLOCK, BOUNDARY, LINK, MARK, OBJECT, SKIP };

struct Open {
    int32_t first, mark, url_start, url_stop;
};

struct Closed {
    int32_t first, stop, mark, url_start, url_stop;
};

class Reader {
public:
    explicit Reader(const OaRules &rules);
    const OaPage *read(void *root, int64_t max_blocks);

private:
    struct Tag {
        int32_t kind = OTHER, code = 0;
        uint64_t bits = 0;
        std::string_view name;
    };

    void clear();
    void split(void *root, int64_t max_blocks);
    const Tag &tag_of(void *node);
    int32_t enter(void *node, const Tag &tag);
    void leave(int32_t kind);
    void object(void *node, const Tag &tag);
    void formula(void *node);
    std::string_view text_of(void *node) const;
    void add_piece(std::string_view text);
    void flush();
    void mark(OaBlock &block);
    void image(void *node);
    void link(void *node);
    void piece(std::string_view text);
    uint64_t names_bits(std::string_view names);
    uint64_t word_bits(std::string_view word);
    int32_t collapsed(std::string_view text);
    std::string_view attribute(void *node, std::string_view name);

    OaRules rules_;
    OaDom dom_;
    std::unordered_map<std::string_view, Tag> tags_;
    std::vector<Tag> static_tags_;
    std::vector<char> static_known_;
    std::unordered_map<std::string, uint64_t> words_;
    std::unordered_map<std::string, uint64_t> names_;

    OaPage page_{};
    std::vector<OaBlock> blocks_;
    std::vector<OaSpan> spans_;
    std::vector<OaContainer> containers_;
    std::vector<OaImage> images_;
    std::vector<float> scores_;
    std::string raw_, strings_;
    std::vector<Open> open_;
    std::vector<Closed> closed_;
    std::vector<int32_t> piece_stops_;  // bytes from the start of the current block's raw text
    std::vector<int32_t> offsets_;
    int32_t current_ = 0, block_start_ = 0, breaks_ = 0;
};

// The probabilities of a page's blocks (features.cpp). `containers` is the whole tree.
void score_blocks(const OaRules &rules, const std::vector<OaBlock> &blocks, const std::vector<OaContainer> &containers,
                  const std::string &strings, std::vector<float> &scores);

}  // namespace oa
