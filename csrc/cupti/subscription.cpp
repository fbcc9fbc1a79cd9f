// SPDX-License-Identifier: Apache-2.0
#include "cupti/subscription.hpp"

#include <atomic>

#include "core/recorder.hpp"

namespace gpuprof::cupti {
namespace {

// Between a begin and an end; a callback that is under way at the end may still see it.
std::atomic<abi::GetGraphNodeId> node_id_function{nullptr};
std::atomic<bool> listening{false};

bool node_id(void* node, std::uint64_t& id) noexcept {
    const abi::GetGraphNodeId function = node_id_function.load(std::memory_order_acquire);
    return function != nullptr && node != nullptr && function(node, &id) == abi::success;
}

void note_launch(const abi::CallbackData& call) noexcept {
    Recorder& recorder = Recorder::instance();
    const EventKind kind = call.site == abi::api_enter ? EventKind::launch : EventKind::launch_end;
    recorder.emit(kind, recorder.name_key(call.correlation_id));
}

void emit_node(EventKind kind, std::uint64_t node) noexcept {
    Recorder& recorder = Recorder::instance();
    Recorder::emit_to(recorder.current_log(), kind, recorder.name_key(0), node);
}

void note_graph_node(std::uint32_t id, const abi::ResourceData& resource) noexcept {
    const auto* graph = static_cast<const abi::GraphData*>(resource.descriptor);
    if (graph == nullptr) return;
    std::uint64_t made = 0, original = 0;
    if (!node_id(graph->node, made)) return;
    if (id == abi::graph_node_created) {
        emit_node(EventKind::graph_node, made);
    } else if (node_id(graph->original_node, original)) {
        emit_node(EventKind::graph_clone, original);
        emit_node(EventKind::graph_clone_of, made);
    }
}

// On the thread that launches, inside the driver: no lock, no allocation.
void on_callback(void* /*user*/, std::uint32_t domain, std::uint32_t id, const void* data) noexcept {
    if (data == nullptr || !listening.load(std::memory_order_relaxed)) return;
    if (domain == abi::driver_domain)
        note_launch(*static_cast<const abi::CallbackData*>(data));
    else if (domain == abi::resource_domain)
        note_graph_node(id, *static_cast<const abi::ResourceData*>(data));
}

}  // namespace

std::uint32_t Subscription::begin(const Api& api) noexcept {
    api_ = &api;
    std::uint32_t result = api.subscribe(&subscriber_, on_callback, nullptr);
    if (result != abi::success) {
        subscriber_ = nullptr;
        return result;
    }
    node_id_function.store(api.get_graph_node_id, std::memory_order_release);
    result = api.enable_callback(1, subscriber_, abi::driver_domain, abi::launch_kernel);
    if (result != abi::success) {
        end();
        return result;
    }
    listening.store(true, std::memory_order_release);
    switch_callbacks(true);
    return abi::success;
}

void Subscription::end() noexcept {
    listening.store(false, std::memory_order_release);
    if (subscriber_ == nullptr) return;
    switch_callbacks(false);
    api_->unsubscribe(subscriber_);
    subscriber_ = nullptr;
}

void Subscription::forget() noexcept {
    listening.store(false, std::memory_order_release);
    subscriber_ = nullptr;
}

// A library refuses the functions that are newer than it is; they cannot be called there either.
void Subscription::switch_callbacks(bool on) noexcept {
    const std::uint32_t enable = on ? 1 : 0;
    const auto switch_all = [&](const auto& ranges) {
        for (const abi::CallbackRange& range : ranges)
            for (std::uint32_t id = range.first; id <= range.last; ++id)
                api_->enable_callback(enable, subscriber_, abi::driver_domain, id);
    };
    switch_all(abi::launching_callbacks);
    switch_all(abi::waiting_callbacks);
    for (const std::uint32_t id : {abi::graph_node_created, abi::graph_node_cloned})
        api_->enable_callback(enable, subscriber_, abi::resource_domain, id);
}

}  // namespace gpuprof::cupti
