// SPDX-License-Identifier: Apache-2.0
#include "cuda/timer_session.hpp"

#include <pthread.h>

#include <algorithm>
#include <cmath>
#include <new>
#include <thread>

#include "core/recorder.hpp"

namespace gpuprof::cuda {
namespace {

using std::chrono::milliseconds;
using std::chrono::steady_clock;

constexpr milliseconds last_rounds_period{1};
// Where the GPU is too busy for an event that waits for nothing.
constexpr milliseconds base_retry_period{100};

std::int64_t to_ns(float elapsed_ms) noexcept {
    return std::llround(static_cast<double>(elapsed_ms) * 1e6);
}

}  // namespace

// --- any thread -----------------------------------------------------------------------------------

bool TimerSession::accept(int result) noexcept {
    if (result == success) return true;
    int none = success;
    if (!is_passing(result)) failure_.compare_exchange_strong(none, result, std::memory_order_acq_rel);
    return false;
}

bool TimerSession::may_record(StreamHandle stream) noexcept {
    int status = not_capturing;
    const int result = driver_.is_capturing(stream, &status);
    if (accept(result) && status == not_capturing) return true;
    // On the default stream the driver refuses the query while another one is captured.
    captured_.fetch_add(1, std::memory_order_relaxed);
    return false;
}

// The slot of a context, which is given one where none has it; null when there are too many.
TimerSession::Slot* TimerSession::slot_of(ContextHandle context) noexcept {
    for (Slot& slot : slots_) {
        ContextHandle holder = slot.context.load(std::memory_order_acquire);
        if (holder == nullptr)
            slot.context.compare_exchange_strong(holder, context, std::memory_order_acq_rel);
        if (holder == context || holder == nullptr) return &slot;
    }
    return nullptr;
}

EventPool* TimerSession::pool_of(StreamHandle stream) noexcept {
    ContextHandle context = nullptr;
    if (!accept(driver_.stream_context(stream, &context)) || context == nullptr) return nullptr;
    const Slot* const slot = slot_of(context);
    return slot != nullptr ? slot->ready.load(std::memory_order_acquire) : nullptr;
}

// --- the starting and stopping thread -------------------------------------------------------------

void TimerSession::open_file() {
    file_.open(Recorder::instance().process_file(".gpu"));
}

void TimerSession::prepare_context() noexcept {
    ContextHandle context = nullptr;
    if (!accept(driver_.get_context(&context)) || context == nullptr) return;
    const Slot* const slot = slot_of(context);
    std::unique_lock lock(mutex_);
    context_is_waited_for_ = true;
    changed_.notify_all();
    changed_.wait_for(lock, options_.longest_start,
                      [&] { return slot->ready.load(std::memory_order_acquire) != nullptr || has_ended_; });
}

void TimerSession::finish(bool may_destroy) noexcept {
    std::lock_guard lock(mutex_);
    may_destroy_ = may_destroy;
    is_finishing_ = true;
    changed_.notify_all();
}

bool TimerSession::wait_until_ended(milliseconds longest) noexcept {
    std::unique_lock lock(mutex_);
    return changed_.wait_for(lock, longest, [&] { return has_ended_; });
}

TimerTotals TimerSession::totals() noexcept {
    std::lock_guard lock(mutex_);
    TimerTotals totals;
    totals.untimed = untimed_.load();
    totals.captured = captured_.load();
    if (!has_ended_)
        totals.problem = {ReasonCode::driver_hung};
    else if (has_failed())
        totals.problem = {ReasonCode::driver_error_ended_timing, {}, {}, failure_.load()};
    else if (file_.error() != 0)
        totals.problem = {ReasonCode::disk_failed, {}, {}, file_.error()};
    if (!has_ended_) return totals;
    totals.layers = layers_;
    totals.lost_records = lost_records_;
    for (const Slot& slot : slots_) {
        if (slot.pool == nullptr) continue;
        totals.unfinished += slot.pool->used();
        for (const BaseEvent& base : slot.pool->bases())
            totals.clock_error_ns = std::max(totals.clock_error_ns.value_or(0), base.error_ns);
    }
    return totals;
}

// --- the thread that reads ------------------------------------------------------------------------

// In the relaxed mode, since what this thread asks would otherwise spoil the captures of others.
void TimerSession::run() noexcept {
#if defined(__linux__)
    pthread_setname_np(pthread_self(), "gpuprof-events");
#endif
    int mode = relaxed_capture_mode;
    accept(driver_.exchange_capture_mode(&mode));
    while (!has_failed() && !is_finishing()) {
        serve_all();
        wait_for_next_round();
    }
    const auto deadline = steady_clock::now() + options_.longest_wait;
    serve_all();
    while (!has_failed() && has_unread() && steady_clock::now() < deadline) {
        std::this_thread::sleep_for(last_rounds_period);
        serve_all();
    }
    close();
}

bool TimerSession::is_finishing() noexcept {
    std::lock_guard lock(mutex_);
    return is_finishing_;
}

void TimerSession::wait_for_next_round() noexcept {
    std::unique_lock lock(mutex_);
    changed_.wait_for(lock, options_.period,
                      [&] { return is_finishing_ || context_is_waited_for_ || has_failed(); });
    context_is_waited_for_ = false;
}

void TimerSession::serve_all() noexcept {
    for (Slot& slot : slots_) {
        auto* const context = slot.context.load(std::memory_order_acquire);
        if (context == nullptr || has_failed()) return;
        try {
            serve(slot, context);
        } catch (const std::bad_alloc&) {
            // Nothing was taken: the next round tries again.
            continue;
        }
    }
}

void TimerSession::serve(Slot& slot, ContextHandle context) {
    if (slot.pool == nullptr) slot.pool = std::make_unique<EventPool>(driver_, context);
    EventPool& pool = *slot.pool;
    if (!accept(pool.enter())) return;
    if (pool.is_scarce() && !accept(pool.grow())) return;
    if (const auto now = steady_clock::now(); now >= slot.next_base)
        slot.next_base = now + (accept(pool.take_base()) ? options_.base_period : base_retry_period);
    if (has_failed() || pool.bases().empty()) return;
    if (slot.ready.load(std::memory_order_relaxed) == nullptr) make_ready(slot);
    drain(slot);
}

void TimerSession::make_ready(Slot& slot) noexcept {
    std::lock_guard lock(mutex_);
    slot.ready.store(slot.pool.get(), std::memory_order_release);
    changed_.notify_all();
}

// What is on one stream ends in the order in which it was put there, or nearly so where threads share it.
void TimerSession::drain(Slot& slot) {
    slot.pool->collect(slot.finished);
    // All room first: nothing may throw while pairs are moved about.
    busy_.clear();
    busy_.reserve(slot.finished.size());
    records_.clear();
    records_.reserve(slot.finished.size());
    std::erase_if(slot.finished, [&](EventPair* pair) {
        if (!is_finished(*pair)) return false;
        read(*slot.pool, *pair);
        slot.pool->give_back(*pair);
        return true;
    });
    write();
}

bool TimerSession::is_finished(const EventPair& pair) noexcept {
    if (has_failed() || std::ranges::find(busy_, pair.stream) != busy_.end()) return false;
    if (accept(driver_.query_event(pair.end))) return true;
    busy_.push_back(pair.stream);
    return false;
}

void TimerSession::read(const EventPool& pool, const EventPair& pair) noexcept {
    const BaseEvent& base = pool.bases()[pair.base];
    float since_base_ms = 0;
    float lasted_ms = 0;
    if (!accept(driver_.elapsed_ms(&since_base_ms, base.event, pair.begin)) ||
        !accept(driver_.elapsed_ms(&lasted_ms, pair.begin, pair.end)))
        return count_untimed();
    GpuRecord record = blank_record(GpuRecordKind::timed_layer);
    record.start_ns = base.monotonic_ns + to_ns(since_base_ms);
    record.end_ns = record.start_ns + std::max<std::int64_t>(0, to_ns(lasted_ms));
    record.correlation_id = pair.correlation_id;
    record.detail = pair.enclosing_id;
    record.device = pair.device;
    record.stream = number_of(pair.stream);
    records_.push_back(record);
}

std::uint32_t TimerSession::number_of(StreamHandle stream) noexcept {
    const auto found = std::ranges::find(streams_, stream);
    const auto number = static_cast<std::uint32_t>(found - streams_.begin());
    if (found != streams_.end()) return number;
    if (streams_.size() == most_streams) return unknown_u32;
    streams_.push_back(stream);
    return number;
}

void TimerSession::write() noexcept {
    (file_.append(records_) ? layers_ : lost_records_) += records_.size();
}

bool TimerSession::has_unread() const noexcept {
    return std::ranges::any_of(slots_, [](const Slot& slot) { return !slot.finished.empty(); });
}

void TimerSession::close() noexcept {
    file_.close();
    bool may_destroy = false;
    {
        std::unique_lock lock(mutex_);
        // After an error, others may be in a call until the stop.
        may_destroy = may_destroy_ && !has_failed();
    }
    for (Slot& slot : slots_)
        if (may_destroy && slot.pool != nullptr && accept(slot.pool->enter())) slot.pool->destroy();
    std::lock_guard lock(mutex_);
    has_ended_ = true;
    changed_.notify_all();
}

}  // namespace gpuprof::cuda
