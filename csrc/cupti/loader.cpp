// SPDX-License-Identifier: Apache-2.0
#include "cupti/loader.hpp"

#include <dlfcn.h>

#include <array>
#include <cstdlib>
#include <filesystem>

#include "cupti/decoder.hpp"

namespace gpuprof::cupti {
namespace {

constexpr const char* driver_name = "libcuda.so.1";
constexpr std::array library_names{"libcupti.so.13", "libcupti.so.12"};

template <typename Function>
bool find(void* library, const char* name, Function& function) noexcept {
    function = reinterpret_cast<Function>(dlsym(library, name));
    return function != nullptr;
}

// The name of a function that is missing, or null.
const char* fill(void* library, Api& api) noexcept {
    if (!find(library, "cuptiGetVersion", api.get_version)) return "cuptiGetVersion";
    if (!find(library, "cuptiGetTimestamp", api.get_timestamp)) return "cuptiGetTimestamp";
    if (!find(library, "cuptiSubscribe", api.subscribe)) return "cuptiSubscribe";
    if (!find(library, "cuptiUnsubscribe", api.unsubscribe)) return "cuptiUnsubscribe";
    if (!find(library, "cuptiEnableCallback", api.enable_callback)) return "cuptiEnableCallback";
    if (!find(library, "cuptiActivityEnable", api.enable)) return "cuptiActivityEnable";
    if (!find(library, "cuptiActivityDisable", api.disable)) return "cuptiActivityDisable";
    if (!find(library, "cuptiActivityFlushAll", api.flush_all)) return "cuptiActivityFlushAll";
    if (!find(library, "cuptiActivityRegisterCallbacks", api.register_callbacks))
        return "cuptiActivityRegisterCallbacks";
    if (!find(library, "cuptiActivityGetNumDroppedRecords", api.get_dropped))
        return "cuptiActivityGetNumDroppedRecords";
    find(library, "cuptiActivityGetNextRecord", api.get_next_record);
    find(library, "cuptiActivityRegisterTimestampCallback", api.register_timestamp);
    find(library, "cuptiActivityEnableAllSyncRecords", api.enable_all_synchronizations);
    find(library, "cuptiGetGraphNodeId", api.get_graph_node_id);
    return nullptr;
}

std::string path_of(void* library, const std::string& otherwise) {
    Dl_info info{};
    void* const function = dlsym(library, "cuptiGetVersion");
    if (function != nullptr && dladdr(function, &info) != 0 && info.dli_fname != nullptr)
        return info.dli_fname;
    return otherwise;
}

// A driver runs programs of its own CUDA version and older ones.
std::string why_not_with_driver(std::uint32_t version) {
    void* const driver = dlopen(driver_name, RTLD_NOW | RTLD_NOLOAD);
    if (driver == nullptr) return {};
    abi::DriverGetVersion get_version = nullptr;
    int supported = 0;
    const bool asked = find(driver, "cuDriverGetVersion", get_version) && get_version(&supported) == 0;
    dlclose(driver);
    const int needed = version >= 130000 ? static_cast<int>(version / 10'000) : 12;
    if (!asked || supported / 1000 >= needed) return {};
    return "is for CUDA " + version_text(version) + ", and the driver supports up to CUDA " +
           std::to_string(supported / 1000) + "." + std::to_string(supported % 1000 / 10) +
           ": update the driver, or name an older CUPTI in GPUPROF_CUPTI_LIBRARY";
}

// Keeps the library for the life of the process: it owns threads, and the names in records.
Library examine(void* library, const std::string& name) {
    Library found;
    found.handle = library;
    found.path = path_of(library, name);
    if (const char* missing = fill(library, found.api); missing != nullptr) {
        found.reason = found.path + " has no " + missing + ": name another CUPTI in GPUPROF_CUPTI_LIBRARY";
        return found;
    }
    if (const std::uint32_t result = found.api.get_version(&found.version); result != abi::success)
        found.reason = found.path + " does not tell its version: " + explain_error(result);
    else if (std::string why = why_not_decodable(found.version, found.api.get_next_record != nullptr);
             !why.empty())
        found.reason = found.path + " " + why;
    else if (why = why_not_with_driver(found.version); !why.empty())
        found.reason = found.path + " " + why;
    return found;
}

std::string last_dl_error(const std::string& otherwise) {
    const char* const error = dlerror();  // NOLINT(concurrency-mt-unsafe): of this thread
    return error != nullptr ? error : otherwise;
}

Library load_named(const char* name) {
    // NOLINTNEXTLINE(clang-analyzer-optin.taint.GenericTaint): the user names the library
    void* const library = dlopen(name, RTLD_NOW | RTLD_LOCAL);
    if (library != nullptr) return examine(library, name);
    Library none;
    none.reason = "GPUPROF_CUPTI_LIBRARY cannot be loaded: " + last_dl_error(name) +
                  "; name a libcupti.so, or unset it";
    return none;
}

}  // namespace

std::string why_no_driver() {
    void* const driver = dlopen(driver_name, RTLD_NOW | RTLD_NOLOAD);
    if (driver == nullptr) return "CUDA is not in use in this process";
    abi::DriverDeviceGetCount get_count = nullptr;
    int count = 0;
    const int result = find(driver, "cuDeviceGetCount", get_count) ? get_count(&count) : -1;
    dlclose(driver);
    if (result == abi::driver_not_initialized) return "the program has not initialised CUDA";
    if (result != abi::driver_success)
        return "the NVIDIA driver answers error " + std::to_string(result) + ": see that nvidia-smi works";
    return count > 0 ? "" : "the NVIDIA driver has no device: see that nvidia-smi shows one";
}

Library load_library(const std::vector<std::string>& folders) {
    Library last;
    last.reason = why_no_driver();
    if (!last.available()) return last;
    // NOLINTNEXTLINE(concurrency-mt-unsafe): as every reader of the environment
    if (const char* named = std::getenv("GPUPROF_CUPTI_LIBRARY"); named != nullptr && *named != '\0')
        return load_named(named);
    last.reason =
        "no libcupti.so.13 or libcupti.so.12 was found: pip install nvidia-cuda-cupti, "
        "or name one in GPUPROF_CUPTI_LIBRARY";
    auto accept = [&](void* library, const std::string& name) {
        if (library != nullptr) last = examine(library, name);
        return library != nullptr && last.available();
    };
    for (const char* name : library_names)
        if (accept(dlopen(name, RTLD_NOW | RTLD_NOLOAD), name)) return last;
    for (const std::string& folder : folders)
        for (const char* name : library_names) {
            const std::string path = folder + "/" + name;
            std::error_code ignored;
            if (!std::filesystem::exists(path, ignored)) continue;
            void* const library = dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
            if (accept(library, path)) return last;
            if (library == nullptr) last.reason = path + " cannot be loaded: " + last_dl_error(path);
        }
    return last;
}

std::string version_text(std::uint32_t version) {
    if (version >= 130000)
        return std::to_string(version / 10'000) + "." + std::to_string(version / 100 % 100);
    switch (version) {
        case 18:
            return "11.8 to 12.1";  // both say so
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
            return "the GPU does not answer (error 9): see nvidia-smi and the kernel's log";
        case abi::out_of_memory:
            return "CUPTI ran out of memory (error 8): leave some of the GPU's memory free";
        case abi::not_initialized:
            return "CUPTI could not be initialised (error 15): see that nvidia-smi works";
        case abi::not_supported:
        case abi::virtualized_device_not_supported:
        case abi::confidential_computing_not_supported:
        case abi::mining_device_not_supported:
        case abi::mig_device_not_supported:
        case abi::wsl_device_not_supported:
            return "CUPTI does not trace this kind of device (error " + std::to_string(result) + ")";
        default:
            return "CUPTI answers error " + std::to_string(result) +
                   ": see that CUPTI and the driver are of the same CUDA version";
    }
}

}  // namespace gpuprof::cupti
