// SPDX-License-Identifier: Apache-2.0
// What ties an evaluation of the autograd engine to the layer call whose forward asked for it. PyTorch
// numbers the autograd nodes of each thread in the order of their making: a layer call owns the numbers
// between those that its thread had reached at its begin and at its end.
//
// The functions are those of the libtorch_cpu that the program has loaded; nothing is linked.
#pragma once

#include <atomic>
#include <cstdint>
#include <string>

#include "core/reason.hpp"
#include "core/recorder.hpp"

namespace gpuprof::autograd {

// How PyTorch owns a node: by a std::shared_ptr, or, in newer versions, by a count inside the node.
enum class Ownership : std::uint8_t { shared, intrusive };

// Offsets of the numbers in a node, in bytes. Nothing is assumed: the code that connects has
// proven it against nodes of the very program.
struct NodeLayout {
    Ownership ownership;
    std::uint32_t sequence_offset;
    std::uint32_t thread_offset;
    bool operator==(const NodeLayout&) const = default;
};

// Finds the functions in the library at `path`, which is loaded already, or returns why it cannot.
Reason open_library(const std::string& path);
bool is_open() noexcept;

// Results of the functions on the calling thread, without a node under evaluation. After open_library().
struct Answers {
    std::uint64_t sequence;  // that the next node will have
    std::uint64_t thread;
    // What the function for the node under evaluation wrote over two words that were `unwritten` each.
    std::uint64_t current[2];
};
constexpr std::uint64_t unwritten = 0xA5A5A5A5A5A5A5A5ull;
Answers ask();

// From here on layer calls and evaluations are tied. Where another tool records the operators, nodes are
// not looked at: `layout` is null.
void tie(const NodeLayout* layout) noexcept;
void untie() noexcept;

using SequenceFunction = std::uint64_t (*)();
// Set while layer calls are to be tied.
extern std::atomic<SequenceFunction> next_sequence;
extern std::atomic<bool> nodes_are_tied;

// The layer call that ends next made the nodes from `first` up to, not with, `end`.
void note_layer_nodes(ThreadLog* log, NameKey key, std::uint64_t first, std::uint64_t end) noexcept;
// The engine begins to evaluate a node on this thread.
void note_current_node() noexcept;

}  // namespace gpuprof::autograd
