// SPDX-License-Identifier: Apache-2.0
// Stands in for libcuda.so.1: says what the tests tell it to.
#include <atomic>

namespace {
std::atomic<int> initialized{0};
std::atomic<int> version{13000};
std::atomic<int> devices{1};
}  // namespace

extern "C" {
__attribute__((visibility("default"))) void stub_cuda_set(int is_initialized, int supported, int count) {
    initialized = is_initialized;
    version = supported;
    devices = count;
}
__attribute__((visibility("default"))) int cuInit(unsigned) {
    initialized = 1;
    return 0;
}
__attribute__((visibility("default"))) int cuDriverGetVersion(int* number) {
    *number = version;
    return 0;
}
__attribute__((visibility("default"))) int cuDeviceGetCount(int* count) {
    if (initialized == 0) return 3;
    *count = devices;
    return 0;
}
}
