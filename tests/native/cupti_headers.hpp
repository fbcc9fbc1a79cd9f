// SPDX-License-Identifier: Apache-2.0
// NVIDIA's own headers, and the newest form of each record in the version at hand.
#pragma once

#include <cupti_activity.h>
#include <cupti_callbacks.h>
#include <cupti_driver_cbid.h>
#include <cupti_runtime_cbid.h>
#include <cupti_version.h>

namespace gpuprof::test::nvidia {

#if CUPTI_API_VERSION >= 130400
using Kernel = CUpti_ActivityKernel13;
using Copy = CUpti_ActivityMemcpy7;
using Set = CUpti_ActivityMemset5;
#elif CUPTI_API_VERSION >= 130300
using Kernel = CUpti_ActivityKernel12;
using Copy = CUpti_ActivityMemcpy6;
using Set = CUpti_ActivityMemset4;
#elif CUPTI_API_VERSION >= 130100
using Kernel = CUpti_ActivityKernel11;
using Copy = CUpti_ActivityMemcpy6;
using Set = CUpti_ActivityMemset4;
#elif CUPTI_API_VERSION >= 130000
using Kernel = CUpti_ActivityKernel10;
using Copy = CUpti_ActivityMemcpy6;
using Set = CUpti_ActivityMemset4;
#elif CUPTI_API_VERSION >= 26
using Kernel = CUpti_ActivityKernel9;
using Copy = CUpti_ActivityMemcpy6;
using Set = CUpti_ActivityMemset4;
#else
using Kernel = CUpti_ActivityKernel9;
using Copy = CUpti_ActivityMemcpy5;
using Set = CUpti_ActivityMemset4;
#endif
#if CUPTI_API_VERSION >= 26
using Synchronization = CUpti_ActivitySynchronization2;
#else
using Synchronization = CUpti_ActivitySynchronization;
#endif
using PeerCopy = CUpti_ActivityMemcpyPtoP4;
#if CUPTI_API_VERSION >= 130500
using CudaEvent = CUpti_ActivityCudaEvent3;
#elif CUPTI_API_VERSION >= 26
using CudaEvent = CUpti_ActivityCudaEvent2;
#else
using CudaEvent = CUpti_ActivityCudaEvent;
#endif
using GraphTrace = CUpti_ActivityGraphTrace2;
using Call = CUpti_ActivityAPI;

}  // namespace gpuprof::test::nvidia
