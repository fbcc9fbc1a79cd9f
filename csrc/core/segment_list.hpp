// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <pthread.h>

#include <condition_variable>
#include <cstdint>
#include <limits>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "core/layout.hpp"
#include "core/segment.hpp"

namespace gpuprof {

// The segments that this process records into. The kernel takes some 25 us to provide the memory of a chunk,
// as long as a thread needs to record 400 spans. That of the first segment is there before the recording
// begins, and one that has filled half of it gets a thread that has the next chunks provided before they are
// taken. If it is too slow, or cannot be started, the thread that takes a chunk waits for the kernel.
// That thread also unmaps the pages of old chunks, so that the memory of the process does not grow with the
// recording.
//
// Everything but pause() needs the mutex that was given to the constructor.
class SegmentList {
  public:
    static constexpr std::size_t no_limit = std::numeric_limits<std::size_t>::max();

    explicit SegmentList(std::mutex& guard) noexcept : guard_(guard) {}
    SegmentList(const SegmentList&) = delete;
    SegmentList& operator=(const SegmentList&) = delete;

    // Segments are named `stem` and their number; the number and size in `identity` are filled in. All
    // together have at most `limit_chunks` chunks, but at least one.
    void begin(std::string stem, const SegmentIdentity& identity, bool may_begin_thread,
               std::size_t limit_chunks = no_limit);
    bool empty() const noexcept { return segments_.empty(); }
    Segment& first() noexcept { return *segments_.front(); }
    // Throws std::system_error.
    void open();
    // Has the memory of the newest segment provided now, before there is anything to measure.
    void prepare_newest() noexcept;
    // Null at the limit. `lock` holds the mutex, and may let go of it meanwhile. Throws std::system_error.
    Event* take_chunk(std::unique_lock<std::mutex>& lock);

    // Ends the thread, if there is one, and waits for that; no other begins before resume().
    void pause() noexcept;
    void resume() noexcept { paused_ = false; }
    // Requires pause(), and that no thread writes.
    void close(const ClockPoint& last, std::uint64_t dropped_events, Segment::Size size) noexcept;
    // In a forked child, where the mappings do not exist, after pause() in its parent.
    void forget() noexcept;

  private:
    std::unique_ptr<Segment> describe_next();
    bool may_describe() const noexcept { return described_chunks_ < limit_chunks_; }
    void note_clock() noexcept;
    void keep_ahead() noexcept;
    void begin_thread() noexcept;
    void prepare_chunks() noexcept;
    void open_next(std::unique_lock<std::mutex>& lock) noexcept;
    Segment* segment_to_prepare() noexcept;
    bool wants_release() const noexcept;
    void forget_chunks() noexcept;
    void release_oldest(std::unique_lock<std::mutex>& lock) noexcept;
    std::size_t ready_chunks() const noexcept;
    bool wants_next() const noexcept;

    std::mutex& guard_;
    std::string stem_;
    SegmentIdentity identity_{};
    std::vector<std::unique_ptr<Segment>> segments_;
    std::unique_ptr<Segment> described_;  // without a file yet
    std::unique_ptr<Segment> next_;       // opened ahead
    std::condition_variable work_;
    std::condition_variable opened_;
    std::size_t taken_chunks_ = 0;
    std::size_t released_chunks_ = 0;
    std::size_t releasing_segment_ = 0;  // and the chunks of it that were released
    std::size_t releasing_chunks_ = 0;
    std::size_t described_chunks_ = 0;  // of all segments
    std::size_t limit_chunks_ = no_limit;
    pthread_t thread_{};
    std::int64_t clock_noted_ns_ = 0;
    bool has_thread_ = false;
    bool may_begin_thread_ = false;
    bool may_open_ahead_ = true;
    bool paused_ = false;
    bool opening_ = false;  // the thread is about to set next_
};

}  // namespace gpuprof
