// SPDX-License-Identifier: Apache-2.0
#include "analysis/wall_times.hpp"

#include <algorithm>
#include <utility>

namespace gpuprof {

void WallTimes::Union::add(std::int64_t begin_ns, std::int64_t end_ns) noexcept {
    if (end_ns <= reached_ns) return;
    length_ns += std::max<std::int64_t>(0, end_ns - std::max(begin_ns, reached_ns));
    reached_ns = end_ns;
}

WallTimes::WallTimes(std::vector<std::int32_t> parents)
    : parents_(std::move(parents)),
      own_(parents_.size()),
      children_(parents_.size()),
      with_children_(parents_.size()) {}

void WallTimes::add(std::size_t node, std::int64_t begin_ns, std::int64_t end_ns) noexcept {
    own_[node].add(begin_ns, end_ns);
    with_children_[node].add(begin_ns, end_ns);
    if (parents_[node] < 0) return;
    const auto parent = static_cast<std::size_t>(parents_[node]);
    children_[parent].add(begin_ns, end_ns);
    with_children_[parent].add(begin_ns, end_ns);
}

}  // namespace gpuprof
