# SPDX-License-Identifier: Apache-2.0
# The tests of GPU records. None of them needs a GPU: they run against stub libraries, replayed buffers,
# and, where they are found, NVIDIA's own headers.
add_library(stub_cuda SHARED stub_cuda.cpp stub_driver_work.cpp)
# The name by which the loader asks whether the driver is in the process.
set_target_properties(stub_cuda PROPERTIES OUTPUT_NAME cuda SUFFIX ".so.1")
add_library(stub_cupti_calls OBJECT stub_cupti.cpp)
add_library(stub_cupti SHARED stub_counters.cpp)
add_library(stub_cupti_plain SHARED stub_cupti.cpp)
target_compile_definitions(stub_cupti_plain PRIVATE STUB_WITHOUT_ITERATOR)
# By the name under which PyTorch loads it.
add_library(stub_cupti_13 SHARED)
target_link_libraries(stub_cupti PRIVATE stub_cupti_calls)
target_link_libraries(stub_cupti_13 PRIVATE stub_cupti_calls)
set_target_properties(stub_cupti_13 PROPERTIES OUTPUT_NAME cupti SUFFIX ".so.13")
foreach(stub IN ITEMS stub_cuda stub_cupti_calls stub_cupti stub_cupti_plain stub_cupti_13)
    target_link_libraries(${stub} PRIVATE gpuprof_core)
    gpuprof_warnings(${stub})
    gpuprof_precompiled(${stub} SHARED_FROM gpuprof_analysis)
endforeach()

foreach(subject IN ITEMS counters_abi counters_host counters_stub cupti_abi cupti_fuzz cupti_loader cupti_replay
                         cupti_stub event_timer)
    gpuprof_native_test(${subject})
endforeach()
add_dependencies(test_cupti_stub stub_cuda stub_cupti stub_cupti_plain)
add_dependencies(test_counters_stub stub_cuda stub_cupti)
target_compile_definitions(test_counters_stub PRIVATE
    STUB_CUDA="$<TARGET_FILE:stub_cuda>" STUB_CUPTI="$<TARGET_FILE:stub_cupti>")
add_dependencies(test_cupti_loader stub_cuda stub_cupti stub_cupti_plain stub_cupti_13)
add_dependencies(test_event_timer stub_cuda)
target_compile_definitions(test_cupti_loader PRIVATE
    STUB_CUDA="$<TARGET_FILE:stub_cuda>"
    STUB_CUPTI="$<TARGET_FILE:stub_cupti>"
    STUB_CUPTI_PLAIN="$<TARGET_FILE:stub_cupti_plain>"
    STUB_CUPTI_13="$<TARGET_FILE:stub_cupti_13>")
target_compile_definitions(test_event_timer PRIVATE STUB_CUDA="$<TARGET_FILE:stub_cuda>")
target_compile_definitions(test_cupti_stub PRIVATE
    STUB_CUDA="$<TARGET_FILE:stub_cuda>"
    STUB_CUPTI="$<TARGET_FILE:stub_cupti>"
    STUB_CUPTI_PLAIN="$<TARGET_FILE:stub_cupti_plain>")
target_compile_definitions(test_cupti_replay PRIVATE GOLDEN_FOLDER="${CMAKE_SOURCE_DIR}/tests/golden")

# For a machine with a GPU: what makes captures for the replay, and what tests undocumented behavior of CUPTI. The
# source distribution leaves the first one's folder out.
foreach(program IN ITEMS tests/golden/capture.cpp benchmarks/gpu/probe.cpp)
    if(EXISTS ${CMAKE_SOURCE_DIR}/${program})
        get_filename_component(target ${program} NAME_WE)
        add_executable(cupti_${target} ${CMAKE_SOURCE_DIR}/${program})
        target_include_directories(cupti_${target} PRIVATE ${CMAKE_CURRENT_SOURCE_DIR})
        target_link_libraries(cupti_${target} PRIVATE gpuprof_core ${CMAKE_DL_LIBS})
        gpuprof_warnings(cupti_${target})
        gpuprof_precompiled(cupti_${target} SHARED_FROM test_${gpuprof_first_test})
    endif()
endforeach()

# Both rehearsed against the stubs, which leak what a program's end frees.
if(TARGET cupti_capture AND TARGET cupti_probe AND NOT GPUPROF_SANITIZE)
    set(gpuprof_rehearsal "LD_LIBRARY_PATH=$<TARGET_FILE_DIR:stub_cuda>"
        "GPUPROF_CUPTI_LIBRARY=$<TARGET_FILE:stub_cupti>")
    set(captures ${CMAKE_CURRENT_BINARY_DIR}/rehearsed)
    file(MAKE_DIRECTORY ${captures})
    foreach(case IN ITEMS streams transfers graph dropped forced_flush)
        add_test(NAME cupti_rehearse_${case} COMMAND cupti_capture ${case} ${captures}/${case}.cupti)
        set_tests_properties(cupti_rehearse_${case} PROPERTIES TIMEOUT 300 ENVIRONMENT "${gpuprof_rehearsal}"
                             FIXTURES_SETUP cupti_captures)
    endforeach()
    add_test(NAME cupti_rehearse_replay COMMAND test_cupti_replay captures_of_a_gpu)
    set_tests_properties(cupti_rehearse_replay PROPERTIES TIMEOUT 300 FIXTURES_REQUIRED cupti_captures
                         ENVIRONMENT "GPUPROF_GOLDEN_FOLDER=${captures}")
    foreach(question IN ITEMS timestamp_clock empty_buffers dropped_records flush_while_running graph_clones)
        add_test(NAME cupti_rehearse_${question} COMMAND cupti_probe ${question})
        set_tests_properties(cupti_rehearse_${question} PROPERTIES TIMEOUT 300
                             ENVIRONMENT "${gpuprof_rehearsal}")
    endforeach()
endif()

# The headers of the wheels in the project's environment, else a toolkit's: the first that compile.
include(CheckCXXSourceCompiles)
set(GPUPROF_CUDA_INCLUDES "" CACHE STRING "Folders in which to look for NVIDIA's headers first")
file(GLOB gpuprof_cuda_includes ${GPUPROF_CUDA_INCLUDES} "${CMAKE_SOURCE_DIR}/.venv/lib/python*/site-packages/nvidia/cu13/include"
     "/usr/local/cuda*/include" "/usr/local/cuda*/targets/*/include")
set(gpuprof_cupti_include "")
foreach(folder IN LISTS gpuprof_cuda_includes)
    if(gpuprof_cupti_include OR NOT EXISTS "${folder}/cupti_activity.h")
        continue()
    endif()
    string(MAKE_C_IDENTIFIER "GPUPROF_CUPTI_IN_${folder}" compiles)
    set(CMAKE_REQUIRED_INCLUDES "${folder}")
    check_cxx_source_compiles("#include <cupti_version.h>
        #include <cupti_activity.h>
        #include <cupti_driver_cbid.h>
        int main() { return CUPTI_API_VERSION == 0; }" ${compiles})
    if(${compiles})
        set(gpuprof_cupti_include "${folder}")
    endif()
endforeach()
if(gpuprof_cupti_include)
    foreach(subject IN ITEMS counters_abi counters_host cupti_abi cupti_replay)
        target_include_directories(test_${subject} SYSTEM PRIVATE ${gpuprof_cupti_include})
        target_compile_definitions(test_${subject} PRIVATE WITH_CUPTI_HEADERS)
    endforeach()
    file(GLOB gpuprof_real_cupti "${gpuprof_cupti_include}/../lib*/libcupti.so.1[23]")
    if(gpuprof_real_cupti)
        list(GET gpuprof_real_cupti 0 gpuprof_real_cupti)
        target_compile_definitions(test_cupti_replay PRIVATE REAL_CUPTI="${gpuprof_real_cupti}")
        # CUPTI loads its host library in a way that sanitizers end a program for.
        if(NOT GPUPROF_SANITIZE)
            target_compile_definitions(test_counters_host PRIVATE REAL_CUPTI="${gpuprof_real_cupti}")
        endif()
    endif()
endif()
