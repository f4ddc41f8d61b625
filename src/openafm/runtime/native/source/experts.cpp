// Mixtures of experts without a capacity limit: rows are sorted by expert, so that each expert's weights are read once.
#include <math.h>
#include <string.h>

#include <algorithm>

#include "model.h"

// Chooses the experts with the highest logits for one row; of equal ones that with the lower index. Weights are the softmax
// over the chosen logits.
void OaModel::choose(const OaLayer &layer, int64_t row) {
    const int num_experts = layer.num_experts, num_chosen = layer.num_chosen;
    float *logits = &routing.logits[row * num_experts], *weights = &routing.weights[row * num_chosen];
    int *experts = &routing.experts[row * num_chosen];
    if (layer.soft_cap > 0)
        for (int e = 0; e < num_experts; e++)
            logits[e] = layer.soft_cap * (float)tanh((double)(logits[e] / layer.soft_cap));
    for (int k = 0; k < num_chosen; k++) {  // inserts expert by expert, so that those chosen so far stay ascending
        int best = -1;
        for (int e = 0; e < num_experts; e++) {
            bool is_chosen = false;
            for (int i = 0; i < k; i++) is_chosen |= experts[i] == e;
            if (!is_chosen && (best < 0 || logits[e] > logits[best])) best = e;
        }
        int place = k;
        for (; place > 0 && experts[place - 1] > best; place--) experts[place] = experts[place - 1];
        experts[place] = best;
    }
    float highest = logits[experts[0]];
    for (int k = 1; k < num_chosen; k++) highest = logits[experts[k]] > highest ? logits[experts[k]] : highest;
    double sum = 0;
    for (int k = 0; k < num_chosen; k++) sum += exp((double)logits[experts[k]] - (double)highest);
    for (int k = 0; k < num_chosen; k++) weights[k] = (float)(exp((double)logits[experts[k]] - (double)highest) / sum);
}

// Sorts pairs of a row and an expert by expert, then by row.
void OaModel::sort_rows(const OaLayer &layer, int num_rows) {
    const int64_t num_pairs = (int64_t)num_rows * layer.num_chosen;
    std::vector<int> &begins = routing.begins, &active = routing.active;
    std::fill(begins.begin(), begins.end(), 0);
    for (int64_t i = 0; i < num_pairs; i++) begins[routing.experts[i] + 1]++;
    active.clear();
    for (int e = 0; e < layer.num_experts; e++) {
        if (begins[e + 1]) active.push_back(e);  // within the capacity that is reserved
        begins[e + 1] += begins[e];
    }
    for (int64_t i = 0; i < num_pairs; i++) routing.places[i] = begins[routing.experts[i]]++;
    for (int e = layer.num_experts; e > 0; e--) begins[e] = begins[e - 1];  // each is the end of its expert now
    begins[0] = 0;
}

void OaModel::route(const OaLayer &layer, int num_rows) {
    multiply({{&layer.router, routing.logits.data()}}, normed.data(), num_rows);
    for_rows(num_rows, [&](int first, int last) {
        for (int64_t n = first; n < last; n++) choose(layer, n);
    });
    sort_rows(layer, num_rows);
}

template <class Work>
void OaModel::for_expert_panels(int num_panels, const Work &work) {
    const std::vector<int> &active = routing.active;
    pool.parallel((int)active.size() * num_panels, [&](int first, int last) {
        for (int i = first, stop; i < last; i = stop) {
            const int begin = i / num_panels * num_panels;
            stop = begin + num_panels < last ? begin + num_panels : last;
            work(active[i / num_panels], i - begin, stop - begin);
        }
    });
}

void OaModel::mix_experts(const OaLayer &layer, int num_rows) {
    const int64_t dim = config.dim, num_chosen = layer.num_chosen;
    const int num_sorted = (int)(num_rows * num_chosen);
    const OaFeedForward *experts = layer.feed_forwards;
    const int hidden_dim = experts[0].gate.num_outputs;
    route(layer, num_rows);
    const auto rows_of = [&](const float *x, int expert, int num_inputs) {
        const int begin = routing.begins[expert];
        return inputs(x, num_sorted).part(begin, routing.begins[expert + 1] - begin, num_inputs);
    };
    for_rows(num_rows, [&](int first, int last) {
        for (int64_t i = first * num_chosen; i < last * num_chosen; i++)
            memcpy(&expert_input[routing.places[i] * dim], &normed[i / num_chosen * dim], dim * sizeof(float));
    });
    round(expert_input.data(), num_sorted, config.dim);
    for_expert_panels(panels_of(experts[0].gate), [&](int e, int first, int last) {
        const int64_t at = (int64_t)routing.begins[e] * hidden_dim;
        gate_panels({&experts[e].gate, &gate[at]}, {&experts[e].up, &up[at]}, rows_of(expert_input.data(), e, config.dim), first,
                    last, low_rank.data());
    });
    round(gate.data(), num_sorted, hidden_dim);
    for_expert_panels(panels_of(experts[0].down), [&](int e, int first, int last) {
        float *y = &expert_output[routing.begins[e] * dim];
        multiply_panels({&experts[e].down, y}, rows_of(gate.data(), e, hidden_dim), first, last, low_rank.data());
    });
    for_rows(num_rows, [&](int first, int last) {
        for (int64_t n = first; n < last; n++)
            for (int64_t i = 0; i < dim; i++) {
                float sum = 0;
                for (int64_t k = n * num_chosen; k < (n + 1) * num_chosen; k++)
                    sum += expert_output[routing.places[k] * dim + i] * routing.weights[k];
                states[n * dim + i] += sum;
            }
    });
}
