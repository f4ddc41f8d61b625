// Choice of a token from logits, the same as runtime/decoding/sampling.py.
//
// A random choice is an exponential race: the token with the smallest time -log1p(-u) / w wins, where w is its weight and u a
// uniform number from seed, position and token. Few tokens need a logarithm or an exponential: u / w is at most the time, and
// the exponent and fraction of u, read as an integer, give a lower bound of log2(u).
#include "abi.h"

#include <cfloat>
#include <cmath>
#include <cstring>

namespace {

constexpr uint64_t GOLDEN_RATIO = 0x9E3779B97F4A7C15ull;
constexpr double LN_2 = 0.6931471805599453;
// Relative difference of times below which Python decides with numpy's exp and log1p. The errors here are below 1e-12.
constexpr double MARGIN = 1e-9;
constexpr int MOST = 64;

uint64_t mixed(uint64_t state) {
    state = (state ^ (state >> 30)) * 0xBF58476D1CE4E5B9ull;
    state = (state ^ (state >> 27)) * 0x94D049BB133111EBull;
    return state ^ (state >> 31);
}

// A lower bound of log(x) of a number from 0 to 1, at most 0.06 below it.
double log_bound(double x) {
    int64_t bits;
    memcpy(&bits, &x, sizeof bits);
    return double(bits - (int64_t(1023) << 52)) * 0x1p-52 * LN_2;
}

struct Candidate {
    int32_t token;
    double time;
};

} // namespace

// The first of the highest logits; -1 if a logit is not a number or the highest is infinite.
OA_EXPORT int32_t oa_highest(const float *logits_V, int32_t count) {
    constexpr int LANES = 16;
    float highest_L[LANES];
    for (int lane = 0; lane < LANES; lane++) highest_L[lane] = -INFINITY;
    int32_t token = 0, unordered = 0;
    for (; token + LANES <= count; token += LANES)
        for (int lane = 0; lane < LANES; lane++) {
            const float logit = logits_V[token + lane];
            unordered |= logit != logit;
            highest_L[lane] = logit > highest_L[lane] ? logit : highest_L[lane];
        }
    float highest = -INFINITY;
    for (; token < count; token++) {
        unordered |= logits_V[token] != logits_V[token];
        highest = logits_V[token] > highest ? logits_V[token] : highest;
    }
    for (int lane = 0; lane < LANES; lane++) highest = highest_L[lane] > highest ? highest_L[lane] : highest;
    if (unordered || std::isinf(highest)) return -1;
    for (token = 0; logits_V[token] != highest;) token++;
    return token;
}

// The winner of the race between tokens whose logits are at most `negligible` temperatures below that of `highest`, the
// result of oa_highest. -1 if two times are nearly equal. `begin` is the state from seed and position.
OA_EXPORT int32_t oa_race(
    const float *logits_V, int32_t count, int32_t highest, double temperature, double negligible, uint64_t begin
) {
    const double top = logits_V[highest];
    const float lowest = float(std::fmax(top - negligible * temperature, -double(FLT_MAX)));
    const double per_temperature = 1 / temperature;
    double best = INFINITY, log_best = INFINITY;
    Candidate candidates[MOST];
    int num = 0;
    for (int32_t token = 0; token < count; token++) {
        const float logit = logits_V[token];
        if (!(logit >= lowest)) continue;
        const double u = double(int64_t(mixed(begin + uint64_t(token) * GOLDEN_RATIO) >> 11)) * 0x1p-53;
        const double log_weight = (logit - top) * per_temperature;
        if (log_bound(u) > log_best + log_weight + MARGIN * (1 - log_weight)) continue;
        const double weight = std::exp((logit - top) / temperature), bound = u / weight;
        if (bound > best * (1 + MARGIN)) continue;
        const double time = -std::log1p(-u) / weight;
        if (time < best) {
            best = time;
            log_best = std::log(time);
            int kept = 0;
            for (int i = 0; i < num; i++)
                if (candidates[i].time <= best * (1 + MARGIN)) candidates[kept++] = candidates[i];
            num = kept;
        }
        if (time > best * (1 + MARGIN)) continue;
        if (num == MOST) return -1;
        candidates[num++] = {token, time};
    }
    return num == 1 ? candidates[0].token : -1;
}
