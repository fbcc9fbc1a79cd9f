// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <vector>

namespace gpuprof {

// The index of each is its code in the columns and in Python's KINDS.
// Kernels and transfers are added after the decoder, from GPU records.
enum class SpanKind : std::uint8_t {
    process,
    span,
    layer,
    operation,
    nvtx,
    backward,
    compile,
    collection = 11
};

// Calls merged by their path of (kind, name). Nodes are numbered in the order of their first call.
class CallTree {
  public:
    static constexpr std::uint32_t no_parent = 0xFFFFFFFFu;
    struct Node {
        std::uint32_t parent = no_parent;
        std::uint32_t name = 0;
        SpanKind kind = SpanKind::process;
        std::int32_t threads = 0;
        std::uint64_t last_thread = 0;
        std::int64_t calls = 0;
        std::int64_t total_ns = 0;
        std::int64_t own_ns = 0;
        std::uint32_t process_id = 0;
    };

    CallTree();
    std::uint32_t add_process(std::uint32_t process_id, std::uint32_t name);
    std::uint32_t child(std::uint32_t parent, SpanKind kind, std::uint32_t name);
    // `thread` is unique in the run and its calls are added one thread after the other.
    void add_call(std::uint32_t number, std::uint64_t thread, std::int64_t total_ns, std::int64_t own_ns);
    // The time that a process's main thread spent outside of everything that was recorded.
    void set_own(std::uint32_t number, std::int64_t own_ns) { nodes_[number].own_ns = own_ns; }
    // The two halves of an add_call, for a call that ends while another thread's calls are added.
    void add_thread(std::uint32_t number, std::uint64_t thread) noexcept;
    void add_time(std::uint32_t number, std::int64_t total_ns, std::int64_t own_ns) noexcept;
    // Undoes an add_call.
    void take_back(std::uint32_t number, std::int64_t total_ns, std::int64_t own_ns);
    // The node with the same path below `to` as `node` has below `from`; `node` itself if `from` is not above
    // it.
    std::uint32_t moved(std::uint32_t node, std::uint32_t from, std::uint32_t to);
    const std::vector<Node>& nodes() const noexcept { return nodes_; }

    // Sums the durations of nodes that have no calls of their own (processes, the backward group) from
    // their self time and their children.
    void finish();
    // Indices of the nodes that were called, a parent before its children and each subtree together.
    std::vector<std::uint32_t> preorder() const;

  private:
    void grow_index();
    std::size_t slot_of(std::uint32_t parent, SpanKind kind, std::uint32_t name) const noexcept;

    std::vector<Node> nodes_;
    std::vector<std::uint32_t> index_;  // open addressing: node number + 1, or 0
};

}  // namespace gpuprof
