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
std::string why_not_with_driver(std::uint32_t version) {
    const LoadedLibrary driver(cuda::driver_name);
    const auto get_version = find_function<abi::DriverGetVersion>(driver.handle(), "cuDriverGetVersion");
    int supported = 0;
    const bool asked = get_version != nullptr && get_version(&supported) == 0;
    const int needed = version >= 130000 ? static_cast<int>(version / 10'000) : 12;
    if (!asked || supported / 1000 >= needed) return {};
    return "is for CUDA " + version_text(version) + ", and the driver supports up to CUDA " +
           std::to_string(supported / 1000) + "." + std::to_string(supported % 1000 / 10) +
           "; hint: update the driver, or name an older CUPTI in GPUPROF_CUPTI_LIBRARY";
}

// Keeps the library for the life of the process: it owns threads, and the names in records.
Library examine(void* library, const std::string& name) {
    Library found;
    found.handle = library;
    found.path = path_of_library(library, "cuptiGetVersion", name);
    if (const char* missing = fill(library, found.api); missing != nullptr) {
        found.reason =
            found.path + " has no " + missing + "; hint: name another CUPTI in GPUPROF_CUPTI_LIBRARY";
        return found;
    }
    if (const std::uint32_t result = found.api.get_version(&found.version); result != abi::success) {
        found.reason = found.path + " does not report its version: " + explain_error(result);
        return found;
    }
    std::string why = why_not_decodable(found.version, found.api.get_next_record != nullptr);
    if (why.empty()) why = why_not_with_driver(found.version);
    if (!why.empty()) found.reason = found.path + " " + why;
    return found;
}

}  // namespace

std::string why_no_driver() {
    const LoadedLibrary driver(cuda::driver_name);
    if (driver.handle() == nullptr) return "CUDA is not in use in this process";
    const auto get_count = find_function<abi::DriverDeviceGetCount>(driver.handle(), "cuDeviceGetCount");
    int count = 0;
    const int result = get_count != nullptr ? get_count(&count) : -1;
    if (result == abi::driver_not_initialized) return "the program has not initialized CUDA";
    if (result != abi::driver_success)
        return "the NVIDIA driver returns error " + std::to_string(result) +
               "; hint: check that nvidia-smi works";
    return count > 0 ? "" : "the NVIDIA driver has no device; hint: check that nvidia-smi shows one";
}

Library load_library(const std::vector<std::string>& folders) {
    Library last;
    last.reason = why_no_driver();
    if (!last.available()) return last;
    if (const NamedLibrary named = load_named_library("GPUPROF_CUPTI_LIBRARY", "libcupti.so");
        !named.name.empty()) {
        if (named.handle != nullptr) return examine(named.handle, named.name);
        last.reason = named.reason;
        return last;
    }
    last.reason =
        "no libcupti.so.13 or libcupti.so.12 was found: pip install nvidia-cuda-cupti, "
        "or name one in GPUPROF_CUPTI_LIBRARY";
    offer_libraries(library_names, folders, [&last](void* library, const std::string& path) {
        if (library != nullptr)
            last = examine(library, path);
        else
            last.reason = path + " cannot be loaded: " + last_library_error(path);
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

std::string explain_error(std::uint32_t result) {
    switch (result) {
        case abi::multiple_subscribers:
            return "another tool uses CUPTI in this process (error 39): end torch.profiler, Nsight or the "
                   "debugger first";
        case abi::insufficient_privileges:
        case abi::virtualized_device_insufficient_privileges:
            return "no permission to trace the GPU (error " + std::to_string(result) +
                   "): let the administrator load the driver with NVreg_RestrictProfilingToAdminUsers=0";
        case abi::not_compatible:
            return "another tool's settings exclude tracing (error 14): end that tool first";
        case abi::old_profiler_initialized:
            return "an old profiler interface is in use (error 36): end that profiler first";
        case abi::hardware:
            return "the GPU does not respond (error 9); hint: see nvidia-smi and the kernel's log";
        case abi::out_of_memory:
            return "CUPTI ran out of memory (error 8): leave some of the GPU's memory free";
        case abi::not_initialized:
            return "CUPTI could not be initialized (error 15); hint: check that nvidia-smi works";
        case abi::not_supported:
        case abi::virtualized_device_not_supported:
        case abi::confidential_computing_not_supported:
        case abi::mining_device_not_supported:
        case abi::mig_device_not_supported:
        case abi::wsl_device_not_supported:
            return "CUPTI does not trace this kind of device (error " + std::to_string(result) + ")";
        default:
            return "CUPTI returns error " + std::to_string(result) +
                   "; hint: check that CUPTI and the driver have the same CUDA version";
    }
}

}  // namespace gpuprof::cupti
