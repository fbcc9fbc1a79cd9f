// SPDX-License-Identifier: Apache-2.0
// Chooses kernels by what the processor may execute.
#pragma once

#include <string_view>
#include <vector>

#include "cpu/kernels.hpp"

namespace gpuprof::cpu {

std::string_view name_of(NumberType type) noexcept;
std::string_view name_of(Stream stream) noexcept;

// Every kernel that was built and that `sets` allows, the narrower first.
std::vector<const ComputeKernel*> compute_kernels(InstructionSets sets);

// The widest that `sets` allows; there is always one.
const StreamKernels& stream_kernels(InstructionSets sets) noexcept;

}  // namespace gpuprof::cpu
