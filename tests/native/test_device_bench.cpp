// SPDX-License-Identifier: Apache-2.0
// Ceilings of a GPU, against stubs of the driver and of the compiler whose clock the tests move. A pass
// here is no evidence about a real GPU.
#include <cstdlib>

#include "cuda/device_bench.hpp"
#include "gpu_support.hpp"

namespace gpuprof::test {
namespace {

using cuda::Compiler;
using cuda::DeviceBench;
using cuda::DeviceFacts;
using cuda::GpuEffort;
using cuda::GpuError;
using cuda::LaunchTimes;

struct Stub {
    void (*set)(int, int, int) = function_of<void (*)(int, int, int)>(STUB_CUDA, "stub_cuda_set");
    void (*reset)() = function_of<void (*)()>(STUB_CUDA, "stub_cuda_reset");
    void (*setting)(const char*,
                    long long) = function_of<void (*)(const char*, long long)>(STUB_CUDA,
                                                                               "stub_cuda_setting");
    long long (*count)(const char*) = function_of<long long (*)(const char*)>(STUB_CUDA, "stub_cuda_count");
    long long (*things)() = function_of<long long (*)()>(STUB_CUDA, "stub_cuda_things");
    long long (*programs)() = function_of<long long (*)()>(STUB_NVRTC, "stub_nvrtc_programs");
    const char* (*option)() = function_of<const char* (*)()>(STUB_NVRTC, "stub_nvrtc_option");
};

Stub& fresh_stub() {
    static Stub stub;
    stub.set(0, 13000, 1);
    stub.reset();
    unsetenv("STUB_NVRTC_FAILS");
    setenv("GPUPROF_NVRTC_LIBRARY", STUB_NVRTC, 1);
    return stub;
}

DeviceBench bench() {
    return {cuda::load_launch_driver(), 0, cuda::load_compiler({})};
}

GpuEffort three_repeats() {
    GpuEffort effort;
    effort.seconds = 0.001;
    effort.repeats = 3;
    return effort;
}

template <typename Body>
std::string error_of(Body body) {
    try {
        body();
    } catch (const GpuError& error) {
        return error.what();
    }
    return "no error";
}

bool is_near(double a, double b) {
    return a > 0.9999 * b && a < 1.0001 * b;
}

TEST(a_device_is_described) {
    fresh_stub();
    const auto devices = cuda::describe_devices(cuda::load_launch_driver());
    REQUIRE(devices.size() == 1);
    const DeviceFacts& facts = devices.front();
    CHECK_EQ(facts.name, "Stub GPU");
    CHECK_EQ(facts.uuid, "00112233-4455-6677-8899-aabbccddee00");
    CHECK_EQ(facts.capability, 90);
    CHECK_EQ(facts.multiprocessors, 10);
    CHECK_EQ(facts.l2_cache_bytes, 1'000'000);
    CHECK_EQ(facts.memory_bytes, 4'000'000'000u);
}

TEST(what_the_driver_does_not_report_is_empty) {
    Stub& stub = fresh_stub();
    stub.setting("cuDeviceGetAttribute", 1);
    stub.setting("cuDeviceGetUuid_v2", 1);
    const auto devices = cuda::describe_devices(cuda::load_launch_driver());
    CHECK_EQ(devices.front().clock_khz, 0);
    CHECK_EQ(devices.front().uuid, "");
}

TEST(the_kernels_are_compiled_for_the_device) {
    Stub& stub = fresh_stub();
    {
        const DeviceBench made = bench();
    }
    CHECK_EQ(std::string(stub.option()), "--gpu-architecture=sm_90");
    CHECK_EQ(stub.programs(), 0);
    CHECK(mentions(cuda::ceilings_source, "gpuprof_triad"));
}

TEST(what_was_made_is_given_back) {
    Stub& stub = fresh_stub();
    const long long streams = stub.count("streams"), events = stub.count("events");
    {
        DeviceBench made = bench();
        CHECK_EQ(stub.things(), 2);  // a context and a module
        made.measure_stream("triad", 1 << 20, three_repeats());
        CHECK_EQ(stub.things(), 2);
    }
    CHECK_EQ(stub.things(), 0);
    CHECK_EQ(stub.count("streams"), streams);
    CHECK_EQ(stub.count("events"), events);
}

TEST(bandwidth_is_bytes_over_time) {
    Stub& stub = fresh_stub();
    stub.setting("ns gpuprof_read", 1'000'000);
    stub.setting("ns gpuprof_copy", 1'000'000);
    stub.setting("ns gpuprof_triad", 2'000'000);
    DeviceBench made = bench();
    const auto read = made.measure_stream("read", 8'000'000, three_repeats());
    REQUIRE(read.size() == 3);
    CHECK(is_near(read[0], 8e9));
    CHECK(is_near(made.measure_stream("copy", 8'000'000, three_repeats())[2], 16e9));
    CHECK(is_near(made.measure_stream("triad", 8'000'000, three_repeats())[1], 12e9));
    CHECK_EQ(stub.count("rounds of gpuprof_triad"), 1);
}

TEST(arithmetic_is_operations_over_time) {
    Stub& stub = fresh_stub();
    for (const char* name : {"ns gpuprof_fma_fp32", "ns gpuprof_fma_fp16"}) stub.setting(name, 1000);
    DeviceBench made = bench();
    // 10 multiprocessors with 2048 threads, 256 operations each, in a microsecond.
    CHECK(is_near(made.measure_compute("fp32", three_repeats())[0], 10 * 2048 * 256 / 1e-6));
    CHECK(is_near(made.measure_compute("fp16", three_repeats())[0], 2 * 10 * 2048 * 256 / 1e-6));
    // As many rounds as half of a millisecond needs.
    CHECK_EQ(stub.count("rounds of gpuprof_fma_fp32"), 512);
}

TEST(a_type_without_a_kernel_has_no_rate) {
    Stub& stub = fresh_stub();
    stub.setting("gpuprof_fma_bf16", 500);
    DeviceBench made = bench();
    CHECK(made.measure_compute("bf16", three_repeats()).empty());
    CHECK(made.measure_compute("no such type", three_repeats()).size() == 3);  // the stub has every name
}

TEST(the_floor_is_of_kernels_that_wait_in_line) {
    Stub& stub = fresh_stub();
    stub.setting("running", 1);
    stub.setting("tick", 10'000);
    stub.setting("launch takes", 3000);
    stub.setting("ns gpuprof_busy", 1000);
    stub.setting("ns gpuprof_empty", 1200);
    const LaunchTimes times = bench().measure_launch(three_repeats());
    REQUIRE(times.floor_ns.size() == 3);
    CHECK(is_near(times.floor_ns[0], 1200));
    // Launched one by one, the GPU waits for the host.
    CHECK(times.period_ns[0] > 3000);
    CHECK(times.period_ns[0] < 3010);
}

TEST(without_a_line_there_is_no_floor) {
    Stub& stub = fresh_stub();  // every event has ended when it is asked for
    stub.setting("ns gpuprof_empty", 1200);
    const LaunchTimes times = bench().measure_launch(three_repeats());
    CHECK(times.floor_ns.empty());
    CHECK_EQ(times.period_ns.size(), 3u);
    CHECK_EQ(stub.count("cuLaunchKernel") > 256, true);
}

TEST(whoever_asks_to_stop_is_heard) {
    fresh_stub();
    GpuEffort effort = three_repeats();
    int asked = 0;
    effort.go_on = [&] { return ++asked < 2; };
    CHECK(bench().measure_stream("read", 1 << 20, effort).size() < 3);
}

TEST(a_gpu_that_does_not_respond_ends_the_measurement) {
    Stub& stub = fresh_stub();
    stub.setting("running", 1);
    stub.setting("ns gpuprof_read", 1'000'000);
    GpuEffort effort = three_repeats();
    effort.longest_wait_ns = 1'000'000;
    CHECK_EQ(error_of([&] { bench().measure_stream("read", 1 << 20, effort); }),
             "the GPU did not finish in time");
    CHECK_EQ(stub.things(), 0);
}

struct Refusal {
    const char* function;
    const char* said;
};

TEST(each_refusal_is_one_line_and_leaves_nothing_allocated) {
    Stub& stub = fresh_stub();
    const long long streams = stub.count("streams"), events = stub.count("events");
    for (const Refusal& refusal : {Refusal{"cuDeviceGet", "device 0"},
                                   {"cuDevicePrimaryCtxRetain", "no context on the GPU"},
                                   {"cuModuleLoadData", "the kernels cannot be loaded"},
                                   {"cuStreamCreate", "no stream"},
                                   {"cuEventCreate", "no event"},
                                   {"cuMemAlloc_v2", "no memory for the arrays"},
                                   {"cuModuleGetFunction", "no kernel gpuprof_copy"},
                                   {"cuLaunchKernel", "a kernel cannot be launched"},
                                   {"cuEventRecord", "an event cannot be recorded"},
                                   {"cuEventQuery", "a kernel failed"},
                                   {"cuEventElapsedTime", "no time of an event"}}) {
        stub.setting(refusal.function, 2);
        const std::string said = error_of([&] { bench().measure_stream("copy", 1 << 20, three_repeats()); });
        CHECK_EQ(said, std::string(refusal.said) + ": CUDA_ERROR_OUT_OF_MEMORY (2)");
        stub.setting(refusal.function, 0);
        CHECK_EQ(stub.things(), 0);
        CHECK_EQ(stub.count("streams"), streams);
        CHECK_EQ(stub.count("events"), events);
    }
}

TEST(a_compiler_that_fails_has_a_reason) {
    Stub& stub = fresh_stub();
    setenv("STUB_NVRTC_FAILS", "1", 1);
    CHECK_EQ(error_of([] { bench(); }), "NVRTC: NVRTC_ERROR_COMPILATION: ceilings.cu(1): an error");
    CHECK_EQ(stub.programs(), 0);
    CHECK_EQ(stub.things(), 0);
}

TEST(without_a_compiler_there_is_a_hint) {
    fresh_stub();
    setenv("GPUPROF_NVRTC_LIBRARY", "/nowhere/libnvrtc.so", 1);
    CHECK(mentions(error_of([] { bench(); }), "named_library_not_loaded"));
    setenv("GPUPROF_NVRTC_LIBRARY", STUB_CUDA, 1);
    CHECK_EQ(cuda::load_compiler({}).reason, ReasonCode::nvrtc_lacks_function);
    unsetenv("GPUPROF_NVRTC_LIBRARY");
    CHECK_EQ(cuda::load_compiler({"/nowhere"}).reason, ReasonCode::nvrtc_not_found);
}

}  // namespace
}  // namespace gpuprof::test
