// Threads that share out the panels of a product. They spin for the next task a short while, then sleep.
//
// A task is over when its pieces are: nobody waits for a thread that took none, as one whose processor is busy elsewhere.
#pragma once
#include <stdint.h>

#include <atomic>
#include <condition_variable>
#include <mutex>
#include <thread>
#include <vector>

class Pool {
public:
    // Does with fewer threads where no more are to be had. Throws std::bad_alloc.
    explicit Pool(int num_threads);
    ~Pool();

    int num_threads() const { return num_threads_; }

    // The number of the thread that asks, below num_threads: 0 for all that are none of a pool.
    static int this_thread();

    // Call work(first, last) on pieces of [0, count) until all are done; the caller works too. One call at a time. It must not
    // throw: other threads would go on with what is gone.
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
    // The task: written while no piece is left, read by who has taken one.
    Call call_ = nullptr;
    const void *work_ = nullptr;
    int count_ = 0;
    // The number of the task, and in the low half how much of it nobody has taken.
    alignas(64) std::atomic<uint64_t> state_{0};
    alignas(64) std::atomic<int> unfinished_{0};
    alignas(64) std::atomic<int> sleeping_{0};
    std::atomic<bool> ending_{false};
    std::mutex mutex_;
    std::condition_variable wake_;
};
