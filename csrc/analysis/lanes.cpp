// SPDX-License-Identifier: Apache-2.0
#include "analysis/lanes.hpp"

#include <cstddef>

namespace gpuprof {

// What has ended is taken from the lane. A parent that ends where the slice begins still holds it.
bool SliceLanes::takes(Lane& lane, const Slice& slice, bool nests) {
    while (!lane.empty() && lane.back().end_ns <= slice.start_ns &&
           (!nests || lane.back().id != slice.parent))
        lane.pop_back();
    if (lane.empty()) return true;
    return nests && slice.start_ns + slice.duration_ns <= lane.back().end_ns;
}

SliceLanes::Place SliceLanes::place(const Slice& slice, bool nests) {
    std::size_t number = lanes_.size();
    for (std::size_t i = 0; i < lanes_.size(); ++i) {
        if (!takes(lanes_[i], slice, nests)) continue;
        const bool holds_parent = !lanes_[i].empty() && lanes_[i].back().id == slice.parent;
        if (number == lanes_.size() || holds_parent) number = i;
        if (holds_parent || !nests || slice.parent < 0) break;
    }
    if (number == lanes_.size()) lanes_.emplace_back();
    Lane& lane = lanes_[number];
    lane.push_back(Open{slice.id, slice.start_ns + slice.duration_ns});
    return {static_cast<std::int32_t>(number), static_cast<std::int32_t>(lane.size() - 1)};
}

}  // namespace gpuprof
