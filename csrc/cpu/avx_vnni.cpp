// SPDX-License-Identifier: Apache-2.0
#include "cpu/lanes.hpp"

#if defined(__AVXVNNI__)
#include <immintrin.h>

namespace gpuprof::cpu {
namespace {

struct Bytes {
    static constexpr unsigned lanes = 8, products = 4;
    using Vector = __m256i;
    using Number = std::int32_t;
    static Vector zero() noexcept { return _mm256_setzero_si256(); }
    // The four bytes of each word are alike.
    static Vector spread(double value) noexcept {
        return _mm256_set1_epi32(static_cast<int>(value) * 0x01010101);
    }
    static Vector dot(Vector sum, Vector a, Vector b) noexcept { return _mm256_dpbusd_avx_epi32(sum, a, b); }
};

constexpr ComputeKernel compute[] = {
    dot_kernel<Bytes, 12>(InstructionSet::avx_vnni, NumberType::int8, "dot product, 12 accumulators"),
};

}  // namespace

constinit const KernelTable avx_vnni_kernels = {compute, 1, nullptr};

}  // namespace gpuprof::cpu

#else

constinit const gpuprof::cpu::KernelTable gpuprof::cpu::avx_vnni_kernels = {nullptr, 0, nullptr};

#endif
