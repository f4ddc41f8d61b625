// Runs steps, forks and all other concurrent operations in a process without Python, for the compiler's sanitizers
// (`make sanitize`). A sequence's logits must be bit-identical to those of the same sequence alone.
#include <stddef.h>

#include <atomic>
#include <chrono>
#include <mutex>
#include <new>
#include <thread>

#include "sanitize_engine.h"
#include "sanitize_tower.h"

namespace {

thread_local int allocations_left = -1;  // allocations of this thread that succeed; -1: all

void *allocated(size_t size, size_t alignment) {
    if (allocations_left == 0) return nullptr;
    if (allocations_left > 0) allocations_left--;
    return aligned_alloc(alignment, (size + alignment) / alignment * alignment);
}

// Runs every shape with batches, partial and full pages, forks, rollbacks, saves and loads.
void steps_of_every_shape(const char *kernels) {
    int seed = 0;
    for (const Shape &shape : shapes) {
        seed++;
        Engine engine(shape, seed, 1 + seed % 4, kernels);
        const int vocab_size = shape.vocab_size;
        Step nothing;
        nothing.run(engine.model.get());
        std::vector<Sequence> held;
        for (int i = 0; i < 3; i++) held.push_back(engine.new_sequence(i));
        for (int round = 0; round < 4; round++) {
            Step step;
            std::vector<Sequence *> taking_part;
            for (Sequence &sequence : held) {
                if (up_to(engine.random, 3) == 0) continue;
                if (sequence.tokens.size() > 70) sequence.tokens.resize(up_to(engine.random, 70));  // rolled back
                const Tokens more = engine.some_tokens(engine.few_or_many());
                const int wanted[] = {0, 1, (int)more.size()};
                step.add(sequence, more, wanted[up_to(engine.random, 2)], vocab_size);
                taking_part.push_back(&sequence);
            }
            step.run(engine.model.get());
            engine.check(step, taking_part);
            const Sequence &from = held[up_to(engine.random, 2)];
            Sequence forked = fork_of(from, up_to(engine.random, (int)from.tokens.size()));
            const int64_t length = (int64_t)forked.tokens.size();
            std::vector<uint8_t> saved(oa_cache_bytes(forked.cache.get(), length));
            oa_cache_save(forked.cache.get(), length, saved.data());
            Sequence loaded = {Cache(oa_cache_new(engine.model.get())), forked.tokens, forked.adapter};
            CHECK(!oa_cache_load(loaded.cache.get(), length, saved.data()));
            held[up_to(engine.random, 2)] = std::move(up_to(engine.random, 1) ? loaded : forked);
        }
    }
}

// A queue of sequences for a thread that reads and frees them.
class Handed {
public:
    void put(Sequence sequence) {
        std::lock_guard<std::mutex> lock(mutex_);
        sequences_.push_back(std::move(sequence));
    }

    Sequence take() {
        std::lock_guard<std::mutex> lock(mutex_);
        if (sequences_.empty()) return {};
        Sequence sequence = std::move(sequences_.back());
        sequences_.pop_back();
        return sequence;
    }

private:
    std::mutex mutex_;
    std::vector<Sequence> sequences_;
};

// Operations of another thread during steps, on caches that are not in a step but share pages with some that are.
void fork_and_free(const Engine &engine, const Sequence &shared, Handed &handed, int seed, const std::atomic<bool> &ending) {
    Random random(seed);
    std::vector<Sequence> held;
    std::vector<uint8_t> saved(2 * oa_cache_bytes(shared.cache.get(), (int64_t)shared.tokens.size()));
    while (!ending.load()) {
        while (const Sequence given = handed.take())
            oa_cache_save(given.cache.get(), (int64_t)given.tokens.size(), saved.data());
        held.push_back(fork_of(shared, up_to(random, (int)shared.tokens.size())));
        const Sequence &last = held.back();
        const int64_t length = (int64_t)last.tokens.size();
        oa_cache_save(last.cache.get(), length, saved.data());
        if (up_to(random, 1)) CHECK(!oa_cache_load(last.cache.get(), length, saved.data()));  // into copies of its own
        std::vector<uint64_t> pages(oa_cache_pages(last.cache.get(), nullptr));
        oa_cache_pages(last.cache.get(), pages.data());
        if (held.size() > 4) held.erase(held.begin() + up_to(random, 4));
        if (up_to(random, 3) == 0) oa_cache_free(oa_cache_new(engine.model.get()));
        std::this_thread::sleep_for(std::chrono::microseconds(100));  // the steps need the processors
    }
}

void idle_a_little(Random &random) {
    if (up_to(random, 3) == 0) std::this_thread::sleep_for(std::chrono::microseconds(up_to(random, 2000)));
}

// An engine steps, alternately in this thread and in a worker thread, while two other threads fork and free shared pages.
void steps_beside_others(const char *kernels, const Shape &shape, int seed, int num_rounds) {
    Engine engine(shape, seed, 3, kernels);
    const int vocab_size = shape.vocab_size;
    Sequence shared = engine.new_sequence(1);
    Step prefill;
    prefill.add(shared, engine.some_tokens(70), 1, vocab_size);
    prefill.run(engine.model.get());
    engine.check(prefill, {&shared});
    engine.most_begin_with(shared);
    Handed handed;
    std::atomic<bool> ending{false};
    std::vector<std::thread> others;
    for (int i = 0; i < 2; i++)
        others.emplace_back([&, i] { fork_and_free(engine, shared, handed, 10 * seed + i, ending); });
    for (int round = 0; round < num_rounds; round++) {
        std::vector<Sequence> forks;
        for (int i = 0; i < 3; i++) forks.push_back(fork_of(shared, up_to(engine.random, 70)));
        for (int again = 0; again < 2; again++) {
            Step step;
            std::vector<Sequence *> taking_part;
            for (Sequence &sequence : forks) {
                handed.put(fork_of(sequence, sequence.tokens.size()));
                step.add(sequence, engine.some_tokens(again ? 1 : 1 + up_to(engine.random, 10)), 1, vocab_size);
                taking_part.push_back(&sequence);
            }
            idle_a_little(engine.random);  // until it is freed, or not yet
            if (round % 2) {
                step.run(engine.model.get());
            } else {
                std::thread worker([&] { step.run(engine.model.get()); });
                Sequence beside = fork_of(shared, 65);
                worker.join();
            }
            engine.check(step, taking_part);
        }
    }
    ending.store(true);
    for (std::thread &other : others) other.join();
    Step at_last;
    at_last.add(shared, engine.some_tokens(1), 1, vocab_size);
    at_last.run(engine.model.get());
    engine.check(at_last, {&shared});
}

// Creates and ends pools of threads, idle and busy ones, with more and fewer products than threads.
void pools_come_and_go(const char *kernels) {
    const Weights weights(shapes[3], 5);
    Random random(6);
    for (int round = 0; round < 12; round++) {
        const Model model(oa_model_new(&weights.config, 1 + up_to(random, 4), kernels));
        for (int n = up_to(random, 3); n > 0; n--) {
            const OaMatrix &matrix = weights.config.layers[0].feed_forwards[0].gate;
            const int num_rows = up_to(random, 20);
            const Floats x = between(random, (size_t)num_rows * matrix.num_inputs, -1, 1);
            Floats y((size_t)num_rows * matrix.num_outputs);
            oa_product(model.get(), &matrix, nullptr, x.data(), num_rows, y.data());
            idle_a_little(random);
        }
    }
}

// Calls it until it succeeds, each time with one more successful allocation.
template <class Work>
void with_ever_more_memory(const Work &work) {
    for (int most = 0;; most++) {
        allocations_left = most;
        const bool is_done = work();
        allocations_left = -1;
        if (is_done) return;
    }
}

// Every failing allocation makes the call return an error; the repeated call succeeds.
void memory_runs_out(const char *kernels) {
    Engine engine(shapes[0], 1, 3, kernels);
    const int vocab_size = engine.weights.config.vocab_size;
    Model model;
    with_ever_more_memory([&] { return (bool)(model = Model(oa_model_new(&engine.weights.config, 3, kernels))); });
    Sequence first = {nullptr, {}, engine.weights.adapter(0)}, forked = {}, other = engine.new_sequence(1);
    with_ever_more_memory([&] { return (bool)(first.cache = Cache(oa_cache_new(model.get()))); });
    for (int count : {3, 70, 9}) {
        const int64_t length = (int64_t)first.tokens.size();
        forked.tokens = first.tokens, forked.adapter = first.adapter;
        with_ever_more_memory([&] { return (bool)(forked.cache = Cache(oa_cache_fork(first.cache.get(), length))); });
        Step step;
        step.add(first, engine.some_tokens(count), 1, vocab_size);
        step.add(forked, engine.some_tokens(2), 1, vocab_size);
        step.add(other, engine.some_tokens(2), 1, vocab_size);
        with_ever_more_memory([&] { return step.succeeds(model.get()); });
        engine.check(step, {&first, &forked, &other});
    }
    const int64_t length = (int64_t)first.tokens.size();
    std::vector<uint8_t> saved(oa_cache_bytes(first.cache.get(), length));
    oa_cache_save(first.cache.get(), length, saved.data());
    Sequence loaded = {Cache(oa_cache_new(model.get())), first.tokens, first.adapter};
    with_ever_more_memory([&] { return !oa_cache_load(loaded.cache.get(), length, saved.data()); });
    Step step;
    step.add(loaded, engine.some_tokens(1), 1, vocab_size);
    step.run(model.get());
    engine.check(step, {&loaded});
}

}  // namespace

#pragma GCC diagnostic ignored "-Wmismatched-new-delete"  // if the compiler inlines one of these and not the other
void *operator new(size_t size) {
    if (void *memory = allocated(size, alignof(max_align_t))) return memory;
    throw std::bad_alloc();
}

void *operator new(size_t size, std::align_val_t alignment) {
    if (void *memory = allocated(size, (size_t)alignment)) return memory;
    throw std::bad_alloc();
}

void *operator new(size_t size, const std::nothrow_t &) noexcept { return allocated(size, alignof(max_align_t)); }
void operator delete(void *memory) noexcept { free(memory); }
void operator delete(void *memory, size_t) noexcept { free(memory); }
void operator delete(void *memory, std::align_val_t) noexcept { free(memory); }
void operator delete(void *memory, size_t, std::align_val_t) noexcept { free(memory); }

int main() {
    const char *kernels;
    for (int i = 0; (kernels = oa_kernels(i)); i++) {
        const auto started = std::chrono::steady_clock::now();
        steps_of_every_shape(kernels);
        towers(kernels);
        pools_come_and_go(kernels);
        memory_runs_out(kernels);
        // Two engines concurrently.
        std::thread other([kernels] { steps_beside_others(kernels, shapes[3], 8, 4); });
        steps_beside_others(kernels, shapes[0], 7, 4);
        other.join();
        const std::chrono::duration<double> took = std::chrono::steady_clock::now() - started;
        printf("%s: clean, in %.1f s\n", kernels, took.count());
        fflush(stdout);
    }
    return 0;
}
