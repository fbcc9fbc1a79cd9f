// SPDX-License-Identifier: Apache-2.0
#include "analysis/decode.hpp"

#include <algorithm>
#include <limits>
#include <map>
#include <utility>

namespace gpuprof {
namespace {

constexpr std::int64_t shortest_baseline_ns = 1'000'000;

// Names of all processes under one numbering.
class NameMerger {
  public:
    explicit NameMerger(std::vector<RecordedName>& names) : names_(names) {}

    std::uint32_t add(const std::string& text, std::uint32_t scope) {
        const auto [place, is_new] = ids_.try_emplace({text, scope}, names_.size() + 1);
        if (is_new) {
            names_.push_back({text, scope});
            classes_.push_back(classify_name(text));
            scopes_.push_back(scope);
        }
        return place->second;
    }

    // Run-wide id for each of a process's ids; index 0 is a lost name.
    std::vector<std::uint32_t> adopt(const RecordedProcess& process) {
        std::vector<std::uint32_t> run_wide{add("(lost name)", 0)};
        for (const RecordedName& name : process.names)
            run_wide.push_back(add(name.text, name.scope < run_wide.size() ? scope_id(name, run_wide) : 0));
        return run_wide;
    }

    const std::vector<NameClass>& classes() const noexcept { return classes_; }
    const std::vector<std::uint32_t>& scopes() const noexcept { return scopes_; }

  private:
    static std::uint32_t scope_id(const RecordedName& name, const std::vector<std::uint32_t>& run_wide) {
        return name.scope == 0 ? 0 : run_wide[name.scope];
    }

    std::vector<RecordedName>& names_;
    std::vector<NameClass> classes_{NameClass::plain};  // index 0 is never used
    std::vector<std::uint32_t> scopes_{0};
    std::map<std::pair<std::string, std::uint32_t>, std::uint32_t> ids_;
};

// All processes of a run tick alike, so the longest baseline serves them all.
TickScale common_scale(const std::vector<RecordedProcess>& processes) {
    const RecordedProcess* longest = nullptr;
    auto baseline = [](const RecordedProcess& process) {
        return process.latest_point.monotonic_ns - process.first_point.monotonic_ns;
    };
    for (const RecordedProcess& process : processes)
        if (longest == nullptr || baseline(process) > baseline(*longest)) longest = &process;
    if (longest == nullptr) return {ClockPoint{}, ClockPoint{}};
    if (baseline(*longest) >= shortest_baseline_ns) return {longest->first_point, longest->latest_point};
    ClockPoint guessed = longest->first_point;
    constexpr std::int64_t second_ns = 1'000'000'000;
    guessed.ticks += static_cast<std::uint64_t>(longest->ticks_per_ns_guess * second_ns);
    guessed.monotonic_ns += second_ns;
    return {longest->first_point, guessed};
}

struct ProcessCursor {
    const RecordedProcess& process;
    const std::vector<std::uint32_t>& names;
    DecodeTotals& totals;
    std::uint64_t last_possible_ticks;
    std::uint64_t second_ticks;
    double ticks_per_ns;
};

bool is_timed(const Event& event) noexcept {
    return is_timed(static_cast<EventKind>(event.kind));
}

const Event* next_timed(std::span<const Event> events, std::size_t after) {
    for (std::size_t i = after + 1; i < events.size(); ++i)
        if (is_timed(events[i])) return &events[i];
    return nullptr;
}

// A thread reads the clock before it asks whether there is a recording, so its first tick may be older.
bool began_before(const ProcessCursor& cursor, std::uint64_t ticks, std::uint64_t last) noexcept {
    return last == cursor.process.first_point.ticks && ticks < last && last - ticks < cursor.second_ticks;
}

// A thread's ticks never decrease. One that does, or one that leaps past its successor, is damaged: the
// event keeps its place and takes the time of the one before it.
std::uint64_t repaired_ticks(const ProcessCursor& cursor, std::span<const Event> events, std::size_t at,
                             std::uint64_t last) {
    const std::uint64_t ticks = events[at].ticks;
    if (began_before(cursor, ticks, last)) return last;
    bool damaged = ticks < last || ticks > cursor.last_possible_ticks;
    if (const Event* next = next_timed(events, at); !damaged && next != nullptr)
        damaged = next->ticks < ticks && next->ticks >= last;
    if (damaged) ++cursor.totals.damaged_events;
    return damaged ? last : ticks;
}

bool has_known_end(const RecordedProcess& process) noexcept {
    return process.closed && process.latest_point.ticks > process.first_point.ticks;
}

// The last tick that an event can carry: the stop, or, where none was written, that of a very long run.
std::uint64_t last_possible_ticks(const RecordedProcess& process, double ns_per_tick) noexcept {
    if (has_known_end(process)) return process.latest_point.ticks;
    constexpr double longest_run_ns = 10 * 365 * 86'400e9;
    const auto longest = static_cast<std::uint64_t>(longest_run_ns / ns_per_tick);
    const std::uint64_t room = std::numeric_limits<std::uint64_t>::max() - process.first_point.ticks;
    return process.first_point.ticks + std::min(longest, room);
}

std::uint64_t end_of(const RecordedProcess& process, double ns_per_tick) {
    if (has_known_end(process)) return process.latest_point.ticks;
    const std::uint64_t limit = last_possible_ticks(process, ns_per_tick);
    std::uint64_t last = process.latest_point.ticks;
    for (const ThreadPiece& piece : process.pieces)
        for (std::size_t i = piece.events.size(); i-- > 0;)
            if (is_timed(piece.events[i]) && piece.events[i].ticks <= limit) {
                last = std::max(last, piece.events[i].ticks);
                break;
            }
    return last;
}

using PieceGroup = std::span<const ThreadPiece>;

// Calls of one thread that launched work on a GPU.
using CallGroup = std::span<const RecordedCall>;

CallGroup calls_of(const RecordedProcess& process, std::uint32_t thread_id) {
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
        if (piece.sequence != next_sequence_) cut();
        next_sequence_ = piece.sequence + 1;
        std::uint64_t missing = 0;
        for (std::size_t i = 0; i < piece.events.size(); ++i) {
            if (piece.events[i].kind == 0) {
                ++missing;
                continue;
            }
            if (missing > 0) cut();
            cursor_.totals.damaged_events += std::exchange(missing, 0);
            ++cursor_.totals.events;
            feed_event(piece.events, i);
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

std::vector<PieceGroup> group_by_thread(const std::vector<ThreadPiece>& pieces) {
    std::vector<PieceGroup> groups;
    for (std::size_t begin = 0; begin < pieces.size();) {
        std::size_t end = begin;
        while (end < pieces.size() && pieces[end].thread_number == pieces[begin].thread_number) ++end;
        groups.emplace_back(pieces.data() + begin, end - begin);
        begin = end;
    }
    return groups;
}

bool is_added(PieceGroup group) noexcept {
    return (group.front().thread_number & added_thread_bit) != 0;
}

// Whether `group` is the first of its thread id. Added groups are last, so it is one of them only where
// the thread has no events of its own; where the system gave an id twice, the first thread has what was
// added.
bool is_first_of_thread(PieceGroup group, const std::vector<PieceGroup>& groups) {
    const auto first = std::ranges::find_if(
        groups, [&](const PieceGroup& other) { return other.front().thread_id == group.front().thread_id; });
    return first->data() == group.data();
}

// The thread whose life is that of its process; where it has no events, the first that has.
bool is_main_thread(PieceGroup group, const std::vector<PieceGroup>& groups, std::uint32_t process_id) {
    const auto main = std::ranges::find_if(
        groups, [&](const PieceGroup& other) { return other.front().thread_id == process_id; });
    return group.data() == (main != groups.end() ? *main : groups.front()).data();
}

void append_added(AddedEvents& added, PieceGroup group, const std::vector<PieceGroup>& groups) {
    for (const PieceGroup& other : groups)
        if (is_added(other) && other.front().thread_id == group.front().thread_id) added.append(other);
}

// Calls of threads that recorded nothing else: their work has a launch, and no span.
void link_other_calls(const ProcessCursor& cursor, const std::vector<PieceGroup>& groups,
                      const BuilderSetting& setting, std::uint32_t process_node) {
    const std::vector<RecordedCall>& calls = cursor.process.calls;
    for (std::size_t begin = 0; begin < calls.size();) {
        const std::uint32_t thread_id = calls[begin].thread_id;
        const CallGroup group = calls_of(cursor.process, thread_id);
        begin += group.size();
        const bool is_known = std::ranges::any_of(
            groups, [&](const PieceGroup& other) { return other.front().thread_id == thread_id; });
        if (is_known) continue;
        SpanBuilder builder(setting, process_node, 0, thread_id);
        AddedEvents added(cursor);
        added.append_calls(group);
        added.feed_until(~std::uint64_t{0}, builder);
    }
}

void decode_process(const RecordedProcess& process, const std::vector<std::uint32_t>& names,
                    const BuilderSetting& setting, std::uint64_t process_number, std::uint32_t process_node,
                    DecodedRun& run) {
    const std::uint64_t end = end_of(process, run.ns_per_tick);
    const ProcessCursor cursor{process,
                               names,
                               run.totals,
                               last_possible_ticks(process, run.ns_per_tick),
                               static_cast<std::uint64_t>(1e9 / run.ns_per_tick),
                               1.0 / run.ns_per_tick};
    const std::vector<PieceGroup> groups = group_by_thread(process.pieces);
    std::uint64_t busy_ticks = 0;
    std::uint64_t latest = end;
    for (const PieceGroup& group : groups) {
        const ThreadPiece& first = group.front();
        const bool is_first = is_first_of_thread(group, groups);
        if (is_added(group) && !is_first) continue;
        SpanBuilder builder(setting, process_node, process_number << 32 | first.thread_number,
                            first.thread_id);
        run.threads.push_back({process.process_id, first.thread_id, first.thread_name});
        AddedEvents added(cursor);
        if (is_first) {
            append_added(added, group, groups);
            added.append_calls(calls_of(process, first.thread_id));
        }
        const ModeSink modes{first.thread_id, setting.clock, run.modes};
        ThreadFeed feed(cursor, builder, added, modes);
        for (const ThreadPiece& piece : is_added(group) ? PieceGroup{} : group) {
            feed.feed(piece);
            release_pages(piece.events);
        }
        added.feed_until(~std::uint64_t{0}, builder);
        // Where events were dropped, a thread's story ends with the last that it could write.
        const bool goes_on = process.dropped_events == 0;
        const std::uint64_t last = std::max(feed.last(), added.last());
        latest = std::max(latest, last);
        builder.finish(goes_on ? std::max(end, last) : last);
        if (is_main_thread(group, groups, process.process_id)) busy_ticks = builder.busy_ticks();
    }
    link_other_calls(cursor, groups, setting, process_node);
    setting.ranges.finish(setting, latest);
    const std::int64_t lived = setting.clock(end) - setting.clock(process.first_point.ticks);
    const std::int64_t busy =
        setting.clock(process.first_point.ticks + busy_ticks) - setting.clock(process.first_point.ticks);
    setting.tree.set_own(process_node, std::max<std::int64_t>(0, lived - busy));
}

}  // namespace

DecodedRun decode_run(const RecordedFolder& folder, std::size_t batch_rows, const BatchSink& sink) {
    DecodedRun run;
    run.damage = folder.damage;
    run.totals.dropped_events = folder.dropped_events;
    const TickScale scale = common_scale(folder.processes);
    run.ns_per_tick = scale.ns_per_tick();
    run.origin_monotonic_ns =
        folder.processes.empty() ? 0 : folder.processes.front().first_point.monotonic_ns;
    const TickToRun clock(scale, run.origin_monotonic_ns);
    NameMerger merger(run.names);
    SpanColumns rows;
    LinkColumns links;
    std::int64_t next_span_id = 0;
    const std::uint32_t backward = merger.add("backward", 0);
    std::uint64_t process_number = 0;
    for (const RecordedProcess& process : folder.processes) {
        const std::vector<std::uint32_t> names = merger.adopt(process);
        const std::uint64_t end = end_of(process, run.ns_per_tick);
        run.processes.push_back({process.process_id, process.parent_process_id, process.closed,
                                 clock(process.first_point.ticks), clock(end), process.process_key, names});
        auto flush = [&] {
            if (rows.size() + links.size() > 0) sink({run.processes.back(), rows, links, run.names});
            rows.clear();
            links.clear();
        };
        auto row_added = [&](bool may_move) {
            const std::size_t limit = may_move ? batch_rows * 2 : batch_rows;
            if (std::max(rows.size(), links.size()) >= limit) flush();
        };
        ProcessRanges ranges;
        const ForwardCalls forward(process.pieces, names);
        const BuilderSetting setting{clock,     run.tree,        run.totals, rows,
                                     links,     next_span_id,    backward,   merger.classes(),
                                     row_added, merger.scopes(), ranges,     forward};
        const std::uint32_t title = merger.add("process " + std::to_string(process.process_id), 0);
        decode_process(process, names, setting, process_number++,
                       run.tree.add_process(process.process_id, title), run);
        flush();
        run.totals.dropped_events += process.dropped_events;
        run.totals.damaged_events += process.damaged_events;
    }
    run.tree.finish();
    return run;
}

}  // namespace gpuprof
