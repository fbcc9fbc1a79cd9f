# SPDX-License-Identifier: Apache-2.0
find_package(Python REQUIRED COMPONENTS Interpreter Development.Module)
find_package(pybind11 CONFIG REQUIRED)

pybind11_add_module(_native
    csrc/bindings/module.cpp
    csrc/bindings/bind_analysis.cpp
    csrc/bindings/bind_autograd.cpp
    csrc/bindings/bind_bench.cpp
    csrc/bindings/bind_ceilings.cpp
    csrc/bindings/bind_counters.cpp
    csrc/bindings/bind_gpu.cpp
    csrc/bindings/bind_gpu_ceilings.cpp
    csrc/bindings/bind_load.cpp
    csrc/bindings/bind_queue.cpp
    csrc/bindings/bind_record.cpp
    csrc/bindings/bind_replay.cpp
    csrc/bindings/bind_span_nodes.cpp
    csrc/bindings/bind_stacks.cpp
    csrc/bindings/bind_traces.cpp
    csrc/python/call_loop.cpp
    csrc/python/code_names.cpp
    csrc/python/code_positions.cpp
    csrc/python/context.cpp
    csrc/python/fork_pauses.cpp
    csrc/python/frame_reader.cpp
    csrc/python/interpreter_layout.c
    csrc/python/layer_timing.cpp
    csrc/python/layers.cpp
    csrc/python/own_memory.cpp
    csrc/python/pauses.cpp
    csrc/python/profiler_state.cpp
    csrc/python/quiet_call.cpp
    csrc/python/ranges.cpp
    csrc/python/span.cpp
    csrc/python/span_events.cpp
    csrc/python/stack_file.cpp
    csrc/python/stack_sampler.cpp
    csrc/python/thread_usage.cpp
    csrc/python/outermost_calls.cpp
    csrc/python/watched_calls.cpp)
target_link_libraries(_native PRIVATE gpuprof_analysis gpuprof_load gpuprof_cpu gpuprof_gpu_ceilings)
target_compile_definitions(_native PRIVATE
    GPUPROF_VERSION="${SKBUILD_PROJECT_VERSION}"
    GPUPROF_COMPILER="${CMAKE_CXX_COMPILER_ID} ${CMAKE_CXX_COMPILER_VERSION}"
    GPUPROF_BUILD_TYPE="${CMAKE_BUILD_TYPE}")
gpuprof_warnings(_native)
gpuprof_unity(_native BATCH 9)
# CPython's own macros cast the old way.
target_compile_options(_native PRIVATE $<$<COMPILE_LANGUAGE:CXX>:-Wno-old-style-cast>)

if(APPLE)
    set(gpuprof_origin "@loader_path")
else()
    set(gpuprof_origin "$ORIGIN")
endif()
set_target_properties(_native PROPERTIES INSTALL_RPATH "${gpuprof_origin}" BUILD_RPATH "${gpuprof_origin}")
install(TARGETS _native gpuprof_core DESTINATION gpuprof)
# What `gpuprof demo` records.
install(FILES ${CMAKE_SOURCE_DIR}/examples/transformer.py DESTINATION gpuprof/examples)
