// SPDX-License-Identifier: Apache-2.0
// Which layer call made an autograd node. Threads are decoded one after another, and the backward pass may
// be on any of them, so the calls of all threads are collected first.
#pragma once

#include <cstdint>
#include <map>
#include <span>
#include <unordered_map>
#include <utility>
#include <vector>

#include "analysis/segment_reader.hpp"

namespace gpuprof {

// The layer calls of one process that made nodes, in 24 bytes a call.
class ForwardCalls {
  public:
    static constexpr std::uint32_t no_path = 0;
    // The names of the layers around a call and of the call itself, each as a step from the one before.
    struct Step {
        std::uint32_t before;
        std::uint32_t name;
    };

    // Gathers the calls of a process whose backward pass was recorded; else leaves everything empty.
    // `names` are the run-wide ids of the process's ids; the first is that of a lost name.
    ForwardCalls(std::span<const ThreadPiece> pieces, const std::vector<std::uint32_t>& names);

    // The path of the innermost call that made the node, or no_path.
    std::uint32_t path_of(std::uint64_t node_mark) const noexcept;
    Step step(std::uint32_t path) const noexcept { return steps_[path]; }

  private:
    struct Call {
        std::uint64_t first;  // node, as a mark
        std::uint32_t count;
        std::uint32_t path;
        std::uint32_t around;  // index of the call around it, or none
    };
    struct Open {
        std::uint32_t name;
        std::uint32_t path;
        std::uint32_t call;
    };
    using Calls = std::vector<Call>;
    static constexpr std::uint32_t none = 0xFFFFFFFFu;

    // One thread while it is read.
    struct Reading {
        Calls calls;
        std::vector<Open> open;
        std::uint64_t reached = 0;  // a mark: no call that begins from here on made a node before it
        std::uint64_t first = 0;    // of the call that ends next
        std::uint32_t count = 0;    // likewise
    };

    void add_thread(std::span<const ThreadPiece> pieces, const std::vector<std::uint32_t>& names);
    void begin(Reading& reading, std::uint32_t name);
    static void end(Reading& reading, std::uint32_t name);
    std::uint32_t path_below(std::uint32_t before, std::uint32_t name);

    // In the order of their begin, so that the first nodes never decrease. By PyTorch's number of a thread.
    std::unordered_map<std::uint64_t, Calls> threads_;
    std::vector<Step> steps_{{no_path, 0}};
    std::map<std::pair<std::uint32_t, std::uint32_t>, std::uint32_t> paths_;
};

}  // namespace gpuprof
