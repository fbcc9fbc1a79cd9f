// SPDX-License-Identifier: Apache-2.0
// Holds csrc/cupti/counters_abi.hpp against NVIDIA's headers, where they are at hand and new enough.
#include "check.hpp"
#include "cupti/counters_abi.hpp"

#if defined(WITH_CUPTI_HEADERS) && __has_include(<cupti_range_profiler.h>)
#include <cupti_profiler_host.h>
#include <cupti_profiler_target.h>
#include <cupti_range_profiler.h>
#include <cupti_target.h>

#include "same_abi.hpp"

namespace gpuprof::test {
namespace {

// The length that is passed to a call. A later version's structure may be longer, never shorter.
#define SAME_LENGTH(ours, theirs)                                     \
    static_assert(abi::length_of<abi::ours> == theirs##_STRUCT_SIZE); \
    SAME_OFFSET(ours, structure_bytes, theirs, structSize);           \
    SAME_OFFSET(ours, reserved, theirs, pPriv)
#define STARTS_ALIKE(ours, theirs) static_assert(abi::length_of<abi::ours> <= theirs##_STRUCT_SIZE)
#define SAME_PLACE(ours, member, theirs, their_member) \
    SAME_OFFSET(ours, member, theirs, their_member);   \
    static_assert(sizeof(abi::ours::member) == sizeof(theirs::their_member), #their_member)

SAME_LENGTH(ProfilerInitialize, CUpti_Profiler_Initialize_Params);
SAME_LENGTH(ProfilerDeinitialize, CUpti_Profiler_DeInitialize_Params);
SAME_LENGTH(DeviceGetChipName, CUpti_Device_GetChipName_Params);
SAME_PLACE(DeviceGetChipName, device, CUpti_Device_GetChipName_Params, deviceIndex);
SAME_PLACE(DeviceGetChipName, chip, CUpti_Device_GetChipName_Params, pChipName);
STARTS_ALIKE(ProfilerGetCounterAvailability, CUpti_Profiler_GetCounterAvailability_Params);
SAME_PLACE(ProfilerGetCounterAvailability, context, CUpti_Profiler_GetCounterAvailability_Params, ctx);
SAME_PLACE(ProfilerGetCounterAvailability, image_bytes, CUpti_Profiler_GetCounterAvailability_Params,
           counterAvailabilityImageSize);
SAME_PLACE(ProfilerGetCounterAvailability, image, CUpti_Profiler_GetCounterAvailability_Params,
           pCounterAvailabilityImage);
STARTS_ALIKE(ProfilerDeviceSupported, CUpti_Profiler_DeviceSupported_Params);
SAME_PLACE(ProfilerDeviceSupported, device, CUpti_Profiler_DeviceSupported_Params, cuDevice);
SAME_PLACE(ProfilerDeviceSupported, is_supported, CUpti_Profiler_DeviceSupported_Params, isSupported);
SAME_PLACE(ProfilerDeviceSupported, architecture, CUpti_Profiler_DeviceSupported_Params, architecture);
SAME_PLACE(ProfilerDeviceSupported, sli, CUpti_Profiler_DeviceSupported_Params, sli);
SAME_PLACE(ProfilerDeviceSupported, virtual_gpu, CUpti_Profiler_DeviceSupported_Params, vGpu);
SAME_PLACE(ProfilerDeviceSupported, confidential_computing, CUpti_Profiler_DeviceSupported_Params,
           confidentialCompute);
SAME_PLACE(ProfilerDeviceSupported, mining_device, CUpti_Profiler_DeviceSupported_Params, cmp);
SAME_PLACE(ProfilerDeviceSupported, wsl, CUpti_Profiler_DeviceSupported_Params, wsl);
SAME_PLACE(ProfilerDeviceSupported, interface, CUpti_Profiler_DeviceSupported_Params, api);
STARTS_ALIKE(HostInitialize, CUpti_Profiler_Host_Initialize_Params);
SAME_PLACE(HostInitialize, profiler_type, CUpti_Profiler_Host_Initialize_Params, profilerType);
SAME_PLACE(HostInitialize, chip, CUpti_Profiler_Host_Initialize_Params, pChipName);
SAME_PLACE(HostInitialize, availability, CUpti_Profiler_Host_Initialize_Params, pCounterAvailabilityImage);
SAME_PLACE(HostInitialize, host, CUpti_Profiler_Host_Initialize_Params, pHostObject);
SAME_LENGTH(HostDeinitialize, CUpti_Profiler_Host_Deinitialize_Params);
SAME_PLACE(HostDeinitialize, host, CUpti_Profiler_Host_Deinitialize_Params, pHostObject);
SAME_LENGTH(HostGetSupportedChips, CUpti_Profiler_Host_GetSupportedChips_Params);
SAME_PLACE(HostGetSupportedChips, count, CUpti_Profiler_Host_GetSupportedChips_Params, numChips);
SAME_PLACE(HostGetSupportedChips, chips, CUpti_Profiler_Host_GetSupportedChips_Params, ppChipNames);
SAME_LENGTH(HostConfigAddMetrics, CUpti_Profiler_Host_ConfigAddMetrics_Params);
SAME_PLACE(HostConfigAddMetrics, host, CUpti_Profiler_Host_ConfigAddMetrics_Params, pHostObject);
SAME_PLACE(HostConfigAddMetrics, metrics, CUpti_Profiler_Host_ConfigAddMetrics_Params, ppMetricNames);
SAME_PLACE(HostConfigAddMetrics, count, CUpti_Profiler_Host_ConfigAddMetrics_Params, numMetrics);
SAME_LENGTH(HostGetConfigImageSize, CUpti_Profiler_Host_GetConfigImageSize_Params);
SAME_PLACE(HostGetConfigImageSize, host, CUpti_Profiler_Host_GetConfigImageSize_Params, pHostObject);
SAME_PLACE(HostGetConfigImageSize, image_bytes, CUpti_Profiler_Host_GetConfigImageSize_Params,
           configImageSize);
SAME_LENGTH(HostGetConfigImage, CUpti_Profiler_Host_GetConfigImage_Params);
SAME_PLACE(HostGetConfigImage, host, CUpti_Profiler_Host_GetConfigImage_Params, pHostObject);
SAME_PLACE(HostGetConfigImage, image_bytes, CUpti_Profiler_Host_GetConfigImage_Params, configImageSize);
SAME_PLACE(HostGetConfigImage, image, CUpti_Profiler_Host_GetConfigImage_Params, pConfigImage);
SAME_LENGTH(HostGetNumOfPasses, CUpti_Profiler_Host_GetNumOfPasses_Params);
SAME_PLACE(HostGetNumOfPasses, image_bytes, CUpti_Profiler_Host_GetNumOfPasses_Params, configImageSize);
SAME_PLACE(HostGetNumOfPasses, image, CUpti_Profiler_Host_GetNumOfPasses_Params, pConfigImage);
SAME_PLACE(HostGetNumOfPasses, passes, CUpti_Profiler_Host_GetNumOfPasses_Params, numOfPasses);
SAME_LENGTH(HostEvaluateToGpuValues, CUpti_Profiler_Host_EvaluateToGpuValues_Params);
SAME_PLACE(HostEvaluateToGpuValues, host, CUpti_Profiler_Host_EvaluateToGpuValues_Params, pHostObject);
SAME_PLACE(HostEvaluateToGpuValues, image, CUpti_Profiler_Host_EvaluateToGpuValues_Params, pCounterDataImage);
SAME_PLACE(HostEvaluateToGpuValues, image_bytes, CUpti_Profiler_Host_EvaluateToGpuValues_Params,
           counterDataImageSize);
SAME_PLACE(HostEvaluateToGpuValues, range, CUpti_Profiler_Host_EvaluateToGpuValues_Params, rangeIndex);
SAME_PLACE(HostEvaluateToGpuValues, metrics, CUpti_Profiler_Host_EvaluateToGpuValues_Params, ppMetricNames);
SAME_PLACE(HostEvaluateToGpuValues, count, CUpti_Profiler_Host_EvaluateToGpuValues_Params, numMetrics);
SAME_PLACE(HostEvaluateToGpuValues, values, CUpti_Profiler_Host_EvaluateToGpuValues_Params, pMetricValues);
STARTS_ALIKE(RangeProfilerEnable, CUpti_RangeProfiler_Enable_Params);
SAME_PLACE(RangeProfilerEnable, context, CUpti_RangeProfiler_Enable_Params, ctx);
SAME_PLACE(RangeProfilerEnable, profiler, CUpti_RangeProfiler_Enable_Params, pRangeProfilerObject);
SAME_LENGTH(RangeProfilerDisable, CUpti_RangeProfiler_Disable_Params);
SAME_PLACE(RangeProfilerDisable, profiler, CUpti_RangeProfiler_Disable_Params, pRangeProfilerObject);
SAME_LENGTH(RangeProfilerSetConfig, CUpti_RangeProfiler_SetConfig_Params);
SAME_PLACE(RangeProfilerSetConfig, profiler, CUpti_RangeProfiler_SetConfig_Params, pRangeProfilerObject);
SAME_PLACE(RangeProfilerSetConfig, config_bytes, CUpti_RangeProfiler_SetConfig_Params, configSize);
SAME_PLACE(RangeProfilerSetConfig, config, CUpti_RangeProfiler_SetConfig_Params, pConfig);
SAME_PLACE(RangeProfilerSetConfig, image_bytes, CUpti_RangeProfiler_SetConfig_Params, counterDataImageSize);
SAME_PLACE(RangeProfilerSetConfig, image, CUpti_RangeProfiler_SetConfig_Params, pCounterDataImage);
SAME_PLACE(RangeProfilerSetConfig, range_mode, CUpti_RangeProfiler_SetConfig_Params, range);
SAME_PLACE(RangeProfilerSetConfig, replay_mode, CUpti_RangeProfiler_SetConfig_Params, replayMode);
SAME_PLACE(RangeProfilerSetConfig, most_ranges, CUpti_RangeProfiler_SetConfig_Params, maxRangesPerPass);
SAME_PLACE(RangeProfilerSetConfig, nesting_levels, CUpti_RangeProfiler_SetConfig_Params, numNestingLevels);
SAME_PLACE(RangeProfilerSetConfig, least_nesting_level, CUpti_RangeProfiler_SetConfig_Params,
           minNestingLevel);
SAME_PLACE(RangeProfilerSetConfig, pass, CUpti_RangeProfiler_SetConfig_Params, passIndex);
SAME_PLACE(RangeProfilerSetConfig, target_nesting_level, CUpti_RangeProfiler_SetConfig_Params,
           targetNestingLevel);
SAME_LENGTH(RangeProfilerStart, CUpti_RangeProfiler_Start_Params);
SAME_PLACE(RangeProfilerStart, profiler, CUpti_RangeProfiler_Start_Params, pRangeProfilerObject);
SAME_LENGTH(RangeProfilerStop, CUpti_RangeProfiler_Stop_Params);
SAME_PLACE(RangeProfilerStop, profiler, CUpti_RangeProfiler_Stop_Params, pRangeProfilerObject);
SAME_PLACE(RangeProfilerStop, pass, CUpti_RangeProfiler_Stop_Params, passIndex);
SAME_PLACE(RangeProfilerStop, target_nesting_level, CUpti_RangeProfiler_Stop_Params, targetNestingLevel);
SAME_PLACE(RangeProfilerStop, all_passes_submitted, CUpti_RangeProfiler_Stop_Params, isAllPassSubmitted);
SAME_LENGTH(RangeProfilerDecodeData, CUpti_RangeProfiler_DecodeData_Params);
SAME_PLACE(RangeProfilerDecodeData, profiler, CUpti_RangeProfiler_DecodeData_Params, pRangeProfilerObject);
SAME_PLACE(RangeProfilerDecodeData, dropped_ranges, CUpti_RangeProfiler_DecodeData_Params, numOfRangeDropped);
SAME_LENGTH(RangeProfilerGetCounterDataSize, CUpti_RangeProfiler_GetCounterDataSize_Params);
SAME_PLACE(RangeProfilerGetCounterDataSize, profiler, CUpti_RangeProfiler_GetCounterDataSize_Params,
           pRangeProfilerObject);
SAME_PLACE(RangeProfilerGetCounterDataSize, metrics, CUpti_RangeProfiler_GetCounterDataSize_Params,
           pMetricNames);
SAME_PLACE(RangeProfilerGetCounterDataSize, count, CUpti_RangeProfiler_GetCounterDataSize_Params, numMetrics);
SAME_PLACE(RangeProfilerGetCounterDataSize, most_ranges, CUpti_RangeProfiler_GetCounterDataSize_Params,
           maxNumOfRanges);
SAME_PLACE(RangeProfilerGetCounterDataSize, most_tree_nodes, CUpti_RangeProfiler_GetCounterDataSize_Params,
           maxNumRangeTreeNodes);
SAME_PLACE(RangeProfilerGetCounterDataSize, image_bytes, CUpti_RangeProfiler_GetCounterDataSize_Params,
           counterDataSize);
SAME_LENGTH(RangeProfilerInitializeImage, CUpti_RangeProfiler_CounterDataImage_Initialize_Params);
SAME_PLACE(RangeProfilerInitializeImage, profiler, CUpti_RangeProfiler_CounterDataImage_Initialize_Params,
           pRangeProfilerObject);
SAME_PLACE(RangeProfilerInitializeImage, image_bytes, CUpti_RangeProfiler_CounterDataImage_Initialize_Params,
           counterDataSize);
SAME_PLACE(RangeProfilerInitializeImage, image, CUpti_RangeProfiler_CounterDataImage_Initialize_Params,
           pCounterData);
SAME_LENGTH(RangeProfilerGetCounterDataInfo, CUpti_RangeProfiler_GetCounterDataInfo_Params);
SAME_PLACE(RangeProfilerGetCounterDataInfo, image, CUpti_RangeProfiler_GetCounterDataInfo_Params,
           pCounterDataImage);
SAME_PLACE(RangeProfilerGetCounterDataInfo, image_bytes, CUpti_RangeProfiler_GetCounterDataInfo_Params,
           counterDataImageSize);
SAME_PLACE(RangeProfilerGetCounterDataInfo, ranges, CUpti_RangeProfiler_GetCounterDataInfo_Params,
           numTotalRanges);
SAME_LENGTH(RangeProfilerGetRangeInfo, CUpti_RangeProfiler_CounterData_GetRangeInfo_Params);
SAME_PLACE(RangeProfilerGetRangeInfo, image, CUpti_RangeProfiler_CounterData_GetRangeInfo_Params,
           pCounterDataImage);
SAME_PLACE(RangeProfilerGetRangeInfo, image_bytes, CUpti_RangeProfiler_CounterData_GetRangeInfo_Params,
           counterDataImageSize);
SAME_PLACE(RangeProfilerGetRangeInfo, range, CUpti_RangeProfiler_CounterData_GetRangeInfo_Params, rangeIndex);
SAME_PLACE(RangeProfilerGetRangeInfo, delimiter, CUpti_RangeProfiler_CounterData_GetRangeInfo_Params,
           rangeDelimiter);
SAME_PLACE(RangeProfilerGetRangeInfo, name, CUpti_RangeProfiler_CounterData_GetRangeInfo_Params, rangeName);

SAME_VALUE(abi::range_profiler_type, CUPTI_PROFILER_TYPE_RANGE_PROFILER);
SAME_VALUE(abi::automatic_ranges, CUPTI_AutoRange);
SAME_VALUE(abi::kernel_replay, CUPTI_KernelReplay);
SAME_VALUE(abi::range_profiling, CUPTI_PROFILER_RANGE_PROFILING);
SAME_VALUE(abi::support_unknown, CUPTI_PROFILER_CONFIGURATION_UNKNOWN);
SAME_VALUE(abi::unsupported, CUPTI_PROFILER_CONFIGURATION_UNSUPPORTED);
SAME_VALUE(abi::disabled, CUPTI_PROFILER_CONFIGURATION_DISABLED);
SAME_VALUE(abi::supported, CUPTI_PROFILER_CONFIGURATION_SUPPORTED);
SAME_VALUE(abi::api_exit, CUPTI_API_EXIT);
SAME_VALUE(abi::invalid_operation, CUPTI_ERROR_INVALID_OPERATION);
SAME_VALUE(abi::invalid_metric_name, CUPTI_ERROR_INVALID_METRIC_NAME);
SAME_VALUE(abi::hardware_busy, CUPTI_ERROR_HARDWARE_BUSY);
SAME_VALUE(abi::legacy_profiler_not_supported, CUPTI_ERROR_LEGACY_PROFILER_NOT_SUPPORTED);
SAME_VALUE(abi::virtualized_device_not_supported, CUPTI_ERROR_VIRTUALIZED_DEVICE_NOT_SUPPORTED);
SAME_VALUE(abi::virtualized_device_insufficient_privileges,
           CUPTI_ERROR_VIRTUALIZED_DEVICE_INSUFFICIENT_PRIVILEGES);
#if CUPTI_API_VERSION >= 130000
SAME_VALUE(abi::sli_device_not_supported, CUPTI_ERROR_SLI_DEVICE_NOT_SUPPORTED);
SAME_VALUE(abi::invalid_chip_name, CUPTI_ERROR_INVALID_CHIP_NAME);
#endif
#if CUPTI_API_VERSION >= 130200
SAME_PLACE(ProfilerGetCounterAvailability, with_device_level, CUpti_Profiler_GetCounterAvailability_Params,
           bAllowDeviceLevelCounters);
static_assert(abi::device_level_since == 130200);
#else
SAME_LENGTH(ProfilerGetCounterAvailability, CUpti_Profiler_GetCounterAvailability_Params);
SAME_LENGTH(ProfilerDeviceSupported, CUpti_Profiler_DeviceSupported_Params);
#endif
SAME_OFFSET(CallbackData, return_value, CUpti_CallbackData, functionReturnValue);
SAME_OFFSET(CallbackData, symbol_name, CUpti_CallbackData, symbolName);
SAME_OFFSET(CallbackData, context, CUpti_CallbackData, context);

LISTED(kernel, cuLaunch);
LISTED(kernel, cuLaunchGrid);
LISTED(kernel, cuLaunchGridAsync);
LISTED(kernel, cuLaunchKernel);
LISTED(kernel, cuLaunchKernel_ptsz);
LISTED(kernel, cuLaunchCooperativeKernel);
LISTED(kernel, cuLaunchCooperativeKernel_ptsz);
LISTED(kernel, cuLaunchKernelEx);
LISTED(kernel, cuLaunchKernelEx_ptsz);
NOT_LISTED(kernel, cuGraphLaunch);
NOT_LISTED(kernel, cuLaunchCooperativeKernelMultiDevice);
NOT_LISTED(kernel, cuMemcpyDtoDAsync_v2);
NOT_LISTED(kernel, cuLaunchHostFunc);

LISTED(fill, cuMemsetD8Async);
LISTED(fill, cuMemsetD2D32Async);
LISTED(fill, cuMemsetD8_v2);
LISTED(fill, cuMemsetD2D32_v2);
LISTED(fill, cuMemsetD8_v2_ptds);
LISTED(fill, cuMemsetD2D32_v2_ptds);
LISTED(fill, cuMemsetD8Async_ptsz);
LISTED(fill, cuMemsetD2D32Async_ptsz);
NOT_LISTED(fill, cuMemcpy_v2);
NOT_LISTED(fill, cuMemcpyAsync_ptsz);
NOT_LISTED(fill, cuMemcpyDtoDAsync_v2);
NOT_LISTED(fill, cuLaunchKernel);

}  // namespace

// What is above failed already while this was compiled.
TEST(the_structures_are_those_of_the_headers) {}

}  // namespace gpuprof::test
#else
TEST(skipped_without_the_headers) {
    std::fprintf(stderr,
                 "skipped: no headers of CUPTI 12.6 or newer; pip install nvidia-cuda-cupti==13.0.* "
                 "nvidia-cuda-runtime==13.0.* nvidia-cuda-crt==13.0.*\n");
}
#endif
