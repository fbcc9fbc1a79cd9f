// SPDX-License-Identifier: Apache-2.0
#include "cuda/driver.hpp"

#include <dlfcn.h>

#include "cupti/loader.hpp"

namespace gpuprof::cuda {
namespace {

template <typename Function>
const char* find(void* library, const char* name, Function& function) noexcept {
    function = reinterpret_cast<Function>(dlsym(library, name));
    return function != nullptr ? nullptr : name;
}

// The name of a function that is missing, or null.
const char* fill(void* library, Driver& driver) noexcept {
    const char* const missing[] = {
        find(library, "cuCtxGetCurrent", driver.get_context),
        find(library, "cuCtxSetCurrent", driver.set_context),
        find(library, "cuThreadExchangeStreamCaptureMode", driver.exchange_capture_mode),
        find(library, "cuStreamGetCtx", driver.stream_context),
        find(library, "cuStreamIsCapturing", driver.is_capturing),
        find(library, "cuStreamCreate", driver.create_stream),
        find(library, "cuStreamDestroy_v2", driver.destroy_stream),
        find(library, "cuEventCreate", driver.create_event),
        find(library, "cuEventRecord", driver.record_event),
        find(library, "cuEventQuery", driver.query_event),
        find(library, "cuEventElapsedTime", driver.elapsed_ms),
        find(library, "cuEventDestroy_v2", driver.destroy_event),
    };
    for (const char* const name : missing)
        if (name != nullptr) return name;
    return nullptr;
}

}  // namespace

std::string load_driver(Driver& driver) {
    if (std::string why = cupti::why_no_driver(); !why.empty()) return why;
    void* const library = dlopen("libcuda.so.1", RTLD_NOW | RTLD_NOLOAD);
    if (library == nullptr) return "CUDA is not in use in this process";
    const char* const missing = fill(library, driver);
    // The program's own use keeps it loaded.
    dlclose(library);
    return missing == nullptr ? "" : "the NVIDIA driver has no " + std::string(missing) + ": update it";
}

}  // namespace gpuprof::cuda
