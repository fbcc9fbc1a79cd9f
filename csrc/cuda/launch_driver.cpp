// SPDX-License-Identifier: Apache-2.0
#include "cuda/launch_driver.hpp"

#include <dlfcn.h>

namespace gpuprof::cuda {
namespace {

class Finder {
  public:
    explicit Finder(void* library) : library_(library) {}

    template <typename Function>
    void operator()(const char* name, Function& function) {
        function = reinterpret_cast<Function>(dlsym(library_, name));
        if (function == nullptr)
            throw GpuError("the NVIDIA driver has no " + std::string(name) + ": update it");
    }

  private:
    void* library_;
};

void find_device_functions(Finder& find, LaunchDriver& driver) {
    find("cuInit", driver.initialise);
    find("cuDriverGetVersion", driver.get_version);
    find("cuDeviceGetCount", driver.get_count);
    find("cuDeviceGet", driver.get_device);
    find("cuDeviceGetName", driver.get_name);
    find("cuDeviceGetUuid_v2", driver.get_uuid);
    find("cuDeviceGetAttribute", driver.get_attribute);
    find("cuDeviceTotalMem_v2", driver.get_total_memory);
    find("cuMemGetInfo_v2", driver.get_free_memory);
    find("cuDevicePrimaryCtxRetain", driver.retain_context);
    find("cuDevicePrimaryCtxRelease_v2", driver.release_context);
    find("cuCtxSetCurrent", driver.set_context);
    find("cuGetErrorName", driver.get_error_name);
}

void find_work_functions(Finder& find, LaunchDriver& driver) {
    find("cuModuleLoadData", driver.load_module);
    find("cuModuleUnload", driver.unload_module);
    find("cuModuleGetFunction", driver.get_function);
    find("cuMemAlloc_v2", driver.allocate);
    find("cuMemFree_v2", driver.release);
    find("cuMemsetD8Async", driver.fill);
    find("cuLaunchKernel", driver.launch);
    find("cuStreamCreate", driver.create_stream);
    find("cuStreamDestroy_v2", driver.destroy_stream);
    find("cuEventCreate", driver.create_event);
    find("cuEventDestroy_v2", driver.destroy_event);
    find("cuEventRecord", driver.record_event);
    find("cuEventQuery", driver.query_event);
    find("cuEventElapsedTime", driver.elapsed_ms);
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
    void* const library = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
    if (library == nullptr) throw GpuError("there is no NVIDIA driver: libcuda.so.1 cannot be loaded");
    LaunchDriver driver;
    Finder find(library);
    find_device_functions(find, driver);
    find_work_functions(find, driver);
    driver.check(driver.initialise(0), "the NVIDIA driver cannot be initialised");
    return driver;
}

}  // namespace gpuprof::cuda
