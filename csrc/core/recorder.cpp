// SPDX-License-Identifier: Apache-2.0
#include "core/recorder.hpp"

#include <pthread.h>
#include <sched.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <stdexcept>
#include <system_error>
#include <utility>

#include "core/platform.hpp"

namespace gpuprof {

namespace {

constexpr std::ptrdiff_t smallest_spare_piece = 64;

// Set once this thread's exit handlers ran: events of handlers that come later are not recorded, since
// nothing would take the thread's log back.
thread_local bool thread_is_ending = false;

}  // namespace

thread_local constinit ThreadLog* Recorder::thread_log_ = nullptr;

struct ThreadExit {
    ThreadExit() = default;
    ThreadExit(const ThreadExit&) = delete;
    ThreadExit& operator=(const ThreadExit&) = delete;
    ~ThreadExit() {
        thread_is_ending = true;
        if (ThreadLog* log = Recorder::thread_log_; log != nullptr) {
            Recorder::thread_log_ = nullptr;
            Recorder::instance().detach_thread(log);
        }
    }
};

constinit std::atomic<Recorder*> Recorder::instance_{nullptr};
constinit std::atomic<std::uint32_t> Recorder::epoch_{no_epoch};

Recorder& Recorder::make_instance() noexcept {
    // Never destroyed: threads may still emit while the process ends.
    // NOLINTNEXTLINE(bugprone-unhandled-exception-at-new): at the first use, which cannot continue without
    static auto* const recorder = new Recorder;
    instance_.store(recorder, std::memory_order_release);
    return *recorder;
}

Recorder::Recorder() : load_point_(sample_clock()) {
    prepare_process_barrier();
    pthread_atfork(before_fork, after_fork_in_parent, after_fork_in_child);
}

void Recorder::start(const std::string& folder, bool joins, std::size_t limit_bytes) {
    std::lock_guard lifecycle(lifecycle_);
    if (active()) throw std::logic_error("a recording is already active in this process");
    {
        std::lock_guard chunks(chunks_);
        folder_ = folder;
        storage_failed_ = limit_reached_ = false;
        limit_chunks_ = limit_bytes == 0 ? SegmentList::no_limit : limit_bytes / chunk_bytes;
        is_child_ = joins;
        storage_error_.clear();
        process_key_ = static_cast<std::uint64_t>(monotonic_ns());
        first_point_ = sample_clock();
        const TickScale scale(load_point_, first_point_);
        ticks_per_ns_guess_ = 1.0 / scale.ns_per_tick();
        begin_segments(true);
        std::string names_path = file_path(".names");
        // A folder that cannot be written fails here, before anything is changed.
        if (!joins) make_first_files();
        names_.begin(std::move(names_path));
        if (!joins) names_.ensure_file();
    }
    {
        std::lock_guard registry(registry_);
        release_logs();  // a thread may have been noting its task while the last recording was stopped
    }
    contexts_ = 0;
    epoch_.store(generation_.fetch_add(1, std::memory_order_acq_rel) + 1, std::memory_order_release);
}

void Recorder::make_files() noexcept {
    std::lock_guard chunks(chunks_);
    if (!active() || storage_failed_ || !segments_.empty()) return;
    try {
        open_segment();
    } catch (const std::exception& error) {
        note_storage_failure(error.what());
    }
}

RecorderTotals Recorder::stop() noexcept {
    std::lock_guard lifecycle(lifecycle_);
    RecorderTotals totals;
    if (!active()) return totals;
    epoch_.store(no_epoch, std::memory_order_release);
    std::lock_guard registry(registry_);
    wait_for_writers();
    release_logs();
    segments_.pause();
    std::lock_guard chunks(chunks_);
    totals.dropped_events = std::exchange(dropped_by_ended_threads_, 0);
    totals.limit_reached = limit_reached_;
    totals.storage_failed = !names_.close() || storage_failed_;
    totals.storage_error.swap(storage_error_);
    // The run may be read while a child of its process still records: what is mapped must not shrink.
    segments_.close(sample_clock(), totals.dropped_events,
                    is_child_ ? Segment::Size::kept : Segment::Size::cut);
    segments_.resume();
    spare_pieces_.clear();
    losses_.close();
    return totals;
}

// Requires registry_. After it returns no thread writes, and each sees that there is no recording.
void Recorder::wait_for_writers() noexcept {
    process_barrier();
    for (ThreadLog* log : logs_)
        while (log->busy.load(std::memory_order_acquire) != 0) sched_yield();
}

// Requires registry_ and that no thread writes.
void Recorder::release_logs() noexcept {
    for (ThreadLog* log : logs_) {
        dropped_by_ended_threads_ += log->dropped;
        log->cursor = log->limit = nullptr;
        log->dropped = 0;
        log->pieces = 0;
        log->context_version = log->plain_version = 0;
        log->context_id = 0;
        log->context_parent = 0;
        log->in_event_loop = false;
        log->layer_mode = LayerMode::unknown;
    }
}

ThreadLog* Recorder::attach_thread() noexcept {
    if (thread_is_ending) return nullptr;
    auto* log = new (std::nothrow) ThreadLog;
    if (log == nullptr) return nullptr;
    thread_local ThreadExit at_exit;
    static_cast<void>(at_exit);
    log->system_id = system_thread_id();
    std::lock_guard registry(registry_);
    log->number = ++threads_seen_;
    try {
        std::lock_guard chunks(chunks_);
        // Space for the last piece of this thread, so that its end allocates nothing.
        spare_pieces_.reserve(spare_pieces_.size() + logs_.size() + 1);
        logs_.push_back(log);
    } catch (const std::bad_alloc&) {
        delete log;
        return nullptr;
    }
    thread_log_ = log;
    return log;
}

void Recorder::detach_thread(ThreadLog* log) noexcept {
    std::lock_guard registry(registry_);
    std::erase(logs_, log);
    dropped_by_ended_threads_ += log->dropped;
    if (log->limit - log->cursor >= smallest_spare_piece) {
        std::lock_guard chunks(chunks_);
        if (spare_pieces_.size() < spare_pieces_.capacity())
            spare_pieces_.push_back({log->cursor, log->limit});
    }
    delete log;
}

// What is left of try_emit where the thread's piece is full: the thread is busy.
bool Recorder::emit_to_next_piece(ThreadLog& log, EventKind kind, NameKey key, std::uint64_t ticks) noexcept {
    if (instance().refill(log)) write_event(log.cursor++, kind, static_cast<std::uint32_t>(key), ticks);
    log.busy.store(0, std::memory_order_release);
    return true;
}

bool Recorder::fulfil(ThreadLog& log, Event* event, EventKind kind, NameKey key) noexcept {
    log.busy.store(1, std::memory_order_relaxed);
    std::atomic_signal_fence(std::memory_order_seq_cst);
    const bool is_current = epoch() == generation_of(key);
    if (is_current) store_kind(*event, kind);
    log.busy.store(0, std::memory_order_release);
    return is_current;
}

void Recorder::withdraw(ThreadLog& log, Event* event, NameKey key) noexcept {
    log.busy.store(1, std::memory_order_relaxed);
    std::atomic_signal_fence(std::memory_order_seq_cst);
    if (epoch() == generation_of(key) && log.cursor == event + 1) {
        store_kind(*event, EventKind::none);
        log.cursor = event;
    }
    log.busy.store(0, std::memory_order_release);
}

// Called by a busy thread, so the segments stay mapped until it returns.
bool Recorder::refill(ThreadLog& log) noexcept {
    std::unique_lock chunks(chunks_);
    if (!active()) return false;
    Piece piece{};
    if (!storage_failed_ && !limit_reached_) {
        try {
            piece = next_piece(chunks);
            limit_reached_ = piece.cursor == nullptr;
        } catch (const std::exception& error) {
            note_storage_failure(error.what());
        }
    }
    if (piece.cursor == nullptr) {
        count_dropped_event(log);
        return false;
    }
    ThreadLabel label{};
    system_thread_name(label.text);
    write_event(piece.cursor, EventKind::thread, log.pieces++,
                static_cast<std::uint64_t>(log.system_id) << 32 | log.number);
    std::memcpy(static_cast<void*>(piece.cursor + 1), &label, sizeof(label));
    log.cursor = piece.cursor + thread_mark_slots;
    log.limit = piece.limit;
    return true;
}

void Recorder::add_thread(std::uint32_t system_id, const std::vector<Event>& events) {
    const std::lock_guard lifecycle(lifecycle_);  // taking a chunk may let go of chunks_
    std::unique_lock chunks(chunks_);
    if (!active()) throw std::logic_error("no recording is active");
    const std::uint32_t number = added_thread_bit | ++threads_added_;
    std::uint32_t sequence = 0;
    for (std::size_t done = 0; done < events.size();) {
        const Piece piece = next_piece(chunks);
        if (piece.cursor == nullptr) {
            limit_reached_ = true;
            dropped_by_ended_threads_ += events.size() - done;
            return;
        }
        write_event(piece.cursor, EventKind::thread, sequence++,
                    static_cast<std::uint64_t>(system_id) << 32 | number);
        const auto room = static_cast<std::size_t>(piece.limit - piece.cursor) - thread_mark_slots;
        const std::size_t count = std::min(room, events.size() - done);
        std::copy_n(events.data() + done, count, piece.cursor + thread_mark_slots);
        done += count;
    }
}

bool Recorder::limit_reached() noexcept {
    const std::lock_guard chunks(chunks_);
    return active() && limit_reached_;
}

std::uint64_t Recorder::ticks_at(std::int64_t monotonic_ns) const noexcept {
    const double ns_per_tick = TickScale(first_point_, sample_clock()).ns_per_tick();
    const auto delta = static_cast<double>(monotonic_ns - first_point_.monotonic_ns) / ns_per_tick;
    return first_point_.ticks + static_cast<std::uint64_t>(static_cast<std::int64_t>(delta));
}

ProcessFile Recorder::process_file(const char* suffix) {
    std::lock_guard chunks(chunks_);
    return {file_path(suffix), process_key_};
}

Recorder::Piece Recorder::next_piece(std::unique_lock<std::mutex>& chunks) {
    if (!spare_pieces_.empty()) {
        const Piece piece = spare_pieces_.back();
        spare_pieces_.pop_back();
        return piece;
    }
    if (segments_.empty()) open_segment();
    Event* const chunk = segments_.take_chunk(chunks);
    return chunk == nullptr ? Piece{} : Piece{chunk, chunk + chunk_events};
}

// Requires chunks_. What is there to count the losses of other processes comes first, while there is room. A
// recording that continues after a pause has it.
void Recorder::make_first_files() {
    const std::string losses = Losses::path_in(folder_);
    const bool is_new = ::access(losses.c_str(), F_OK) != 0;
    if (is_new) Segment(losses, describe_process()).open();
    try {
        open_segment();
        segments_.prepare_newest();
    } catch (const std::exception&) {
        if (is_new) ::unlink(losses.c_str());
        throw;
    }
}

// Requires chunks_.
void Recorder::begin_segments(bool may_begin_thread) {
    segments_.begin(file_path("."), describe_process(), may_begin_thread, limit_chunks_);
}

// Requires chunks_.
void Recorder::open_segment() {
    segments_.open();
    names_.ensure_file();
}

std::string Recorder::file_path(const char* suffix) const {
    return folder_ + "/" + std::to_string(getpid()) + "-" + std::to_string(process_key_) + suffix;
}

SegmentIdentity Recorder::describe_process() const noexcept {
    SegmentIdentity identity{};
    std::memcpy(identity.magic, segment_magic, sizeof(identity.magic));
    identity.version = segment_version;
    identity.clock_kind = static_cast<std::uint32_t>(clock_kind);
    identity.process_id = static_cast<std::uint32_t>(getpid());
    identity.parent_process_id = static_cast<std::uint32_t>(getppid());
    identity.process_key = process_key_;
    identity.first_point = first_point_;
    identity.ticks_per_ns_guess = ticks_per_ns_guess_;
    return identity;
}

// Requires chunks_. One failure ends the recording of events in this process: a disk that is full now is
// likely full at the next chunk too, and asking it each time would slow the measured program.
void Recorder::note_storage_failure(const char* what) noexcept {
    storage_failed_ = true;
    try {
        storage_error_ = what;
    } catch (const std::bad_alloc&) {
        storage_error_.clear();
    }
}

// Requires chunks_. Counted in the file as well, for the reader of a process that dies.
void Recorder::count_dropped_event(ThreadLog& log) noexcept {
    ++log.dropped;
    if (segments_.empty())
        losses_.add_event(folder_);
    else
        segments_.first().header().dropped_events.fetch_add(1, std::memory_order_relaxed);
}

void Recorder::before_fork() noexcept {
    Recorder& recorder = instance();
    recorder.lifecycle_.lock();
    recorder.registry_.lock();
    recorder.segments_.pause();
    recorder.chunks_.lock();
    recorder.names_.mutex().lock();
}

void Recorder::after_fork_in_parent() noexcept {
    Recorder& recorder = instance();
    recorder.segments_.resume();
    recorder.names_.mutex().unlock();
    recorder.chunks_.unlock();
    recorder.registry_.unlock();
    recorder.lifecycle_.unlock();
}

void Recorder::after_fork_in_child() noexcept {
    Recorder& recorder = instance();
    recorder.become_child();
    after_fork_in_parent();
}

// Only the forking thread lives on, and the parent's segments are not mapped here. New files are made
// with the first event that the child records.
void Recorder::become_child() noexcept {
    ThreadLog* const survivor = thread_log_;
    for (ThreadLog* log : logs_)
        if (log != survivor) delete log;
    logs_.clear();
    if (survivor != nullptr) logs_.push_back(survivor);
    release_logs();
    if (survivor != nullptr) survivor->system_id = system_thread_id();
    segments_.forget();
    spare_pieces_.clear();
    losses_.close();
    dropped_by_ended_threads_ = 0;
    process_key_ = static_cast<std::uint64_t>(monotonic_ns());
    if (!active()) return;
    is_child_ = true;
    first_point_ = sample_clock();
    try {
        begin_segments(false);  // threads of a forked child are its own business
        names_.continue_in(file_path(".names"));
    } catch (const std::bad_alloc&) {
        storage_failed_ = true;
    }
}

}  // namespace gpuprof
