// SPDX-License-Identifier: Apache-2.0
#include "core/intervals.hpp"

#include <algorithm>

namespace gpuprof {
namespace {

Event make_event(std::uint64_t ticks, EventKind kind, std::uint32_t name) noexcept {
    return {ticks, name, static_cast<std::uint32_t>(kind)};
}

}  // namespace

std::vector<Event> operator_events(std::vector<Interval> intervals) {
    std::ranges::stable_sort(intervals, [](const Interval& a, const Interval& b) {
        return a.begin != b.begin ? a.begin < b.begin : a.end > b.end;
    });
    std::vector<Event> events;
    events.reserve(intervals.size() * 2);
    std::vector<std::uint64_t> open_ends;
    auto close_until = [&](std::uint64_t ticks) {
        for (; !open_ends.empty() && open_ends.back() <= ticks; open_ends.pop_back())
            events.push_back(make_event(open_ends.back(), EventKind::operator_end, 0));
    };
    for (const Interval& interval : intervals) {
        close_until(interval.begin);
        if (interval.node_mark != 0)
            events.push_back(make_event(interval.node_mark, EventKind::backward_node, 0));
        events.push_back(make_event(interval.begin, EventKind::operator_begin, interval.name));
        const std::uint64_t limit = open_ends.empty() ? interval.end : open_ends.back();
        open_ends.push_back(std::max(interval.begin, std::min(interval.end, limit)));
    }
    close_until(~std::uint64_t{0});
    return events;
}

}  // namespace gpuprof
