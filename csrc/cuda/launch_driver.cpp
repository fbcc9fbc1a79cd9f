// SPDX-License-Identifier: Apache-2.0
#include "cuda/launch_driver.hpp"

#include <dlfcn.h>

#include "core/dynamic_library.hpp"

namespace gpuprof::cuda {
namespace {

void find_device_functions(FunctionFinder& find, LaunchDriver& driver) noexcept {
    find.need("cuInit", driver.initialize);
    find.need("cuDriverGetVersion", driver.get_version);
    find.need("cuDeviceGetCount", driver.get_count);
    find.need("cuDeviceGet", driver.get_device);
    find.need("cuDeviceGetName", driver.get_name);
    find.need("cuDeviceGetUuid_v2", driver.get_uuid);
    find.need("cuDeviceGetAttribute", driver.get_attribute);
    find.need("cuDeviceTotalMem_v2", driver.get_total_memory);
    find.need("cuMemGetInfo_v2", driver.get_free_memory);
    find.need("cuDevicePrimaryCtxRetain", driver.retain_context);
    find.need("cuDevicePrimaryCtxRelease_v2", driver.release_context);
    find.need("cuCtxSetCurrent", driver.set_context);
    find.need("cuGetErrorName", driver.get_error_name);
}

void find_work_functions(FunctionFinder& find, LaunchDriver& driver) noexcept {
    find.need("cuModuleLoadData", driver.load_module);
    find.need("cuModuleUnload", driver.unload_module);
    find.need("cuModuleGetFunction", driver.get_function);
    find.need("cuMemAlloc_v2", driver.allocate);
    find.need("cuMemFree_v2", driver.release);
    find.need("cuMemsetD8Async", driver.fill);
    find.need("cuLaunchKernel", driver.launch);
    find.need("cuStreamCreate", driver.create_stream);
    find.need("cuStreamDestroy_v2", driver.destroy_stream);
    find.need("cuEventCreate", driver.create_event);
    find.need("cuEventDestroy_v2", driver.destroy_event);
    find.need("cuEventRecord", driver.record_event);
    find.need("cuEventQuery", driver.query_event);
    find.need("cuEventElapsedTime", driver.elapsed_ms);
}

}  // namespace

void LaunchDriver::check(int result, const std::string& what) const {
    if (result == success) return;
    const char* name = nullptr;
    if (get_error_name(result, &name) != success || name == nullptr) name = "an error without a name";
    throw GpuError(what + ": " + name + " (" + std::to_string(result) + ")");
}

LaunchDriver load_launch_driver() {
    // Kept for the life of the process, as every driver.
    void* const library = dlopen(driver_name, RTLD_NOW | RTLD_LOCAL);
    if (library == nullptr) throw GpuError("there is no NVIDIA driver: libcuda.so.1 cannot be loaded");
    LaunchDriver driver;
    FunctionFinder find(library);
    find_device_functions(find, driver);
    find_work_functions(find, driver);
    if (find.missing() != nullptr)
        throw GpuError("the NVIDIA driver has no " + std::string(find.missing()) + "; hint: update it");
    driver.check(driver.initialize(0), "the NVIDIA driver cannot be initialized");
    return driver;
}

}  // namespace gpuprof::cuda
