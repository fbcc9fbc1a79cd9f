// SPDX-License-Identifier: Apache-2.0
#include "core/segment_list.hpp"

#include <algorithm>
#include <new>
#include <utility>

#include "core/clock.hpp"
#include "core/platform.hpp"
#include "core/signals_blocked.hpp"

namespace gpuprof {
namespace {

constexpr std::uint32_t first_segment_chunks = 16;
constexpr std::uint32_t largest_segment_chunks = 1024;
constexpr std::size_t chunks_before_thread = first_segment_chunks / 2;
constexpr std::size_t chunks_ahead = 32;
// Chunks before these are full, but for those of threads that record rarely.
constexpr std::size_t chunks_kept = 128;
constexpr std::size_t released_at_once = 16;
constexpr std::int64_t clock_interval_ns = 50'000'000;
constexpr std::size_t stack_bytes = std::size_t{512} * 1024;

}  // namespace

void SegmentList::begin(std::string stem, const SegmentIdentity& identity, bool may_begin_thread,
                        std::size_t limit_chunks) {
    limit_chunks_ = std::max<std::size_t>(limit_chunks, 1);
    described_chunks_ = 0;
    stem_ = std::move(stem);
    identity_ = identity;
    may_begin_thread_ = may_begin_thread;
    may_open_ahead_ = true;
}

// For the reader of a process that dies.
void SegmentList::note_clock() noexcept {
    const std::int64_t now_ns = monotonic_ns();
    if (has_thread_ && now_ns - clock_noted_ns_ < clock_interval_ns) return;
    clock_noted_ns_ = now_ns;
    first().header().latest_point = sample_clock();
}

void SegmentList::open() {
    std::unique_ptr<Segment> segment = described_ != nullptr ? std::move(described_) : describe_next();
    segment->open();
    segments_.push_back(std::move(segment));
    may_open_ahead_ = true;
}

void SegmentList::prepare_newest() noexcept {
    Segment& newest = *segments_.back();
    while (newest.next_to_prepare() < newest.chunk_count()) {
        const std::size_t chunk = newest.next_to_prepare();
        newest.prepare(chunk);
        newest.note_prepared(chunk);
    }
}

// Segments grow, so that a short recording reserves little and a long one maps rarely.
std::unique_ptr<Segment> SegmentList::describe_next() {
    SegmentIdentity identity = identity_;
    identity.segment_index = static_cast<std::uint32_t>(segments_.size());
    const std::uint32_t doublings = std::min(identity.segment_index, 6u);
    const std::size_t wanted = std::min(first_segment_chunks << doublings, largest_segment_chunks);
    const std::size_t chunks = std::min(wanted, limit_chunks_ - described_chunks_);
    identity.chunk_count = static_cast<std::uint32_t>(chunks);
    auto segment =
        std::make_unique<Segment>(stem_ + std::to_string(identity.segment_index) + ".segment", identity);
    described_chunks_ += chunks;
    return segment;
}

Event* SegmentList::take_chunk(std::unique_lock<std::mutex>& lock) {
    for (;;) {
        if (Event* const chunk = segments_.empty() ? nullptr : segments_.back()->take_chunk()) {
            ++taken_chunks_;
            note_clock();
            keep_ahead();
            return chunk;
        }
        if (opening_)
            opened_.wait(lock);
        else if (next_ != nullptr)
            segments_.push_back(std::move(next_));
        else if (described_ != nullptr || may_describe())
            open();
        else
            return nullptr;
    }
}

std::size_t SegmentList::ready_chunks() const noexcept {
    return segments_.back()->ready_chunks() + (next_ != nullptr ? next_->ready_chunks() : 0);
}

// The thread itself allocates nothing: its first allocation would cost the program 64 MiB of address space.
void SegmentList::keep_ahead() noexcept {
    if (has_thread_) {
        if (next_ == nullptr && described_ == nullptr && !opening_ && may_describe()) {
            try {
                described_ = describe_next();
            } catch (const std::bad_alloc&) {
                return;  // the next chunk's taker tries again
            }
        }
        if (ready_chunks() <= chunks_ahead / 2) work_.notify_one();
    } else if (segments_.size() > 1 || segments_.back()->taken_chunks() >= chunks_before_thread) {
        begin_thread();
    }
}

void SegmentList::begin_thread() noexcept {
    if (paused_ || !may_begin_thread_ || !may_begin_helper()) return;
    pthread_attr_t attributes;
    if (pthread_attr_init(&attributes) != 0) return;
    pthread_attr_setstacksize(&attributes, stack_bytes);
    const auto run = [](void* list) noexcept -> void* {
        static_cast<SegmentList*>(list)->prepare_chunks();
        return nullptr;
    };
    {
        const SignalsBlocked blocked;
        has_thread_ = pthread_create(&thread_, &attributes, run, this) == 0;
    }
    pthread_attr_destroy(&attributes);
    may_begin_thread_ = has_thread_;  // what was refused once is not asked for with each chunk
}

void SegmentList::prepare_chunks() noexcept {
#if defined(__linux__)
    pthread_setname_np(pthread_self(), "gpuprof-memory");
#endif
    std::unique_lock lock(guard_);
    while (!paused_) {
        if (Segment* const segment = segment_to_prepare(); segment != nullptr) {
            const std::size_t chunk = segment->next_to_prepare();
            lock.unlock();
            segment->prepare(chunk);
            lock.lock();
            segment->note_prepared(chunk);
        } else if (wants_next()) {
            open_next(lock);
        } else if (wants_release()) {
            release_oldest(lock);
        } else {
            work_.wait(lock);
        }
    }
}

bool SegmentList::wants_release() const noexcept {
    return taken_chunks_ - released_chunks_ >= chunks_kept + released_at_once;
}

// Requires wants_release().
void SegmentList::release_oldest(std::unique_lock<std::mutex>& lock) noexcept {
    const Segment& segment = *segments_[releasing_segment_];
    const std::size_t first = releasing_chunks_;
    const std::size_t count = std::min(released_at_once, segment.chunk_count() - first);
    released_chunks_ += count;
    releasing_chunks_ += count;
    if (releasing_chunks_ == segment.chunk_count()) {
        ++releasing_segment_;
        releasing_chunks_ = 0;
    }
    lock.unlock();
    segment.release(first, count);
    lock.lock();
}

Segment* SegmentList::segment_to_prepare() noexcept {
    if (ready_chunks() >= chunks_ahead) return nullptr;
    for (Segment* segment : {segments_.back().get(), next_.get()})
        if (segment != nullptr && segment->next_to_prepare() < segment->chunk_count()) return segment;
    return nullptr;
}

bool SegmentList::wants_next() const noexcept {
    return next_ == nullptr && described_ != nullptr && may_open_ahead_ && ready_chunks() < chunks_ahead;
}

void SegmentList::open_next(std::unique_lock<std::mutex>& lock) noexcept {
    std::unique_ptr<Segment> segment = std::move(described_);
    opening_ = true;
    lock.unlock();
    const int error = segment->try_open();
    lock.lock();
    // After a failure, the thread that needs the segment tries again, and can report the error.
    may_open_ahead_ = error == 0;
    (error == 0 ? next_ : described_) = std::move(segment);
    opening_ = false;
    opened_.notify_all();
}

void SegmentList::pause() noexcept {
    {
        const std::lock_guard lock(guard_);
        paused_ = true;
        if (!has_thread_) return;
        work_.notify_one();
    }
    pthread_join(thread_, nullptr);
    const std::lock_guard lock(guard_);
    has_thread_ = false;
}

void SegmentList::close(const ClockPoint& last, std::uint64_t dropped_events, Segment::Size size) noexcept {
    for (auto& segment : segments_) {
        segment->header().latest_point = last;
        segment->header().dropped_events.store(0, std::memory_order_relaxed);
        segment->trim(size);
    }
    if (!segments_.empty()) {
        first().header().dropped_events.store(dropped_events, std::memory_order_relaxed);
        first().header().closed.store(1, std::memory_order_release);
    }
    segments_.clear();
    if (next_ != nullptr) next_->remove_file();
    next_.reset();
    described_.reset();
    forget_chunks();
}

void SegmentList::forget_chunks() noexcept {
    taken_chunks_ = released_chunks_ = releasing_segment_ = releasing_chunks_ = described_chunks_ = 0;
}

void SegmentList::forget() noexcept {
    for (auto& segment : segments_) segment->forget();
    segments_.clear();
    if (next_ != nullptr) next_->forget();
    next_.reset();
    described_.reset();
    forget_chunks();
    has_thread_ = false;
    // Threads that waited here are not in this process, but the conditions still count them.
    new (&work_) std::condition_variable;
    new (&opened_) std::condition_variable;
}

}  // namespace gpuprof
