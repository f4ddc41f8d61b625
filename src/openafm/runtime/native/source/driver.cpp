// Steps in a thread of their own, so that the caller can do something else meanwhile. The thread spins for the next step a
// short while, then sleeps; who waits for a step sleeps, since the step needs the processors.
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <mutex>
#include <new>
#include <system_error>
#include <thread>

#include "abi.h"

namespace {

enum { SPINS = 200 };
enum State { IDLE, BEGUN, ENDING };

struct Step {
    int32_t num_sequences;
    OaCache *const *caches;
    const int64_t *starts;
    const int32_t *counts, *wanted, *tokens;
    float *logits;
};

}  // namespace

struct OaDriver {
    explicit OaDriver(OaModel *model) : model_(model), thread_([this] { serve(); }) {}

    ~OaDriver() {
        wait();
        set(ENDING);
        thread_.join();
    }

    void begin(const Step &step) {
        step_ = step;
        set(BEGUN);
    }

    void wait() {
        std::unique_lock<std::mutex> lock(mutex_);
        changed_.wait(lock, [this] { return state_.load() != BEGUN; });
    }

    // Of the step that is over.
    int32_t failed = 0;
    double seconds = 0;

private:
    void set(State state) {
        {
            std::lock_guard<std::mutex> lock(mutex_);
            state_.store(state);
        }
        changed_.notify_all();
    }

    void await_work() {
        for (int i = 0; i < SPINS; i++) {
            if (state_.load() != IDLE) return;
            std::this_thread::yield();
        }
        std::unique_lock<std::mutex> lock(mutex_);
        changed_.wait(lock, [this] { return state_.load() != IDLE; });
    }

    void serve() {
        for (await_work(); state_.load() != ENDING; await_work()) {
            const auto started = std::chrono::steady_clock::now();
            failed = oa_step(model_, step_.num_sequences, step_.caches, step_.starts, step_.counts, step_.wanted, step_.tokens,
                             step_.logits);
            seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - started).count();
            set(IDLE);
        }
    }

    OaModel *const model_;
    Step step_ = {};
    std::atomic<State> state_{IDLE};
    std::mutex mutex_;
    std::condition_variable changed_;
    std::thread thread_;  // the last member: it reads the others
};

OaDriver *oa_driver_new(OaModel *model) try {
    return new OaDriver(model);
} catch (const std::bad_alloc &) {
    return nullptr;
} catch (const std::system_error &) {
    return nullptr;
}

void oa_driver_free(OaDriver *driver) { delete driver; }

void oa_step_begin(OaDriver *driver, int32_t num_sequences, OaCache *const *caches, const int64_t *starts,
                   const int32_t *counts, const int32_t *wanted, const int32_t *tokens, float *logits) {
    driver->begin({num_sequences, caches, starts, counts, wanted, tokens, logits});
}

int32_t oa_step_wait(OaDriver *driver, double *seconds) {
    driver->wait();
    *seconds = driver->seconds;
    return driver->failed;
}
