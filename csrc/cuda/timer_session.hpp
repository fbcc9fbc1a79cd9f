// SPDX-License-Identifier: Apache-2.0
// What one start of the event timer owns: the pools of each context, and the thread's part that reads them.
#pragma once

#include <array>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <memory>
#include <mutex>
#include <vector>

#include "cuda/event_timer.hpp"
#include "cupti/gpu_file.hpp"

namespace gpuprof::cuda {

constexpr std::size_t most_contexts = 16;
// Those that come later have no number.
constexpr std::size_t most_streams = 256;

class TimerSession {
  public:
    TimerSession(const Driver& driver, const TimerOptions& options, std::uint32_t number)
        : driver_(driver), options_(options), number_(number) {
        streams_.reserve(most_streams);
    }

    // --- any thread, while it counts as inside the timer ---

    const Driver& driver() const noexcept { return driver_; }
    std::uint32_t number() const noexcept { return number_; }
    const TimerOptions& options() const noexcept { return options_; }
    // The pool of the stream's context. Null where there is none: it is then asked for, if that was not done.
    EventPool* pool_of(StreamHandle stream) noexcept;
    // Whether the stream may be recorded on now.
    bool may_record(StreamHandle stream) noexcept;
    // Stores the driver's result; true for success. A permanent error ends the timing.
    bool accept(int result) noexcept;
    bool has_failed() const noexcept { return failure_.load(std::memory_order_acquire) != success; }
    void count_untimed() noexcept { untimed_.fetch_add(1, std::memory_order_relaxed); }

    // --- the starting and stopping thread ---

    // Throws std::system_error.
    void open_file();
    // Has the pool of the calling thread's context made, and waits for it at most so long.
    void prepare_context() noexcept;
    // Events are destroyed only where no thread may still use them.
    void finish(bool may_destroy) noexcept;
    // False if the reading thread did not end in time.
    bool wait_until_ended(std::chrono::milliseconds longest) noexcept;
    TimerTotals totals() noexcept;

    // --- the thread that reads ---

    void run() noexcept;

  private:
    struct Slot {
        std::atomic<ContextHandle> context{nullptr};
        std::atomic<EventPool*> ready{nullptr};
        std::unique_ptr<EventPool> pool;
        std::chrono::steady_clock::time_point next_base;
        std::vector<EventPair*> finished;
    };

    Slot* slot_of(ContextHandle context) noexcept;
    bool is_finishing() noexcept;
    void serve_all() noexcept;
    void serve(Slot& slot, ContextHandle context);
    void make_ready(Slot& slot) noexcept;
    void drain(Slot& slot);
    bool is_finished(const EventPair& pair) noexcept;
    void read(const EventPool& pool, const EventPair& pair) noexcept;
    std::uint32_t number_of(StreamHandle stream) noexcept;
    void write() noexcept;
    bool has_unread() const noexcept;
    void wait_for_next_round() noexcept;
    void close() noexcept;

    const Driver driver_;
    const TimerOptions options_;
    const std::uint32_t number_;
    std::array<Slot, most_contexts> slots_;
    std::atomic<int> failure_{success};
    std::atomic<std::uint64_t> untimed_{0};
    std::atomic<std::uint64_t> captured_{0};

    // Of the thread that reads.
    GpuFile file_;
    std::vector<GpuRecord> records_;
    std::vector<StreamHandle> streams_;  // the first ones that were seen, which are numbered
    std::vector<StreamHandle> busy_;     // on which something has not ended, in this round

    std::mutex mutex_;
    std::condition_variable changed_;
    bool context_is_waited_for_ = false;
    bool is_finishing_ = false;
    bool may_destroy_ = false;
    bool has_ended_ = false;
    std::uint64_t layers_ = 0;
    std::uint64_t lost_records_ = 0;
};

}  // namespace gpuprof::cuda
