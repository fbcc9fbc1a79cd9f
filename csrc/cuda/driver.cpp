// SPDX-License-Identifier: Apache-2.0
#include "cuda/driver.hpp"

#include "core/dynamic_library.hpp"
#include "cupti/loader.hpp"

namespace gpuprof::cuda {
namespace {

// The name of a function that is missing, or null.
const char* fill(void* library, Driver& driver) noexcept {
    FunctionFinder find(library);
    find.need("cuCtxGetCurrent", driver.get_context);
    find.need("cuCtxSetCurrent", driver.set_context);
    find.need("cuThreadExchangeStreamCaptureMode", driver.exchange_capture_mode);
    find.need("cuStreamGetCtx", driver.stream_context);
    find.need("cuStreamIsCapturing", driver.is_capturing);
    find.need("cuStreamCreate", driver.create_stream);
    find.need("cuStreamDestroy_v2", driver.destroy_stream);
    find.need("cuEventCreate", driver.create_event);
    find.need("cuEventRecord", driver.record_event);
    find.need("cuEventQuery", driver.query_event);
    find.need("cuEventElapsedTime", driver.elapsed_ms);
    find.need("cuEventDestroy_v2", driver.destroy_event);
    return find.missing();
}

}  // namespace

Reason load_driver(Driver& driver) {
    if (Reason why = cupti::why_no_driver(); why) return why;
    // The program's own use keeps it loaded.
    const LoadedLibrary library(driver_name);
    if (library.handle() == nullptr) return {ReasonCode::cuda_not_in_use};
    const char* const missing = fill(library.handle(), driver);
    if (missing == nullptr) return {};
    return {ReasonCode::driver_lacks_function, {}, missing};
}

}  // namespace gpuprof::cuda
