// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <unordered_map>
#include <vector>

#include "analysis/call_tree.hpp"

namespace gpuprof {

// Finds the parents of intervals of another tool, which have only a begin and an end, in one sweep over each
// thread. Intervals come thread by thread, in the order of their begin, the longer first.
class Nester {
  public:
    // A call of CUDA's interface is a row, but what it launched belongs to the operator around it. A range
    // that may end anywhere has nothing inside it.
    enum class Role : std::uint8_t { span, interface_call, floating };
    struct Interval {
        std::int64_t thread_id = 0;
        SpanKind kind = SpanKind::span;
        Role role = Role::span;
        std::uint32_t name = 0;
        std::int64_t start_ns = 0;
        std::int64_t duration_ns = 0;
    };
    struct Placed {
        std::int64_t span_id = 0;
        std::int64_t parent_id = -1;
        std::int32_t depth = 0;
        std::uint32_t node = 0;
        // What GPU work that it launched belongs to: itself, or of an interface call what is around it.
        std::int64_t owner_id = -1;
        std::uint32_t owner_node = 0;
    };

    // The node of a process in the tree. Its intervals follow; each process comes once.
    std::uint32_t begin_process(std::uint32_t process_id, std::uint32_t name);
    Placed add(const Interval& interval);
    void finish();
    const CallTree& tree() const noexcept { return tree_; }
    // Intervals that begin inside another one and end outside of it.
    std::uint64_t crossings() const noexcept { return crossings_; }
    // The ids of operators that are all that an operator of the same name does: PyTorch calling an overload.
    const std::vector<std::int64_t>& forwarded() const noexcept { return forwarded_; }

  private:
    struct Open {
        Placed placed;
        std::uint32_t node;
        std::int64_t duration_ns;
        std::int64_t end_ns;
        std::int64_t children_ns;
        std::int64_t parent_place;
        std::uint32_t name;
        bool is_operator;
        std::uint32_t children = 0;
        std::int64_t namesake = -1;  // a child of the same name
    };

    void end_thread();
    void close_until(std::int64_t time_ns);
    void close_last();
    std::int64_t enclosing(const Interval& interval);

    CallTree tree_;
    std::vector<Open> open_;
    std::uint32_t process_node_ = 0;
    std::int64_t thread_id_ = 0;
    std::uint64_t threads_ = 0;
    bool has_thread_ = false;
    std::int64_t next_id_ = 0;
    std::uint64_t crossings_ = 0;
    std::vector<std::int64_t> forwarded_;
};

}  // namespace gpuprof
