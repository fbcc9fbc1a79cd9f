// SPDX-License-Identifier: Apache-2.0
#include "cupti/loader.hpp"

#include <array>

#include "core/dynamic_library.hpp"
#include "cuda/driver.hpp"
#include "cupti/decoder.hpp"

namespace gpuprof::cupti {
namespace {

constexpr std::array library_names{"libcupti.so.13", "libcupti.so.12"};

// The name of a function that is missing, or null.
const char* fill(void* library, Api& api) noexcept {
    FunctionFinder find(library);
    find.need("cuptiGetVersion", api.get_version);
    find.need("cuptiGetTimestamp", api.get_timestamp);
    find.need("cuptiSubscribe", api.subscribe);
    find.need("cuptiUnsubscribe", api.unsubscribe);
    find.need("cuptiEnableCallback", api.enable_callback);
    find.need("cuptiActivityEnable", api.enable);
    find.need("cuptiActivityDisable", api.disable);
    find.need("cuptiActivityFlushAll", api.flush_all);
    find.need("cuptiActivityRegisterCallbacks", api.register_callbacks);
    find.need("cuptiActivityGetNumDroppedRecords", api.get_dropped);
    find.take("cuptiActivityGetNextRecord", api.get_next_record);
    find.take("cuptiActivityEnableAllSyncRecords", api.enable_all_synchronizations);
    find.take("cuptiGetGraphNodeId", api.get_graph_node_id);
    find.take("cuptiActivityGetAttribute", api.get_attribute);
    find.take("cuptiActivitySetAttribute", api.set_attribute);
    find.take("cuptiActivityEnableRuntimeApi", api.switch_runtime_call);
    find.take("cuptiActivityEnableDriverApi", api.switch_driver_call);
    find.take("cuptiGetThreadIdType", api.get_thread_id_type);
    find.take("cuptiSetThreadIdType", api.set_thread_id_type);
    return find.missing();
}

// A driver runs programs of its own CUDA version and older ones.
Reason why_not_with_driver(std::uint32_t version) {
    const LoadedLibrary driver(cuda::driver_name);
    const auto get_version = find_function<abi::DriverGetVersion>(driver.handle(), "cuDriverGetVersion");
    int supported = 0;
    const bool asked = get_version != nullptr && get_version(&supported) == 0;
    const int needed = version >= 130000 ? static_cast<int>(version / 10'000) : 12;
    if (!asked || supported / 1000 >= needed) return {};
    return {ReasonCode::cupti_newer_than_driver, {}, version_text(version), supported};
}

// Keeps the library for the life of the process: it owns threads, and the names in records.
Library examine(void* library, const std::string& name) {
    Library found;
    found.handle = library;
    found.path = path_of_library(library, "cuptiGetVersion", name);
    if (const char* missing = fill(library, found.api); missing != nullptr) {
        found.reason = {ReasonCode::cupti_lacks_function, found.path, missing};
        return found;
    }
    if (const std::uint32_t result = found.api.get_version(&found.version); result != abi::success) {
        found.reason = {ReasonCode::cupti_without_version, found.path, {}, result};
        return found;
    }
    found.reason = why_not_decodable(found.version, found.api.get_next_record != nullptr);
    if (!found.reason) found.reason = why_not_with_driver(found.version);
    if (found.reason) found.reason.file = found.path;
    return found;
}

}  // namespace

Reason why_no_driver() {
    const LoadedLibrary driver(cuda::driver_name);
    if (driver.handle() == nullptr) return {ReasonCode::cuda_not_in_use};
    const auto get_count = find_function<abi::DriverDeviceGetCount>(driver.handle(), "cuDeviceGetCount");
    int count = 0;
    const int result = get_count != nullptr ? get_count(&count) : -1;
    if (result == abi::driver_not_initialized) return {ReasonCode::cuda_not_initialized};
    if (result != abi::driver_success) return {ReasonCode::driver_error, {}, {}, result};
    return {count > 0 ? ReasonCode::none : ReasonCode::driver_without_device};
}

Library load_library(const std::vector<std::string>& folders) {
    Library last;
    last.reason = why_no_driver();
    if (!last.available()) return last;
    if (const NamedLibrary named = load_named_library("GPUPROF_CUPTI_LIBRARY"); !named.name.empty()) {
        if (named.handle != nullptr) return examine(named.handle, named.name);
        last.reason = named.reason;
        return last;
    }
    last.reason = {ReasonCode::cupti_not_found};
    offer_libraries(library_names, folders, [&last](void* library, const std::string& path) {
        if (library != nullptr)
            last = examine(library, path);
        else
            last.reason = {ReasonCode::library_not_loaded, path, last_library_error()};
        return library != nullptr && last.available();
    });
    return last;
}

std::string version_text(std::uint32_t version) {
    if (version >= 130000)
        return std::to_string(version / 10'000) + "." + std::to_string(version / 100 % 100);
    switch (version) {
        case 18:
            return "11.8 to 12.1";  // both report it
        case 20:
        case 21:
        case 22:
        case 23:
        case 24:
            return "12." + std::to_string(version - 18);
        case 26:
            return "12.8";
        case 27:
        case 28:
            return "12.9";
        default:
            return "interface " + std::to_string(version);
    }
}

Reason explain_error(std::uint32_t result) {
    const auto of = [result](ReasonCode code) { return Reason{code, {}, {}, result}; };
    switch (result) {
        case abi::multiple_subscribers:
            return of(ReasonCode::cupti_taken);
        case abi::insufficient_privileges:
        case abi::virtualized_device_insufficient_privileges:
            return of(ReasonCode::cupti_no_permission);
        case abi::not_compatible:
            return of(ReasonCode::cupti_excluded);
        case abi::old_profiler_initialized:
            return of(ReasonCode::cupti_old_profiler);
        case abi::hardware:
            return of(ReasonCode::cupti_gpu_lost);
        case abi::out_of_memory:
            return of(ReasonCode::cupti_out_of_memory);
        case abi::not_initialized:
            return of(ReasonCode::cupti_not_initialized);
        case abi::not_supported:
        case abi::virtualized_device_not_supported:
        case abi::confidential_computing_not_supported:
        case abi::mining_device_not_supported:
        case abi::mig_device_not_supported:
        case abi::wsl_device_not_supported:
            return of(ReasonCode::cupti_device_unsupported);
        default:
            return of(ReasonCode::cupti_error);
    }
}

}  // namespace gpuprof::cupti
