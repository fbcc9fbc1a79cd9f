// SPDX-License-Identifier: Apache-2.0
#include "analysis/span_nodes.hpp"

#include <algorithm>

namespace gpuprof {

std::size_t NumberOfThree::slot_of(const Key& key) const noexcept {
    std::uint64_t hash =
        (static_cast<std::uint64_t>(key.first) << 32 | static_cast<std::uint32_t>(key.third)) *
        0x9E3779B97F4A7C15ull;
    hash ^= (hash >> 29) + static_cast<std::uint32_t>(key.second) * 0xBF58476D1CE4E5B9ull;
    const std::size_t mask = entries_.size() - 1;
    std::size_t slot = (hash ^ hash >> 32) & mask;
    while (entries_[slot].number >= 0 && entries_[slot].key != key) slot = (slot + 1) & mask;
    return slot;
}

void NumberOfThree::grow() {
    std::vector<Entry> former(entries_.size() * 2);
    former.swap(entries_);
    for (const Entry& entry : former)
        if (entry.number >= 0) entries_[slot_of(entry.key)] = entry;
}

void SpanNodes::add_thread(std::int32_t root, std::optional<Samples> samples) {
    Thread thread{};
    thread.root = root;
    thread.samples = std::move(samples);
    of_thread_.push_back(std::move(thread));
}

void SpanNodes::add_met(std::vector<std::int64_t> ids, std::vector<std::int32_t> groups) {
    met_ = std::move(ids);
    groups_of_met_ = std::move(groups);
}

void SpanNodes::make(const Spans& spans, std::span<std::int32_t> nodes) {
    for (std::size_t i = 0; i < nodes.size(); ++i) {
        Thread& thread = of_thread_[spans.thread[i]];
        const std::int64_t start = spans.start_ns[i], end = start + spans.duration_ns[i];
        forget_ended(thread, start);
        const std::int32_t base = node_around(thread, spans.parent_id[i]);
        const std::int32_t row = spans.row[i];
        const std::int32_t group = group_of(thread, spans.id[i], start, end, row);
        const std::int32_t node = nodes_.of({base, group, row}, [&] { return made_.node(base, group, row); });
        thread.open.push_back({spans.id[i], end, node});
        count(node, spans.thread[i], spans.duration_ns[i], spans.own_ns[i]);
        nodes[i] = node;
    }
}

// Spans mostly end in the order of a stack. Others, as of tasks, are forgotten when they are many.
void SpanNodes::forget_ended(Thread& thread, std::int64_t now_ns) {
    auto& open = thread.open;
    while (!open.empty() && open.back().end_ns < now_ns) open.pop_back();
    if (open.size() < thread.prune_at) return;
    std::erase_if(open, [&](const Open& each) { return each.end_ns < now_ns; });
    thread.prune_at = std::max<std::size_t>(1024, open.size() * 2);
}

std::int32_t SpanNodes::node_around(const Thread& thread, std::int64_t parent_id) noexcept {
    if (parent_id < 0) return thread.root;
    const auto found = std::ranges::lower_bound(thread.open, parent_id, {}, &Open::id);
    return found != thread.open.end() && found->id == parent_id ? found->node : thread.root;
}

std::int32_t SpanNodes::group_of(Thread& thread, std::int64_t id, std::int64_t start_ns, std::int64_t end_ns,
                                 std::int32_t row) {
    if (!thread.samples) return 0;
    const bool is_outermost = end_ns > thread.until_ns;
    thread.until_ns = std::max(thread.until_ns, end_ns);
    while (next_met_ < met_.size() && met_[next_met_] < id) ++next_met_;
    if (next_met_ < met_.size() && met_[next_met_] == id) return groups_of_met_[next_met_];
    const auto& moments = thread.samples->moments;
    if (start_ns < thread.last_start_ns) thread.after = 0;
    thread.last_start_ns = start_ns;
    while (thread.after < moments.size() && moments[thread.after] < start_ns) ++thread.after;
    std::int32_t before = nothing, after = nothing;
    if (is_outermost && thread.after > 0 && thread.after < moments.size()) {
        before = thread.samples->outer[thread.after - 1];
        after = thread.samples->outer[thread.after];
    }
    const std::int32_t family = families_[static_cast<std::size_t>(row)];
    return groups_.of({family - nothing, before - nothing, after - nothing},
                      [&] { return made_.group(family, before, after); });
}

void SpanNodes::count(std::int32_t node, std::uint32_t thread, std::int64_t duration_ns,
                      std::int64_t own_ns) {
    constexpr auto no_thread = std::numeric_limits<std::uint32_t>::max();
    const auto at = static_cast<std::size_t>(node);
    if (at >= sums_.size()) {
        sums_.resize(at + 1);
        last_thread_.resize(at + 1, no_thread);
    }
    ++sums_[at].calls;
    sums_[at].total_ns += duration_ns;
    sums_[at].own_ns += own_ns;
    if (std::exchange(last_thread_[at], thread) != thread) threads_.emplace(node, thread);
}

}  // namespace gpuprof
