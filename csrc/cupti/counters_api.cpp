// SPDX-License-Identifier: Apache-2.0
#include "cupti/counters_api.hpp"

#include <dlfcn.h>

namespace gpuprof::cupti {
namespace {

template <typename Function>
const char* find(void* library, const char* name, Function& function) noexcept {
    function = reinterpret_cast<Function>(dlsym(library, name));
    return function != nullptr ? nullptr : name;
}

}  // namespace

const char* find_counter_functions(void* library, CounterApi& api) noexcept {
    const char* const missing[] = {
        find(library, "cuptiProfilerInitialize", api.initialize),
        find(library, "cuptiProfilerDeInitialize", api.deinitialize),
        find(library, "cuptiDeviceGetChipName", api.get_chip_name),
        find(library, "cuptiProfilerGetCounterAvailability", api.get_availability),
        find(library, "cuptiProfilerDeviceSupported", api.device_supported),
        find(library, "cuptiProfilerHostInitialize", api.host_initialize),
        find(library, "cuptiProfilerHostDeinitialize", api.host_deinitialize),
        find(library, "cuptiProfilerHostGetSupportedChips", api.get_supported_chips),
        find(library, "cuptiProfilerHostConfigAddMetrics", api.add_metrics),
        find(library, "cuptiProfilerHostGetConfigImageSize", api.get_config_size),
        find(library, "cuptiProfilerHostGetConfigImage", api.get_config),
        find(library, "cuptiProfilerHostGetNumOfPasses", api.get_passes),
        find(library, "cuptiProfilerHostEvaluateToGpuValues", api.evaluate),
        find(library, "cuptiRangeProfilerEnable", api.enable),
        find(library, "cuptiRangeProfilerDisable", api.disable),
        find(library, "cuptiRangeProfilerSetConfig", api.set_config),
        find(library, "cuptiRangeProfilerStart", api.start),
        find(library, "cuptiRangeProfilerStop", api.stop),
        find(library, "cuptiRangeProfilerDecodeData", api.decode),
        find(library, "cuptiRangeProfilerGetCounterDataSize", api.get_data_size),
        find(library, "cuptiRangeProfilerCounterDataImageInitialize", api.initialize_image),
        find(library, "cuptiRangeProfilerGetCounterDataInfo", api.get_data_info),
    };
    find(library, "cuptiRangeProfilerCounterDataGetRangeInfo", api.get_range_info);
    for (const char* const name : missing)
        if (name != nullptr) return name;
    return nullptr;
}

std::string why_no_counters(const Library& library, CounterApi& api) {
    const char* const missing = find_counter_functions(library.handle, api);
    if (missing == nullptr) return {};
    return library.path + " has no " + missing +
           ": counters need CUPTI of CUDA 12.6 or newer, pip install nvidia-cuda-cupti";
}

std::string explain(const CounterError& error) {
    const std::string number = "(error " + std::to_string(error.result) + ")";
    switch (error.result) {
        case abi::insufficient_privileges:
        case abi::virtualized_device_insufficient_privileges:
            return "no permission to read the GPU's counters " + number +
                   ": run as root or with CAP_SYS_ADMIN, or let the administrator load the driver with "
                   "NVreg_RestrictProfilingToAdminUsers=0";
        case abi::not_compatible:
        case abi::hardware_busy:
        case abi::old_profiler_initialized:
        case abi::legacy_profiler_not_supported:
        case abi::multiple_subscribers:
            return "another profiler has the GPU's counters " + number +
                   ": end Nsight, DCGM's profiling or torch.profiler first";
        case abi::not_supported:
        case abi::virtualized_device_not_supported:
        case abi::confidential_computing_not_supported:
        case abi::mining_device_not_supported:
        case abi::mig_device_not_supported:
        case abi::sli_device_not_supported:
        case abi::wsl_device_not_supported:
            return "this kind of device has no counters for CUPTI " + number + ": measure on another one";
        case abi::invalid_chip_name:
            return "this CUPTI does not know the GPU " + number + ": install a newer nvidia-cuda-cupti";
        case abi::out_of_memory:
            return "no memory for counters " + number + ": leave some of the memory free";
        default:
            return std::string(error.function) + ": " + explain_error(error.result);
    }
}

}  // namespace gpuprof::cupti
