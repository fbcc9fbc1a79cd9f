// SPDX-License-Identifier: Apache-2.0
// Runs a few kernels, copies and fills on the GPU and writes CUPTI's raw buffers to a file, with the
// library's version and the names that the records point to, for tests/native/test_cupti_replay.cpp.
//
//     cupti_capture tests/golden/NAME.cupti [CUPTI's folder...]
#include <dlfcn.h>

#include <cstdint>
#include <cstdio>
#include <cstring>
#include <fstream>
#include <map>
#include <mutex>
#include <stdexcept>
#include <string>
#include <vector>

#include "cupti/abi.hpp"
#include "cupti/decoder.hpp"
#include "cupti/loader.hpp"

namespace {

namespace abi = gpuprof::cupti::abi;
using gpuprof::cupti::Library;
using gpuprof::cupti::Stride;

constexpr const char* program = R"(
.version 7.0
.target sm_75
.address_size 64
.visible .entry _Z4fillPfi(.param .u64 data, .param .u32 count) {
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
)";

// The driver's functions, by name; each answers 0 when it did what it was asked.
class Driver {
  public:
    Driver() : library_(dlopen("libcuda.so.1", RTLD_NOW)) {
        if (library_ == nullptr) throw std::runtime_error("no libcuda.so.1: a GPU and its driver are needed");
    }
    template <typename... Arguments>
    void call(const char* name, Arguments... arguments) {
        const auto function = reinterpret_cast<int (*)(Arguments...)>(dlsym(library_, name));
        if (function == nullptr) throw std::runtime_error(std::string("the driver has no ") + name);
        if (const int error = function(arguments...); error != 0)
            throw std::runtime_error(std::string(name) + " answers error " + std::to_string(error));
    }

  private:
    void* library_;
};

using Bytes = std::vector<std::uint8_t>;
std::mutex mutex;
std::vector<Bytes> buffers;

void request(std::uint8_t** buffer, std::size_t* size, std::size_t* limit) {
    *size = std::size_t{1} << 16;
    *buffer = new std::uint8_t[*size];
    *limit = 0;
}

void complete(void*, std::uint32_t, std::uint8_t* buffer, std::size_t, std::size_t valid_bytes) {
    {
        const std::lock_guard lock(mutex);
        buffers.emplace_back(buffer, buffer + valid_bytes);
    }
    delete[] buffer;
}

void check(std::uint32_t result) {
    if (result != abi::success) throw std::runtime_error(gpuprof::cupti::explain_error(result));
}

void run_work(Driver& driver) {
    constexpr std::size_t size = 4096;
    void *module = nullptr, *function = nullptr;
    std::uint64_t memory = 0;
    std::vector<char> host(size);
    driver.call("cuModuleLoadData", &module, static_cast<const void*>(program));
    driver.call("cuModuleGetFunction", &function, module, "_Z4fillPfi");
    driver.call("cuMemAlloc_v2", &memory, size);
    int count = 256;
    void* arguments[] = {&memory, &count};
    for (unsigned blocks = 1; blocks <= 4; ++blocks) {
        driver.call("cuMemsetD8_v2", memory, static_cast<unsigned char>(0), size);
        driver.call("cuMemcpyHtoD_v2", memory, static_cast<const void*>(host.data()), size);
        driver.call("cuLaunchKernel", function, blocks, 1u, 1u, 256u, 1u, 1u, 0u, static_cast<void*>(nullptr),
                    static_cast<void**>(arguments), static_cast<void**>(nullptr));
        driver.call("cuMemcpyDtoH_v2", static_cast<void*>(host.data()), memory, size);
    }
    driver.call("cuCtxSynchronize");
}

template <typename T>
void write(std::ofstream& file, T value) {
    file.write(reinterpret_cast<const char*>(&value), sizeof(value));
}

void save(const char* path, const Library& library) {
    std::map<std::uint64_t, std::string> names;
    std::ofstream file(path, std::ios::binary);
    file.write("GPUPROFR", 8);
    write(file, library.version);
    write(file, static_cast<std::uint32_t>(buffers.size()));
    for (Bytes& buffer : buffers) {
        write(file, static_cast<std::uint64_t>(buffer.size()));
        file.write(reinterpret_cast<const char*>(buffer.data()), static_cast<std::streamsize>(buffer.size()));
        std::vector<gpuprof::GpuRecord> records;
        const auto note = [&](const char* name) {
            if (name != nullptr) names.emplace(reinterpret_cast<std::uint64_t>(name), name);
            return 0u;
        };
        gpuprof::cupti::decode_buffer(buffer, Stride(library.api.get_next_record), note, records);
        std::printf("%zu bytes, %zu records with times\n", buffer.size(), records.size());
    }
    write(file, static_cast<std::uint64_t>(names.size()));
    for (const auto& [pointer, name] : names) {
        write(file, pointer);
        write(file, static_cast<std::uint32_t>(name.size()));
        file.write(name.data(), static_cast<std::streamsize>(name.size()));
    }
    if (!file.flush()) throw std::runtime_error(std::string("cannot write ") + path);
}

void capture(const char* path, const std::vector<std::string>& folders) {
    Driver driver;
    int device = 0;
    void* context = nullptr;
    driver.call("cuInit", 0u);
    driver.call("cuDeviceGet", &device, 0);
    driver.call("cuDevicePrimaryCtxRetain", &context, device);
    driver.call("cuCtxSetCurrent", context);
    const Library library = gpuprof::cupti::load_library(folders);
    if (!library.available()) throw std::runtime_error(library.reason);
    check(library.api.register_callbacks(request, complete));
    for (const std::uint32_t kind :
         {abi::concurrent_kernel, abi::memory_copy, abi::memory_set, abi::synchronization})
        check(library.api.enable(kind));
    run_work(driver);
    check(library.api.flush_all(0));
    check(library.api.flush_all(abi::flush_forced));
    save(path, library);
}

}  // namespace

int main(int argc, char** argv) {
    if (argc < 2) {
        std::fprintf(stderr, "usage: cupti_capture FILE.cupti [CUPTI's folder...]\n");
        return 2;
    }
    try {
        capture(argv[1], {argv + 2, argv + argc});
        return 0;
    } catch (const std::exception& error) {
        std::fprintf(stderr, "cupti_capture: %s\n", error.what());
        return 1;
    }
}
