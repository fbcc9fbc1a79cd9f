// SPDX-License-Identifier: Apache-2.0
// NVRTC, NVIDIA's compiler as a library, which every CUDA build of PyTorch carries. Found at run time:
// nothing is linked. It needs no GPU.
#pragma once

#include <cstddef>
#include <string>
#include <vector>

#include "core/reason.hpp"

namespace gpuprof::cuda {

struct CompilerFunctions {
    using Program = void*;
    int (*get_version)(int* major, int* minor) = nullptr;
    int (*create)(Program* program, const char* source, const char* name, int headers,
                  const char* const* header_texts, const char* const* header_names) = nullptr;
    int (*compile)(Program program, int count, const char* const* options) = nullptr;
    int (*get_log_size)(Program program, std::size_t* bytes) = nullptr;
    int (*get_log)(Program program, char* log) = nullptr;
    int (*get_image_size)(Program program, std::size_t* bytes) = nullptr;
    int (*get_image)(Program program, char* image) = nullptr;
    int (*destroy)(Program* program) = nullptr;
    const char* (*explain)(int result) = nullptr;
};

struct Compiler {
    CompilerFunctions functions;
    std::string path;
    int major = 0, minor = 0;
    Reason reason;  // why there is none
    bool available() const noexcept { return !reason; }
};

// `folders` are searched after the libraries that the process has loaded. GPUPROF_NVRTC_LIBRARY names the
// only library to take. The library stays in the process.
Compiler load_compiler(const std::vector<std::string>& folders);

// Machine code for GPUs of this compute capability, 90 for 9.0. Throws GpuError.
std::vector<char> compile(const Compiler& compiler, const char* source, const char* name, int capability);

// The kernels that measure ceilings.
extern const char* const ceilings_source;

}  // namespace gpuprof::cuda
