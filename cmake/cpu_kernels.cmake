# SPDX-License-Identifier: Apache-2.0
# The kernels that measure a processor's ceilings, each file with the flags of its own instruction set. A file
# whose flags the compiler lacks compiles to nothing, and a run picks only what the processor has.
include(CheckCXXCompilerFlag)

add_library(gpuprof_cpu STATIC
    csrc/cpu/amx.cpp
    csrc/cpu/avx2.cpp
    csrc/cpu/avx512.cpp
    csrc/cpu/avx512_bf16.cpp
    csrc/cpu/avx512_fp16.cpp
    csrc/cpu/avx512_vnni.cpp
    csrc/cpu/avx_vnni.cpp
    csrc/cpu/dispatch.cpp
    csrc/cpu/generic.cpp
    csrc/cpu/instruction_sets.cpp
    csrc/cpu/measure.cpp
    csrc/cpu/neon.cpp
    csrc/cpu/team.cpp)
target_link_libraries(gpuprof_cpu PUBLIC gpuprof_core)
gpuprof_warnings(gpuprof_cpu)

function(gpuprof_kernel_flags name)
    string(REPLACE ";" " " flags "${ARGN}")
    string(MAKE_C_IDENTIFIER "GPUPROF_HAS_${name}" variable)
    check_cxx_compiler_flag("${flags}" ${variable})
    if(${variable})
        set_source_files_properties(csrc/cpu/${name}.cpp PROPERTIES COMPILE_OPTIONS "${ARGN}")
    endif()
endfunction()

if(CMAKE_SYSTEM_PROCESSOR MATCHES "^(x86_64|AMD64|amd64)$")
    gpuprof_kernel_flags(avx2 -mavx2 -mfma)
    gpuprof_kernel_flags(avx_vnni -mavx2 -mavxvnni)
    gpuprof_kernel_flags(avx512 -mavx512f)
    gpuprof_kernel_flags(avx512_vnni -mavx512f -mavx512vnni)
    gpuprof_kernel_flags(avx512_bf16 -mavx512f -mavx512bf16)
    gpuprof_kernel_flags(avx512_fp16 -mavx512f -mavx512fp16)
    gpuprof_kernel_flags(amx -mamx-tile -mamx-bf16 -mamx-int8)
endif()
