// SPDX-License-Identifier: Apache-2.0
// The part of the CUDA driver's interface that timing by events needs, declared here so that nothing is
// linked and no toolkit is needed. tests/native/test_cupti_abi.cpp holds the numbers against the real header.
#pragma once

#include "core/reason.hpp"

namespace gpuprof::cuda {

using ContextHandle = void*;
using StreamHandle = void*;
using EventHandle = void*;

constexpr const char* driver_name = "libcuda.so.1";

constexpr int success = 0;
constexpr int not_ready = 600;
constexpr int not_supported = 801;
// What is refused because a stream is captured, on this thread or on another.
constexpr int first_capture_error = 900;
constexpr int last_capture_error = 908;

constexpr int not_capturing = 0;
constexpr int relaxed_capture_mode = 2;
constexpr unsigned default_event = 0;
constexpr unsigned non_blocking_stream = 1;

struct Driver {
    int (*get_context)(ContextHandle* context) = nullptr;
    int (*set_context)(ContextHandle context) = nullptr;
    int (*exchange_capture_mode)(int* mode) = nullptr;
    int (*stream_context)(StreamHandle stream, ContextHandle* context) = nullptr;
    int (*is_capturing)(StreamHandle stream, int* status) = nullptr;
    int (*create_stream)(StreamHandle* stream, unsigned flags) = nullptr;
    int (*destroy_stream)(StreamHandle stream) = nullptr;
    int (*create_event)(EventHandle* event, unsigned flags) = nullptr;
    int (*record_event)(EventHandle event, StreamHandle stream) = nullptr;
    int (*query_event)(EventHandle event) = nullptr;
    int (*elapsed_ms)(float* milliseconds, EventHandle begin, EventHandle end) = nullptr;
    int (*destroy_event)(EventHandle event) = nullptr;
};

// Finds the driver that the program has initialized, or why there is none.
Reason load_driver(Driver& driver);

// Whether a result concerns one call only, and the next may succeed.
constexpr bool is_passing(int result) noexcept {
    return result == not_ready || result == not_supported ||
           (result >= first_capture_error && result <= last_capture_error);
}

}  // namespace gpuprof::cuda
