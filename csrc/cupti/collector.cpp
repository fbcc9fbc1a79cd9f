// SPDX-License-Identifier: Apache-2.0
#include "cupti/collector.hpp"

#include <pthread.h>

#include <algorithm>
#include <cstdlib>
#include <exception>
#include <system_error>
#include <utility>

#include "core/clock.hpp"
#include "core/recorder.hpp"
#include "core/signals_blocked.hpp"

namespace gpuprof::cupti {
namespace {

using std::chrono::milliseconds;
using std::chrono::steady_clock;

// The first readings of the clock after its start; the pauses grow as the rate becomes better known, up to
// the flushes, each of which comes with one.
constexpr milliseconds first_pause{1};
constexpr int pause_growth = 4;
// Between two readings for buffers that come quickly: a fraction of the recording, within these bounds.
constexpr std::int64_t shortest_pause_ns = 1'000'000;
constexpr std::int64_t longest_pause_ns = 500'000'000;
constexpr std::int64_t pauses_in_a_recording = 256;

milliseconds until(steady_clock::time_point then) noexcept {
    return std::max(milliseconds(0), std::chrono::ceil<milliseconds>(then - steady_clock::now()));
}

}  // namespace

Collector& Collector::instance() {
    static auto* const collector = new Collector;
    return *collector;
}

Collector::Collector() {
    pthread_atfork(nullptr, nullptr, after_fork_in_child);
}

Started Collector::start(const CollectorOptions& options) noexcept {
    Started started;
    try {
        if (is_child_.load()) {
            started.reason = {ReasonCode::forked};
            return started;
        }
        std::lock_guard lifecycle(lifecycle_);
        started.reason = begin(options, started);
    } catch (const std::exception& error) {
        session_.disable_records();
        session_.end();
        started.reason = reason_of(error);
    }
    return started;
}

// Requires lifecycle_.
Reason Collector::begin(const CollectorOptions& options, Started& started) {
    if (on_) return {ReasonCode::already_on};
    if (stuck_) return {ReasonCode::stuck};
    library_ = load_library(options.folders);
    started.path = library_.path;
    started.version = library_.version;
    if (!library_.available()) return library_.reason;
    if (!cupti_used_.exchange(true)) std::atexit(at_exit);
    started.version_is_unknown = is_unknown_version(library_.version);
    options_ = options;
    names_.clear();
    pool_.discard_ready();
    totals_ = GpuTotals{};
    clock_ = ClockCalibration{};
    flush_failed_ = false;
    if (const std::uint32_t error = switch_on(); error != abi::success) return explain_error(error);
    started.session = session_.facts();
    // A file means that the GPU was recorded, even if nothing ran on it.
    file_.open(Recorder::instance().process_file(".gpu"));
    finishing_ = false;
    has_ended_ = false;
    const SignalsBlocked blocked;
    reader_ = std::thread([this] { run(); });
    on_ = true;
    return {};
}

// CUPTI's error number; then nothing is on.
std::uint32_t Collector::switch_on() {
    const std::uint32_t result = session_.begin(library_, options_.session, request_buffer, complete_buffer);
    if (result != abi::success) return result;
    calibrate();
    started_ns_ = monotonic_ns();
    return session_.enable_records();
}

void Collector::calibrate() noexcept try {
    for (int attempt = 0; attempt < 2; ++attempt) {
        const std::optional<ClockReading> reading = read_clock(library_.api.get_timestamp);
        if (!reading) return clock_.note_refusal();
        clock_.add(*reading);
        if (!clock_.needs_rate()) return;
        while (monotonic_ns() - reading->monotonic_ns < ClockCalibration::shortest_baseline_ns) {
        }
    }
} catch (const std::bad_alloc&) {
    clock_.note_refusal();
}

// The first one stays.
void Collector::note_problem(Reason problem) noexcept {
    std::lock_guard state(state_);
    if (!totals_.problem) totals_.problem = std::move(problem);
}

GpuTotals Collector::stop() noexcept {
    if (is_child_.load()) return {};
    std::lock_guard lifecycle(lifecycle_);
    if (!on_) return {};
    on_ = false;
    finishing_ = true;
    pool_.interrupt();
    std::unique_lock state(state_);
    if (ended_.wait_for(state, options_.longest_stop, [&] { return has_ended_; })) {
        state.unlock();
        reader_.join();
        session_.end();
        file_.close();
    } else {
        state.unlock();
        stuck_ = true;
        reader_.detach();
        note_problem({ReasonCode::hung});
        session_.forget();
    }
    state.lock();
    return std::exchange(totals_, GpuTotals{});
}

// --- the thread that reads ------------------------------------------------------------------------

void Collector::run() noexcept {
#if defined(__linux__)
    pthread_setname_np(pthread_self(), "gpuprof-gpu");
#endif
    auto next_flush = steady_clock::now() + options_.flush_period;
    milliseconds pause = first_pause;
    auto next_reading = steady_clock::now() + pause;
    while (!finishing_.load()) {
        const auto buffer = pool_.wait_for_ready(until(std::min(next_flush, next_reading)));
        if (buffer.data() != nullptr) read(buffer);
        const auto now = steady_clock::now();
        if (finishing_.load() || now < std::min(next_flush, next_reading)) continue;
        // CUPTI's own flush period hands out full buffers only, and a killed process would lose the rest.
        if (now >= next_flush) {
            flush(0);
            next_flush = steady_clock::now() + options_.flush_period;
        }
        calibrate();
        pause = std::min(pause * pause_growth, options_.flush_period);
        next_reading = steady_clock::now() + pause;
    }
    finish();
    std::lock_guard state(state_);
    has_ended_ = true;
    ended_.notify_all();
}

// A forced flush hands out work that has not ended, without its times, so it comes last: first what is
// running gets some time. The program's GPU is not synchronized, which would change the measurement.
void Collector::finish() noexcept {
    const auto deadline = steady_clock::now() + options_.longest_wait;
    flush(0);
    calibrate();
    read_ready();
    // An empty buffer, of which CUPTI keeps one ready, is not waited for; nor is a device that is lost.
    while (pool_.held_with_records() > 0 && !flush_failed_ && steady_clock::now() < deadline) {
        if (const auto buffer = pool_.wait_for_ready(options_.retry_period); buffer.data() != nullptr)
            read(buffer);
        else
            flush(0);
    }
    session_.disable_records();
    if (pool_.held() > 0) flush(abi::flush_forced);
    calibrate();
    read_ready();
    note_clock();
    std::lock_guard state(state_);
    totals_.held_buffers = pool_.held();
}

void Collector::flush(std::uint32_t flag) noexcept {
    const std::uint32_t result = library_.api.flush_all(flag);
    if (result != abi::success) {
        flush_failed_ = true;
        note_problem(explain_error(result));
    }
    std::size_t dropped = 0;
    if (library_.api.get_dropped(nullptr, 0, &dropped) != abi::success) return;
    std::lock_guard state(state_);
    totals_.dropped += dropped;
}

void Collector::read_ready() noexcept {
    for (;;) {
        const auto buffer = pool_.wait_for_ready(milliseconds(0));
        if (buffer.data() == nullptr) return;
        read(buffer);
    }
}

void Collector::read(std::span<std::uint8_t> buffer) noexcept {
    DecodeCounts counts;
    records_.clear();
    if (calibration_is_due()) calibrate();
    try {
        const abi::ActivityGetNextRecord next = library_.api.get_next_record;
        const Stride stride = next != nullptr ? Stride(next, library_.version) : Stride(library_.version);
        counts =
            decode_buffer(buffer, stride, [this](const char* name) { return names_.id(name); }, records_);
        place_in_time(counts);
    } catch (const std::exception& error) {
        records_.clear();
        note_problem(reason_of(error));
    }
    pool_.recycle(buffer);
    {
        std::lock_guard state(state_);
        totals_.counts += counts;
    }
    write();
}

bool Collector::calibration_is_due() const noexcept {
    const std::int64_t now = monotonic_ns();
    const std::int64_t pause =
        std::clamp((now - started_ns_) / pauses_in_a_recording, shortest_pause_ns, longest_pause_ns);
    return clock_.empty() || now - clock_.latest().monotonic_ns >= pause;
}

// Puts the times on our clock, and drops what ended before the recording began and what cannot be of it.
void Collector::place_in_time(DecodeCounts& counts) noexcept {
    std::uint64_t stale = 0, outside = 0;
    std::erase_if(records_, [&](GpuRecord& record) {
        if (record.kind == static_cast<std::uint32_t>(GpuRecordKind::event_record)) return false;
        const auto start = clock_.to_monotonic_ns(record.start_ns);
        const auto end = clock_.to_monotonic_ns(record.end_ns);
        const bool is_outside = !start || !end || *end < *start;
        const bool is_stale = !is_outside && *end < started_ns_;
        if (!is_outside && !is_stale) {
            record.start_ns = *start;
            record.end_ns = *end;
            return false;
        }
        --counts.of(static_cast<GpuRecordKind>(record.kind));
        ++(is_stale ? stale : outside);
        return true;
    });
    std::lock_guard state(state_);
    totals_.stale += stale;
    totals_.outside += outside;
}

void Collector::write() noexcept {
    if (file_.append(records_)) return;
    note_problem({ReasonCode::disk_failed, {}, {}, file_.error()});
    std::lock_guard state(state_);
    totals_.lost_records += records_.size();
}

void Collector::note_clock() noexcept {
    std::lock_guard state(state_);
    totals_.clock = clock_.state();
    if (!clock_.empty()) totals_.clock_error_ns = clock_.error_ns();
}

// --- what CUPTI and the system call ---------------------------------------------------------------

void Collector::request_buffer(std::uint8_t** buffer, std::size_t* size, std::size_t* limit) noexcept {
    Collector& collector = instance();
    *buffer = collector.is_child_.load() ? nullptr : collector.pool_.request();
    *size = *buffer != nullptr ? buffer_bytes : 0;
    *limit = 0;  // as many as fit
}

void Collector::complete_buffer(void*, std::uint32_t, std::uint8_t* buffer, std::size_t,
                                std::size_t valid_bytes) noexcept {
    Collector& collector = instance();
    if (!collector.is_child_.load()) collector.pool_.complete(buffer, valid_bytes);
}

// CUDA does not work in the child, its locks may be held forever, and the reading thread does not exist.
void Collector::after_fork_in_child() noexcept {
    Collector& collector = instance();
    if (!collector.cupti_used_.load()) return;
    collector.is_child_.store(true);
    collector.session_.forget();
    collector.file_.close();
}

// A program that ends without a stop: before CUPTI, which was loaded earlier, ends itself.
void Collector::at_exit() noexcept {
    instance().stop();
}

}  // namespace gpuprof::cupti
