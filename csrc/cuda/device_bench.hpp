// SPDX-License-Identifier: Apache-2.0
// Measures the highest rates of one GPU with gpuprof's kernels. For a process that does nothing else: it
// initializes CUDA, and a failing kernel breaks the context for the whole process.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "cuda/compiler.hpp"
#include "cuda/launch_driver.hpp"

namespace gpuprof::cuda {

// The driver's facts of a GPU; 0 where it has none.
struct DeviceFacts {
    std::string name;
    std::string uuid;
    int capability = 0;  // 90 for 9.0
    int multiprocessors = 0;
    int clock_khz = 0;
    int memory_clock_khz = 0;
    int memory_bus_bits = 0;
    int l2_cache_bytes = 0;
    std::size_t memory_bytes = 0;
};

// All GPUs that CUDA shows this process, in its order. Throws GpuError.
std::vector<DeviceFacts> describe_devices(const LaunchDriver& driver);

struct GpuEffort {
    // How long one repeat takes, roughly.
    double seconds = 0.005;
    int repeats = 10;
    // Asked between two repeats; false ends the measurement, which then has fewer of them.
    std::function<bool()> go_on;
    std::int64_t longest_wait_ns = 20'000'000'000;
};

struct LaunchTimes {
    // From one empty kernel to the next where all of them are queued after another one.
    std::vector<double> floor_ns;
    // The same where each is launched as soon as the call for the one before has returned.
    std::vector<double> period_ns;
};

// Every function throws GpuError with one line about the failure.
class DeviceBench {
  public:
    DeviceBench(const LaunchDriver& driver, int ordinal, const Compiler& compiler);
    DeviceBench(const DeviceBench&) = delete;
    DeviceBench& operator=(const DeviceBench&) = delete;
    ~DeviceBench();

    std::size_t free_bytes() const;
    // Operations per second of "fp64", "fp32", "fp16" or "bf16"; nothing where the GPU has no such
    // instruction.
    std::vector<double> measure_compute(const std::string& dtype, const GpuEffort& effort);
    // Bytes per second of "read" (1 array), "copy" (2) or "triad" (3), each array of `array_bytes`.
    std::vector<double> measure_stream(const std::string& stream, std::size_t array_bytes,
                                       const GpuEffort& effort);
    LaunchTimes measure_launch(const GpuEffort& effort);

  private:
    struct Arguments {
        Address first = 0, second = 0, third = 0;
        std::uint64_t pieces = 0;
        unsigned rounds = 1;
    };
    class Memory;

    template <typename Make>
    void obtain(void*& handle, const char* what, Make make);
    void release() noexcept;
    FunctionHandle function(const std::string& name) const;
    void launch(FunctionHandle kernel, unsigned blocks, Arguments arguments) const;
    void wait(const GpuEffort& effort) const;
    double elapsed_ns() const;
    double time_ns(FunctionHandle kernel, const Arguments& arguments, const GpuEffort& effort) const;
    // Time for one round, from each repeat.
    std::vector<double> round_ns(FunctionHandle kernel, Arguments arguments, const GpuEffort& effort) const;
    double queued_ns(unsigned busy_rounds, const GpuEffort& effort, bool& was_late) const;

    const LaunchDriver driver_;
    int device_ = 0;
    unsigned blocks_ = 0;
    ContextHandle context_ = nullptr;
    ModuleHandle module_ = nullptr;
    StreamHandle stream_ = nullptr;
    EventHandle begin_ = nullptr, end_ = nullptr;
};

}  // namespace gpuprof::cuda
