# SPDX-License-Identifier: Apache-2.0
# Most of the time of a build goes into reading headers, once for each file. An install compiles several files
# as one; developers compile each by itself, which shows what it forgot to include and rebuilds less.
option(GPUPROF_UNITY "Compile several files at once" OFF)

# EXCEPT names files whose names would be ambiguous among those of others.
function(gpuprof_unity target)
    cmake_parse_arguments(PARSE_ARGV 1 unity "" "BATCH" "EXCEPT")
    if(NOT GPUPROF_UNITY)
        return()
    endif()
    set_target_properties(${target} PROPERTIES UNITY_BUILD ON UNITY_BUILD_BATCH_SIZE ${unity_BATCH})
    set_source_files_properties(${unity_EXCEPT} PROPERTIES SKIP_UNITY_BUILD_INCLUSION ON)
endfunction()
