// SPDX-License-Identifier: Apache-2.0
// Gives the events of one thread to its span builder, in the order of time.
#pragma once

#include <algorithm>
#include <cstdint>
#include <span>
#include <utility>
#include <vector>

#include "analysis/decode.hpp"
#include "analysis/segment_reader.hpp"
#include "analysis/span_builder.hpp"

namespace gpuprof {

struct ProcessCursor {
    const RecordedProcess& process;
    const std::vector<std::uint32_t>& names;
    DecodeTotals& totals;
    std::uint64_t last_possible_ticks;
    std::uint64_t second_ticks;
    double ticks_per_ns;
};

inline bool is_timed(const Event& event) noexcept {
    return is_timed(static_cast<EventKind>(event.kind));
}

inline const Event* next_timed(std::span<const Event> events, std::size_t after) {
    for (std::size_t i = after + 1; i < events.size(); ++i)
        if (is_timed(events[i])) return &events[i];
    return nullptr;
}

// A thread reads the clock before it asks whether there is a recording, so its first tick may be older.
inline bool began_before(const ProcessCursor& cursor, std::uint64_t ticks, std::uint64_t last) noexcept {
    return last == cursor.process.first_point.ticks && ticks < last && last - ticks < cursor.second_ticks;
}

// A thread's ticks never decrease. One that does, or one that leaps past its successor, is damaged: the
// event keeps its place and takes the time of the one before it.
inline std::uint64_t repaired_ticks(const ProcessCursor& cursor, std::span<const Event> events,
                                    std::size_t at, std::uint64_t last) {
    const std::uint64_t ticks = events[at].ticks;
    if (began_before(cursor, ticks, last)) return last;
    bool damaged = ticks < last || ticks > cursor.last_possible_ticks;
    if (const Event* next = next_timed(events, at); !damaged && next != nullptr)
        damaged = next->ticks < ticks && next->ticks >= last;
    if (damaged) ++cursor.totals.damaged_events;
    return damaged ? last : ticks;
}

using PieceGroup = std::span<const ThreadPiece>;

// Calls of one thread that launched work on a GPU.
using CallGroup = std::span<const RecordedCall>;

inline CallGroup calls_of(const RecordedProcess& process, std::uint32_t thread_id) {
    const auto [first, last] =
        std::ranges::equal_range(process.calls, thread_id, {}, &RecordedCall::thread_id);
    return {first, last};
}

// Walks the events of a thread and those that another tool recorded of it as one sequence in time.
class AddedEvents {
  public:
    explicit AddedEvents(const ProcessCursor& cursor) : cursor_(cursor) {}

    void append_calls(CallGroup calls) { calls_ = calls; }

    // Pieces are added in the order of their time.
    void append(PieceGroup pieces) {
        std::uint64_t last = events_.empty() ? cursor_.process.first_point.ticks : events_.back().ticks;
        for (const ThreadPiece& piece : pieces)
            for (std::size_t i = 0; i < piece.events.size(); ++i) {
                const Event& event = piece.events[i];
                if (event.kind == 0) continue;
                if (static_cast<EventKind>(event.kind) == EventKind::backward_node) {
                    nodes_.emplace_back(events_.size(), event.ticks);
                    continue;
                }
                last = repaired_ticks(cursor_, piece.events, i, last);
                events_.push_back({last, event.name, event.kind});
            }
    }
    std::uint64_t last() const noexcept { return events_.empty() ? 0 : events_.back().ticks; }
    void feed_until(std::uint64_t ticks, SpanBuilder& builder) {
        for (; next_ < events_.size() && events_[next_].ticks <= ticks; ++next_) {
            feed_calls_until(events_[next_].ticks, builder);
            feed_next(builder);
        }
        feed_calls_until(ticks, builder);
    }

  private:
    void feed_next(SpanBuilder& builder) {
        const Event& event = events_[next_];
        const bool known = event.name < cursor_.names.size();
        ++cursor_.totals.events;
        for (; next_node_ < nodes_.size() && nodes_[next_node_].first <= next_; ++next_node_)
            builder.evaluate_node(nodes_[next_node_].second);
        builder.add(static_cast<EventKind>(event.kind), cursor_.names[known ? event.name : 0], event.ticks);
    }

    void feed_calls_until(std::uint64_t ticks, SpanBuilder& builder) {
        for (; next_call_ < calls_.size(); ++next_call_) {
            const RecordedCall& call = calls_[next_call_];
            const std::uint64_t start = ticks_at(call.start_ns);
            if (start > ticks) return;
            builder.link(LinkColumns::Kind::launch, call.correlation_id, start);
            builder.end_launch(call.correlation_id, ticks_at(call.end_ns));
        }
    }

    std::uint64_t ticks_at(std::int64_t monotonic_ns) const noexcept {
        const ClockPoint& first = cursor_.process.first_point;
        const double ticks = static_cast<double>(monotonic_ns - first.monotonic_ns) * cursor_.ticks_per_ns;
        return first.ticks + static_cast<std::uint64_t>(std::clamp(ticks, 0.0, 0x1p62));
    }

    const ProcessCursor& cursor_;
    CallGroup calls_;
    std::size_t next_call_ = 0;
    std::vector<Event> events_;
    std::size_t next_ = 0;
    std::vector<std::pair<std::size_t, std::uint64_t>> nodes_;  // before which event, and its mark
    std::size_t next_node_ = 0;
};

// Takes the modes of one thread's layer calls.
struct ModeSink {
    std::uint32_t thread_id;
    const TickToRun& clock;
    std::vector<DecodedMode>& modes;
};

// Gives one thread's own events to its builder, and between them what was added.
class ThreadFeed {
  public:
    ThreadFeed(const ProcessCursor& cursor, SpanBuilder& builder, AddedEvents& added, const ModeSink& modes)
        : cursor_(cursor),
          builder_(builder),
          added_(added),
          modes_(modes),
          last_(cursor.process.first_point.ticks) {}

    // A thread leaves no gaps: what is missing between two events, or two pieces, was lost.
    void feed(const ThreadPiece& piece) {
        begin_piece(piece.sequence);
        feed(piece.events);
    }
    void begin_piece(std::uint32_t sequence) {
        if (sequence != next_sequence_) cut();
        next_sequence_ = sequence + 1;
    }
    // Events of the piece that began last, which follow those that were fed.
    void feed(std::span<const Event> events) {
        std::uint64_t missing = 0;
        for (std::size_t i = 0; i < events.size(); ++i) {
            if (events[i].kind == 0) {
                ++missing;
                continue;
            }
            if (missing > 0) cut();
            cursor_.totals.damaged_events += std::exchange(missing, 0);
            ++cursor_.totals.events;
            feed_event(events, i);
        }
    }
    std::uint64_t last() const noexcept { return last_; }

  private:
    // The end of a span that is open before a gap is unknown: it ends where the gap begins.
    void cut() {
        added_.feed_until(last_, builder_);
        builder_.finish(last_);
    }

    void feed_event(std::span<const Event> events, std::size_t at) {
        const Event& event = events[at];
        switch (static_cast<EventKind>(event.kind)) {
            case EventKind::task_start:
                return builder_.start_task(event.ticks);
            case EventKind::context:
                return builder_.enter_context(event.ticks, event.name);
            case EventKind::range_id:
                return builder_.number_range(event.ticks);
            case EventKind::layer_nodes:  // read before, of all threads
            case EventKind::pending:      // never ended
                return;
            case EventKind::backward_node:
                return builder_.evaluate_node(event.ticks);
            case EventKind::graph_node:
                return builder_.link(LinkColumns::Kind::graph_node, event.ticks, last_);
            case EventKind::graph_clone:
                original_node_ = event.ticks;
                return;
            case EventKind::graph_clone_of:
                return builder_.link_clone(original_node_, event.ticks);
            default:
                feed_timed(events, at);
        }
    }

    void feed_timed(std::span<const Event> events, std::size_t at) {
        const Event& event = events[at];
        if (!is_timed(event)) {
            ++cursor_.totals.damaged_events;
            return;
        }
        last_ = repaired_ticks(cursor_, events, at, last_);
        added_.feed_until(last_, builder_);
        const auto kind = static_cast<EventKind>(event.kind);
        if (kind == EventKind::launch) return builder_.link(LinkColumns::Kind::launch, event.name, last_);
        if (kind == EventKind::launch_end) return builder_.end_launch(event.name, last_);
        if (kind == EventKind::range_stop) return builder_.stop_range(event.name, last_);
        if (kind == EventKind::layer_mode) return add_mode(event.name);
        const bool known = event.name < cursor_.names.size();
        builder_.add(kind, cursor_.names[known ? event.name : 0], last_);
    }

    void add_mode(std::uint32_t mode) {
        modes_.modes.push_back({cursor_.process.process_id, modes_.thread_id, modes_.clock(last_), mode});
    }

    const ProcessCursor& cursor_;
    SpanBuilder& builder_;
    AddedEvents& added_;
    const ModeSink& modes_;
    std::uint64_t last_;
    std::uint64_t original_node_ = 0;
    std::uint32_t next_sequence_ = 0;
};

}  // namespace gpuprof
