# SPDX-License-Identifier: Apache-2.0
# The native tests are many small programs that each read the same headers, which takes longer than all the
# rest of their build. Users build without it: there each file must name what it includes.
option(GPUPROF_PRECOMPILED_HEADERS "Compile the common headers once" OFF)

# The first target of a kind compiles them; the others, whose compiler options are the same, share them.
function(gpuprof_precompiled target)
    cmake_parse_arguments(PARSE_ARGV 1 precompiled "" "SHARED_FROM" "HEADERS")
    if(NOT GPUPROF_PRECOMPILED_HEADERS)
        return()
    endif()
    if(precompiled_SHARED_FROM)
        target_precompile_headers(${target} REUSE_FROM ${precompiled_SHARED_FROM})
        return()
    endif()
    target_precompile_headers(${target} PRIVATE
        <algorithm> <array> <atomic> <cstdint> <cstring> <filesystem> <functional> <map> <memory> <mutex> <set>
        <span> <stdexcept> <string> <string_view> <system_error> <thread> <unordered_map> <vector>
        ${precompiled_HEADERS})
endfunction()
