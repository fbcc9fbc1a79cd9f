// SPDX-License-Identifier: Apache-2.0
#include "cpu/lanes.hpp"

#if defined(__AVX512BF16__)
#include <immintrin.h>

namespace gpuprof::cpu {
namespace {

struct Bf16Pairs {
    static constexpr unsigned lanes = 16, products = 2;
    using Vector = __m512;
    using Number = float;
    static Vector zero() noexcept { return _mm512_setzero_ps(); }
    static __m512bh spread(double value) noexcept {
        const __m512 wide = _mm512_set1_ps(static_cast<float>(value));
        return _mm512_cvtne2ps_pbh(wide, wide);
    }
    static Vector dot(Vector sum, __m512bh a, __m512bh b) noexcept { return _mm512_dpbf16_ps(sum, a, b); }
};

constexpr ComputeKernel compute[] = {
    dot_kernel<Bf16Pairs, 24>(InstructionSet::avx512_bf16, NumberType::bf16, "dot product, 24 accumulators"),
};

}  // namespace

constinit const KernelTable avx512_bf16_kernels = {compute, 1, nullptr};

}  // namespace gpuprof::cpu

#else

constinit const gpuprof::cpu::KernelTable gpuprof::cpu::avx512_bf16_kernels = {nullptr, 0, nullptr};

#endif
