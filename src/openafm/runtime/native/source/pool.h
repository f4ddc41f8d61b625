// A thread pool for parallel loops. Threads spin for the next task for a short time, then sleep.
//
// A task ends when all its pieces are finished. A thread that took no piece, such as one without a processor, is not waited for.
#pragma once
#include <stdint.h>

#include <atomic>
#include <condition_variable>
#include <mutex>
#include <thread>
#include <vector>

class Pool {
public:
    // Uses fewer threads if the system provides no more. Throws std::bad_alloc.
    explicit Pool(int num_threads);
    ~Pool();

    int num_threads() const { return num_threads_; }

    // Returns the index of the calling thread, below num_threads; 0 for threads outside of a pool.
    static int this_thread();

    // Calls work(first, last) on pieces of [0, count) in all threads, the caller included, until all are done. One call at a
    // time. `work` must not throw: other threads would continue with a dead reference.
    template <class Work>
    void parallel(int count, const Work &work) {
        run(count, [](const void *w, int first, int last) { (*(const Work *)w)(first, last); }, &work);
    }

private:
    typedef void (*Call)(const void *, int, int);

    void run(int count, Call call, const void *work);
    void take_pieces();
    void serve(int number);
    bool is_work() const { return (uint32_t)state_.load() != 0; }

    const int num_threads_;
    std::vector<std::thread> threads_;
    // The task. Written only while no piece is left, read only by threads that have taken a piece.
    Call call_ = nullptr;
    const void *work_ = nullptr;
    int count_ = 0;
    // High half: number of the task. Low half: how many of its items have not been taken.
    alignas(64) std::atomic<uint64_t> state_{0};
    alignas(64) std::atomic<int> unfinished_{0};
    alignas(64) std::atomic<int> sleeping_{0};
    std::atomic<bool> ending_{false};
    std::mutex mutex_;
    std::condition_variable wake_;
};
