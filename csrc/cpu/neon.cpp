// SPDX-License-Identifier: Apache-2.0
#include "cpu/lanes.hpp"

#if defined(__aarch64__)
#include <arm_neon.h>

namespace gpuprof::cpu {
namespace {

struct Doubles {
    static constexpr unsigned lanes = 2;
    using Vector = float64x2_t;
    using Number = double;
    static Vector set(double value) noexcept { return vdupq_n_f64(value); }
    static Vector load(const double* from) noexcept { return vld1q_f64(from); }
    static void store(double* to, Vector value) noexcept { vst1q_f64(to, value); }
    static Vector add(Vector a, Vector b) noexcept { return vaddq_f64(a, b); }
    static Vector multiply_add(Vector a, Vector b, Vector c) noexcept { return vfmaq_f64(c, a, b); }
};

struct Floats {
    static constexpr unsigned lanes = 4;
    using Vector = float32x4_t;
    using Number = float;
    static Vector set(double value) noexcept { return vdupq_n_f32(static_cast<float>(value)); }
    static Vector multiply_add(Vector a, Vector b, Vector c) noexcept { return vfmaq_f32(c, a, b); }
};

constexpr ComputeKernel compute[] = {
    multiply_add_kernel<Doubles, 24>(InstructionSet::neon, NumberType::fp64, "FMA, 24 accumulators"),
    multiply_add_kernel<Floats, 24>(InstructionSet::neon, NumberType::fp32, "FMA, 24 accumulators"),
};

constexpr StreamKernels streams = {
    InstructionSet::neon,
    {&run_read<Doubles>, &run_copy<Doubles, false>, &run_triad<Doubles, false>, nullptr, nullptr}};

}  // namespace

constinit const KernelTable neon_kernels = {compute, sizeof(compute) / sizeof(compute[0]), &streams};

}  // namespace gpuprof::cpu

#else

constinit const gpuprof::cpu::KernelTable gpuprof::cpu::neon_kernels = {nullptr, 0, nullptr};

#endif
