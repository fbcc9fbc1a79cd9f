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

constexpr std::uint32_t recorded_kinds[] = {abi::concurrent_kernel, abi::memory_copy, abi::memory_copy_peer,
                                            abi::memory_set, abi::synchronization};

std::uint64_t timestamp() noexcept {
    return static_cast<std::uint64_t>(monotonic_ns());
}

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
            started.reason = "this process was forked from one whose GPU was recorded: use spawn instead";
            return started;
        }
        std::lock_guard lifecycle(lifecycle_);
        started.reason = begin(options, started);
    } catch (const std::exception& error) {
        disable_kinds();
        subscription_.end();
        try {
            started.reason = error.what();
        } catch (const std::bad_alloc&) {
            started.reason.assign(1, '?');
        }
    }
    return started;
}

// Requires lifecycle_.
std::string Collector::begin(const CollectorOptions& options, Started& started) {
    if (on_) return "GPU records are on already";
    if (stuck_) return "CUPTI did not come back from its last recording: start the program again";
    library_ = load_library(options.folders);
    started.path = library_.path;
    started.version = library_.version;
    if (!library_.available()) return library_.reason;
    if (!cupti_used_.exchange(true)) std::atexit(at_exit);
    if (is_unknown_version(library_.version))
        started.notes.push_back(
            "CUPTI " + version_text(library_.version) +
            " is newer than this gpuprof: its records are read by what never changed yet");
    options_ = options;
    names_.clear();
    pool_.discard_ready();
    totals_ = GpuTotals{};
    if (std::string why = switch_on(); !why.empty()) return why;
    // A file says that the GPU was recorded, even where nothing ran on it.
    file_.open(Recorder::instance().process_file(".gpu"));
    finishing_ = false;
    has_ended_ = false;
    const SignalsBlocked blocked;
    reader_ = std::thread([this] { run(); });
    on_ = true;
    return {};
}

// Why it cannot be; then nothing is on.
std::string Collector::switch_on() {
    const Api& api = library_.api;
    if (const std::uint32_t result = subscription_.begin(api); result != abi::success)
        return explain_error(result);
    register_clock();
    // Each time: the registration that came last is the one that counts, and it may be another tool's.
    std::uint32_t result = api.register_callbacks(request_buffer, complete_buffer);
    const std::optional<ClockCheck> clock = check_clock(api.get_timestamp);
    correction_ns_ = clock_correction_ns(clock);
    started_ns_ = monotonic_ns();
    // Whether a stream or an event has finished is asked often and is no synchronization.
    if (api.enable_all_synchronizations != nullptr) api.enable_all_synchronizations(0);
    for (const std::uint32_t kind : recorded_kinds)
        if (result == abi::success) result = api.enable(kind);
    if (result == abi::success) return {};
    disable_kinds();
    subscription_.end();
    return explain_error(result);
}

// Once with each library: a further registration spoils a record.
void Collector::register_clock() noexcept {
    const abi::ActivityRegisterTimestamp function = library_.api.register_timestamp;
    if (function == nullptr || function == clock_registered_with_) return;
    if (function(timestamp) == abi::success) clock_registered_with_ = function;
}

void Collector::disable_kinds() const noexcept {
    if (library_.api.disable == nullptr) return;
    for (const std::uint32_t kind : recorded_kinds) library_.api.disable(kind);
}

// The first one stays. Where memory is short there is no text, and the totals tell all the same.
template <typename MakeText>
void Collector::note_problem(MakeText make_text) noexcept {
    std::lock_guard state(state_);
    if (!totals_.problem.empty()) return;
    try {
        totals_.problem = make_text();
    } catch (const std::bad_alloc&) {
        totals_.problem.clear();
    }
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
        subscription_.end();
        file_.close();
    } else {
        state.unlock();
        stuck_ = true;
        reader_.detach();
        note_problem(
            [] { return "CUPTI did not come back from a call: GPU records are missing; see nvidia-smi"; });
        subscription_.forget();
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
    while (!finishing_.load()) {
        if (const auto buffer = pool_.wait_for_ready(until(next_flush)); buffer.data() != nullptr)
            read(buffer);
        if (finishing_.load() || steady_clock::now() < next_flush) continue;
        // CUPTI's own flush period hands out full buffers only, and a killed process would lose the rest.
        flush(0);
        next_flush = steady_clock::now() + options_.flush_period;
    }
    finish();
    std::lock_guard state(state_);
    has_ended_ = true;
    ended_.notify_all();
}

// A forced flush hands out work that has not ended, without its times, so it comes last: first what is
// under way is given a while. The program's GPU is not synchronised: that would change what is measured.
void Collector::finish() noexcept {
    const auto deadline = steady_clock::now() + options_.longest_wait;
    flush(0);
    read_ready();
    while (pool_.held() > 0 && steady_clock::now() < deadline) {
        if (const auto buffer = pool_.wait_for_ready(options_.retry_period); buffer.data() != nullptr)
            read(buffer);
        else
            flush(0);
    }
    disable_kinds();
    if (pool_.held() > 0) flush(abi::flush_forced);
    read_ready();
    note_clock_error();
    std::lock_guard state(state_);
    totals_.held_buffers = pool_.held();
}

void Collector::flush(std::uint32_t flag) noexcept {
    const std::uint32_t result = library_.api.flush_all(flag);
    if (result != abi::success) note_problem([result] { return explain_error(result); });
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
    try {
        const abi::ActivityGetNextRecord next = library_.api.get_next_record;
        const Stride stride = next != nullptr ? Stride(next) : Stride(library_.version);
        counts =
            decode_buffer(buffer, stride, [this](const char* name) { return names_.id(name); }, records_);
        leave_out_stale(counts);
    } catch (const std::exception& error) {
        records_.clear();
        note_problem([&error] { return error.what(); });
    }
    pool_.recycle(buffer);
    {
        std::lock_guard state(state_);
        totals_.counts += counts;
    }
    write();
}

// Puts the times on our clock, and drops what ended before the recording began.
void Collector::leave_out_stale(DecodeCounts& counts) noexcept {
    std::uint64_t stale = 0;
    std::erase_if(records_, [&](GpuRecord& record) {
        record.start_ns -= correction_ns_;
        record.end_ns -= correction_ns_;
        if (record.end_ns >= started_ns_) return false;
        --counts.of(static_cast<GpuRecordKind>(record.kind));
        ++stale;
        return true;
    });
    std::lock_guard state(state_);
    totals_.stale += stale;
}

void Collector::write() noexcept {
    if (file_.append(records_)) return;
    note_problem([this] {
        return std::string("the disk failed while GPU records were written: ") +
               std::generic_category().message(file_.error());
    });
    std::lock_guard state(state_);
    totals_.lost_records += records_.size();
}

// The difference that is left between the two clocks; how CUPTI brings the GPU's clock to the CPU's is its
// own.
void Collector::note_clock_error() noexcept {
    const std::optional<ClockCheck> check = check_clock(library_.api.get_timestamp);
    if (!check) return;
    std::lock_guard state(state_);
    totals_.clock_error_ns = std::llabs(check->ahead_ns - correction_ns_) + check->error_ns;
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

// CUDA does not work in the child, its locks may be held for ever, and the thread that reads is not here.
void Collector::after_fork_in_child() noexcept {
    Collector& collector = instance();
    if (!collector.cupti_used_.load()) return;
    collector.is_child_.store(true);
    collector.subscription_.forget();
    collector.file_.close();
}

// A program that ends without a stop: before CUPTI, which was loaded earlier, ends itself.
void Collector::at_exit() noexcept {
    instance().stop();
}

}  // namespace gpuprof::cupti
