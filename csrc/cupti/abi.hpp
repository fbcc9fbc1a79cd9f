// SPDX-License-Identifier: Apache-2.0
// The part of the CUDA driver's and CUPTI's binary interfaces that is used, declared here so that the
// product builds without a toolkit. tests/native/test_cupti_abi.cpp holds it against the real headers.
//
// A record's length depends on the library's version, but since CUDA 11.8 every field that is read has
// kept its place: records are read by offset, and never by a structure's size.
#pragma once

#include <cstddef>
#include <cstdint>

namespace gpuprof::cupti::abi {

// --- the driver -----------------------------------------------------------------------------------

constexpr int driver_success = 0;
constexpr int driver_not_initialized = 3;
using DriverGetVersion = int (*)(int* version);
using DriverDeviceGetCount = int (*)(int* count);

// --- results --------------------------------------------------------------------------------------

enum Result : std::uint32_t {
    success = 0,
    invalid_operation = 7,
    out_of_memory = 8,
    hardware = 9,
    max_limit_reached = 12,
    not_compatible = 14,
    not_initialized = 15,
    invalid_metric_name = 17,
    invalid_kind = 21,
    hardware_busy = 26,
    not_supported = 27,
    virtualized_device_not_supported = 33,
    insufficient_privileges = 35,
    old_profiler_initialized = 36,
    legacy_profiler_not_supported = 38,
    multiple_subscribers = 39,
    virtualized_device_insufficient_privileges = 40,
    confidential_computing_not_supported = 41,
    mining_device_not_supported = 42,
    mig_device_not_supported = 43,
    sli_device_not_supported = 44,
    wsl_device_not_supported = 45,
    invalid_chip_name = 46,
    unknown_error = 999,
};

// --- records --------------------------------------------------------------------------------------

enum ActivityKind : std::uint32_t {
    memory_copy = 1,
    memory_set = 2,
    kernel = 3,
    driver_call = 4,
    runtime_call = 5,
    concurrent_kernel = 10,
    memory_copy_peer = 22,
    cuda_event = 36,
    synchronization = 38,
    graph_trace = 51,
};

// From this version on, synchronizations and records of CUDA events carry an id by which they join. Ids of
// events themselves are reused.
constexpr std::uint32_t first_version_with_event_ids = 26;

constexpr std::uint32_t flush_forced = 1;

namespace kernel_offset {
constexpr std::size_t registers = 6;  // 16 bits
constexpr std::size_t start = 16;
constexpr std::size_t end = 24;
constexpr std::size_t device = 40;
constexpr std::size_t context = 44;
constexpr std::size_t stream = 48;
constexpr std::size_t grid = 52;
constexpr std::size_t block = 64;
constexpr std::size_t static_shared = 76;
constexpr std::size_t dynamic_shared = 80;
constexpr std::size_t correlation = 92;
constexpr std::size_t name = 104;
constexpr std::size_t graph_node = 144;
constexpr std::size_t graph = 156;
constexpr std::size_t prefix_bytes = 160;
}  // namespace kernel_offset

// Copies and fills begin alike.
namespace transfer_offset {
constexpr std::size_t copy_kind = 4;  // 8 bits each
constexpr std::size_t source_kind = 5;
constexpr std::size_t destination_kind = 6;
constexpr std::size_t bytes = 8;
constexpr std::size_t start = 16;
constexpr std::size_t end = 24;
constexpr std::size_t device = 32;
constexpr std::size_t context = 36;
constexpr std::size_t stream = 40;
}  // namespace transfer_offset

namespace copy_offset {
constexpr std::size_t correlation = 44;
constexpr std::size_t graph_node = 64;
constexpr std::size_t graph = 72;
constexpr std::size_t prefix_bytes = 76;
}  // namespace copy_offset

namespace peer_copy_offset {
constexpr std::size_t correlation = 60;
constexpr std::size_t graph_node = 72;
constexpr std::size_t graph = 80;
constexpr std::size_t prefix_bytes = 84;
}  // namespace peer_copy_offset

namespace set_offset {
constexpr std::size_t correlation = 44;
constexpr std::size_t memory_kind = 50;  // 16 bits
constexpr std::size_t graph_node = 64;
constexpr std::size_t graph = 72;
constexpr std::size_t prefix_bytes = 76;
}  // namespace set_offset

namespace synchronization_offset {
constexpr std::size_t type = 4;
constexpr std::size_t start = 8;
constexpr std::size_t end = 16;
constexpr std::size_t correlation = 24;
constexpr std::size_t context = 28;
constexpr std::size_t stream = 32;
constexpr std::size_t event = 36;
constexpr std::size_t prefix_bytes = 40;
constexpr std::size_t event_sync = 40;  // from first_version_with_event_ids on, as is the next
constexpr std::size_t prefix_bytes_with_ids = 48;
}  // namespace synchronization_offset

namespace cuda_event_offset {
constexpr std::size_t correlation = 4;
constexpr std::size_t context = 8;
constexpr std::size_t stream = 12;
constexpr std::size_t event = 16;
constexpr std::size_t prefix_bytes = 20;
constexpr std::size_t device = 24;  // from first_version_with_event_ids on, as are the next
constexpr std::size_t event_sync = 48;
constexpr std::size_t prefix_bytes_with_ids = 56;
}  // namespace cuda_event_offset

namespace graph_trace_offset {
constexpr std::size_t correlation = 4;
constexpr std::size_t start = 8;
constexpr std::size_t end = 16;
constexpr std::size_t device = 24;
constexpr std::size_t graph = 28;
constexpr std::size_t context = 32;
constexpr std::size_t stream = 36;
constexpr std::size_t prefix_bytes = 40;
}  // namespace graph_trace_offset

// Calls of the driver's and of the runtime's interface.
namespace call_offset {
constexpr std::size_t function = 4;
constexpr std::size_t start = 8;
constexpr std::size_t end = 16;
constexpr std::size_t process = 24;
constexpr std::size_t thread = 28;
constexpr std::size_t correlation = 32;
constexpr std::size_t prefix_bytes = 40;
}  // namespace call_offset

// --- settings -------------------------------------------------------------------------------------

enum Attribute : std::uint32_t {
    buffers_come_zeroed = 5,
    buffers_per_thread = 9,
};
constexpr std::uint32_t system_thread_ids = 1;

// --- callbacks ------------------------------------------------------------------------------------

enum CallbackDomain : std::uint32_t { driver_domain = 1, resource_domain = 3 };
constexpr std::uint32_t graph_node_created = 13;
constexpr std::uint32_t graph_node_cloned = 20;
constexpr std::uint32_t api_enter = 0;
constexpr std::uint32_t api_exit = 1;

struct CallbackData {
    std::uint32_t site;
    const char* function_name;
    const void* parameters;
    void* return_value;
    const char* symbol_name;
    void* context;
    std::uint32_t context_id;
    std::uint64_t* correlation_data;
    std::uint32_t correlation_id;
};

struct ResourceData {
    void* context;
    void* handle;
    void* descriptor;
};

struct GraphData {
    void* graph;
    void* original_graph;
    void* node;
    void* original_node;
    std::uint32_t node_type;
    void* dependency;
    void* executable_graph;
};

// The driver's functions that put work on a device, by CUPTI's numbers: first and last of each run.
struct CallbackRange {
    std::uint32_t first;
    std::uint32_t last;
};
constexpr std::uint32_t launch_kernel = 307;
constexpr CallbackRange launching_callbacks[] = {
    {115, 117},                          // cuLaunch, cuLaunchGrid, cuLaunchGridAsync
    {119, 119}, {441, 441},              // cuEventRecord, _ptsz
    {216, 216}, {218, 218}, {220, 220},  // cuMemsetD{8,16,32}Async
    {222, 222}, {224, 224}, {226, 226},  // cuMemsetD2D{8,16,32}Async
    {248, 254},                          // cuMemcpy_v2, cuMemset*_v2
    {276, 293},                          // cuMemcpy*_v2
    {305, 306},                          // cuMemcpy, cuMemcpyAsync
    {307, 307},                          // cuLaunchKernel
    {318, 321},                          // cuMemcpyPeer, cuMemcpy3DPeer and their Async
    {397, 416},                          // cuMemcpy*, cuMemset* on the thread's default stream
    {418, 433},                          // the same, asynchronous
    {442, 442},                          // cuLaunchKernel_ptsz
    {477, 478}, {480, 480},              // cuLaunchCooperativeKernel, _ptsz, MultiDevice
    {514, 515},                          // cuGraphLaunch, _ptsz
    {587, 588},                          // cuEventRecordWithFlags, _ptsz
    {652, 653},                          // cuLaunchKernelEx, _ptsz
    {776, 779}, {796, 799},              // cuMemcpyBatchAsync, cuMemcpy3DBatchAsync, their _v2
    {837, 840},                          // cuMemcpyWithAttributesAsync, cuMemcpy3DWithAttributesAsync
};

// Those that wait, whose records carry the call's correlation id too.
constexpr CallbackRange waiting_callbacks[] = {
    {17, 17},   {800, 800},  // cuCtxSynchronize, _v2
    {121, 121},              // cuEventSynchronize
    {126, 126}, {440, 440},  // cuStreamSynchronize, _ptsz
    {295, 295}, {436, 436},  // cuStreamWaitEvent, _ptsz
};

// The runtime's functions of either sort, whose records replace the callbacks if another tool has
// them: work that is launched through the runtime has the runtime call's correlation id.
constexpr CallbackRange runtime_calls[] = {
    {13, 13},                // cudaLaunch
    {31, 52},                // cudaMemcpy*, cudaMemset*
    {126, 126},              // cudaThreadSynchronize
    {131, 131}, {239, 239},  // cudaStreamSynchronize, _ptsz
    {135, 135}, {242, 242},  // cudaEventRecord, _ptsz
    {137, 137},              // cudaEventSynchronize
    {142, 145},              // cudaMemset3D, cudaMemcpy3D and their Async
    {147, 147}, {247, 247},  // cudaStreamWaitEvent, _ptsz
    {160, 163},              // cudaMemcpyPeer, cudaMemcpy3DPeer and their Async
    {165, 165},              // cudaDeviceSynchronize
    {211, 211}, {213, 236},  // cudaLaunchKernel; on the thread's default stream: launches, copies, fills
    {243, 246},              // cudaMemset3D, cudaMemcpy3D likewise
    {249, 250},              // cudaMemcpy3DPeer likewise
    {269, 270}, {272, 272},  // cudaLaunchCooperativeKernel, _ptsz, MultiDevice
    {311, 312},              // cudaGraphLaunch, _ptsz
    {370, 371},              // cudaEventRecordWithFlags, _ptsz
    {430, 431},              // cudaLaunchKernelExC, _ptsz
    {482, 485}, {509, 512},  // cudaMemcpyBatchAsync, cudaMemcpy3DBatchAsync, of 12.8 and 13.0
    {505, 506},              // __cudaLaunchKernel, _ptsz
};

// --- functions ------------------------------------------------------------------------------------

using Subscriber = void*;
using Callback = void (*)(void* user, std::uint32_t domain, std::uint32_t id, const void* data);
using RequestBuffer = void (*)(std::uint8_t** buffer, std::size_t* size, std::size_t* record_limit);
using CompleteBuffer = void (*)(void* context, std::uint32_t stream, std::uint8_t* buffer, std::size_t size,
                                std::size_t valid_bytes);

using GetVersion = std::uint32_t (*)(std::uint32_t* version);
using GetTimestamp = std::uint32_t (*)(std::uint64_t* timestamp);
using Subscribe = std::uint32_t (*)(Subscriber* subscriber, Callback callback, void* user);
using Unsubscribe = std::uint32_t (*)(Subscriber subscriber);
using EnableCallback = std::uint32_t (*)(std::uint32_t enable, Subscriber subscriber, std::uint32_t domain,
                                         std::uint32_t id);
using ActivityKindFunction = std::uint32_t (*)(std::uint32_t kind);
using ActivityFlushAll = std::uint32_t (*)(std::uint32_t flag);
using ActivityRegisterCallbacks = std::uint32_t (*)(RequestBuffer request, CompleteBuffer complete);
using ActivityGetDropped = std::uint32_t (*)(void* context, std::uint32_t stream, std::size_t* dropped);
using ActivityGetNextRecord = std::uint32_t (*)(std::uint8_t* buffer, std::size_t valid_bytes, void** record);
using ActivityAttribute = std::uint32_t (*)(std::uint32_t attribute, std::size_t* size, void* value);
using ActivitySwitchCall = std::uint32_t (*)(std::uint32_t function, std::uint8_t enable);
using GetThreadIdType = std::uint32_t (*)(std::uint32_t* type);
using SetThreadIdType = std::uint32_t (*)(std::uint32_t type);
using ActivitySwitch = std::uint32_t (*)(std::uint8_t enable);
using GetGraphNodeId = std::uint32_t (*)(void* node, std::uint64_t* id);

}  // namespace gpuprof::cupti::abi
