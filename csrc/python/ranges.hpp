// SPDX-License-Identifier: Apache-2.0
// NVTX as far as Python is concerned: ranges of other libraries in asyncio tasks, and our own spans and
// layers for a tool that is attached.
#pragma once

#include "collect/nvtx_tool.hpp"
#include "python/python_api.hpp"

namespace gpuprof::python {

// Of this module, so that asking costs one load.
inline constinit bool tool_attached = false;

// Announces a range named by a str. Clears whatever error that raises.
void push_range(PyObject* name) noexcept;

}  // namespace gpuprof::python
