#include "pool.h"

#include <exception>

#if defined(__x86_64__)
#include <immintrin.h>
static inline void relax() { _mm_pause(); }
#else
static inline void relax() { std::this_thread::yield(); }
#endif

namespace {

enum { SPINS = 4000 };
thread_local int number_of_thread = 0;

// Spins until `done` or for SPINS iterations. Returns done().
template <class Done>
bool spin_until(const Done &done) {
    for (int i = 0; i < SPINS; i++) {
        if (done()) return true;
        relax();
    }
    return done();
}

}  // namespace

Pool::Pool(int num_threads) : num_threads_(num_threads < 1 ? 1 : num_threads) {
    threads_.reserve(num_threads_);
    try {
        for (int i = 1; i < num_threads_; i++) threads_.emplace_back([this, i] { serve(i); });
    } catch (const std::exception &) {  // no more threads or memory: continue with those created so far
    }
}

Pool::~Pool() {
    {
        std::lock_guard<std::mutex> lock(mutex_);
        ending_ = true;
    }
    wake_.notify_all();
    for (auto &thread : threads_) thread.join();
}

int Pool::this_thread() { return number_of_thread; }

void Pool::run(int count, Call call, const void *work) {
    if (num_threads_ == 1 || count <= 1) {
        if (count > 0) call(work, 0, count);
        return;
    }
    call_ = call, work_ = work, count_ = count;
    unfinished_.store(count);
    state_.store(((state_.load() >> 32) + 1) << 32 | (uint32_t)count);
    if (sleeping_.load() > 0) {
        { std::lock_guard<std::mutex> lock(mutex_); }
        wake_.notify_all();
    }
    take_pieces();
    while (!spin_until([this] { return unfinished_.load() == 0; })) std::this_thread::yield();
}

// A piece is half of a fair share of the remaining items: long pieces first, for sequential reads, short ones at the end, so
// that no thread finishes much later than the others. The task cannot end, or be replaced, before a taken piece is finished.
void Pool::take_pieces() {
    uint64_t state = state_.load();
    while (const int left = (int)(uint32_t)state) {
        const int share = left / (2 * num_threads_), size = share < 1 ? 1 : share;
        if (!state_.compare_exchange_weak(state, state - (uint64_t)size)) continue;
        const int first = count_ - left;
        call_(work_, first, first + size);
        unfinished_.fetch_sub(size);
        state = state_.load();
    }
}

void Pool::serve(int number) {
    number_of_thread = number;
    const auto is_wanted = [this] { return is_work() || ending_.load(); };
    while (!ending_.load()) {
        if (!spin_until(is_wanted)) {
            std::unique_lock<std::mutex> lock(mutex_);
            sleeping_++;
            wake_.wait(lock, is_wanted);
            sleeping_--;
        }
        take_pieces();
    }
}
