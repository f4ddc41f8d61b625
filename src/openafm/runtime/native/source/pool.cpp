#include "pool.h"

#if defined(__x86_64__)
#include <immintrin.h>
static inline void relax() { _mm_pause(); }
#else
static inline void relax() { std::this_thread::yield(); }
#endif

namespace {

enum { SPINS = 4000, PIECES_EACH = 4 };

// Until `done`: spin a while, then let others have the processor.
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
    for (int i = 1; i < num_threads_; i++) threads_.emplace_back([this] { serve(); });
}

Pool::~Pool() {
    {
        std::lock_guard<std::mutex> lock(mutex_);
        ending_ = true;
    }
    wake_.notify_all();
    for (auto &thread : threads_) thread.join();
}

void Pool::run(int count, Call call, const void *work) {
    if (num_threads_ == 1 || count <= 1) {
        if (count > 0) call(work, 0, count);
        return;
    }
    call_ = call, work_ = work, count_ = count;
    piece_ = (count + num_threads_ * PIECES_EACH - 1) / (num_threads_ * PIECES_EACH);
    const uint32_t num_pieces = (uint32_t)((count + piece_ - 1) / piece_);
    unfinished_.store((int)num_pieces);
    state_.store(((state_.load() >> 32) + 1) << 32 | num_pieces);
    if (sleeping_.load() > 0) {
        { std::lock_guard<std::mutex> lock(mutex_); }
        wake_.notify_all();
    }
    take_pieces();
    while (!spin_until([this] { return unfinished_.load() == 0; })) std::this_thread::yield();
}

// Who takes a piece holds the task: it is not over, and so stays as it is, until the piece is finished.
void Pool::take_pieces() {
    uint64_t state = state_.load();
    while ((uint32_t)state) {
        if (!state_.compare_exchange_weak(state, state - 1)) continue;
        const int first = ((int)(uint32_t)state - 1) * piece_, last = first + piece_;
        call_(work_, first, last < count_ ? last : count_);
        unfinished_.fetch_sub(1);
        state = state_.load();
    }
}

void Pool::serve() {
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
