# SPDX-License-Identifier: Apache-2.0
# What measures a GPU's ceilings, against stubs of the driver and of its compiler.
add_library(stub_nvrtc SHARED stub_nvrtc.cpp)
gpuprof_warnings(stub_nvrtc)
gpuprof_precompiled(stub_nvrtc SHARED_FROM gpuprof_analysis)
gpuprof_native_test(device_bench gpuprof_gpu_ceilings)
add_dependencies(test_device_bench stub_cuda stub_nvrtc)
target_compile_definitions(test_device_bench PRIVATE
    STUB_CUDA="$<TARGET_FILE:stub_cuda>"
    STUB_NVRTC="$<TARGET_FILE:stub_nvrtc>")
