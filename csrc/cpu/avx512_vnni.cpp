// SPDX-License-Identifier: Apache-2.0
#include "cpu/lanes.hpp"

#if defined(__AVX512VNNI__)
#include <immintrin.h>

namespace gpuprof::cpu {
namespace {

struct Bytes {
    static constexpr unsigned lanes = 16, products = 4;
    using Vector = __m512i;
    using Number = std::int32_t;
    static Vector zero() noexcept { return _mm512_setzero_si512(); }
    // The four bytes of each word are alike.
    static Vector spread(double value) noexcept {
        return _mm512_set1_epi32(static_cast<int>(value) * 0x01010101);
    }
    static Vector dot(Vector sum, Vector a, Vector b) noexcept { return _mm512_dpbusd_epi32(sum, a, b); }
};

constexpr ComputeKernel compute[] = {
    dot_kernel<Bytes, 24>(InstructionSet::avx512_vnni, NumberType::int8, "dot product, 24 accumulators"),
};

}  // namespace

constinit const KernelTable avx512_vnni_kernels = {compute, 1, nullptr};

}  // namespace gpuprof::cpu

#else

constinit const gpuprof::cpu::KernelTable gpuprof::cpu::avx512_vnni_kernels = {nullptr, 0, nullptr};

#endif
