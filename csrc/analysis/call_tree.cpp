// SPDX-License-Identifier: Apache-2.0
#include "analysis/call_tree.hpp"

#include <algorithm>

namespace gpuprof {

CallTree::CallTree() : index_(1024, 0) {}

std::uint32_t CallTree::add_process(std::uint32_t process_id, std::uint32_t name) {
    nodes_.push_back(Node{no_parent, name, SpanKind::process});
    nodes_.back().process_id = process_id;
    return static_cast<std::uint32_t>(nodes_.size() - 1);
}

std::size_t CallTree::slot_of(std::uint32_t parent, SpanKind kind, std::uint32_t name) const noexcept {
    std::uint64_t hash = (static_cast<std::uint64_t>(parent) << 32 | name) * 0x9E3779B97F4A7C15ull;
    hash ^= (hash >> 29) + static_cast<std::uint64_t>(kind) * 0xBF58476D1CE4E5B9ull;
    const std::size_t mask = index_.size() - 1;
    std::size_t slot = (hash ^ hash >> 32) & mask;
    while (index_[slot] != 0) {
        const Node& node = nodes_[index_[slot] - 1];
        if (node.parent == parent && node.name == name && node.kind == kind) break;
        slot = (slot + 1) & mask;
    }
    return slot;
}

std::uint32_t CallTree::child(std::uint32_t parent, SpanKind kind, std::uint32_t name) {
    std::size_t slot = slot_of(parent, kind, name);
    if (index_[slot] != 0) return index_[slot] - 1;
    if ((nodes_.size() + 1) * 2 > index_.size()) {
        grow_index();
        slot = slot_of(parent, kind, name);
    }
    nodes_.push_back(Node{parent, name, kind});
    nodes_.back().process_id = nodes_[parent].process_id;
    index_[slot] = static_cast<std::uint32_t>(nodes_.size());
    return static_cast<std::uint32_t>(nodes_.size() - 1);
}

void CallTree::grow_index() {
    index_.assign(index_.size() * 2, 0);
    for (std::uint32_t i = 0; i < nodes_.size(); ++i)
        if (nodes_[i].parent != no_parent)
            index_[slot_of(nodes_[i].parent, nodes_[i].kind, nodes_[i].name)] = i + 1;
}

void CallTree::add_call(std::uint32_t number, std::uint64_t thread, std::int64_t total_ns,
                        std::int64_t own_ns) {
    add_time(number, total_ns, own_ns);
    add_thread(number, thread);
}

void CallTree::add_time(std::uint32_t number, std::int64_t total_ns, std::int64_t own_ns) noexcept {
    Node& node = nodes_[number];
    ++node.calls;
    node.total_ns += total_ns;
    node.own_ns += own_ns;
}

void CallTree::add_thread(std::uint32_t number, std::uint64_t thread) noexcept {
    Node& node = nodes_[number];
    if (node.last_thread != thread || node.threads == 0) {
        node.last_thread = thread;
        ++node.threads;
    }
}

void CallTree::take_back(std::uint32_t number, std::int64_t total_ns, std::int64_t own_ns) {
    Node& node = nodes_[number];
    --node.calls;
    node.total_ns -= total_ns;
    node.own_ns -= own_ns;
}

std::uint32_t CallTree::moved(std::uint32_t node, std::uint32_t from, std::uint32_t to) {
    std::vector<std::uint32_t> path;
    for (std::uint32_t at = node; at != from; at = nodes_[at].parent) {
        if (at == no_parent) return node;
        path.push_back(at);
    }
    for (std::size_t i = path.size(); i-- > 0;) to = child(to, nodes_[path[i]].kind, nodes_[path[i]].name);
    return to;
}

void CallTree::finish() {
    // Children have higher numbers than their parents, so one walk from the back sees them first.
    for (std::size_t i = nodes_.size(); i-- > 0;) {
        Node& node = nodes_[i];
        if (node.calls == 0) node.total_ns += node.own_ns;
        if (node.parent == no_parent || nodes_[node.parent].calls != 0) continue;
        nodes_[node.parent].total_ns += node.total_ns;
        nodes_[node.parent].threads = std::max(nodes_[node.parent].threads, node.threads);
    }
}

std::vector<std::uint32_t> CallTree::preorder() const {
    std::vector<std::uint32_t> first_child(nodes_.size(), no_parent), next_sibling(nodes_.size(), no_parent);
    std::vector<std::uint32_t> pending, order;
    for (auto i = static_cast<std::uint32_t>(nodes_.size()); i-- > 0;) {
        const std::uint32_t parent = nodes_[i].parent;
        if (parent == no_parent) {
            pending.push_back(i);
            continue;
        }
        // Every call below it was taken back or moved. Groups have no calls, but what is below them has.
        if (nodes_[i].calls == 0 && first_child[i] == no_parent) continue;
        next_sibling[i] = first_child[parent];
        first_child[parent] = i;
    }
    order.reserve(nodes_.size());
    while (!pending.empty()) {
        const std::uint32_t node = pending.back();
        pending.pop_back();
        order.push_back(node);
        const std::size_t begin = pending.size();
        for (std::uint32_t child = first_child[node]; child != no_parent; child = next_sibling[child])
            pending.push_back(child);
        std::reverse(pending.begin() + static_cast<std::ptrdiff_t>(begin), pending.end());
    }
    return order;
}

}  // namespace gpuprof
