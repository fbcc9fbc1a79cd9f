// SPDX-License-Identifier: Apache-2.0
#include "analysis/decode.hpp"

#include <algorithm>
#include <limits>
#include <utility>

#include "analysis/name_merger.hpp"
#include "analysis/thread_feed.hpp"

namespace gpuprof {
namespace {

constexpr std::int64_t shortest_baseline_ns = 1'000'000;

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
