// SPDX-License-Identifier: Apache-2.0
#include "cupti/counters_api.hpp"

#include "core/dynamic_library.hpp"

namespace gpuprof::cupti {

const char* find_counter_functions(void* library, CounterApi& api) noexcept {
    FunctionFinder find(library);
    find.need("cuptiProfilerInitialize", api.initialize);
    find.need("cuptiProfilerDeInitialize", api.deinitialize);
    find.need("cuptiDeviceGetChipName", api.get_chip_name);
    find.need("cuptiProfilerGetCounterAvailability", api.get_availability);
    find.need("cuptiProfilerDeviceSupported", api.device_supported);
    find.need("cuptiProfilerHostInitialize", api.host_initialize);
    find.need("cuptiProfilerHostDeinitialize", api.host_deinitialize);
    find.need("cuptiProfilerHostGetSupportedChips", api.get_supported_chips);
    find.need("cuptiProfilerHostConfigAddMetrics", api.add_metrics);
    find.need("cuptiProfilerHostGetConfigImageSize", api.get_config_size);
    find.need("cuptiProfilerHostGetConfigImage", api.get_config);
    find.need("cuptiProfilerHostGetNumOfPasses", api.get_passes);
    find.need("cuptiProfilerHostEvaluateToGpuValues", api.evaluate);
    find.need("cuptiRangeProfilerEnable", api.enable);
    find.need("cuptiRangeProfilerDisable", api.disable);
    find.need("cuptiRangeProfilerSetConfig", api.set_config);
    find.need("cuptiRangeProfilerStart", api.start);
    find.need("cuptiRangeProfilerStop", api.stop);
    find.need("cuptiRangeProfilerDecodeData", api.decode);
    find.need("cuptiRangeProfilerGetCounterDataSize", api.get_data_size);
    find.need("cuptiRangeProfilerCounterDataImageInitialize", api.initialize_image);
    find.need("cuptiRangeProfilerGetCounterDataInfo", api.get_data_info);
    find.take("cuptiRangeProfilerCounterDataGetRangeInfo", api.get_range_info);
    return find.missing();
}

Reason why_no_counters(const Library& library, CounterApi& api) {
    const char* const missing = find_counter_functions(library.handle, api);
    if (missing == nullptr) return {};
    return {ReasonCode::counters_lack_function, library.path, missing};
}

Reason explain(const CounterError& error) {
    const auto of = [&error](ReasonCode code) { return Reason{code, {}, error.function, error.result}; };
    switch (error.result) {
        case abi::insufficient_privileges:
        case abi::virtualized_device_insufficient_privileges:
            return of(ReasonCode::counters_no_permission);
        case abi::not_compatible:
        case abi::hardware_busy:
        case abi::old_profiler_initialized:
        case abi::legacy_profiler_not_supported:
        case abi::multiple_subscribers:
            return of(ReasonCode::counters_taken);
        case abi::not_supported:
        case abi::virtualized_device_not_supported:
        case abi::confidential_computing_not_supported:
        case abi::mining_device_not_supported:
        case abi::mig_device_not_supported:
        case abi::sli_device_not_supported:
        case abi::wsl_device_not_supported:
            return of(ReasonCode::counters_device_unsupported);
        case abi::invalid_chip_name:
            return of(ReasonCode::counters_chip_unknown);
        case abi::out_of_memory:
            return of(ReasonCode::counters_out_of_memory);
        default:
            return of(explain_error(error.result).code);
    }
}

}  // namespace gpuprof::cupti
