// SPDX-License-Identifier: Apache-2.0
// Work for a GPU whose every kernel is known: two kernels, launched through the driver's own interface, so
// that nothing but the driver is needed.
#pragma once

#include <dlfcn.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <stdexcept>
#include <string>
#include <vector>

namespace gpuprof::golden {

// fill(int*, int) writes each thread's number; spin(unsigned long long) lasts that many cycles.
constexpr const char* program = R"(
.version 7.0
.target sm_75
.address_size 64
.visible .entry _Z4fillPi(.param .u64 data) {
    .reg .b64 %address<4>;
    .reg .b32 %index<2>;
    ld.param.u64 %address0, [data];
    cvta.to.global.u64 %address1, %address0;
    mov.u32 %index0, %tid.x;
    mul.wide.u32 %address2, %index0, 4;
    add.s64 %address3, %address1, %address2;
    st.global.u32 [%address3], %index0;
    ret;
}
.visible .entry _Z4spiny(.param .u64 cycles) {
    .reg .b64 %time<4>;
    .reg .pred %waits;
    ld.param.u64 %time0, [cycles];
    mov.u64 %time1, %clock64;
again:
    mov.u64 %time2, %clock64;
    sub.s64 %time3, %time2, %time1;
    setp.lt.u64 %waits, %time3, %time0;
    @%waits bra again;
    ret;
}
)";

// The driver's functions, by name.
class Driver {
  public:
    Driver() : library_(dlopen("libcuda.so.1", RTLD_NOW)) {
        if (library_ == nullptr) throw std::runtime_error("no libcuda.so.1: a GPU and its driver are needed");
    }

    template <typename Function>
    Function find(const char* name) const {
        const auto function = reinterpret_cast<Function>(dlsym(library_, name));
        if (function == nullptr) throw std::runtime_error(std::string("the driver has no ") + name);
        return function;
    }

    // The arguments' types must be the function's: they are not converted.
    template <typename... Arguments>
    void call(const char* name, Arguments... arguments) const {
        if (const int error = find<int (*)(Arguments...)>(name)(arguments...); error != 0)
            throw std::runtime_error(std::string(name) + " returns error " + std::to_string(error));
    }

  private:
    void* library_;
};

using Stream = void*;

// A context on the first device, with memory on both sides and the two kernels.
class Gpu {
  public:
    static constexpr std::size_t bytes = 4096;

    Gpu() {
        int device = 0;
        void* context = nullptr;
        driver.call("cuInit", 0u);
        driver.call("cuDeviceGet", &device, 0);
        driver.call("cuDevicePrimaryCtxRetain", &context, device);
        driver.call("cuCtxSetCurrent", context);
        void* module = nullptr;
        driver.call("cuModuleLoadData", &module, static_cast<const void*>(program));
        driver.call("cuModuleGetFunction", &fill_, module, "_Z4fillPi");
        driver.call("cuModuleGetFunction", &spin_, module, "_Z4spiny");
        driver.call("cuMemAlloc_v2", &memory_, bytes);
        driver.call("cuMemAllocHost_v2", &host_, bytes);
        launch_ = driver.find<Launch>("cuLaunchKernel");
    }

    // The number of blocks identifies a kernel.
    void fill(unsigned blocks, Stream stream = nullptr) {
        void* arguments[] = {&memory_};
        launch(fill_, blocks, 256, arguments, stream);
    }
    void spin(std::uint64_t cycles, unsigned blocks = 1, Stream stream = nullptr) {
        void* arguments[] = {&cycles};
        launch(spin_, blocks, 1, arguments, stream);
    }
    void set(std::size_t size, Stream stream = nullptr) {
        driver.call("cuMemsetD8Async", memory_, static_cast<unsigned char>(1), size, stream);
    }
    void copy_in(std::size_t size, Stream stream = nullptr) {
        driver.call("cuMemcpyHtoDAsync_v2", memory_, static_cast<const void*>(host_), size, stream);
    }
    void copy_out(std::size_t size, Stream stream = nullptr) {
        driver.call("cuMemcpyDtoHAsync_v2", host_, memory_, size, stream);
    }
    void synchronize() { driver.call("cuCtxSynchronize"); }
    Stream make_stream() {
        Stream stream = nullptr;
        driver.call("cuStreamCreate", &stream, 1u);  // does not wait for the default stream
        return stream;
    }

    Driver driver;

  private:
    using Launch = int (*)(void*, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned,
                           Stream, void**, void**);
    void launch(void* function, unsigned blocks, unsigned threads, void** arguments, Stream stream) {
        if (const int error = launch_(function, blocks, 1, 1, threads, 1, 1, 0, stream, arguments, nullptr);
            error != 0)
            throw std::runtime_error("cuLaunchKernel returns error " + std::to_string(error));
    }

    void *fill_ = nullptr, *spin_ = nullptr, *host_ = nullptr;
    std::uint64_t memory_ = 0;
    Launch launch_ = nullptr;
};

// A CUDA graph of whatever is put on a stream until `end_capture`.
class Graph {
  public:
    Graph(Gpu& gpu, Stream stream) : driver_(gpu.driver), stream_(stream) {
        driver_.call("cuStreamBeginCapture_v2", stream_, 2);  // of this stream alone
    }
    void end_capture() { driver_.call("cuStreamEndCapture", stream_, &graph_); }
    void instantiate() {
        driver_.call("cuGraphInstantiateWithFlags", &executable_, graph_, std::uint64_t{0});
    }
    void launch() { driver_.call("cuGraphLaunch", executable_, stream_); }
    void* graph() const noexcept { return graph_; }

  private:
    const Driver& driver_;
    Stream stream_;
    void* graph_ = nullptr;
    void* executable_ = nullptr;
};

}  // namespace gpuprof::golden
