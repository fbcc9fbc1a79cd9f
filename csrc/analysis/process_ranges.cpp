// SPDX-License-Identifier: Apache-2.0
#include "analysis/process_ranges.hpp"

#include <algorithm>

#include "analysis/span_builder.hpp"

namespace gpuprof {
namespace {

void add_row(const BuilderSetting& set, const ProcessRanges::Range& range, std::uint64_t ticks,
             bool may_move) {
    const std::int64_t start = set.clock(range.begin_ticks);
    // Two threads' clocks may differ by a little.
    const std::int64_t duration = std::max<std::int64_t>(0, set.clock(ticks) - start);
    SpanColumns& rows = set.rows;
    rows.span_id.push_back(range.span_id);
    rows.parent_id.push_back(range.parent_id);
    rows.thread_id.push_back(range.thread_id);
    rows.kind.push_back(static_cast<std::uint8_t>(SpanKind::nvtx));
    rows.name.push_back(range.name);
    rows.start_ns.push_back(start);
    rows.duration_ns.push_back(duration);
    rows.depth.push_back(range.depth);
    rows.node.push_back(range.node);
    // The self time of threads is that of their stacks; here it would count twice.
    rows.own_ns.push_back(0);
    ++set.totals.spans;
    set.tree.add_time(range.node, duration, 0);
    set.row_added(may_move);
}

}  // namespace

void ProcessRanges::start(const BuilderSetting& set, std::uint32_t number, const Range& range,
                          bool may_move) {
    const auto end = ends_.find(number);
    if (end == ends_.end()) {
        open_.insert_or_assign(number, range);
        return;
    }
    add_row(set, range, end->second, may_move);
    ends_.erase(end);
}

void ProcessRanges::stop(const BuilderSetting& set, std::uint32_t number, std::uint64_t ticks,
                         bool may_move) {
    const auto range = open_.find(number);
    if (range == open_.end()) {
        if (!ends_.try_emplace(number, ticks).second) ++set.totals.unmatched_ends;
        return;
    }
    add_row(set, range->second, ticks, may_move);
    open_.erase(range);
}

void ProcessRanges::finish(const BuilderSetting& set, std::uint64_t ticks) {
    set.totals.unmatched_ends += ends_.size();
    set.totals.unfinished_spans += open_.size();
    for (const auto& [number, range] : open_) add_row(set, range, ticks, false);
    ends_.clear();
    open_.clear();
}

}  // namespace gpuprof
