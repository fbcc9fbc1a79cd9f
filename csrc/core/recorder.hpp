// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <vector>

#include "core/clock.hpp"
#include "core/layout.hpp"
#include "core/losses.hpp"
#include "core/names.hpp"
#include "core/platform.hpp"
#include "core/segment_list.hpp"

namespace gpuprof {

// What one thread needs to write an event. Only its own thread touches it, except `busy`, through which
// a stop learns that the thread is out of the mapped memory.
struct alignas(64) ThreadLog {
    std::atomic<std::uint32_t> busy{0};
    std::uint32_t number = 0;
    Event* cursor = nullptr;
    Event* limit = nullptr;
    std::uint64_t dropped = 0;
    // The asynchronous task that the last event belonged to. The version is the language binding's, which
    // changes whenever the thread may have gone on in another task; 0 is none.
    std::uint64_t context_version = 0;
    std::uint32_t context_id = 0;
    std::uint32_t context_parent = 0;
    // The same while a span needs no more than its event, 0 in an event loop, where it leaves a trace.
    std::uint64_t plain_version = 0;
    bool in_event_loop = false;
    LayerMode layer_mode = LayerMode::unknown;  // that was written last
    std::uint32_t pieces = 0;
    std::uint32_t system_id = 0;
};

// A name's id with the recording that it is valid in above it, which is what an event is given: one that was
// begun before a stop must not land in the recording that was started after it.
enum class NameKey : std::uint64_t {};

constexpr std::uint32_t generation_of(NameKey key) noexcept {
    return static_cast<std::uint32_t>(static_cast<std::uint64_t>(key) >> 32);
}

struct RecorderTotals {
    std::uint64_t dropped_events = 0;
    bool limit_reached = false;
    bool storage_failed = false;
    std::string storage_error;
};

// A file that this process adds to the recording next to its segments.
struct ProcessFile {
    std::string path;
    std::uint64_t process_key;
};

// Writes events of all threads of this process. One recording at a time.
//
// Lock order: lifecycle_, then registry_, then chunks_, then the name table's. The hot path takes none.
// A stop clears `epoch_`, orders that before every thread's next step with a process-wide barrier,
// and waits until no thread is `busy`; then no thread can access the mapped segments and they are unmapped.
class Recorder {
  public:
    static Recorder& instance() noexcept {
        Recorder* const made = instance_.load(std::memory_order_acquire);
        return made != nullptr ? *made : make_instance();
    }

    // Begins to record into `folder`, which exists. Throws std::system_error, std::logic_error if active.
    // A process that joins the recording of another is like a forked child of that: its files are made with
    // its first event, and what goes wrong with them only loses its events. Each process records at most
    // `limit_bytes` of events, 0 for no limit; those after it are dropped and counted.
    void start(const std::string& folder, bool joins = false, std::size_t limit_bytes = 0);
    // Makes the files now, for a process whose life is to be seen though it may have no events.
    void make_files() noexcept;
    // Ends the recording of this process. Harmless when none is active.
    RecorderTotals stop() noexcept;

    static bool active() noexcept { return epoch() != no_epoch; }
    // The generation of the recording that is active, or `no_epoch`: one number to compare a key with.
    static std::uint32_t epoch() noexcept { return epoch_.load(std::memory_order_acquire); }
    static constexpr std::uint32_t no_epoch = 0xFFFFFFFFu;
    // Counts recordings; ids of names are valid within one only.
    std::uint32_t generation() const noexcept { return generation_.load(std::memory_order_acquire); }
    static NameKey name_key(std::uint32_t generation, std::uint32_t name) noexcept {
        return static_cast<NameKey>(static_cast<std::uint64_t>(generation) << 32 | name);
    }
    NameKey name_key(std::uint32_t name) const noexcept { return name_key(generation(), name); }
    std::uint32_t intern(std::string_view text, std::uint32_t scope = 0) noexcept {
        return names_.intern(text, scope);
    }
    // The text of a name of the present recording, empty when there is none. Not for the hot path.
    std::string name_text(std::uint32_t id) noexcept { return names_.text(id); }
    std::uint32_t new_context() noexcept { return ++contexts_; }

    ThreadLog* current_log() noexcept {
        ThreadLog* log = thread_log_;
        return log != nullptr ? log : attach_thread();
    }
    // The same, or null where the thread has none yet.
    static ThreadLog* existing_log() noexcept { return thread_log_; }

    // Adds events of a thread that another tool recorded, in time order, while the recording is active.
    // Throws std::system_error when the disk is full.
    void add_thread(std::uint32_t system_id, const std::vector<Event>& events);
    // The tick of a time on the monotonic clock.
    std::uint64_t ticks_at(std::int64_t monotonic_ns) const noexcept;

    // Where a further file of this process goes. The name stays the same until the recording ends.
    ProcessFile process_file(const char* suffix);

    // The hot path: about 2 ns in addition to the clock. Never throws, blocks or allocates, but for one call
    // in four thousand that fetches the thread's next chunk.
    void emit(EventKind kind, NameKey key) noexcept { emit_to(current_log(), kind, key, read_ticks()); }

    // `log` is current_log() of the calling thread, `key` a name_key().
    static void emit_to(ThreadLog* log, EventKind kind, NameKey key, std::uint64_t ticks) noexcept {
        if (log != nullptr) [[likely]]
            static_cast<void>(try_emit(*log, kind, key, ticks));
    }

    // The same; false where the key is not of the recording that is active. Otherwise the compiler makes
    // one copy among its many callers, most of which are rare.
    [[gnu::always_inline]] static bool try_emit(ThreadLog& log, EventKind kind, NameKey key,
                                                std::uint64_t ticks) noexcept {
        log.busy.store(1, std::memory_order_relaxed);
        std::atomic_signal_fence(std::memory_order_seq_cst);
        const bool is_current = epoch() == generation_of(key);
        if (is_current) [[likely]] {
            if (log.cursor == log.limit) [[unlikely]]
                return emit_to_next_piece(log, kind, key, ticks);
            gpuprof::prefetch_for_writing(log.cursor + prefetched_events);
            write_event(log.cursor++, kind, static_cast<std::uint32_t>(key), ticks);
        }
        log.busy.store(0, std::memory_order_release);
        return is_current;
    }

    // Writes an event that means nothing until `fulfil` gives it a kind. Null where it cannot be written.
    // `log` is that of the calling thread, in all three.
    static Event* reserve(ThreadLog& log, NameKey key, std::uint64_t ticks) noexcept {
        const Event* const before = log.cursor;
        const bool written = try_emit(log, EventKind::pending, key, ticks);
        return written && log.cursor != before ? log.cursor - 1 : nullptr;
    }
    // False where the recording in which `event` was reserved has ended.
    static bool fulfil(ThreadLog& log, Event* event, EventKind kind, NameKey key) noexcept;
    // Takes `event` back if it is the thread's last one.
    static void withdraw(ThreadLog& log, Event* event, NameKey key) noexcept;

    // Whether another process started this recording.
    bool is_child() const noexcept { return is_child_; }
    // Whether events are dropped because the files of this process have the size that start() allows.
    bool limit_reached() noexcept;

  private:
    // The memory of the next events was last written by the kernel, on another processor maybe: fetched a few
    // cache lines ahead, it is there when its turn comes.
    static constexpr std::ptrdiff_t prefetched_events = 32;

    Recorder();
    static Recorder& make_instance() noexcept;

    static void write_event(Event* event, EventKind kind, std::uint32_t name, std::uint64_t ticks) noexcept {
        event->ticks = ticks;
        // The kind makes the event exist: it must not reach memory before the tick does.
        std::atomic_signal_fence(std::memory_order_release);
        event->name = name;
        store_kind(*event, kind);
    }
    static void store_kind(Event& event, EventKind kind) noexcept {
        std::atomic_ref<std::uint32_t>(event.kind)
            .store(static_cast<std::uint32_t>(kind), std::memory_order_release);
    }

    struct Piece {
        Event* cursor;
        Event* limit;
    };

    ThreadLog* attach_thread() noexcept;
    void detach_thread(ThreadLog* log) noexcept;
    static bool emit_to_next_piece(ThreadLog& log, EventKind kind, NameKey key, std::uint64_t ticks) noexcept;
    bool refill(ThreadLog& log) noexcept;
    Piece next_piece(std::unique_lock<std::mutex>& chunks);
    void begin_segments(bool may_begin_thread);
    void open_segment();
    void make_first_files();
    void wait_for_writers() noexcept;
    void release_logs() noexcept;
    std::string file_path(const char* suffix) const;
    SegmentIdentity describe_process() const noexcept;
    void note_storage_failure(const char* what) noexcept;
    void count_dropped_event(ThreadLog& log) noexcept;

    static void before_fork() noexcept;
    static void after_fork_in_parent() noexcept;
    static void after_fork_in_child() noexcept;
    void become_child() noexcept;

    friend struct ThreadExit;
    static constinit std::atomic<Recorder*> instance_;
    static thread_local constinit ThreadLog* thread_log_;
    static constinit std::atomic<std::uint32_t> epoch_;  // the generation while a recording is active

    std::atomic<std::uint32_t> generation_{0};
    std::atomic<std::uint32_t> contexts_{0};

    std::mutex lifecycle_;
    std::mutex registry_;
    std::vector<ThreadLog*> logs_;
    std::uint32_t threads_seen_ = 0;
    std::uint32_t threads_added_ = 0;
    std::uint64_t dropped_by_ended_threads_ = 0;

    std::mutex chunks_;
    std::string folder_;
    SegmentList segments_{chunks_};
    std::vector<Piece> spare_pieces_;
    Losses losses_;
    std::uint64_t process_key_ = 0;
    ClockPoint first_point_;
    double ticks_per_ns_guess_ = 1.0;
    std::size_t limit_chunks_ = SegmentList::no_limit;
    bool limit_reached_ = false;
    bool storage_failed_ = false;
    bool is_child_ = false;  // this recording was started by another process
    std::string storage_error_;

    NameTable names_;
    const ClockPoint load_point_;
};

}  // namespace gpuprof
