# SPDX-License-Identifier: Apache-2.0
# The tests of GPU records. None of them needs a GPU: they run against stub libraries, replayed buffers,
# and, where they are found, NVIDIA's own headers.
add_library(stub_cuda SHARED stub_cuda.cpp)
# The name by which the loader asks whether the driver is in the process.
set_target_properties(stub_cuda PROPERTIES OUTPUT_NAME cuda SUFFIX ".so.1")
add_library(stub_cupti SHARED stub_cupti.cpp)
add_library(stub_cupti_plain SHARED stub_cupti.cpp)
target_compile_definitions(stub_cupti_plain PRIVATE STUB_WITHOUT_ITERATOR)
foreach(stub IN ITEMS stub_cuda stub_cupti stub_cupti_plain)
    target_link_libraries(${stub} PRIVATE gpuprof_core)
    gpuprof_warnings(${stub})
endforeach()

foreach(subject IN ITEMS cupti_abi cupti_fuzz cupti_replay cupti_stub event_timer)
    add_executable(test_${subject} test_${subject}.cpp)
    target_link_libraries(test_${subject} PRIVATE gpuprof_check ${CMAKE_DL_LIBS})
    gpuprof_warnings(test_${subject})
    add_test(NAME ${subject} COMMAND test_${subject})
    set_tests_properties(${subject} PROPERTIES TIMEOUT 120 ENVIRONMENT "${gpuprof_sanitizer_options}")
endforeach()
add_dependencies(test_cupti_stub stub_cuda stub_cupti stub_cupti_plain)
add_dependencies(test_event_timer stub_cuda)
target_compile_definitions(test_event_timer PRIVATE STUB_CUDA="$<TARGET_FILE:stub_cuda>")
target_compile_definitions(test_cupti_stub PRIVATE
    STUB_CUDA="$<TARGET_FILE:stub_cuda>"
    STUB_CUPTI="$<TARGET_FILE:stub_cupti>"
    STUB_CUPTI_PLAIN="$<TARGET_FILE:stub_cupti_plain>")
target_compile_definitions(test_cupti_replay PRIVATE GOLDEN_FOLDER="${CMAKE_SOURCE_DIR}/tests/golden")

# Makes a capture for the replay, on a machine with a GPU. The source distribution leaves the folder out.
if(EXISTS ${CMAKE_SOURCE_DIR}/tests/golden/capture.cpp)
    add_executable(cupti_capture ${CMAKE_SOURCE_DIR}/tests/golden/capture.cpp)
    target_link_libraries(cupti_capture PRIVATE gpuprof_core ${CMAKE_DL_LIBS})
    gpuprof_warnings(cupti_capture)
endif()

# The headers of the wheels in the project's environment, else a toolkit's: the first that compile.
include(CheckCXXSourceCompiles)
file(GLOB gpuprof_cuda_includes "${CMAKE_SOURCE_DIR}/.venv/lib/python*/site-packages/nvidia/cu13/include"
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
    foreach(subject IN ITEMS cupti_abi cupti_replay)
        target_include_directories(test_${subject} SYSTEM PRIVATE ${gpuprof_cupti_include})
        target_compile_definitions(test_${subject} PRIVATE WITH_CUPTI_HEADERS)
    endforeach()
    file(GLOB gpuprof_real_cupti "${gpuprof_cupti_include}/../lib*/libcupti.so.1[23]")
    if(gpuprof_real_cupti)
        list(GET gpuprof_real_cupti 0 gpuprof_real_cupti)
        target_compile_definitions(test_cupti_replay PRIVATE REAL_CUPTI="${gpuprof_real_cupti}")
    endif()
endif()
