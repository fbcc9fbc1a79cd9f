// SPDX-License-Identifier: Apache-2.0
#include "collect/autograd.hpp"

#include <dlfcn.h>

#include <algorithm>
#include <cstddef>
#include <cstring>
#include <limits>
#include <new>

#include "core/dynamic_library.hpp"

namespace gpuprof::autograd {
namespace {

// Given back to this memory by a function that returns an owner of a node by value. The destructor makes
// the compiler pass a hidden pointer to it, as for the pointer classes themselves, and does nothing:
// the owner is given back by release().
struct Owner {  // NOLINT(cppcoreguidelines-special-member-functions)
    std::uint64_t words[2];
    ~Owner() {}  // NOLINT(modernize-use-equals-default): a trivial one would return it in registers
};

using ThreadFunction = std::uint64_t (*)();
using NodeFunction = Owner (*)();

constexpr const char* sequence_symbol = "_ZN2at15sequence_number4peekEv";
constexpr const char* thread_symbol = "_ZN2at14RecordFunction15currentThreadIdEv";
constexpr const char* node_symbol = "_ZN5torch8autograd16get_current_nodeEv";

constexpr int unwritten_byte = 0xA5;
static_assert(unwritten == 0xA5A5A5A5A5A5A5A5ull);

struct Functions {
    SequenceFunction sequence = nullptr;
    ThreadFunction thread = nullptr;
    NodeFunction node = nullptr;
    bool operator==(const Functions&) const = default;
};

// Read by every thread that finds something connected, now or earlier: never
// written again with what they are.
Functions functions;
NodeLayout layout_in_use{};

// Of a std::shared_ptr: a vtable and the count of its owners.
constexpr std::size_t shared_count_offset = 8;
// In the node itself, after its vtable: the count of owners in the low half of a word.
constexpr std::size_t intrusive_count_offset = 8;

template <typename T>
T read_at(std::uint64_t address, std::size_t offset) noexcept {
    T value;
    // NOLINTNEXTLINE(performance-no-int-to-ptr): PyTorch's object, known by its bytes
    std::memcpy(&value, reinterpret_cast<const std::byte*>(address) + offset, sizeof(value));
    return value;
}

template <typename T>
std::atomic_ref<T> counter_at(std::uint64_t address, std::size_t offset) noexcept {
    // NOLINTNEXTLINE(performance-no-int-to-ptr): as above
    return std::atomic_ref<T>(*reinterpret_cast<T*>(address + offset));
}

// Never the last owner: the engine holds the node for as long as it evaluates it.
void release(const Owner& owner, Ownership ownership) noexcept {
    if (ownership == Ownership::intrusive)
        counter_at<std::uint64_t>(owner.words[0], intrusive_count_offset)
            .fetch_sub(1, std::memory_order_acq_rel);
    else
        counter_at<std::uint32_t>(owner.words[1], shared_count_offset)
            .fetch_sub(1, std::memory_order_acq_rel);
}

}  // namespace

std::atomic<SequenceFunction> next_sequence{nullptr};
std::atomic<bool> nodes_are_tied{false};

Reason open_library(const std::string& path) {
    void* const library = dlopen(path.c_str(), RTLD_NOW | RTLD_NOLOAD);
    if (library == nullptr) return {ReasonCode::autograd_not_loaded, path};
    Functions found;
    FunctionFinder find(library);
    find.need(sequence_symbol, found.sequence);
    find.need(thread_symbol, found.thread);
    find.need(node_symbol, found.node);
    if (find.missing() != nullptr) return {ReasonCode::autograd_lacks_function, {}, find.missing()};
    if (functions != found) functions = found;
    return {};
}

bool is_open() noexcept {
    return functions.node != nullptr;
}

Answers ask() {
    alignas(Owner) std::byte place[sizeof(Owner)];
    std::memset(place, unwritten_byte, sizeof(place));
    // What is written above must be there when the function builds its result in the same place.
    asm volatile("" : : "r"(place) : "memory");
    const Owner* const owner = new (place) Owner(functions.node());
    return {functions.sequence(), functions.thread(), {owner->words[0], owner->words[1]}};
}

void tie(const NodeLayout* layout) noexcept {
    if (layout != nullptr && layout_in_use != *layout) layout_in_use = *layout;
    next_sequence.store(functions.sequence, std::memory_order_release);
    nodes_are_tied.store(layout != nullptr, std::memory_order_release);
}

void untie() noexcept {
    next_sequence.store(nullptr, std::memory_order_release);
    nodes_are_tied.store(false, std::memory_order_release);
}

void note_layer_nodes(ThreadLog* log, NameKey key, std::uint64_t first, std::uint64_t end) noexcept {
    constexpr std::uint64_t most = std::numeric_limits<std::uint32_t>::max();
    const auto count = static_cast<std::uint32_t>(std::min(end - first, most));
    Recorder::emit_to(log, EventKind::layer_nodes, Recorder::name_key(generation_of(key), count),
                      node_mark(functions.thread(), first));
}

void note_current_node() noexcept {
    const NodeLayout layout = layout_in_use;
    const Owner owner = functions.node();
    if (owner.words[0] == 0) return;
    const auto sequence = read_at<std::uint64_t>(owner.words[0], layout.sequence_offset);
    const auto thread = read_at<std::uint64_t>(owner.words[0], layout.thread_offset);
    release(owner, layout.ownership);
    // Nodes that add to a parameter's gradient belong to no call: all have the largest number.
    if (sequence == std::numeric_limits<std::uint64_t>::max()) return;
    Recorder& recorder = Recorder::instance();
    Recorder::emit_to(recorder.current_log(), EventKind::backward_node, recorder.name_key(0),
                      node_mark(thread, sequence));
}

}  // namespace gpuprof::autograd
