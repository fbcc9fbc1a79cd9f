// SPDX-License-Identifier: Apache-2.0
// The kernels whose speed is a ceiling, and the choice among them.
//
// Each file of kernels is compiled with the flags of its own instruction set. It must hold nothing that the
// linker could share with other files (inline functions, templates of the standard library): the shared copy
// might be the one that lesser processors cannot execute.
#pragma once

#include <cstddef>
#include <cstdint>

#include "cpu/instruction_sets.hpp"

namespace gpuprof::cpu {

enum class NumberType : std::uint8_t { fp64, fp32, fp16, bf16, int8 };

// A round changes each of `lanes` independent accumulators, which start at 0, once: by
// x = x * factor + term where `products` is 1, else by x = x + products * factor * term.
struct ComputeKernel {
    InstructionSet set;
    NumberType type;
    std::uint32_t lanes;
    std::uint32_t products;
    const char* method;
    // Returns the sum of the accumulators.
    double (*run)(std::uint64_t rounds, double factor, double term) noexcept;

    // A multiply-add is two.
    constexpr double operations_per_round() const noexcept { return 2.0 * lanes * products; }
};

enum class Stream : std::uint8_t { read, copy, triad, copy_non_temporal, triad_non_temporal };
inline constexpr std::size_t stream_count = 5;

// `count` is a multiple of Arrays::step, and the arrays begin at cache lines.
struct Arrays {
    static constexpr std::size_t step = 64;
    double* target;
    const double* first;
    const double* second;
    std::size_t count;
    double factor;
};

// read sums first; copy is target = first; triad is target = first + factor * second. Non-temporal stores go
// past the caches, and no line is read before it is written.
struct StreamKernels {
    InstructionSet set;
    // In the order of Stream; null where the set has no such stores. Read returns the sum of one pass.
    double (*run[stream_count])(const Arrays& arrays, std::uint64_t passes) noexcept;
};

// What one file offers: nothing where its compiler had not the flags.
struct KernelTable {
    const ComputeKernel* compute;
    std::size_t compute_count;
    const StreamKernels* streams;
};

extern const KernelTable generic_kernels, neon_kernels, avx2_kernels, avx_vnni_kernels, avx512_kernels,
    avx512_vnni_kernels, avx512_bf16_kernels, avx512_fp16_kernels, amx_kernels;

// Adds one to a register again and again, each addition waiting for the one before: `rounds` times
// `chain_length` cycles of a core. False where this processor has no such chain here.
inline constexpr std::uint32_t chain_length = 64;
bool run_chain(std::uint64_t rounds) noexcept;

}  // namespace gpuprof::cpu
