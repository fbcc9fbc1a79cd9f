// SPDX-License-Identifier: Apache-2.0
// The content of a run's `segments/` folder during a recording. Bytes, not objects: a process that
// dies at any instruction leaves files that the reader understands.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>

#include "core/clock.hpp"

namespace gpuprof {

enum class EventKind : std::uint32_t {
    none = 0,  // never written: the rest of a preallocated chunk reads as zeros
    span_begin = 1,
    span_end = 2,
    layer_begin = 3,
    layer_end = 4,
    operator_begin = 5,
    operator_end = 6,  // carries no name: operators end in the order of a stack
    context = 7,       // the thread switched to another asynchronous task
    thread = 8,        // the events from here on belong to this thread
    task_start = 9,    // ticks: when the task of the next `context` event was started, or shortly before
    // Ranges of NVTX. The scope of a range's name is its domain.
    range_begin = 10,  // is put on the thread's stack
    range_end = 11,    // name: the domain, whose innermost range ends
    range_id = 12,     // ticks: the number of the next `range_start`
    range_start = 13,  // of a range that any thread may end
    range_stop = 14,   // name: the number of the range
    // What ties the backward pass to the layers of its forward. Both carry a node mark in place of ticks.
    layer_nodes = 15,    // of the layer call that ends next: its first autograd node; name: how many it made
    backward_node = 16,  // of the `operator_begin` that follows: the node that the engine evaluates
    // The mode of the outermost layer call that ends next, and of those after it; name: a LayerMode.
    layer_mode = 17,
    // Work of a GPU.
    launch = 20,          // work was handed over; name: its correlation id
    graph_node = 21,      // a kernel was captured; ticks: the id of its node in a CUDA graph
    graph_clone = 22,     // ticks: a graph node's id, of which the next event names a copy
    graph_clone_of = 23,  // ticks: the copy's id
    launch_end = 24,      // the call that handed the work over returned; name: as in `launch`
    // What interrupts the program. The begin is `pending` until the end is known.
    pending = 30,  // means nothing; ticks and name as in the begin that it becomes
    collection_begin = 31,
    collection_end = 32,
    compile_begin = 33,
    compile_end = 34,
};

// Written where it changes: most programs train, evaluate and generate in long stretches.
enum class LayerMode : std::uint32_t {
    unknown = 0,
    training = 1,
    evaluation = 2,   // the module's `training` is unset
    no_gradient = 3,  // it is set, and the call made no node of the autograd graph
};

// The end of a span of which this is the begin, and the other way around.
constexpr EventKind end_of(EventKind begin) noexcept {
    return static_cast<EventKind>(static_cast<std::uint32_t>(begin) + 1);
}
constexpr EventKind begin_of(EventKind end) noexcept {
    return static_cast<EventKind>(static_cast<std::uint32_t>(end) - 1);
}

// Whether the event carries an instant; the others use the field for something else.
constexpr bool is_timed(EventKind kind) noexcept {
    switch (kind) {
        case EventKind::span_begin:
        case EventKind::span_end:
        case EventKind::layer_begin:
        case EventKind::layer_end:
        case EventKind::operator_begin:
        case EventKind::operator_end:
        case EventKind::range_begin:
        case EventKind::range_end:
        case EventKind::range_start:
        case EventKind::range_stop:
        case EventKind::launch:
        case EventKind::launch_end:
        case EventKind::collection_begin:
        case EventKind::collection_end:
        case EventKind::compile_begin:
        case EventKind::compile_end:
        case EventKind::layer_mode:
            return true;
        default:
            return false;
    }
}

struct Event {
    std::uint64_t ticks;
    std::uint32_t name;
    std::uint32_t kind;
};
static_assert(sizeof(Event) == 16);

// An autograd node as its forward numbered it: the sequence number, which counts up on each thread, and
// above it PyTorch's number of that thread.
constexpr unsigned node_sequence_bits = 44;
constexpr std::uint64_t node_mark(std::uint64_t thread, std::uint64_t sequence) noexcept {
    return thread << node_sequence_bits | (sequence & ((std::uint64_t{1} << node_sequence_bits) - 1));
}

// A `thread` event takes two slots. First: ticks = thread id << 32 | thread number, name = how many
// pieces this thread had before. Second: the thread's name as the system knows it.
struct ThreadLabel {
    char text[16];
};
static_assert(sizeof(ThreadLabel) == sizeof(Event));
constexpr std::size_t thread_mark_slots = 2;
// Set in the number of a piece that was added afterwards, from another tool's record of the same thread.
constexpr std::uint32_t added_thread_bit = 0x80000000u;

constexpr std::size_t chunk_bytes = std::size_t{64} * 1024;
constexpr std::size_t chunk_events = chunk_bytes / sizeof(Event);
constexpr std::size_t header_bytes = 4096;
constexpr std::uint32_t segment_version = 1;
constexpr char segment_magic[8] = {'G', 'P', 'U', 'P', 'R', 'O', 'F', 'S'};
constexpr char names_magic[8] = {'G', 'P', 'U', 'P', 'R', 'O', 'F', 'N'};

// What never changes after a segment was made.
struct SegmentIdentity {
    char magic[8];
    std::uint32_t version;
    std::uint32_t clock_kind;
    std::uint32_t process_id;
    std::uint32_t parent_process_id;
    std::uint64_t process_key;  // distinguishes two processes that were given the same id
    std::uint32_t segment_index;
    std::uint32_t chunk_count;
    ClockPoint first_point;
    double ticks_per_ns_guess;  // for a process that died before it took a second point
};

struct SegmentHeader {
    SegmentIdentity identity;
    std::uint64_t checksum;  // of the identity
    ClockPoint latest_point;
    std::atomic<std::uint64_t> dropped_events;
    std::atomic<std::uint32_t> closed;
    std::atomic<std::uint32_t> chunks_taken;
};
static_assert(sizeof(SegmentHeader) <= header_bytes);
static_assert(std::atomic<std::uint64_t>::is_always_lock_free);

inline std::uint64_t fnv1a(const void* data, std::size_t size) noexcept {
    std::uint64_t hash = 14695981039346656037ull;
    for (std::size_t i = 0; i < size; ++i)
        hash = (hash ^ static_cast<const unsigned char*>(data)[i]) * 1099511628211ull;
    return hash;
}

// A names file is its magic and then records: this head, then `length` bytes of UTF-8. Ids count up
// from 1 in the order of the records.
struct NameRecord {
    std::uint32_t length;
    std::uint32_t scope;  // id of the name that qualifies this one (a layer's root), or 0
};
static_assert(sizeof(NameRecord) == 8);
constexpr std::uint32_t longest_name_bytes = 1u << 20;

}  // namespace gpuprof
