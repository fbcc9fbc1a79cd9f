// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <pybind11/pybind11.h>

#include <string>
#include <system_error>

#include "core/reason.hpp"

namespace gpuprof::bindings {

// For what is a path, or may name one: its bytes need not be text.
pybind11::object path_text(const std::string& path);

// None, or the code of a reason with the values that it has.
pybind11::object reason_or_none(const Reason& reason);

// Raises the OSError of `error`; its class depends on the error number.
[[noreturn]] void throw_os_error(const std::system_error& error, const std::string& path);

void bind_record(pybind11::module_& module);
void bind_gpu(pybind11::module_& module);
void bind_gpu_ceilings(pybind11::module_& module);
void bind_counters(pybind11::module_& module);
void bind_autograd(pybind11::module_& module);
void bind_analysis(pybind11::module_& module);
void bind_bench(pybind11::module_& module);
void bind_ceilings(pybind11::module_& module);
void bind_load(pybind11::module_& module);
void bind_queue(pybind11::module_& module);
void bind_replay(pybind11::module_& module);
void bind_span_nodes(pybind11::module_& module);
void bind_stacks(pybind11::module_& module);
void bind_traces(pybind11::module_& module);

}  // namespace gpuprof::bindings
