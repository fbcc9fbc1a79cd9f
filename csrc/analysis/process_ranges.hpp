// SPDX-License-Identifier: Apache-2.0
// Ranges that one thread starts and any thread ends. They are no part of a thread's stack: nothing is inside
// them, and their time is not taken from what is open around them.
#pragma once

#include <cstdint>
#include <unordered_map>

#include "analysis/call_tree.hpp"

namespace gpuprof {

struct BuilderSetting;

// Those of one process. Its threads are decoded one after the other, so an end may come before its start.
class ProcessRanges {
  public:
    struct Range {
        std::int64_t span_id;
        std::int64_t parent_id;
        std::uint64_t begin_ticks;
        std::uint32_t thread_id;
        std::uint32_t name;
        std::uint32_t node;
        std::int32_t depth;
    };

    // `may_move`: rows written before may still have to be moved.
    void start(const BuilderSetting& set, std::uint32_t number, const Range& range, bool may_move);
    void stop(const BuilderSetting& set, std::uint32_t number, std::uint64_t ticks, bool may_move);
    // Cuts off at `ticks` what was never ended.
    void finish(const BuilderSetting& set, std::uint64_t ticks);

  private:
    std::unordered_map<std::uint32_t, Range> open_;
    std::unordered_map<std::uint32_t, std::uint64_t> ends_;  // whose start was not seen yet
};

}  // namespace gpuprof
