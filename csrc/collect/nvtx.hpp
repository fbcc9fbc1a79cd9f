// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include "core/layout.hpp"

namespace gpuprof::nvtx {

// How many copies of the NVTX header have handed their tables of functions to this library.
unsigned attachments() noexcept;

// Writes an event of a range, on the range's thread, perhaps without the interpreter lock. The language
// binding sets it to notice that the thread has gone on in another asynchronous task.
using RangeEmitter = void (*)(EventKind kind, std::uint32_t name, std::uint64_t ticks) noexcept;
void set_range_emitter(RangeEmitter emitter) noexcept;

}  // namespace gpuprof::nvtx
