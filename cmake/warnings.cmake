# SPDX-License-Identifier: Apache-2.0
function(gpuprof_warnings target)
    target_compile_options(${target} PRIVATE -Wall -Wextra -Wpedantic -Wshadow -Wconversion -Wsign-conversion
                                             -Wnull-dereference
                                             $<$<COMPILE_LANGUAGE:CXX>:-Wnon-virtual-dtor;-Wold-style-cast>)
    if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU" AND CMAKE_CXX_COMPILER_VERSION VERSION_LESS 13)
        # GCC 12 warns of std::string's own operator+ (its bug 105651).
        target_compile_options(${target} PRIVATE -Wno-restrict)
    endif()
    if(GPUPROF_WERROR)
        target_compile_options(${target} PRIVATE -Werror)
    endif()
endfunction()
