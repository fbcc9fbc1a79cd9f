// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>

namespace gpuprof::python {

using Address = std::uintptr_t;

// Copies memory of this process that other threads may change or unmap meanwhile: the kernel copies it, and
// an address that is not mapped is an error, never a signal.

// Whether all of it could be copied.
bool read_memory(Address from, void* to, std::size_t bytes) noexcept;

template <typename Value>
bool read_value(Address from, Value& to) noexcept {
    return read_memory(from, &to, sizeof(Value));
}

struct MemoryPiece {
    Address from;
    void* to;
    std::size_t bytes;
};

// Copies at most 8 pieces in this order by one call of the kernel, so with little time between them. Whether
// all could be copied.
bool read_in_order(std::span<const MemoryPiece> pieces) noexcept;

// Copies `bytes` from each address to places `bytes` apart; returns how many were copied before one failed.
std::size_t read_pieces(std::span<const Address> from, std::byte* to, std::size_t bytes) noexcept;

// A field of a copied structure.
template <typename Value>
Value field(const std::byte* copy, long offset) noexcept {
    Value value;
    std::memcpy(&value, copy + offset, sizeof value);
    return value;
}

// 0, or the error number with which the kernel refuses such copies (a seccomp filter may).
int memory_error() noexcept;

}  // namespace gpuprof::python
