# SPDX-License-Identifier: Apache-2.0
# What measures a GPU's ceilings. Its kernels are carried along as text: they are compiled where the GPU is.
set(gpuprof_ceilings_kernels ${CMAKE_SOURCE_DIR}/csrc/cuda/ceilings.cu)
set_property(DIRECTORY APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS ${gpuprof_ceilings_kernels})
file(READ ${gpuprof_ceilings_kernels} gpuprof_ceilings_text)
configure_file(csrc/cuda/ceilings_source.cpp.in ${CMAKE_CURRENT_BINARY_DIR}/ceilings_source.cpp @ONLY)

add_library(gpuprof_gpu_ceilings STATIC
    ${CMAKE_CURRENT_BINARY_DIR}/ceilings_source.cpp
    csrc/cuda/compiler.cpp
    csrc/cuda/device_bench.cpp
    csrc/cuda/launch_driver.cpp)
target_link_libraries(gpuprof_gpu_ceilings PUBLIC gpuprof_core PRIVATE ${CMAKE_DL_LIBS})
gpuprof_warnings(gpuprof_gpu_ceilings)
gpuprof_precompiled(gpuprof_gpu_ceilings SHARED_FROM gpuprof_analysis)
