// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <pybind11/pybind11.h>

namespace gpuprof::bindings {

void bind_record(pybind11::module_& module);
void bind_analysis(pybind11::module_& module);

}  // namespace gpuprof::bindings
