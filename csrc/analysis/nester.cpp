// SPDX-License-Identifier: Apache-2.0
#include "analysis/nester.hpp"

#include <algorithm>
#include <cstddef>

namespace gpuprof {

std::uint32_t Nester::begin_process(std::uint32_t process_id, std::uint32_t name) {
    end_thread();
    process_node_ = tree_.add_process(process_id, name);
    return process_node_;
}

Nester::Placed Nester::add(const Interval& interval) {
    if (!has_thread_ || thread_id_ != interval.thread_id) {
        end_thread();
        has_thread_ = true;
        thread_id_ = interval.thread_id;
        ++threads_;
    }
    close_until(interval.start_ns);
    const std::int64_t above = enclosing(interval);
    const Open* const parent = above < 0 ? nullptr : &open_[static_cast<std::size_t>(above)];
    const std::uint32_t node =
        tree_.child(parent != nullptr ? parent->node : process_node_, interval.kind, interval.name);
    Placed placed{next_id_++, -1, 0, node, -1, process_node_};
    if (parent != nullptr) {
        placed.parent_id = parent->placed.span_id;
        placed.depth = parent->placed.depth + 1;
    }
    if (interval.role != Role::interface_call) {
        placed.owner_id = placed.span_id;
        placed.owner_node = node;
    } else if (parent != nullptr) {
        placed.owner_id = parent->placed.owner_id;
        placed.owner_node = parent->placed.owner_node;
    }
    if (interval.role == Role::floating) {
        tree_.add_call(node, threads_, interval.duration_ns, 0);
        return placed;
    }
    const bool is_operator = interval.role == Role::span && interval.kind == SpanKind::operation;
    if (parent != nullptr) {
        Open& outer = open_[static_cast<std::size_t>(above)];
        ++outer.children;
        if (is_operator && outer.is_operator && outer.name == interval.name) outer.namesake = placed.span_id;
    }
    open_.push_back(Open{placed, node, interval.duration_ns, interval.start_ns + interval.duration_ns, 0,
                         above, interval.name, is_operator});
    return placed;
}

// The innermost open interval that holds this one whole; a range that may end anywhere needs only to begin
// inside it.
std::int64_t Nester::enclosing(const Interval& interval) {
    auto place = static_cast<std::int64_t>(open_.size()) - 1;
    if (interval.role == Role::floating) {
        while (place >= 0 && open_[static_cast<std::size_t>(place)].end_ns <= interval.start_ns) --place;
        return place;
    }
    const std::int64_t end_ns = interval.start_ns + interval.duration_ns;
    if (place >= 0 && open_.back().end_ns < end_ns) ++crossings_;
    while (place >= 0 && open_[static_cast<std::size_t>(place)].end_ns < end_ns) --place;
    return place;
}

void Nester::close_until(std::int64_t time_ns) {
    while (!open_.empty() && open_.back().end_ns <= time_ns) close_last();
}

void Nester::close_last() {
    const Open last = open_.back();
    open_.pop_back();
    if (last.children == 1 && last.namesake >= 0) forwarded_.push_back(last.namesake);
    if (last.parent_place >= 0)
        open_[static_cast<std::size_t>(last.parent_place)].children_ns += last.duration_ns;
    // Children that cross one another may exceed their parent.
    tree_.add_call(last.node, threads_, last.duration_ns,
                   std::max<std::int64_t>(0, last.duration_ns - last.children_ns));
}

void Nester::end_thread() {
    while (!open_.empty()) close_last();
    has_thread_ = false;
}

void Nester::finish() {
    end_thread();
    tree_.finish();
}

}  // namespace gpuprof
