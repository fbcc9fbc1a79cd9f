// SPDX-License-Identifier: Apache-2.0
// CUPTI's functions for hardware counters, and what their errors mean.
#pragma once

#include <cstdint>

#include "cupti/counters_abi.hpp"
#include "cupti/loader.hpp"

namespace gpuprof::cupti {

// The last one may be missing.
struct CounterApi {
    abi::CounterFunction<abi::ProfilerInitialize> initialize = nullptr;
    abi::CounterFunction<abi::ProfilerDeinitialize> deinitialize = nullptr;
    abi::CounterFunction<abi::DeviceGetChipName> get_chip_name = nullptr;
    abi::CounterFunction<abi::ProfilerGetCounterAvailability> get_availability = nullptr;
    abi::CounterFunction<abi::ProfilerDeviceSupported> device_supported = nullptr;

    abi::CounterFunction<abi::HostInitialize> host_initialize = nullptr;
    abi::CounterFunction<abi::HostDeinitialize> host_deinitialize = nullptr;
    abi::CounterFunction<abi::HostGetSupportedChips> get_supported_chips = nullptr;
    abi::CounterFunction<abi::HostConfigAddMetrics> add_metrics = nullptr;
    abi::CounterFunction<abi::HostGetConfigImageSize> get_config_size = nullptr;
    abi::CounterFunction<abi::HostGetConfigImage> get_config = nullptr;
    abi::CounterFunction<abi::HostGetNumOfPasses> get_passes = nullptr;
    abi::CounterFunction<abi::HostEvaluateToGpuValues> evaluate = nullptr;

    abi::CounterFunction<abi::RangeProfilerEnable> enable = nullptr;
    abi::CounterFunction<abi::RangeProfilerDisable> disable = nullptr;
    abi::CounterFunction<abi::RangeProfilerSetConfig> set_config = nullptr;
    abi::CounterFunction<abi::RangeProfilerStart> start = nullptr;
    abi::CounterFunction<abi::RangeProfilerStop> stop = nullptr;
    abi::CounterFunction<abi::RangeProfilerDecodeData> decode = nullptr;
    abi::CounterFunction<abi::RangeProfilerGetCounterDataSize> get_data_size = nullptr;
    abi::CounterFunction<abi::RangeProfilerInitializeImage> initialize_image = nullptr;
    abi::CounterFunction<abi::RangeProfilerGetCounterDataInfo> get_data_info = nullptr;
    abi::CounterFunction<abi::RangeProfilerGetRangeInfo> get_range_info = nullptr;
};

// Finds the functions in a CUPTI that is loaded; the name of one that is missing, or null.
const char* find_counter_functions(void* library, CounterApi& api) noexcept;
// Finds them in the library, or returns why there are none.
Reason why_no_counters(const Library& library, CounterApi& api);

// A call of CUPTI that did not succeed, or none.
struct CounterError {
    const char* function = nullptr;
    std::uint32_t result = 0;
    explicit operator bool() const noexcept { return result != 0; }
};

// The meaning of the error for a user.
Reason explain(const CounterError& error);

}  // namespace gpuprof::cupti
