// SPDX-License-Identifier: Apache-2.0
// The part of the CUDA driver's interface that launching kernels of our own needs, declared here so that
// nothing is linked and no toolkit is needed. tests/native/test_cupti_abi.cpp holds the numbers against the
// real header.
#pragma once

#include <cstddef>
#include <cstdint>
#include <stdexcept>
#include <string>

#include "cuda/driver.hpp"

namespace gpuprof::cuda {

using ModuleHandle = void*;
using FunctionHandle = void*;
using Address = std::uint64_t;

namespace attribute {
constexpr int clock_khz = 13;
constexpr int multiprocessors = 16;
constexpr int memory_clock_khz = 36;
constexpr int memory_bus_bits = 37;
constexpr int l2_cache_bytes = 38;
constexpr int threads_per_multiprocessor = 39;
constexpr int capability_major = 75;
constexpr int capability_minor = 76;
}  // namespace attribute

struct Uuid {
    unsigned char bytes[16];
};

// An error of the driver, the compiler or the GPU, in one line.
class GpuError : public std::runtime_error {
  public:
    using std::runtime_error::runtime_error;
};

struct LaunchDriver {
    int (*initialize)(unsigned flags) = nullptr;
    int (*get_version)(int* version) = nullptr;
    int (*get_count)(int* count) = nullptr;
    int (*get_device)(int* device, int ordinal) = nullptr;
    int (*get_name)(char* name, int length, int device) = nullptr;
    int (*get_uuid)(Uuid* uuid, int device) = nullptr;
    int (*get_attribute)(int* value, int attribute, int device) = nullptr;
    int (*get_total_memory)(std::size_t* bytes, int device) = nullptr;
    int (*get_free_memory)(std::size_t* free, std::size_t* total) = nullptr;
    int (*retain_context)(ContextHandle* context, int device) = nullptr;
    int (*release_context)(int device) = nullptr;
    int (*set_context)(ContextHandle context) = nullptr;
    int (*load_module)(ModuleHandle* module, const void* image) = nullptr;
    int (*unload_module)(ModuleHandle module) = nullptr;
    int (*get_function)(FunctionHandle* function, ModuleHandle module, const char* name) = nullptr;
    int (*allocate)(Address* address, std::size_t bytes) = nullptr;
    int (*release)(Address address) = nullptr;
    int (*fill)(Address address, unsigned char value, std::size_t bytes, StreamHandle stream) = nullptr;
    int (*launch)(FunctionHandle function, unsigned grid_x, unsigned grid_y, unsigned grid_z,
                  unsigned block_x, unsigned block_y, unsigned block_z, unsigned shared_bytes,
                  StreamHandle stream, void** arguments, void** extra) = nullptr;
    int (*create_stream)(StreamHandle* stream, unsigned flags) = nullptr;
    int (*destroy_stream)(StreamHandle stream) = nullptr;
    int (*create_event)(EventHandle* event, unsigned flags) = nullptr;
    int (*destroy_event)(EventHandle event) = nullptr;
    int (*record_event)(EventHandle event, StreamHandle stream) = nullptr;
    int (*query_event)(EventHandle event) = nullptr;
    int (*elapsed_ms)(float* milliseconds, EventHandle begin, EventHandle end) = nullptr;
    int (*get_error_name)(int error, const char** name) = nullptr;

    // Throws GpuError unless `result` is success; `what` is the attempted action.
    void check(int result, const std::string& what) const;
};

// Loads and initializes the driver, in gpuprof's own process. Throws GpuError.
LaunchDriver load_launch_driver();

}  // namespace gpuprof::cuda
