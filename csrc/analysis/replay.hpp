// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <limits>
#include <vector>

namespace gpuprof {

// What an item waits for: its start or its end is no earlier than a time of another item, plus a lag.
enum class WaitsFor : std::uint8_t {
    start_after_start,
    start_after_end,
    end_after_end,
};

// A program as items on lanes. A lane (a thread, a stream of a GPU) executes its items one after the other.
struct ReplayItems {
    // The gap of an item that does not wait for the item before it on its lane.
    static constexpr std::int64_t unordered = std::numeric_limits<std::int64_t>::min();

    std::vector<std::int64_t> lane_begin;  // items of lane i: [lane_begin[i], lane_begin[i + 1])
    std::vector<std::int64_t> gap_ns;      // after the end of the item before, of the first one after time 0
    std::vector<std::int64_t> least_ns;    // own duration
    std::vector<std::int64_t> delay_ns;    // of the start, after everything that it waits for
    std::vector<std::int64_t> wait_begin;  // waits of item i: [wait_begin[i], wait_begin[i + 1])
    std::vector<std::int64_t> wait_item;
    std::vector<WaitsFor> wait_kind;
    std::vector<std::int64_t> wait_lag_ns;
};

struct ReplayTimes {
    std::vector<std::int64_t> start_ns;
    std::vector<std::int64_t> end_ns;
    // Waits that were left out because the items wait for each other in a circle.
    std::int64_t circular = 0;
};

// Executes the items: each starts as soon as its lane and its waits permit. Takes time in proportion to the
// number of items and waits. Throws std::invalid_argument if the columns do not fit together.
ReplayTimes replay(const ReplayItems& items);

}  // namespace gpuprof
