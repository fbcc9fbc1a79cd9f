# SPDX-License-Identifier: Apache-2.0
if(GPUPROF_SANITIZE)
    add_compile_options(-fsanitize=${GPUPROF_SANITIZE} -fno-omit-frame-pointer -g)
    add_link_options(-fsanitize=${GPUPROF_SANITIZE})
    if(GPUPROF_SANITIZE STREQUAL "thread" AND CMAKE_CXX_COMPILER_ID STREQUAL "GNU")
        # The recorder orders a stop by a process-wide barrier, which the sanitizer cannot see; its
        # atomics alone are free of races as C++ defines them.
        add_compile_options(-Wno-tsan)
    endif()
endif()
