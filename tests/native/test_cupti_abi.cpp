// SPDX-License-Identifier: Apache-2.0
// Holds csrc/cupti/abi.hpp and those of csrc/cuda against NVIDIA's headers, where they are at hand.
#include "check.hpp"
#include "cuda/driver.hpp"
#include "cuda/launch_driver.hpp"
#include "cupti/abi.hpp"
#include "cupti/decoder.hpp"

#if defined(WITH_CUPTI_HEADERS)
#include "same_abi.hpp"

namespace gpuprof::test {
namespace {

#define SAME_PLACE(type, member, offset) \
    static_assert(offsetof(nvidia::type, member) == (offset), #type "::" #member)

SAME_VALUE(cuda::success, CUDA_SUCCESS);
SAME_VALUE(cuda::not_ready, CUDA_ERROR_NOT_READY);
SAME_VALUE(cuda::not_supported, CUDA_ERROR_NOT_SUPPORTED);
SAME_VALUE(cuda::first_capture_error, CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
SAME_VALUE(cuda::last_capture_error, CUDA_ERROR_STREAM_CAPTURE_WRONG_THREAD);
SAME_VALUE(cuda::not_capturing, CU_STREAM_CAPTURE_STATUS_NONE);
SAME_VALUE(cuda::relaxed_capture_mode, CU_STREAM_CAPTURE_MODE_RELAXED);
SAME_VALUE(cuda::default_event, CU_EVENT_DEFAULT);
SAME_VALUE(cuda::non_blocking_stream, CU_STREAM_NON_BLOCKING);
SAME_VALUE(cuda::attribute::clock_khz, CU_DEVICE_ATTRIBUTE_CLOCK_RATE);
SAME_VALUE(cuda::attribute::multiprocessors, CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT);
SAME_VALUE(cuda::attribute::memory_clock_khz, CU_DEVICE_ATTRIBUTE_MEMORY_CLOCK_RATE);
SAME_VALUE(cuda::attribute::memory_bus_bits, CU_DEVICE_ATTRIBUTE_GLOBAL_MEMORY_BUS_WIDTH);
SAME_VALUE(cuda::attribute::l2_cache_bytes, CU_DEVICE_ATTRIBUTE_L2_CACHE_SIZE);
SAME_VALUE(cuda::attribute::threads_per_multiprocessor, CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_MULTIPROCESSOR);
SAME_VALUE(cuda::attribute::capability_major, CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR);
SAME_VALUE(cuda::attribute::capability_minor, CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR);
static_assert(sizeof(cuda::Uuid) == sizeof(CUuuid));
static_assert(sizeof(cuda::Address) == sizeof(CUdeviceptr));

SAME_PLACE(Kernel, kind, 0);
SAME_PLACE(Kernel, registersPerThread, abi::kernel_offset::registers);
SAME_PLACE(Kernel, start, abi::kernel_offset::start);
SAME_PLACE(Kernel, end, abi::kernel_offset::end);
SAME_PLACE(Kernel, deviceId, abi::kernel_offset::device);
SAME_PLACE(Kernel, contextId, abi::kernel_offset::context);
SAME_PLACE(Kernel, streamId, abi::kernel_offset::stream);
SAME_PLACE(Kernel, gridX, abi::kernel_offset::grid);
SAME_PLACE(Kernel, gridZ, abi::kernel_offset::grid + 8);
SAME_PLACE(Kernel, blockX, abi::kernel_offset::block);
SAME_PLACE(Kernel, blockZ, abi::kernel_offset::block + 8);
SAME_PLACE(Kernel, staticSharedMemory, abi::kernel_offset::static_shared);
SAME_PLACE(Kernel, dynamicSharedMemory, abi::kernel_offset::dynamic_shared);
SAME_PLACE(Kernel, correlationId, abi::kernel_offset::correlation);
SAME_PLACE(Kernel, name, abi::kernel_offset::name);
SAME_PLACE(Kernel, graphNodeId, abi::kernel_offset::graph_node);
SAME_PLACE(Kernel, graphId, abi::kernel_offset::graph);

#define SAME_TRANSFER(type)                                     \
    SAME_PLACE(type, bytes, abi::transfer_offset::bytes);       \
    SAME_PLACE(type, start, abi::transfer_offset::start);       \
    SAME_PLACE(type, end, abi::transfer_offset::end);           \
    SAME_PLACE(type, deviceId, abi::transfer_offset::device);   \
    SAME_PLACE(type, contextId, abi::transfer_offset::context); \
    SAME_PLACE(type, streamId, abi::transfer_offset::stream)
SAME_TRANSFER(Copy);
SAME_TRANSFER(PeerCopy);
SAME_TRANSFER(Set);
SAME_PLACE(Copy, copyKind, abi::transfer_offset::copy_kind);
SAME_PLACE(Copy, srcKind, abi::transfer_offset::source_kind);
SAME_PLACE(Copy, dstKind, abi::transfer_offset::destination_kind);
SAME_PLACE(Copy, correlationId, abi::copy_offset::correlation);
SAME_PLACE(Copy, graphNodeId, abi::copy_offset::graph_node);
SAME_PLACE(Copy, graphId, abi::copy_offset::graph);
SAME_PLACE(PeerCopy, copyKind, abi::transfer_offset::copy_kind);
SAME_PLACE(PeerCopy, srcKind, abi::transfer_offset::source_kind);
SAME_PLACE(PeerCopy, dstKind, abi::transfer_offset::destination_kind);
SAME_PLACE(PeerCopy, correlationId, abi::peer_copy_offset::correlation);
SAME_PLACE(PeerCopy, graphNodeId, abi::peer_copy_offset::graph_node);
SAME_PLACE(PeerCopy, graphId, abi::peer_copy_offset::graph);
SAME_PLACE(Set, memoryKind, abi::set_offset::memory_kind);
SAME_PLACE(Set, correlationId, abi::set_offset::correlation);
SAME_PLACE(Set, graphNodeId, abi::set_offset::graph_node);
SAME_PLACE(Set, graphId, abi::set_offset::graph);
SAME_PLACE(Synchronization, type, abi::synchronization_offset::type);
SAME_PLACE(Synchronization, start, abi::synchronization_offset::start);
SAME_PLACE(Synchronization, end, abi::synchronization_offset::end);
SAME_PLACE(Synchronization, correlationId, abi::synchronization_offset::correlation);
SAME_PLACE(Synchronization, contextId, abi::synchronization_offset::context);
SAME_PLACE(Synchronization, streamId, abi::synchronization_offset::stream);

SAME_PLACE(Synchronization, cudaEventId, abi::synchronization_offset::event);
static_assert(abi::synchronization_offset::prefix_bytes <= sizeof(nvidia::Synchronization));
SAME_PLACE(CudaEvent, correlationId, abi::cuda_event_offset::correlation);
SAME_PLACE(CudaEvent, contextId, abi::cuda_event_offset::context);
SAME_PLACE(CudaEvent, streamId, abi::cuda_event_offset::stream);
SAME_PLACE(CudaEvent, eventId, abi::cuda_event_offset::event);
static_assert(abi::cuda_event_offset::prefix_bytes <= sizeof(nvidia::CudaEvent));
static_assert((CUPTI_API_VERSION >= abi::first_version_with_event_ids) ==
              (sizeof(nvidia::Synchronization) >= abi::synchronization_offset::prefix_bytes_with_ids));
#if CUPTI_API_VERSION >= 26
SAME_PLACE(Synchronization, cudaEventSyncId, abi::synchronization_offset::event_sync);
SAME_PLACE(CudaEvent, deviceId, abi::cuda_event_offset::device);
SAME_PLACE(CudaEvent, cudaEventSyncId, abi::cuda_event_offset::event_sync);
static_assert(abi::cuda_event_offset::prefix_bytes_with_ids <= sizeof(nvidia::CudaEvent));
#endif
SAME_PLACE(GraphTrace, correlationId, abi::graph_trace_offset::correlation);
SAME_PLACE(GraphTrace, start, abi::graph_trace_offset::start);
SAME_PLACE(GraphTrace, end, abi::graph_trace_offset::end);
SAME_PLACE(GraphTrace, deviceId, abi::graph_trace_offset::device);
SAME_PLACE(GraphTrace, graphId, abi::graph_trace_offset::graph);
SAME_PLACE(GraphTrace, contextId, abi::graph_trace_offset::context);
SAME_PLACE(GraphTrace, streamId, abi::graph_trace_offset::stream);
SAME_PLACE(Call, cbid, abi::call_offset::function);
SAME_PLACE(Call, start, abi::call_offset::start);
SAME_PLACE(Call, end, abi::call_offset::end);
SAME_PLACE(Call, processId, abi::call_offset::process);
SAME_PLACE(Call, threadId, abi::call_offset::thread);
SAME_PLACE(Call, correlationId, abi::call_offset::correlation);

static_assert(sizeof(nvidia::Kernel::registersPerThread) == 2 && sizeof(nvidia::Set::memoryKind) == 2);
SAME_VALUE(abi::memory_copy, CUPTI_ACTIVITY_KIND_MEMCPY);
SAME_VALUE(abi::memory_set, CUPTI_ACTIVITY_KIND_MEMSET);
SAME_VALUE(abi::kernel, CUPTI_ACTIVITY_KIND_KERNEL);
SAME_VALUE(abi::concurrent_kernel, CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL);
SAME_VALUE(abi::memory_copy_peer, CUPTI_ACTIVITY_KIND_MEMCPY2);
SAME_VALUE(abi::synchronization, CUPTI_ACTIVITY_KIND_SYNCHRONIZATION);
SAME_VALUE(abi::driver_call, CUPTI_ACTIVITY_KIND_DRIVER);
SAME_VALUE(abi::runtime_call, CUPTI_ACTIVITY_KIND_RUNTIME);
SAME_VALUE(abi::cuda_event, CUPTI_ACTIVITY_KIND_CUDA_EVENT);
SAME_VALUE(abi::graph_trace, CUPTI_ACTIVITY_KIND_GRAPH_TRACE);
SAME_VALUE(abi::buffers_come_zeroed, CUPTI_ACTIVITY_ATTR_ZEROED_OUT_ACTIVITY_BUFFER);
SAME_VALUE(abi::buffers_per_thread, CUPTI_ACTIVITY_ATTR_PER_THREAD_ACTIVITY_BUFFER);
SAME_VALUE(abi::system_thread_ids, CUPTI_ACTIVITY_THREAD_ID_TYPE_SYSTEM);
SAME_VALUE(abi::flush_forced, CUPTI_ACTIVITY_FLAG_FLUSH_FORCED);
SAME_VALUE(abi::driver_success, CUDA_SUCCESS);
SAME_VALUE(abi::driver_not_initialized, CUDA_ERROR_NOT_INITIALIZED);
SAME_VALUE(abi::max_limit_reached, CUPTI_ERROR_MAX_LIMIT_REACHED);
SAME_VALUE(abi::invalid_kind, CUPTI_ERROR_INVALID_KIND);
SAME_VALUE(abi::not_compatible, CUPTI_ERROR_NOT_COMPATIBLE);
SAME_VALUE(abi::insufficient_privileges, CUPTI_ERROR_INSUFFICIENT_PRIVILEGES);
SAME_VALUE(abi::old_profiler_initialized, CUPTI_ERROR_OLD_PROFILER_API_INITIALIZED);
SAME_VALUE(abi::multiple_subscribers, CUPTI_ERROR_MULTIPLE_SUBSCRIBERS_NOT_SUPPORTED);
SAME_VALUE(abi::hardware, CUPTI_ERROR_HARDWARE);
SAME_VALUE(abi::out_of_memory, CUPTI_ERROR_OUT_OF_MEMORY);
SAME_VALUE(abi::driver_domain, CUPTI_CB_DOMAIN_DRIVER_API);
SAME_VALUE(abi::resource_domain, CUPTI_CB_DOMAIN_RESOURCE);
SAME_VALUE(abi::graph_node_created, CUPTI_CBID_RESOURCE_GRAPHNODE_CREATED);
SAME_VALUE(abi::graph_node_cloned, CUPTI_CBID_RESOURCE_GRAPHNODE_CLONED);
SAME_VALUE(abi::api_enter, CUPTI_API_ENTER);
SAME_OFFSET(CallbackData, site, CUpti_CallbackData, callbackSite);
SAME_OFFSET(CallbackData, correlation_id, CUpti_CallbackData, correlationId);
SAME_OFFSET(ResourceData, descriptor, CUpti_ResourceData, resourceDescriptor);
SAME_OFFSET(GraphData, node, CUpti_GraphData, node);
SAME_OFFSET(GraphData, original_node, CUpti_GraphData, originalNode);
SAME_OFFSET(GraphData, executable_graph, CUpti_GraphData, graphExec);

SAME_VALUE(abi::launch_kernel, CUPTI_DRIVER_TRACE_CBID_cuLaunchKernel);
LISTED(launching, cuLaunch);
LISTED(launching, cuLaunchKernel_ptsz);
LISTED(launching, cuLaunchKernelEx);
LISTED(launching, cuLaunchKernelEx_ptsz);
LISTED(launching, cuLaunchCooperativeKernel);
LISTED(launching, cuLaunchCooperativeKernel_ptsz);
LISTED(launching, cuLaunchCooperativeKernelMultiDevice);
LISTED(launching, cuGraphLaunch);
LISTED(launching, cuGraphLaunch_ptsz);
LISTED(launching, cuEventRecord);
LISTED(launching, cuEventRecord_ptsz);
LISTED(launching, cuEventRecordWithFlags);
LISTED(launching, cuEventRecordWithFlags_ptsz);
LISTED(launching, cuMemcpy);
LISTED(launching, cuMemcpyAsync);
LISTED(launching, cuMemcpyHtoD_v2);
LISTED(launching, cuMemcpyHtoAAsync_v2);
LISTED(launching, cuMemcpyDtoDAsync_v2);
LISTED(launching, cuMemcpyPeer);
LISTED(launching, cuMemcpy3DPeerAsync);
LISTED(launching, cuMemcpyHtoD_v2_ptds);
LISTED(launching, cuMemsetD2D32_v2_ptds);
LISTED(launching, cuMemcpyAsync_ptsz);
LISTED(launching, cuMemcpyHtoDAsync_v2_ptsz);
LISTED(launching, cuMemsetD2D32Async_ptsz);
LISTED(launching, cuMemsetD8_v2);
LISTED(launching, cuMemsetD2D32_v2);
LISTED(launching, cuMemsetD8Async);
LISTED(launching, cuMemsetD2D32Async);
#if CUPTI_API_VERSION >= 130000
LISTED(launching, cuMemcpyBatchAsync);
LISTED(launching, cuMemcpy3DBatchAsync_v2_ptsz);
#endif
NOT_LISTED(launching, cuMemAlloc_v2);
NOT_LISTED(launching, cuMemFree_v2);
NOT_LISTED(launching, cuEventQuery);
NOT_LISTED(launching, cuStreamSynchronize);
NOT_LISTED(launching, cuCtxSynchronize);
NOT_LISTED(launching, cuLaunchHostFunc);
NOT_LISTED(launching, cuGraphInstantiate);
NOT_LISTED(launching, cuFuncGetAttribute);

LISTED(waiting, cuCtxSynchronize);
LISTED(waiting, cuEventSynchronize);
LISTED(waiting, cuStreamSynchronize);
LISTED(waiting, cuStreamSynchronize_ptsz);
LISTED(waiting, cuStreamWaitEvent);
LISTED(waiting, cuStreamWaitEvent_ptsz);
#if CUPTI_API_VERSION >= 130000
LISTED(waiting, cuCtxSynchronize_v2);
#endif
NOT_LISTED(waiting, cuEventQuery);
NOT_LISTED(waiting, cuStreamQuery);

RUNTIME_LISTED(cudaLaunch_v3020);
RUNTIME_LISTED(cudaLaunchKernel_v7000);
RUNTIME_LISTED(cudaLaunchKernel_ptsz_v7000);
RUNTIME_LISTED(cudaLaunchKernelExC_v11060);
RUNTIME_LISTED(cudaLaunchKernelExC_ptsz_v11060);
RUNTIME_LISTED(cudaLaunchCooperativeKernel_v9000);
RUNTIME_LISTED(cudaLaunchCooperativeKernel_ptsz_v9000);
RUNTIME_LISTED(cudaLaunchCooperativeKernelMultiDevice_v9000);
RUNTIME_LISTED(cudaGraphLaunch_v10000);
RUNTIME_LISTED(cudaGraphLaunch_ptsz_v10000);
RUNTIME_LISTED(cudaMemcpy_v3020);
RUNTIME_LISTED(cudaMemcpyAsync_v3020);
RUNTIME_LISTED(cudaMemcpyAsync_ptsz_v7000);
RUNTIME_LISTED(cudaMemcpyPeerAsync_v4000);
RUNTIME_LISTED(cudaMemcpy3DPeerAsync_ptsz_v7000);
RUNTIME_LISTED(cudaMemset_v3020);
RUNTIME_LISTED(cudaMemsetAsync_v3020);
RUNTIME_LISTED(cudaMemset2DAsync_v3020);
RUNTIME_LISTED(cudaMemset3DAsync_ptsz_v7000);
RUNTIME_LISTED(cudaMemcpy3DAsync_v3020);
RUNTIME_LISTED(cudaEventRecord_v3020);
RUNTIME_LISTED(cudaEventRecord_ptsz_v7000);
RUNTIME_LISTED(cudaEventRecordWithFlags_v11010);
RUNTIME_LISTED(cudaEventSynchronize_v3020);
RUNTIME_LISTED(cudaStreamWaitEvent_v3020);
RUNTIME_LISTED(cudaStreamWaitEvent_ptsz_v7000);
RUNTIME_LISTED(cudaStreamSynchronize_v3020);
RUNTIME_LISTED(cudaStreamSynchronize_ptsz_v7000);
RUNTIME_LISTED(cudaDeviceSynchronize_v3020);
#if CUPTI_API_VERSION >= 26
RUNTIME_LISTED(cudaMemcpyBatchAsync_v12080);
RUNTIME_LISTED(cudaMemcpy3DBatchAsync_ptsz_v12080);
#endif
#if CUPTI_API_VERSION >= 130000
RUNTIME_LISTED(__cudaLaunchKernel_v13000);
RUNTIME_LISTED(__cudaLaunchKernel_ptsz_v13000);
RUNTIME_LISTED(cudaMemcpyBatchAsync_v13000);
RUNTIME_LISTED(cudaMemcpy3DBatchAsync_ptsz_v13000);
#endif
RUNTIME_NOT_LISTED(cudaMalloc_v3020);
RUNTIME_NOT_LISTED(cudaFree_v3020);
RUNTIME_NOT_LISTED(cudaGetLastError_v3020);
RUNTIME_NOT_LISTED(cudaGetDevice_v3020);
RUNTIME_NOT_LISTED(cudaEventQuery_v3020);
RUNTIME_NOT_LISTED(cudaStreamQuery_v3020);
RUNTIME_NOT_LISTED(cudaEventCreateWithFlags_v3020);
RUNTIME_NOT_LISTED(cudaStreamIsCapturing_v10000);
RUNTIME_NOT_LISTED(cudaFuncGetAttributes_v3020);
RUNTIME_NOT_LISTED(cudaStreamGetPriority_ptsz_v7000);

}  // namespace

TEST(the_table_has_the_lengths_of_the_headers) {
    constexpr std::uint32_t version = CUPTI_API_VERSION;
    if (cupti::record_bytes(version, abi::kernel) == 0) {
        std::fprintf(stderr, "skipped: the table leaves version %u to the library\n", version);
        return;
    }
    CHECK_EQ(cupti::record_bytes(version, abi::concurrent_kernel), sizeof(nvidia::Kernel));
    CHECK_EQ(cupti::record_bytes(version, abi::memory_copy), sizeof(nvidia::Copy));
    CHECK_EQ(cupti::record_bytes(version, abi::memory_copy_peer), sizeof(nvidia::PeerCopy));
    CHECK_EQ(cupti::record_bytes(version, abi::memory_set), sizeof(nvidia::Set));
    CHECK_EQ(cupti::record_bytes(version, abi::synchronization), sizeof(nvidia::Synchronization));
    CHECK_EQ(cupti::record_bytes(version, abi::cuda_event), sizeof(nvidia::CudaEvent));
    CHECK_EQ(cupti::record_bytes(version, abi::graph_trace), sizeof(nvidia::GraphTrace));
    CHECK_EQ(cupti::record_bytes(version, abi::driver_call), sizeof(nvidia::Call));
}

}  // namespace gpuprof::test
#else
TEST(skipped_without_the_headers) {
    std::fprintf(
        stderr,
        "skipped: no CUPTI headers; pip install nvidia-cuda-cupti nvidia-cuda-runtime nvidia-cuda-crt\n");
}
#endif
