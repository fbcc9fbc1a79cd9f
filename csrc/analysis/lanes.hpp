// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <vector>

namespace gpuprof {

// Places the slices of one track after the other in lanes, in each of which they nest or follow one another.
// Spans of asynchronous code, and kernels of one stream, may cross; viewers lose what crosses in one lane.
// Slices come in the order of their begin, a parent before its children.
class SliceLanes {
  public:
    struct Slice {
        std::int64_t id = 0;
        std::int64_t parent = -1;
        std::int64_t start_ns = 0;
        std::int64_t duration_ns = 0;
    };
    struct Place {
        std::int32_t lane = 0;
        std::int32_t level = 0;  // how many slices of the lane are open around it
    };

    // Another track than that of the slice before.
    void begin_track() noexcept { lanes_.clear(); }
    // Without `nests`, slices of a lane only follow one another.
    Place place(const Slice& slice, bool nests);

  private:
    struct Open {
        std::int64_t id;
        std::int64_t end_ns;
    };
    using Lane = std::vector<Open>;

    static bool takes(Lane& lane, const Slice& slice, bool nests);

    std::vector<Lane> lanes_;
};

}  // namespace gpuprof
