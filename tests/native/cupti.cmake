#SPDX - License - Identifier : Apache - 2.0
#The tests of GPU records.None of them needs a GPU : they run against stub libraries, replayed buffers,
#and, where they are found, NVIDIA's own headers.
add_library(stub_cuda SHARED stub_cuda.cpp)
# The name by which the loader asks whether the driver is in the process.
set_target_properties(stub_cuda PROPERTIES OUTPUT_NAME cuda SUFFIX ".so.1")
add_library(stub_cupti SHARED stub_cupti.cpp)
target_link_libraries(stub_cupti PRIVATE gpuprof_core)
add_library(stub_cupti_plain SHARED stub_cupti.cpp)
target_link_libraries(stub_cupti_plain PRIVATE gpuprof_core)
target_compile_definitions(stub_cupti_plain PRIVATE STUB_WITHOUT_ITERATOR)
foreach(stub IN ITEMS stub_cuda stub_cupti stub_cupti_plain)
    gpuprof_warnings(${stub})
endforeach()

foreach(subject IN ITEMS cupti_abi cupti_fuzz cupti_replay cupti_stub)
    add_executable(test_${subject} test_${subject}.cpp)
    target_link_libraries(test_${subject} PRIVATE gpuprof_check ${CMAKE_DL_LIBS})
    gpuprof_warnings(test_${subject})
    add_test(NAME ${subject} COMMAND test_${subject})
    set_tests_properties(${subject} PROPERTIES TIMEOUT 120 ENVIRONMENT "${gpuprof_sanitizer_options}")
endforeach()
add_dependencies(test_cupti_stub stub_cuda stub_cupti stub_cupti_plain)
target_compile_definitions(test_cupti_stub PRIVATE
    STUB_CUDA="$<TARGET_FILE:stub_cuda>"
    STUB_CUPTI="$<TARGET_FILE:stub_cupti>"
    STUB_CUPTI_PLAIN="$<TARGET_FILE:stub_cupti_plain>")
target_compile_definitions(test_cupti_replay PRIVATE GOLDEN_FOLDER="${CMAKE_SOURCE_DIR}/tests/golden")

#The headers of the wheels in the project 's environment, then a toolkit' s.
file(GLOB gpuprof_nvidia_wheels "${CMAKE_SOURCE_DIR}/.venv/lib/python*/site-packages/nvidia/*/include")
file(GLOB gpuprof_toolkits "/usr/local/cuda*/include" "/usr/local/cuda*/targets/*/include"
     "/usr/local/cuda*/extras/CUPTI/include")
find_path(GPUPROF_CUPTI_INCLUDE cupti_activity.h HINTS ${gpuprof_nvidia_wheels} ${gpuprof_toolkits})
find_path(GPUPROF_CUDA_INCLUDE cuda.h HINTS ${gpuprof_nvidia_wheels} ${gpuprof_toolkits})
if(GPUPROF_CUPTI_INCLUDE AND GPUPROF_CUDA_INCLUDE)
    include(CheckCXXSourceCompiles)
    set(CMAKE_REQUIRED_INCLUDES ${GPUPROF_CUPTI_INCLUDE} ${GPUPROF_CUDA_INCLUDE})
    check_cxx_source_compiles("#include <cupti_version.h>
#include <cupti_activity.h>
#include <cupti_driver_cbid.h>
        int main() {
    return CUPTI_API_VERSION == 0; }" GPUPROF_HAS_CUPTI_HEADERS)
endif()
if(GPUPROF_HAS_CUPTI_HEADERS)
    foreach(subject IN ITEMS cupti_abi cupti_replay)
        target_include_directories(test_${subject} SYSTEM PRIVATE ${CMAKE_REQUIRED_INCLUDES})
        target_compile_definitions(test_${subject} PRIVATE WITH_CUPTI_HEADERS)
    endforeach()
    find_library(GPUPROF_REAL_CUPTI NAMES libcupti.so.13 libcupti.so.12
                 HINTS ${GPUPROF_CUPTI_INCLUDE}/../lib ${GPUPROF_CUPTI_INCLUDE}/../lib64)
    if(GPUPROF_REAL_CUPTI)
        target_compile_definitions(test_cupti_replay PRIVATE REAL_CUPTI="${GPUPROF_REAL_CUPTI}")
    endif()
endif()
