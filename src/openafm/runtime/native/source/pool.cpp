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
    next_.store(0);
    working_.store(num_threads_ - 1);
    task_.fetch_add(1);
    if (sleeping_.load() > 0) {
        { std::lock_guard<std::mutex> lock(mutex_); }
        wake_.notify_all();
    }
    take_pieces();
    while (!spin_until([this] { return working_.load() == 0; })) std::this_thread::yield();
}

void Pool::take_pieces() {
    for (int first; (first = next_.fetch_add(piece_)) < count_;)
        call_(work_, first, first + piece_ < count_ ? first + piece_ : count_);
}

void Pool::serve() {
    for (uint64_t seen = 0;; seen++) {
        const auto is_new = [&] { return task_.load() != seen || ending_.load(); };
        if (!spin_until(is_new)) {
            std::unique_lock<std::mutex> lock(mutex_);
            sleeping_++;
            wake_.wait(lock, is_new);
            sleeping_--;
        }
        if (ending_.load()) return;
        take_pieces();
        working_.fetch_sub(1);
    }
}
