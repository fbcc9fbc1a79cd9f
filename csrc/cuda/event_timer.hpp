// SPDX-License-Identifier: Apache-2.0
// Times layers on the GPU by pairs of CUDA events, if CUPTI is unavailable. A pair encloses all work that a
// layer's call puts on one stream, including the gaps between kernels.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <thread>

#include "core/reason.hpp"
#include "cuda/event_pool.hpp"

namespace gpuprof::cuda {

struct TimerOptions {
    // How often the reading thread looks what has finished: at most this long a pool stays empty.
    std::chrono::milliseconds period{10};
    // The driver gives times as floats, which a few seconds later are a microsecond apart.
    std::chrono::milliseconds base_period{10'000};
    // How long a start waits for the pool of the calling thread's context.
    std::chrono::milliseconds longest_start{200};
    // At a stop: how long layers that have not ended on the GPU are waited for,
    std::chrono::milliseconds longest_wait{500};
    // and how long the driver may take over it before it is left alone.
    std::chrono::milliseconds longest_stop{10'000};
};

struct TimerTotals {
    std::uint64_t layers = 0;
    std::uint64_t untimed = 0;       // no pair was free, or the layer ended on another stream
    std::uint64_t captured = 0;      // into CUDA graphs: nothing ran
    std::uint64_t unfinished = 0;    // had not ended
    std::uint64_t lost_records = 0;  // timed, and not written: the disk
    std::optional<std::int64_t> clock_error_ns;
    Reason problem;  // the first thing that went wrong
};

// A layer's call while it runs, in the caller's frame.
struct OpenLayer {
    EventPair* pair = nullptr;  // null: not timed
    EventPool* pool = nullptr;
    std::uint32_t session = 0;
    OpenLayer* enclosing = nullptr;
};

class TimerSession;

// One in a process, never destroyed.
//
// A thread that is inside `begin` or `end` counts in `inside_`; a stop switches `is_on_` off and waits until
// none is, so that the pools can be freed. An error of the driver that concerns more than one call ends the
// timing, and the driver is not called again. Nothing of the program is ever synchronized.
class EventTimer {
  public:
    static EventTimer& instance();
    EventTimer(const EventTimer&) = delete;
    EventTimer& operator=(const EventTimer&) = delete;

    static bool is_on() noexcept { return is_on_.load(std::memory_order_relaxed); }

    // While the Recorder records. Returns why layers cannot be timed, or nothing.
    Reason start(const TimerOptions& options) noexcept;
    // Before the Recorder stops. Harmless when nothing is on.
    TimerTotals stop() noexcept;

    // Around a layer's call, nested as the calls are; `begin` comes after the layer's own event. The stream
    // is the current one, of the device that PyTorch calls `device`. Both do nothing while the timer is off;
    // `end`, or `abandon` if the stream is unknown, must follow every `begin` in any case.
    void begin(OpenLayer& layer, StreamHandle stream, std::uint32_t device) noexcept;
    void end(OpenLayer& layer, StreamHandle stream) noexcept;
    void abandon(OpenLayer& layer) noexcept;
    // In place of both.
    void leave_out() noexcept;

  private:
    EventTimer();
    ~EventTimer() = default;
    Reason make_session(const TimerOptions& options);
    TimerTotals end_session() noexcept;
    bool wait_until_outside(std::chrono::milliseconds longest) const noexcept;
    static void after_fork_in_child() noexcept;
    static void at_exit() noexcept;

    class Visit;
    static constinit std::atomic<bool> is_on_;
    std::atomic<std::uint32_t> inside_{0};
    std::atomic<TimerSession*> session_{nullptr};
    std::atomic<bool> is_child_{false};
    std::atomic<bool> was_used_{false};

    std::mutex lifecycle_;
    std::shared_ptr<TimerSession> kept_;  // the reading thread has another share
    std::thread reader_;
    std::shared_ptr<TimerSession> abandoned_;  // in which the driver never came back from a call
    std::uint32_t sessions_ = 0;
};

}  // namespace gpuprof::cuda
