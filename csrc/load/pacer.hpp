// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <pthread.h>

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <vector>

namespace gpuprof {

// The clock of a pacer: the system's monotonic one, or that of a test.
struct PacerClock {
    std::int64_t (*now_ns)() noexcept;
    void (*sleep_until)(std::int64_t wake_ns) noexcept;

    static PacerClock of_system() noexcept;
};

// Hands out the requests of a plan, in order, none before it is due. One that no thread was free to take is
// handed out late; none is skipped.
//
// Threads call `take`: one of those that are free sleeps until the next request is due and takes it itself,
// so that no second thread has to be woken. Event loops watch `begin_notifying` and call `take_ready`: there
// a thread of the pacer's own waits. Use either, not both.
class Pacer {
  public:
    static constexpr std::int64_t default_spin_ns = 60'000;
    static constexpr std::int64_t finished = -1;  // the plan is over, or was stopped
    static constexpr std::int64_t timed_out = -2;

    // `offsets_ns` from the start, in order. The last `spin_ns` before a request is due are spun, since a
    // sleeping thread wakes up late.
    explicit Pacer(std::vector<std::int64_t> offsets_ns, std::int64_t spin_ns = default_spin_ns,
                   PacerClock clock = PacerClock::of_system());
    Pacer(const Pacer&) = delete;
    Pacer& operator=(const Pacer&) = delete;
    ~Pacer();

    void start(std::int64_t start_ns) noexcept { start_ns_ = start_ns; }
    std::int64_t start_ns() const noexcept { return start_ns_; }
    std::size_t size() const noexcept { return offsets_ns_.size(); }
    // When each request was handed over; 0 where it was not.
    const std::vector<std::int64_t>& released_ns() const noexcept { return released_ns_; }

    // The next request if it is due, otherwise `timed_out`. Never waits.
    std::int64_t try_take() noexcept;
    // Waits for the next request.
    std::int64_t take(std::int64_t until_ns) noexcept;
    // Fills a batch of up to `most` requests, whose first one was taken: with what is due, and until
    // `delay_ns` after the first one was due with what becomes due. Returns the size of the batch.
    std::size_t fill_batch(std::int64_t* indexes, std::size_t most, std::int64_t delay_ns) noexcept;

    // Begins to pace in a thread of its own. The file is readable while requests are due that `take_ready`
    // has not returned, and once when all are. Throws std::system_error.
    int begin_notifying();
    struct Range {
        std::size_t begin;
        std::size_t end;
    };
    Range take_ready() noexcept;

    bool is_finished() const noexcept { return stopped_ || next_ >= size(); }
    // Hands out nothing more, and wakes the threads that wait.
    void stop() noexcept;

  private:
    std::int64_t due_ns(std::size_t index) const noexcept { return start_ns_ + offsets_ns_[index]; }
    bool claim(std::size_t index) noexcept;
    void wait_until(std::int64_t due_ns) noexcept;
    bool become_leader(std::int64_t until_ns) noexcept;
    void give_up_lead() noexcept;
    void notify_all_due() noexcept;
    void notify() noexcept;

    const std::vector<std::int64_t> offsets_ns_;
    std::vector<std::int64_t> released_ns_;
    const std::int64_t spin_ns_;
    const PacerClock clock_;
    std::int64_t start_ns_ = 0;
    std::atomic<std::size_t> next_{0};
    std::atomic<bool> stopped_{false};

    pthread_mutex_t mutex_ = PTHREAD_MUTEX_INITIALIZER;
    pthread_cond_t lead_is_free_ = PTHREAD_COND_INITIALIZER;
    bool has_leader_ = false;  // under mutex_
    int waiting_ = 0;          // under mutex_

    std::atomic<std::size_t> due_{0};  // requests that the pacer's own thread has found due
    std::atomic<bool> is_notified_{false};
    int read_file_ = -1;
    int write_file_ = -1;
    pthread_t thread_{};
    bool has_thread_ = false;
};

}  // namespace gpuprof
