// The pass over a DOM: the same blocks as `_Splitter` of blocks.py, and their scores.
#include "page.h"

#include <algorithm>

#include "unicode.h"

namespace oa {

namespace {

constexpr int TEXT_NODE = 3, ELEMENT_NODE = 1;
constexpr size_t NUM_STATIC_TAGS = 1 << 12, MAX_WORDS = 1 << 16;
constexpr int32_t MAX_DEPTH = 256, MAX_NAMES = 200;
constexpr std::string_view LINE_BREAK = "\xE2\x80\xA8";

bool is_lower(char byte) { return byte >= 'a' && byte <= 'z'; }
bool is_upper(char byte) { return byte >= 'A' && byte <= 'Z'; }

std::string_view first_chars(std::string_view text, int32_t count) {
    size_t at = 0;
    for (int32_t seen = 0; at < text.size(); ++at) {
        const bool starts = (static_cast<unsigned char>(text[at]) & 0xC0) != 0x80;
        if (starts && seen++ == count) break;
    }
    return text.substr(0, at);
}

// The next word `[A-Z]?[a-z]+` of a name; empty at the end.
std::string_view next_word(std::string_view text, size_t &at) {
    while (at < text.size() && !is_lower(text[at])) ++at;
    if (at >= text.size()) return {};
    size_t start = at;
    while (at < text.size() && is_lower(text[at])) ++at;
    if (start > 0 && is_upper(text[start - 1])) --start;
    return text.substr(start, at - start);
}

// The place after `word`, whose letters are compared without case, and white space; npos if it is not at `at`.
size_t after(std::string_view text, size_t at, std::string_view word) {
    if (text.size() - at < word.size()) return std::string_view::npos;
    for (size_t index = 0; index < word.size(); ++index)
        if ((text[at + index] | (is_upper(text[at + index]) ? 0x20 : 0)) != word[index]) return std::string_view::npos;
    at += word.size();
    for (size_t next = at; next < text.size(); at = next)
        if (!is_space(next_code(text, next))) break;
    return at;
}

// Without white space at the ends.
std::string_view stripped(std::string_view text) {
    size_t start = text.size(), stop = 0;
    for (size_t at = 0; at < text.size();) {
        const size_t from = at;
        if (is_space(next_code(text, at))) continue;
        start = std::min(start, from);
        stop = at;
    }
    return start < stop ? text.substr(start, stop - start) : std::string_view();
}

bool has_declaration(std::string_view style, std::string_view property, std::string_view value) {
    for (size_t start = 0; start < style.size(); ++start) {
        size_t at = after(style, start, property);
        if (at == std::string_view::npos || at >= style.size() || style[at] != ':') continue;
        at = after(style, at, ":");
        if (at != std::string_view::npos && after(style, at, value) != std::string_view::npos) return true;
    }
    return false;
}

bool hides(std::string_view name, std::string_view value) {
    if (name == "style")
        return has_declaration(value, "display", "none") || has_declaration(value, "visibility", "hidden");
    return name == "hidden" || value == "true";
}

}  // namespace

Reader::Reader(const OaRules &rules) : rules_(rules), dom_(*rules.dom), static_tags_(NUM_STATIC_TAGS), static_known_(NUM_STATIC_TAGS) {
    for (int32_t index = 0; index < rules.num_tags; ++index) {
        const OaTag &tag = rules.tags[index];
        tags_[tag.name] = Tag{tag.kind, tag.code, tag.bits, tag.name};
    }
}

const OaPage *Reader::read(void *root, int64_t max_blocks) {
    clear();
    split(root, max_blocks);
    flush();
    containers_[0].stop = static_cast<int32_t>(containers_.size());
    if (rules_.local.num_trees > 0) score_blocks(rules_, blocks_, containers_, strings_, scores_);
    page_ = OaPage{blocks_.data(), spans_.data(), containers_.data(), images_.data(), raw_.data(), strings_.data(), scores_.data(),
                   static_cast<int64_t>(blocks_.size()), static_cast<int64_t>(spans_.size()),
                   static_cast<int64_t>(containers_.size()), static_cast<int64_t>(images_.size()),
                   static_cast<int64_t>(raw_.size()), static_cast<int64_t>(strings_.size())};
    return &page_;
}

void Reader::clear() {
    blocks_.clear(), spans_.clear(), containers_.clear(), images_.clear(), scores_.clear(), raw_.clear(), strings_.clear();
    open_.clear(), closed_.clear(), piece_stops_.clear();
    current_ = block_start_ = breaks_ = 0;
    containers_.push_back(OaContainer{0, 0, -1, tags_["body"].code, 0, 0, 0, 0});
}

void Reader::split(void *root, int64_t max_blocks) {
    std::vector<std::pair<void *, int32_t>> ancestors;
    void *node = root;
    while (true) {
        const int type = dom_.type(node);
        if (type == TEXT_NODE) {
            piece(text_of(node));
        } else if (type == ELEMENT_NODE) {
            const Tag &tag = tag_of(node);
            int32_t kind = tag.kind;
            if (kind == BLOCK) kind = enter(node, tag);
            else if (kind == LINK) link(node);
            else if (kind == MARK) open_.push_back({static_cast<int32_t>(piece_stops_.size()), tag.code, 0, 0});
            if (kind <= MARK) {
                if (void *child = dom_.first_child(node)) {
                    ancestors.emplace_back(node, kind);
                    node = child;
                    continue;
                }
                if (kind != OTHER) leave(kind);
            } else if (kind == OBJECT) {
                object(node, tag);
            } else if (!piece_stops_.empty() && tag.code >= 0) {
                flush();
            }
        }
        void *following;
        while ((following = dom_.next(node)) == nullptr) {
            if (ancestors.empty() || static_cast<int64_t>(blocks_.size()) > max_blocks) return;
            const int32_t kind = ancestors.back().second;
            node = ancestors.back().first;
            ancestors.pop_back();
            if (kind != OTHER) leave(kind);
        }
        node = following;
    }
}

// `code` of a skipped element is its number in BLOCK_TAGS, or -1.
const Reader::Tag &Reader::tag_of(void *node) {
    static const Tag other{};
    const uintptr_t id = dom_.tag_id(node);
    if (id < NUM_STATIC_TAGS && static_known_[id]) return static_tags_[id];
    size_t length = 0;
    const char *name = dom_.tag_name(node, &length);
    const auto found = name == nullptr ? tags_.end() : tags_.find(std::string_view(name, length));
    const Tag &tag = found == tags_.end() ? other : found->second;
    if (id >= NUM_STATIC_TAGS) return tag;
    static_known_[id] = 1;
    return static_tags_[id] = tag;
}

void Reader::piece(std::string_view text) {
    if (text.empty() || (piece_stops_.empty() && is_blank(text))) return;
    breaks_ += text == LINE_BREAK;
    add_piece(text);
}

void Reader::add_piece(std::string_view text) {
    if (piece_stops_.empty()) block_start_ = static_cast<int32_t>(raw_.size());
    raw_.append(text);
    piece_stops_.push_back(static_cast<int32_t>(raw_.size()) - block_start_);
}

int32_t Reader::enter(void *node, const Tag &tag) {
    flush();
    const OaContainer above = containers_[current_];
    if (above.depth >= MAX_DEPTH) return BOUNDARY;
    uint64_t bits = tag.bits;
    const auto names_start = static_cast<int32_t>(strings_.size());
    for (void *each = dom_.first_attribute(node); each != nullptr; each = dom_.next_attribute(each)) {
        size_t name_length = 0, length = 0;
        const char *name_data = dom_.attribute_name(each, &name_length);
        const char *data = dom_.attribute_value(each, &length);
        const std::string_view name(name_data, name_data ? name_length : 0), value(data, data ? length : 0);
        if (name == "class" || name == "id") {
            if (value.empty()) continue;
            bits |= names_bits(value);
            strings_.append(value).push_back(' ');
        } else if (name == "style" || name == "hidden" || name == "aria-hidden") {
            if (hides(name, value)) bits |= rules_.hidden_bit;
        } else if (name == "role" || name == "itemprop") {
            bits |= names_bits(value);
        }
    }
    const int32_t parent = current_;
    current_ = static_cast<int32_t>(containers_.size());
    containers_.push_back(OaContainer{bits, above.inherited | bits, parent, tag.code, above.depth + 1, 0, names_start,
                                      static_cast<int32_t>(strings_.size())});
    return tag.name == "pre" ? OBJECT : BLOCK;
}

void Reader::leave(int32_t kind) {
    if (kind <= BOUNDARY) {
        flush();
        if (kind == BLOCK) {
            containers_[current_].stop = static_cast<int32_t>(containers_.size());
            current_ = containers_[current_].parent;
        }
    } else if (!open_.empty()) {
        const Open opened = open_.back();
        open_.pop_back();
        closed_.push_back({opened.first, static_cast<int32_t>(piece_stops_.size()), opened.mark, opened.url_start, opened.url_stop});
    }
}

// An element whose content is not visited.
void Reader::object(void *node, const Tag &tag) {
    if (tag.name == "br") {
        ++breaks_;
        add_piece(LINE_BREAK);
    } else if (tag.name == "img") {
        image(node);
    } else if (tag.name == "pre") {
        const std::string_view raw = text_of(node);
        if (!is_blank(raw)) {
            OaBlock block{};
            block.container = current_;
            block.raw_start = static_cast<int32_t>(raw_.size());
            raw_.append(raw);
            block.raw_stop = static_cast<int32_t>(raw_.size());
            block.text_start = collapsed(raw);
            block.text_stop = static_cast<int32_t>(strings_.size());
            block.num_chars = num_chars(std::string_view(strings_).substr(block.text_start));
            block.preformatted = 1;
            block.first_span = static_cast<int32_t>(spans_.size());
            blocks_.push_back(block);
        }
        leave(BLOCK);
    } else {
        formula(node);
    }
}

// The TeX source of a formula, or its text.
void Reader::formula(void *node) {
    std::vector<void *> ancestors{node};
    for (void *at = dom_.first_child(node); !ancestors.empty();) {
        if (at == nullptr) {
            at = ancestors.back();
            ancestors.pop_back();
            at = ancestors.empty() ? nullptr : dom_.next(at);
            continue;
        }
        size_t length = 0;
        const char *name = dom_.type(at) == ELEMENT_NODE ? dom_.tag_name(at, &length) : nullptr;
        if (name != nullptr && std::string_view(name, length) == "annotation") {
            const std::string_view text = stripped(text_of(at));
            if (!text.empty() && attribute(at, "encoding").find("tex") != std::string_view::npos)
                return add_piece(" $" + std::string(text) + "$ ");
        }
        if (void *child = dom_.first_child(at)) {
            ancestors.push_back(at);
            at = child;
        } else {
            at = dom_.next(at);
        }
    }
    const std::string_view source = attribute(node, "alttext");
    if (!source.empty()) return add_piece(" $" + std::string(stripped(source)) + "$ ");
    const size_t start = strings_.size();
    collapsed(text_of(node));
    add_piece(" " + strings_.substr(start) + " ");
    strings_.resize(start);
}

std::string_view Reader::text_of(void *node) const {
    size_t length = 0;
    const char *text = dom_.text(node, &length);
    return {text, text ? length : 0};
}

// End the current block. Inline elements that are open go on in the next one.
void Reader::flush() {
    if (!piece_stops_.empty()) {
        const std::string_view raw = std::string_view(raw_).substr(block_start_);
        const int32_t start = collapsed(raw);
        if (static_cast<size_t>(start) < strings_.size()) {
            OaBlock block{};
            block.container = current_;
            block.raw_start = block_start_;
            block.raw_stop = static_cast<int32_t>(raw_.size());
            block.text_start = start;
            block.text_stop = static_cast<int32_t>(strings_.size());
            block.num_chars = num_chars(std::string_view(strings_).substr(start));
            block.num_breaks = breaks_;
            block.first_span = static_cast<int32_t>(spans_.size());
            for (const Open &each : open_)
                closed_.push_back({each.first, static_cast<int32_t>(piece_stops_.size()), each.mark, each.url_start, each.url_stop});
            if (!closed_.empty()) mark(block);
            blocks_.push_back(block);
        } else {
            raw_.resize(block_start_);
        }
        piece_stops_.clear();
    }
    closed_.clear();
    breaks_ = 0;
    for (Open &each : open_) each.first = 0;
}

void Reader::mark(OaBlock &block) {
    offsets_.assign(1, 0);
    int32_t at = 0, chars = 0;
    for (const int32_t stop : piece_stops_) {
        chars += num_chars(std::string_view(raw_).substr(block_start_ + at, stop - at));
        offsets_.push_back(chars);
        at = stop;
    }
    for (const Closed &each : closed_) {
        if (each.first >= each.stop) continue;
        spans_.push_back({offsets_[each.first], offsets_[each.stop], each.mark, each.url_start, each.url_stop});
        ++block.num_spans;
        if (each.mark == 0) {
            block.link_chars += offsets_[each.stop] - offsets_[each.first];
            ++block.num_links;
        }
    }
    block.link_chars = std::min(block.link_chars, block.num_chars);
}

// Append a text with its white space collapsed to the strings; return its start.
int32_t Reader::collapsed(std::string_view text) {
    const size_t start = strings_.size();
    bool space = false;
    for (size_t at = 0; at < text.size();) {
        const size_t from = at;
        if (is_space(next_code(text, at))) {
            space = true;
            continue;
        }
        if (space && strings_.size() > start) strings_.push_back(' ');
        space = false;
        strings_.append(text.substr(from, at - from));
    }
    return static_cast<int32_t>(start);
}

std::string_view Reader::attribute(void *node, std::string_view wanted) {
    for (void *each = dom_.first_attribute(node); each != nullptr; each = dom_.next_attribute(each)) {
        size_t length = 0;
        const char *name = dom_.attribute_name(each, &length);
        if (name == nullptr || std::string_view(name, length) != wanted) continue;
        const char *value = dom_.attribute_value(each, &length);
        return {value, value ? length : 0};
    }
    return {};
}

void Reader::link(void *node) {
    const std::string_view url = attribute(node, "href");
    const auto start = static_cast<int32_t>(strings_.size());
    strings_.append(url);
    open_.push_back({static_cast<int32_t>(piece_stops_.size()), 0, start, static_cast<int32_t>(strings_.size())});
}

// Lazy pages have a placeholder in `src`.
void Reader::image(void *node) {
    for (const std::string_view name : {"src", "data-src"}) {
        const std::string_view url = attribute(node, name);
        if (url.empty() || url.substr(0, 5) == "data:") continue;
        OaImage found{static_cast<int32_t>(blocks_.size()), current_, static_cast<int32_t>(strings_.size()), 0, 0, 0};
        strings_.append(url);
        found.url_stop = static_cast<int32_t>(strings_.size());
        found.alt_start = collapsed(attribute(node, "alt"));
        found.alt_stop = static_cast<int32_t>(strings_.size());
        images_.push_back(found);
        return;
    }
}

uint64_t Reader::word_bits(std::string_view word) {
    std::string key(word);
    const auto found = words_.find(key);
    if (found != words_.end()) return found->second;
    const uint64_t bits = rules_.word_bits(word.data(), static_cast<int32_t>(word.size()));
    if (words_.size() >= MAX_WORDS) words_.clear();
    words_.emplace(std::move(key), bits);
    return bits;
}

// As `_names_bits` of blocks.py: the groups of all words, and a bit if one name joins two nouns of content.
uint64_t Reader::names_bits(std::string_view value) {
    const std::string_view names = first_chars(value, MAX_NAMES);
    std::string key(names);
    const auto found = names_.find(key);
    if (found != names_.end()) return found->second;
    const uint64_t mask = (uint64_t{1} << rules_.num_bits) - 1;
    uint64_t bits = 0;
    bool joins = false;
    for (size_t at = 0; at < names.size();) {
        size_t stop = at;
        while (stop < names.size()) {
            size_t next = stop;
            if (is_space(next_code(names, next))) break;
            stop = next;
        }
        uint64_t nouns = 0;
        const std::string_view name = names.substr(at, stop - at);
        for (size_t from = 0; from < name.size();) {
            const std::string_view word = next_word(name, from);
            if (word.empty()) break;
            const uint64_t of_word = word_bits(word);
            bits |= of_word & mask;
            nouns |= of_word >> rules_.num_bits;
        }
        joins |= (nouns & (nouns - 1)) != 0;
        at = stop;
        if (at < names.size()) next_code(names, at);
    }
    if (joins) bits |= rules_.pair_bit;
    if (names_.size() >= MAX_WORDS) names_.clear();
    names_.emplace(std::move(key), bits);
    return bits;
}

}  // namespace oa

extern "C" {

__attribute__((visibility("default"))) void *oa_reader_new(const OaRules *rules) { return new oa::Reader(*rules); }
__attribute__((visibility("default"))) void oa_reader_free(void *reader) { delete static_cast<oa::Reader *>(reader); }

__attribute__((visibility("default"))) const OaPage *oa_page_read(void *reader, void *root, int64_t max_blocks) {
    return static_cast<oa::Reader *>(reader)->read(root, max_blocks);
}
}
