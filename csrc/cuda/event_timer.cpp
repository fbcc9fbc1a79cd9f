// SPDX-License-Identifier: Apache-2.0
#include "cuda/event_timer.hpp"

#include <pthread.h>

#include <cstdlib>
#include <exception>
#include <new>
#include <utility>

#include "core/recorder.hpp"
#include "core/signals_blocked.hpp"
#include "cuda/timer_session.hpp"

namespace gpuprof::cuda {
namespace {

using std::chrono::milliseconds;
using std::chrono::steady_clock;

// The layers that this thread is in and that are timed.
thread_local constinit OpenLayer* innermost = nullptr;

// Ids of layers have the top bit, which CUPTI's never reach; they continue from one recording to the next.
// All ones mean none.
std::uint32_t next_id() noexcept {
    static constinit std::atomic<std::uint32_t> ids{0};
    constexpr std::uint32_t layer_bit = 0x80000000u;
    std::uint32_t id = unknown_u32;
    while (id == unknown_u32) id = ids.fetch_add(1, std::memory_order_relaxed) | layer_bit;
    return id;
}

// The nearest layer around this one that is timed on the same stream.
std::uint32_t enclosing_id(std::uint32_t session, StreamHandle stream) noexcept {
    for (const OpenLayer* layer = innermost; layer != nullptr; layer = layer->enclosing)
        if (layer->session == session && layer->pair->stream == stream) return layer->pair->correlation_id;
    return unknown_u32;
}

}  // namespace

constinit std::atomic<bool> EventTimer::is_on_{false};

EventTimer& EventTimer::instance() {
    static auto* const timer = new EventTimer;
    return *timer;
}

EventTimer::EventTimer() {
    pthread_atfork(nullptr, nullptr, after_fork_in_child);
}

// The calling thread's stay in the timer, and the session if it is on.
class EventTimer::Visit {
  public:
    explicit Visit(EventTimer& timer) noexcept : timer_(timer) {
        timer.inside_.fetch_add(1, std::memory_order_seq_cst);
        if (!is_on_.load(std::memory_order_seq_cst)) return;
        session_ = timer.session_.load(std::memory_order_acquire);
        // An error that stays: the driver is not asked again.
        if (!session_->has_failed()) return;
        is_on_.store(false, std::memory_order_relaxed);
        session_ = nullptr;
    }
    Visit(const Visit&) = delete;
    Visit& operator=(const Visit&) = delete;
    ~Visit() { timer_.inside_.fetch_sub(1, std::memory_order_release); }
    TimerSession* session() const noexcept { return session_; }

  private:
    EventTimer& timer_;
    TimerSession* session_ = nullptr;
};

void EventTimer::begin(OpenLayer& layer, StreamHandle stream, std::uint32_t device) noexcept {
    const Visit visit(*this);
    TimerSession* const session = visit.session();
    if (session == nullptr || !session->may_record(stream)) return;
    EventPool* const pool = session->pool_of(stream);
    EventPair* const pair = pool != nullptr ? pool->take() : nullptr;
    if (pair == nullptr) return session->count_untimed();
    pair->base = pool->latest_base();
    if (!session->accept(session->driver().record_event(pair->begin, stream))) {
        pool->give_back(*pair);
        return session->count_untimed();
    }
    pair->stream = stream;
    pair->device = device;
    pair->enclosing_id = enclosing_id(session->number(), stream);
    pair->correlation_id = next_id();
    layer = {pair, pool, session->number(), innermost};
    innermost = &layer;
    Recorder& recorder = Recorder::instance();
    recorder.emit(EventKind::launch, recorder.name_key(pair->correlation_id));
}

void EventTimer::end(OpenLayer& layer, StreamHandle stream) noexcept {
    if (layer.pair == nullptr) return;
    innermost = layer.enclosing;
    const Visit visit(*this);
    TimerSession* const session = visit.session();
    // The pair of a session that is over is gone.
    if (session == nullptr || session->number() != layer.session) return;
    if (stream != layer.pair->stream) {
        // The stream of the begin may be destroyed by now.
        session->count_untimed();
    } else if (session->may_record(stream)) {
        if (session->accept(session->driver().record_event(layer.pair->end, stream)))
            return layer.pool->finish(*layer.pair);
        session->count_untimed();
    }
    layer.pool->give_back(*layer.pair);
}

void EventTimer::abandon(OpenLayer& layer) noexcept {
    if (layer.pair == nullptr) return;
    innermost = layer.enclosing;
    const Visit visit(*this);
    TimerSession* const session = visit.session();
    if (session == nullptr || session->number() != layer.session) return;
    session->count_untimed();
    layer.pool->give_back(*layer.pair);
}

void EventTimer::leave_out() noexcept {
    const Visit visit(*this);
    if (visit.session() != nullptr) visit.session()->count_untimed();
}

Reason EventTimer::start(const TimerOptions& options) noexcept {
    try {
        if (is_child_.load()) return {ReasonCode::forked};
        std::lock_guard lifecycle(lifecycle_);
        return make_session(options);
    } catch (const std::exception& error) {
        return reason_of(error);
    }
}

// Requires lifecycle_.
Reason EventTimer::make_session(const TimerOptions& options) {
    if (kept_ != nullptr) return {ReasonCode::already_on};
    if (abandoned_ != nullptr) return {ReasonCode::stuck};
    Driver driver;
    if (Reason why = load_driver(driver); why) return why;
    auto session = std::make_shared<TimerSession>(driver, options, ++sessions_);
    session->open_file();
    if (!was_used_.exchange(true)) std::atexit(at_exit);
    {
        const SignalsBlocked blocked;
        reader_ = std::thread([session] { session->run(); });
    }
    kept_ = std::move(session);
    kept_->prepare_context();
    if (kept_->has_failed()) {
        Reason why = end_session().problem;
        GpuFile::remove_empty(Recorder::instance().process_file(".gpu"));
        return why;
    }
    session_.store(kept_.get(), std::memory_order_release);
    is_on_.store(true, std::memory_order_seq_cst);
    return {};
}

bool EventTimer::wait_until_outside(milliseconds longest) const noexcept {
    const auto deadline = steady_clock::now() + longest;
    while (inside_.load(std::memory_order_acquire) != 0) {
        if (steady_clock::now() > deadline) return false;
        std::this_thread::yield();
    }
    return true;
}

TimerTotals EventTimer::stop() noexcept {
    if (is_child_.load()) return {};
    std::lock_guard lifecycle(lifecycle_);
    if (kept_ == nullptr) return {};
    return end_session();
}

// Requires lifecycle_ and a session.
TimerTotals EventTimer::end_session() noexcept {
    const milliseconds longest = kept_->options().longest_stop;
    is_on_.store(false, std::memory_order_seq_cst);
    // A call of the driver waits where the device's queue is full.
    const bool is_outside = wait_until_outside(longest);
    kept_->finish(is_outside);
    const bool has_ended = kept_->wait_until_ended(longest);
    TimerTotals totals = kept_->totals();
    if (has_ended)
        reader_.join();
    else
        reader_.detach();
    session_.store(nullptr, std::memory_order_release);
    // A thread that is still inside keeps what it uses.
    if (!is_outside || !has_ended) abandoned_ = kept_;
    kept_.reset();
    return totals;
}

// Events of the parent mean nothing in the child, and the thread that reads is not here.
void EventTimer::after_fork_in_child() noexcept {
    EventTimer& timer = instance();
    if (!timer.was_used_.load()) return;
    timer.is_child_.store(true);
    is_on_.store(false);
}

// A program that ends without a stop: before the driver, which was loaded earlier, ends itself.
void EventTimer::at_exit() noexcept {
    instance().stop();
}

}  // namespace gpuprof::cuda
