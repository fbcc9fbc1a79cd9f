// SPDX-License-Identifier: Apache-2.0
#include "cpu/lanes.hpp"

#if defined(__AVX512FP16__)
#include <immintrin.h>

namespace gpuprof::cpu {
namespace {

struct Halves {
    static constexpr unsigned lanes = 32;
    using Vector = __m512h;
    using Number = _Float16;
    static Vector set(double value) noexcept { return _mm512_set1_ph(static_cast<_Float16>(value)); }
    static Vector multiply_add(Vector a, Vector b, Vector c) noexcept { return _mm512_fmadd_ph(a, b, c); }
};

constexpr ComputeKernel compute[] = {
    multiply_add_kernel<Halves, 24>(InstructionSet::avx512_fp16, NumberType::fp16, "FMA, 24 accumulators"),
};

}  // namespace

constinit const KernelTable avx512_fp16_kernels = {compute, 1, nullptr};

}  // namespace gpuprof::cpu

#else

constinit const gpuprof::cpu::KernelTable gpuprof::cpu::avx512_fp16_kernels = {nullptr, 0, nullptr};

#endif
