// SPDX-License-Identifier: Apache-2.0
#include "cpu/dispatch.hpp"

#include <array>

namespace gpuprof::cpu {
namespace {

// The narrower first.
constexpr std::array<const KernelTable*, 9> tables = {
    &generic_kernels,     &neon_kernels,        &avx2_kernels,        &avx_vnni_kernels, &avx512_kernels,
    &avx512_vnni_kernels, &avx512_bf16_kernels, &avx512_fp16_kernels, &amx_kernels,
};

}  // namespace

std::string_view name_of(NumberType type) noexcept {
    constexpr std::array<std::string_view, 5> names = {"fp64", "fp32", "fp16", "bf16", "int8"};
    return names[static_cast<std::size_t>(type)];
}

std::string_view name_of(Stream stream) noexcept {
    constexpr std::array<std::string_view, stream_count> names = {"read", "copy", "triad",
                                                                  "copy_non_temporal", "triad_non_temporal"};
    return names[static_cast<std::size_t>(stream)];
}

std::vector<const ComputeKernel*> compute_kernels(InstructionSets sets) {
    std::vector<const ComputeKernel*> kernels;
    for (const KernelTable* table : tables)
        for (std::size_t i = 0; i < table->compute_count; ++i)
            if (sets.has(table->compute[i].set)) kernels.push_back(&table->compute[i]);
    return kernels;
}

const StreamKernels& stream_kernels(InstructionSets sets) noexcept {
    const StreamKernels* widest = generic_kernels.streams;
    for (const KernelTable* table : tables)
        if (table->streams != nullptr && sets.has(table->streams->set)) widest = table->streams;
    return *widest;
}

}  // namespace gpuprof::cpu
