// SPDX-License-Identifier: Apache-2.0
// The announcing side of NVTX: gpuprof's own spans and layers, for another tool such as Nsight Systems.
#pragma once

#include "core/reason.hpp"

namespace gpuprof::nvtx {

// Loads the tool's library and attaches to it, once in a process: later calls return the first one's
// result, which is why there is nothing to announce to. Not thread-safe.
const Reason& attach_tool(const char* path) noexcept;

// Push and pop ranges of the calling thread, in the domain "gpuprof". A tool must be attached.
void push_range(const char* utf8) noexcept;
void pop_range() noexcept;

}  // namespace gpuprof::nvtx
