// SPDX-License-Identifier: Apache-2.0
// The part of CUPTI's interface to hardware counters that is used: the profiler's host side, which needs no
// GPU, and the range profiler. Declared here so that the product builds without a toolkit;
// tests/native/test_counters_abi.cpp holds it against the real headers.
//
// Each call takes one structure, which contains its length: the end of the last member that the caller knows,
// without padding. Later versions only add members after it.
#pragma once

#include <cstddef>
#include <cstdint>

#include "cupti/abi.hpp"

namespace gpuprof::cupti::abi {

constexpr std::uint32_t range_profiler_type = 0;
constexpr std::uint32_t automatic_ranges = 1;  // one for each kernel
constexpr std::uint32_t kernel_replay = 2;     // CUPTI repeats a kernel where several passes are needed

// Results of `ProfilerDeviceSupported` for a device, as a whole and for each condition.
enum SupportLevel : std::uint32_t { support_unknown = 0, unsupported = 1, disabled = 2, supported = 3 };
constexpr std::uint32_t range_profiling = 0;

// From this version on counters of the whole device, as those of its memory may be, must be asked for.
constexpr std::uint32_t device_level_since = 130200;

// The driver's functions that launch kernels, and those that fill memory, by CUPTI's numbers; both are parts
// of `launching_callbacks`.
constexpr std::uint32_t kernel_callbacks[] = {
    115, 116, 117,  // cuLaunch, cuLaunchGrid, cuLaunchGridAsync
    307, 442,       // cuLaunchKernel, _ptsz
    477, 478,       // cuLaunchCooperativeKernel, _ptsz
    652, 653,       // cuLaunchKernelEx, _ptsz
};
constexpr CallbackRange fill_callbacks[] = {
    {216, 216}, {218, 218}, {220, 220},  // cuMemsetD{8,16,32}Async
    {222, 222}, {224, 224}, {226, 226},  // cuMemsetD2D{8,16,32}Async
    {249, 254}, {411, 416},              // cuMemset*_v2, _ptds
    {428, 433},                          // cuMemset*Async_ptsz
};

// --- structures -----------------------------------------------------------------------------------

struct ProfilerInitialize {
    std::size_t structure_bytes;
    void* reserved;
};
struct ProfilerDeinitialize {
    std::size_t structure_bytes;
    void* reserved;
};
struct DeviceGetChipName {
    std::size_t structure_bytes;
    void* reserved;
    std::size_t device;
    const char* chip;
};
struct ProfilerGetCounterAvailability {
    std::size_t structure_bytes;
    void* reserved;
    void* context;
    std::size_t image_bytes;
    std::uint8_t* image;
    std::uint8_t with_device_level;  // of `device_level_since`, before which there is no such choice
};
struct ProfilerDeviceSupported {
    std::size_t structure_bytes;
    void* reserved;
    std::int32_t device;
    std::uint32_t is_supported;
    std::uint32_t architecture;
    std::uint32_t sli;
    std::uint32_t virtual_gpu;
    std::uint32_t confidential_computing;
    std::uint32_t mining_device;
    std::uint32_t wsl;
    std::uint32_t interface;
};

struct HostInitialize {
    std::size_t structure_bytes;
    void* reserved;
    std::uint32_t profiler_type;
    const char* chip;
    const std::uint8_t* availability;
    void* host;
};
struct HostDeinitialize {
    std::size_t structure_bytes;
    void* reserved;
    void* host;
};
struct HostGetSupportedChips {
    std::size_t structure_bytes;
    void* reserved;
    std::size_t count;
    const char* const* chips;
};
struct HostConfigAddMetrics {
    std::size_t structure_bytes;
    void* reserved;
    void* host;
    const char** metrics;
    std::size_t count;
};
struct HostGetConfigImageSize {
    std::size_t structure_bytes;
    void* reserved;
    void* host;
    std::size_t image_bytes;
};
struct HostGetConfigImage {
    std::size_t structure_bytes;
    void* reserved;
    void* host;
    std::size_t image_bytes;
    std::uint8_t* image;
};
struct HostGetNumOfPasses {
    std::size_t structure_bytes;
    void* reserved;
    std::size_t image_bytes;
    std::uint8_t* image;
    std::size_t passes;
};
struct HostEvaluateToGpuValues {
    std::size_t structure_bytes;
    void* reserved;
    void* host;
    const std::uint8_t* image;
    std::size_t image_bytes;
    std::size_t range;
    const char** metrics;
    std::size_t count;
    double* values;
};

struct RangeProfilerEnable {
    std::size_t structure_bytes;
    void* reserved;
    void* context;
    void* profiler;
};
struct RangeProfilerDisable {
    std::size_t structure_bytes;
    void* reserved;
    void* profiler;
};
struct RangeProfilerSetConfig {
    std::size_t structure_bytes;
    void* reserved;
    void* profiler;
    std::size_t config_bytes;
    const std::uint8_t* config;
    std::size_t image_bytes;
    std::uint8_t* image;
    std::uint32_t range_mode;
    std::uint32_t replay_mode;
    std::size_t most_ranges;
    std::uint16_t nesting_levels;
    std::uint16_t least_nesting_level;
    std::size_t pass;
    std::uint16_t target_nesting_level;
};
struct RangeProfilerStart {
    std::size_t structure_bytes;
    void* reserved;
    void* profiler;
};
struct RangeProfilerStop {
    std::size_t structure_bytes;
    void* reserved;
    void* profiler;
    std::size_t pass;
    std::size_t target_nesting_level;
    std::uint8_t all_passes_submitted;
};
struct RangeProfilerDecodeData {
    std::size_t structure_bytes;
    void* reserved;
    void* profiler;
    std::size_t dropped_ranges;
};
struct RangeProfilerGetCounterDataSize {
    std::size_t structure_bytes;
    void* reserved;
    void* profiler;
    const char** metrics;
    std::size_t count;
    std::size_t most_ranges;
    std::uint32_t most_tree_nodes;
    std::size_t image_bytes;
};
struct RangeProfilerInitializeImage {
    std::size_t structure_bytes;
    void* reserved;
    void* profiler;
    std::size_t image_bytes;
    std::uint8_t* image;
};
struct RangeProfilerGetCounterDataInfo {
    std::size_t structure_bytes;
    void* reserved;
    const std::uint8_t* image;
    std::size_t image_bytes;
    std::size_t ranges;
};
struct RangeProfilerGetRangeInfo {
    std::size_t structure_bytes;
    void* reserved;
    const std::uint8_t* image;
    std::size_t image_bytes;
    std::size_t range;
    const char* delimiter;
    const char* name;
};

// --- their lengths --------------------------------------------------------------------------------

// The end of the last member. Only these have padding after it.
template <typename Structure>
constexpr std::size_t length_of = sizeof(Structure);
// What every version knows.
template <>
inline constexpr std::size_t length_of<ProfilerGetCounterAvailability> =
    offsetof(ProfilerGetCounterAvailability, with_device_level);
template <>
inline constexpr std::size_t length_of<ProfilerDeviceSupported> =
    offsetof(ProfilerDeviceSupported, interface) + sizeof(std::uint32_t);
template <>
inline constexpr std::size_t length_of<RangeProfilerSetConfig> =
    offsetof(RangeProfilerSetConfig, target_nesting_level) + sizeof(std::uint16_t);
template <>
inline constexpr std::size_t length_of<RangeProfilerStop> =
    offsetof(RangeProfilerStop, all_passes_submitted) + sizeof(std::uint8_t);

template <typename Structure>
constexpr Structure with_length() noexcept {
    Structure structure{};
    structure.structure_bytes = length_of<Structure>;
    return structure;
}

template <typename Structure>
using CounterFunction = std::uint32_t (*)(Structure* parameters);

}  // namespace gpuprof::cupti::abi
