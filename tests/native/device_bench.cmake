# SPDX-License-Identifier: Apache-2.0
# What measures a GPU's ceilings, against stubs of the driver and of its compiler.
add_library(stub_nvrtc SHARED stub_nvrtc.cpp)
gpuprof_warnings(stub_nvrtc)
add_executable(test_device_bench test_device_bench.cpp)
target_link_libraries(test_device_bench PRIVATE gpuprof_check gpuprof_gpu_ceilings ${CMAKE_DL_LIBS})
gpuprof_warnings(test_device_bench)
add_dependencies(test_device_bench stub_cuda stub_nvrtc)
target_compile_definitions(test_device_bench PRIVATE
    STUB_CUDA="$<TARGET_FILE:stub_cuda>"
    STUB_NVRTC="$<TARGET_FILE:stub_nvrtc>")
add_test(NAME device_bench COMMAND test_device_bench)
set_tests_properties(device_bench PROPERTIES TIMEOUT 120 ENVIRONMENT "${gpuprof_sanitizer_options}")
