// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string_view>

namespace gpuprof {

// How a name that PyTorch announced is to be understood, decided once per name.
// Adding to a parameter's gradient is an evaluation of the backward pass, too.
enum class NameClass : std::uint8_t { plain, qualified, backward, accumulation, bookkeeping };
NameClass classify_name(std::string_view name) noexcept;

}  // namespace gpuprof
