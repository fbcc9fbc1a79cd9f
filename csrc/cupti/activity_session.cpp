// SPDX-License-Identifier: Apache-2.0
#include "cupti/activity_session.hpp"

#include <algorithm>
#include <cstddef>

namespace gpuprof::cupti {
namespace {

constexpr std::uint32_t recorded_kinds[] = {abi::concurrent_kernel, abi::memory_copy, abi::memory_copy_peer,
                                            abi::memory_set, abi::synchronization};

// More than any library has; it refuses the numbers of functions that are newer than it is.
constexpr std::uint32_t most_functions = 4096;

template <typename Ranges>
bool contains(const Ranges& ranges, std::uint32_t id) noexcept {
    return std::ranges::any_of(
        ranges, [id](const abi::CallbackRange& range) { return range.first <= id && id <= range.last; });
}

// Whether any call could be left out.
template <typename IsWanted>
bool leave_out_calls(abi::ActivitySwitchCall function, const IsWanted& is_wanted) noexcept {
    bool any = false;
    for (std::uint32_t id = 1; id <= most_functions; ++id)
        if (!is_wanted(id)) any |= function(id, 0) == abi::success;
    return any;
}

}  // namespace

std::uint32_t ActivitySession::begin(const Library& library, const SessionOptions& options,
                                     abi::RequestBuffer request, abi::CompleteBuffer complete) noexcept {
    library_ = &library;
    options_ = options;
    facts_ = {};
    const Api& api = library.api;
    std::uint32_t result = options.with_callbacks ? subscription_.begin(api) : use_system_thread_ids();
    if (result == abi::success) {
        // A buffer for each launching thread, as is the default, costs 1 MiB a thread. Not taken back: it
        // must not change while records are written, and PyTorch's Kineto sets the same.
        set_attribute(abi::buffers_per_thread, 0);
        set_attribute(abi::buffers_come_zeroed, 1);
        // Each time: the registration that came last is the one that counts, and it may be another tool's.
        result = api.register_callbacks(request, complete);
    }
    // Whether a stream or an event has finished is asked often and is no synchronization.
    if (api.enable_all_synchronizations != nullptr) api.enable_all_synchronizations(0);
    if (result != abi::success) end();
    return result;
}

// Else records name threads by addresses. The setting is the process's.
std::uint32_t ActivitySession::use_system_thread_ids() noexcept {
    const Api& api = library_->api;
    if (api.get_thread_id_type == nullptr || api.set_thread_id_type == nullptr) return abi::not_supported;
    if (const std::uint32_t result = api.get_thread_id_type(&former_thread_ids_); result != abi::success)
        return result;
    if (former_thread_ids_ == abi::system_thread_ids) return abi::success;
    const std::uint32_t result = api.set_thread_id_type(abi::system_thread_ids);
    sets_thread_ids_ = result == abi::success;
    return result;
}

// Versions that do not know the attribute refuse it.
void ActivitySession::set_attribute(std::uint32_t attribute, std::uint8_t value) noexcept {
    const Api& api = library_->api;
    if (api.get_attribute == nullptr || api.set_attribute == nullptr) return;
    std::uint8_t former = 0;
    std::size_t size = sizeof(former);
    if (api.get_attribute(attribute, &size, &former) != abi::success || former == value) return;
    size = sizeof(value);
    const bool is_set = api.set_attribute(attribute, &size, &value) == abi::success;
    if (attribute == abi::buffers_come_zeroed) sets_zeroed_buffers_ = is_set && value != 0;
}

std::uint32_t ActivitySession::enable_records() noexcept {
    const Api& api = library_->api;
    // Before the kernels: with it, those of graphs have no records of their own.
    if (options_.whole_graphs) facts_.whole_graphs = api.enable(abi::graph_trace) == abi::success;
    std::uint32_t result = options_.with_callbacks ? std::uint32_t{abi::success} : enable_calls();
    for (const std::uint32_t kind : recorded_kinds)
        if (result == abi::success) result = api.enable(kind);
    if (result != abi::success) {
        disable_records();
        end();
        return result;
    }
    // Without an id that waits refer to, they are useless.
    if (library_->version >= abi::first_version_with_event_ids)
        facts_.event_records = api.enable(abi::cuda_event) == abi::success;
    return abi::success;
}

std::uint32_t ActivitySession::enable_calls() noexcept {
    const Api& api = library_->api;
    std::uint32_t result = api.enable(abi::runtime_call);
    if (result == abi::success) result = api.enable(abi::driver_call);
    facts_.chosen_calls = result == abi::success && leave_out_other_calls();
    return result;
}

// The kinds are on before: on an H200 with CUPTI 13.0, calls that are switched on one by one, as its header
// allows, have no records.
bool ActivitySession::leave_out_other_calls() noexcept {
    const Api& api = library_->api;
    if (api.switch_runtime_call == nullptr || api.switch_driver_call == nullptr) return false;
    const bool runtime = leave_out_calls(api.switch_runtime_call,
                                         [](std::uint32_t id) { return contains(abi::runtime_calls, id); });
    const bool driver = leave_out_calls(api.switch_driver_call, [](std::uint32_t id) {
        return contains(abi::launching_callbacks, id) || contains(abi::waiting_callbacks, id);
    });
    return runtime && driver;
}

void ActivitySession::disable_records() noexcept {
    if (library_ == nullptr) return;
    const abi::ActivityKindFunction disable = library_->api.disable;
    for (const std::uint32_t kind : recorded_kinds) disable(kind);
    if (facts_.whole_graphs) disable(abi::graph_trace);
    if (facts_.event_records) disable(abi::cuda_event);
    if (options_.with_callbacks) return;
    // A tool that switches a kind on has all of its calls again.
    disable(abi::runtime_call);
    disable(abi::driver_call);
}

void ActivitySession::end() noexcept {
    if (library_ == nullptr) return;
    subscription_.end();
    // Another tool may hand out buffers as it gets them back, or know threads by their addresses.
    if (sets_zeroed_buffers_) set_attribute(abi::buffers_come_zeroed, 0);
    if (sets_thread_ids_) library_->api.set_thread_id_type(former_thread_ids_);
    sets_zeroed_buffers_ = sets_thread_ids_ = false;
    library_ = nullptr;
}

void ActivitySession::forget() noexcept {
    subscription_.forget();
    library_ = nullptr;
}

}  // namespace gpuprof::cupti
