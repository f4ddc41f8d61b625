// Features of blocks and the probabilities of the two stages of trees, as features.py and trees.py compute them.
#include <algorithm>
#include <cmath>
#include <string_view>
#include <unordered_map>

#include "page.h"
#include "unicode.h"

namespace oa {

namespace {

constexpr int32_t LEVELS = 4, MAX_TEXT = 60'000;
constexpr int NEIGHBORS[] = {-3, -2, -1, 1, 2, 3}, SCORE_NEIGHBORS[] = {-4, -3, -2, -1, 1, 2, 3, 4};
enum Mark : uint8_t { END = 1, WIDE_END = 2, AFTER_END = 4, LAST = 8 };
enum Counted { COMMA, SPACE, DIGIT, SYMBOL };

using Doubles = std::vector<double>;

class Scorer {
public:
    Scorer(const OaRules &rules, const std::vector<OaBlock> &blocks, const std::vector<OaContainer> &containers,
           const std::string &strings)
        : rules_(rules), blocks_(blocks), containers_(containers), strings_(strings), count_(static_cast<int32_t>(blocks.size())) {}

    void score(std::vector<float> &scores) {
        set_levels();
        add_texts();
        add_containers();
        add_paths();
        add_prose();
        add_tags();
        add_neighbors();
        add_names();
        probabilities(rules_.local, scores);
        const size_t rest = rows_.size();
        add_context(scores);
        order_context(rest);
        probabilities(rules_.context, scores);
    }

private:
    float *row() {
        rows_.emplace_back(count_);
        return rows_.back().data();
    }

    template <typename Value>
    void add(Value value) {
        float *to = row();
        for (int32_t block = 0; block < count_; ++block) to[block] = static_cast<float>(value(block));
    }

    void set_levels() {
        for (auto &level : levels_) level.resize(count_);
        for (int32_t block = 0; block < count_; ++block) {
            int32_t at = blocks_[block].container;
            for (auto &level : levels_) {
                level[block] = at;
                at = std::max(containers_[at].parent, 0);
            }
        }
    }

    // Counts of characters by class.
    void add_texts() {
        for (auto *values : {&length_, &link_chars_, &sentences_, &spaces_, &density_}) values->resize(count_);
        Doubles commas(count_), digits(count_), symbols(count_), before(count_);
        std::vector<uint8_t> last(count_);
        double total = 0;
        int32_t heading = -1;
        for (int32_t block = 0; block < count_; ++block) {
            const OaBlock &of = blocks_[block];
            const auto text = std::string_view(strings_).substr(of.text_start, of.text_stop - of.text_start);
            uint64_t counted = 0;
            int32_t ends = 0, seen = 0;
            uint8_t mark = 0;
            for (size_t at = 0; at < text.size() && seen < MAX_TEXT; ++seen) {
                const uint32_t code = next_code(text, at);
                const uint8_t next = code < 0x10000 ? rules_.marks[code] : 0;
                counted += code < 0x10000 ? rules_.counted[code] : 0;
                ends += (mark & END) != 0 && (next & AFTER_END) != 0;
                ends += (next & WIDE_END) != 0;
                mark = next;
            }
            ends += (mark & END) != 0;
            length_[block] = of.num_chars;
            link_chars_[block] = of.link_chars;
            sentences_[block] = ends;
            commas[block] = of_class(counted, COMMA);
            spaces_[block] = of_class(counted, SPACE);
            digits[block] = of_class(counted, DIGIT);
            symbols[block] = of_class(counted, SYMBOL);
            last[block] = (mark & LAST) != 0;
            density_[block] = link_chars_[block] / length_[block];
            before[block] = total;
            total += length_[block];
            if (heading < 0 && tag(block) == rules_.first_heading) heading = block;
        }
        total_ = total + 1.0;
        add([&](int32_t b) { return std::log1p(length_[b]); });
        add([&](int32_t b) { return density_[b]; });
        add([&](int32_t b) { return std::log1p(spaces_[b]); });
        add([&](int32_t b) { return sentences_[b]; });
        add([&](int32_t b) { return sentences_[b] / words(b) * 10; });
        add([&](int32_t b) { return commas[b] / words(b) * 10; });
        add([&](int32_t b) { return digits[b] / length_[b]; });
        add([&](int32_t b) { return symbols[b] / length_[b] * 10; });
        add([&](int32_t b) { return last[b]; });
        add([&](int32_t b) { return std::log1p(double(blocks_[b].num_links)); });
        add([&](int32_t b) { return std::log1p(double(blocks_[b].num_breaks)); });
        add([&](int32_t b) { return blocks_[b].preformatted; });
        add([&](int32_t b) { return double(b) / count_; });
        add([&](int32_t b) { return before[b] / total_; });
        add([&](int32_t b) { return std::min(b, 50); });
        add([&](int32_t b) { return std::min(count_ - b, 50); });
        add([&](int32_t) { return std::log1p(double(count_)); });
        add([&](int32_t) { return std::log1p(total_); });
        add([&](int32_t) { return heading >= 0; });
        add([&](int32_t b) { return heading >= 0 ? std::clamp(b - heading, -50, 50) : 99; });
        add([&](int32_t b) { return containers_[levels_[0][b]].depth; });
    }

    static double of_class(uint64_t counted, int kind) { return static_cast<double>(counted >> (16 * kind) & 0xFFFF); }
    double words(int32_t block) const { return std::max(spaces_[block], 1.0); }
    int32_t tag(int32_t block) const { return containers_[blocks_[block].container].tag; }

    // Sums of the blocks' values over each container and all below it.
    Doubles sums(const Doubles &values) const {
        const auto count = static_cast<uint32_t>(containers_.size());
        Doubles direct(count), prefix(count + size_t{1}), result(count);
        for (int32_t block = 0; block < count_; ++block) direct[levels_[0][block]] += values[block];
        for (size_t at = 0; at < count; ++at) prefix[at + 1] = prefix[at] + direct[at];
        for (size_t at = 0; at < count; ++at) result[at] = prefix[containers_[at].stop] - prefix[at];
        return result;
    }

    void add_containers() {
        prose_.resize(count_);
        for (int32_t b = 0; b < count_; ++b) prose_[b] = length_[b] * (1 - density_[b]) * (sentences_[b] > 0);
        chars_inside_ = sums(length_);
        blocks_inside_ = sums(Doubles(count_, 1.0));
        links_inside_ = sums(link_chars_);
        prose_inside_ = sums(prose_);
        const size_t count = containers_.size();
        Doubles direct(count);
        siblings_.assign(count, 0.0);
        for (int32_t b = 0; b < count_; ++b) direct[levels_[0][b]] += prose_[b];
        for (size_t at = 0; at < count; ++at) siblings_[std::max(containers_[at].parent, 0)] += direct[at];
        const auto main = static_cast<int32_t>(std::max_element(siblings_.begin(), siblings_.end()) - siblings_.begin());
        int32_t first = -1, stop = count_ - 1;
        std::vector<char> inside(count_);
        for (int32_t b = 0; b < count_; ++b) {
            inside[b] = levels_[0][b] >= main && levels_[0][b] < containers_[main].stop;
            if (inside[b] && first < 0) first = b;
            if (inside[b]) stop = b;
        }
        if (first < 0) first = 0, stop = count_ - 1;
        most_ = siblings_[main];
        add([&](int32_t b) { return inside[b]; });
        add([&](int32_t b) { return std::clamp(b - first, -30, 30); });
        add([&](int32_t b) { return std::clamp(stop - b, -30, 30); });
    }

    // Blocks with the same tag in the same container.
    void add_paths() {
        struct Path {
            double count = 0, length = 0, density = 0;
        };
        std::unordered_map<int64_t, Path> paths;
        std::vector<const Path *> of(count_);
        for (int32_t b = 0; b < count_; ++b) {
            Path &path = paths[int64_t{levels_[1][b]} * rules_.num_block_tags + tag(b)];
            path.count += 1, path.length += length_[b], path.density += density_[b];
            of[b] = &path;
        }
        add([&](int32_t b) { return std::log1p(of[b]->count); });
        add([&](int32_t b) { return of[b]->length / total_; });
        add([&](int32_t b) { return of[b]->density / of[b]->count; });
    }

    void add_prose() {
        Doubles prefix(count_ + 1);
        for (int32_t b = 0; b < count_; ++b) prefix[b + 1] = prefix[b] + std::min(prose_[b], 500.0);
        for (const int width : {5, 15})
            add([&](int32_t b) { return std::log1p(prefix[std::min(b + width + 1, count_)] - prefix[std::max(b - width, 0)]); });
    }

    void add_tags() {
        for (int32_t index = 0; index < rules_.num_tag_rows; ++index)
            add([&](int32_t b) { return rules_.tag_rows[index * rules_.num_block_tags + tag(b)]; });
        const auto of_containers = [&](auto value) {
            for (const auto &level : levels_) add([&](int32_t b) { return value(level[b]); });
        };
        of_containers([&](int32_t c) { return std::log1p(chars_inside_[c]); });
        of_containers([&](int32_t c) { return links_inside_[c] / std::max(chars_inside_[c], 1.0); });
        of_containers([&](int32_t c) { return prose_inside_[c] / (prose_inside_[0] + 1); });
        of_containers([&](int32_t c) { return std::log1p(blocks_inside_[c]); });
        of_containers([&](int32_t c) { return prose_inside_[c] / std::max(chars_inside_[c], 1.0); });
        for (int level = 0; level < 3; ++level)
            add([&](int32_t b) { return siblings_[levels_[level][b]] / (most_ + 1); });
    }

    template <typename Value>
    void add_shifted(const int (&shifts)[6], Value value, double outside) {
        for (const int shift : shifts)
            add([&](int32_t b) { return b + shift < 0 || b + shift >= count_ ? outside : value(b + shift); });
    }

    void add_neighbors() {
        add_shifted(NEIGHBORS, [&](int32_t b) { return std::log1p(length_[b]); }, 0);
        add_shifted(NEIGHBORS, [&](int32_t b) { return density_[b]; }, 0);
        add_shifted(NEIGHBORS, [&](int32_t b) { return std::min(sentences_[b], 5.0); }, 0);
        for (int level = 0; level < 2; ++level)
            for (const int shift : NEIGHBORS)
                add([&](int32_t b) {
                    return b + shift >= 0 && b + shift < count_ && levels_[level][b + shift] == levels_[level][b];
                });
    }

    void add_names() {
        const auto add_bits = [&](auto bits) {
            for (int32_t bit = 0; bit < rules_.num_bits; ++bit) add([&](int32_t b) { return bits(b) >> bit & 1; });
        };
        add_bits([&](int32_t b) { return containers_[levels_[0][b]].bits; });
        add_bits([&](int32_t b) { return containers_[levels_[1][b]].bits | containers_[levels_[2][b]].bits; });
        add_bits([&](int32_t b) { return containers_[levels_[0][b]].inherited; });
    }

    // The scores of the first stage around a block and in its containers.
    void add_context(const std::vector<float> &scores) {
        Doubles mass(count_ + 1), base(count_ + 1), weighted(count_), of_blocks(count_);
        std::vector<int32_t> following(count_), preceding(count_);
        float most = 0;
        int32_t chosen = -1;
        for (int32_t b = 0; b < count_; ++b) {
            const double weight = std::min(length_[b], 300.0);
            mass[b + 1] = mass[b] + weight * scores[b], base[b + 1] = base[b] + weight;
            weighted[b] = length_[b] * scores[b], of_blocks[b] = scores[b];
            most = std::max(most, scores[b]);
            preceding[b] = chosen < 0 ? 50 : std::min(b - chosen, 50);
            if (scores[b] > 0.5f) chosen = b;
        }
        chosen = -1;
        for (int32_t b = count_ - 1; b >= 0; --b) {
            if (scores[b] > 0.5f) chosen = b;
            following[b] = chosen < 0 ? 50 : std::min(chosen - b, 50);
        }
        add([&](int32_t b) { return scores[b]; });
        add([&](int32_t b) { return mass[b + 1] / (mass[count_] + 1); });
        add([&](int32_t) { return std::log1p(mass[count_]); });
        add([&](int32_t) { return most; });
        for (const auto &[back, on] : {std::pair{3, 3}, {8, 8}, {8, 0}, {0, 8}})
            add([&, back = back, on = on](int32_t b) {
                const int32_t low = std::max(b - back, 0), high = std::min(b + on + 1, count_);
                return (mass[high] - mass[low]) / (base[high] - base[low] + 1);
            });
        add([&](int32_t b) { return following[b]; });
        add([&](int32_t b) { return preceding[b]; });
        const Doubles inside = sums(weighted), scores_inside = sums(of_blocks);
        for (const auto &level : levels_)
            add([&](int32_t b) { return inside[level[b]] / std::max(chars_inside_[level[b]], 1.0); });
        for (const auto &level : levels_)
            add([&](int32_t b) { return scores_inside[level[b]] / std::max(blocks_inside_[level[b]], 1.0); });
        for (const auto &level : levels_) add([&](int32_t b) { return inside[level[b]] / (inside[0] + 1); });
        for (const int shift : SCORE_NEIGHBORS)
            add([&](int32_t b) { return b + shift < 0 || b + shift >= count_ ? 0.0f : scores[b + shift]; });
    }

    // The second stage has its own features first.
    void order_context(size_t rest) { std::rotate(rows_.begin(), rows_.begin() + static_cast<ptrdiff_t>(rest), rows_.end()); }

    void probabilities(const OaTrees &trees, std::vector<float> &scores) const {
        Doubles logits(count_);
        std::vector<int32_t> leaf(count_);
        for (int32_t tree = 0; tree < trees.num_trees; ++tree) {
            std::fill(leaf.begin(), leaf.end(), 0);
            for (int32_t level = 0; level < trees.depth; ++level) {
                const float *values = rows_[trees.features[level * trees.num_trees + tree]].data();
                const float threshold = trees.thresholds[level * trees.num_trees + tree];
                for (int32_t b = 0; b < count_; ++b) leaf[b] = 2 * leaf[b] + (values[b] > threshold);
            }
            const float *leaves = trees.leaves + (static_cast<ptrdiff_t>(tree) << trees.depth);
            for (int32_t b = 0; b < count_; ++b) logits[b] += leaves[leaf[b]];
        }
        scores.resize(count_);
        for (int32_t b = 0; b < count_; ++b) scores[b] = static_cast<float>(1 / (1 + std::exp(-(logits[b] + trees.bias))));
    }

    const OaRules &rules_;
    const std::vector<OaBlock> &blocks_;
    const std::vector<OaContainer> &containers_;
    const std::string &strings_;
    const int32_t count_;
    std::vector<std::vector<float>> rows_;
    std::vector<int32_t> levels_[LEVELS];
    Doubles length_, link_chars_, sentences_, spaces_, density_, prose_;
    Doubles chars_inside_, links_inside_, prose_inside_, blocks_inside_, siblings_;
    double total_ = 1.0, most_ = 0.0;
};

}  // namespace

void score_blocks(const OaRules &rules, const std::vector<OaBlock> &blocks, const std::vector<OaContainer> &containers,
                  const std::string &strings, std::vector<float> &scores) {
    if (!blocks.empty()) Scorer(rules, blocks, containers, strings).score(scores);
}

}  // namespace oa
