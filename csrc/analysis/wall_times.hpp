// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace gpuprof {

// Wall-clock times of the nodes of a tree: a time counts once, however many calls of a node are open in it.
// Calls are added in the order of their begin.
class WallTimes {
  public:
    // `parents` has the parent of each node, -1 for none.
    explicit WallTimes(std::vector<std::int32_t> parents);

    void add(std::size_t node, std::int64_t begin_ns, std::int64_t end_ns) noexcept;

    std::size_t nodes() const noexcept { return parents_.size(); }
    // During which at least one call of the node was open.
    std::int64_t total_ns(std::size_t node) const noexcept { return own_[node].length_ns; }
    // The part of it during which no call of a direct child was.
    std::int64_t self_ns(std::size_t node) const noexcept {
        return with_children_[node].length_ns - children_[node].length_ns;
    }

  private:
    // The union of intervals that come in the order of their begin.
    struct Union {
        std::int64_t reached_ns = INT64_MIN;
        std::int64_t length_ns = 0;

        void add(std::int64_t begin_ns, std::int64_t end_ns) noexcept;
    };

    std::vector<std::int32_t> parents_;
    std::vector<Union> own_, children_, with_children_;
};

}  // namespace gpuprof
