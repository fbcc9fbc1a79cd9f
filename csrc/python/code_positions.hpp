// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <span>

namespace gpuprof::python {

struct CodePosition {
    std::int32_t line = -1, end_line = -1, column = -1, end_column = -1;  // columns in bytes, from 0
};

// The place in the source of the instruction at `offset` bytes, from `co_linetable` (CPython's
// Objects/locations.md from 3.11 on, PEP 626 before).
CodePosition code_position(std::span<const unsigned char> table, int first_line, int offset) noexcept;

}  // namespace gpuprof::python
