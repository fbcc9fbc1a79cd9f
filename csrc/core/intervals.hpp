// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <vector>

#include "core/layout.hpp"

namespace gpuprof {

// One completed call of another tool, in ticks.
struct Interval {
    std::uint64_t begin;
    std::uint64_t end;
    std::uint32_t name;
    std::uint64_t node_mark = 0;  // of the autograd node that it evaluates; 0 for none
};

// Begin and end events of one thread's operators, in time order. Where two calls overlap without one
// lying inside the other, as rounding can make them, the inner one is cut to fit.
std::vector<Event> operator_events(std::vector<Interval> intervals);

}  // namespace gpuprof
