// SPDX-License-Identifier: Apache-2.0
#include "cpu/lanes.hpp"

#if defined(__AVX2__) && defined(__FMA__)
#include <immintrin.h>

namespace gpuprof::cpu {
namespace {

struct Doubles {
    static constexpr unsigned lanes = 4;
    using Vector = __m256d;
    using Number = double;
    static Vector set(double value) noexcept { return _mm256_set1_pd(value); }
    static Vector load(const double* from) noexcept { return _mm256_load_pd(from); }
    static void store(double* to, Vector value) noexcept { _mm256_store_pd(to, value); }
    static void stream(double* to, Vector value) noexcept { _mm256_stream_pd(to, value); }
    static void drain() noexcept { _mm_sfence(); }
    static Vector add(Vector a, Vector b) noexcept { return _mm256_add_pd(a, b); }
    static Vector multiply_add(Vector a, Vector b, Vector c) noexcept { return _mm256_fmadd_pd(a, b, c); }
};

struct Floats {
    static constexpr unsigned lanes = 8;
    using Vector = __m256;
    using Number = float;
    static Vector set(double value) noexcept { return _mm256_set1_ps(static_cast<float>(value)); }
    static Vector multiply_add(Vector a, Vector b, Vector c) noexcept { return _mm256_fmadd_ps(a, b, c); }
};

constexpr ComputeKernel compute[] = {
    multiply_add_kernel<Doubles, 12>(InstructionSet::avx2, NumberType::fp64, "FMA, 12 accumulators"),
    multiply_add_kernel<Floats, 12>(InstructionSet::avx2, NumberType::fp32, "FMA, 12 accumulators"),
};

constexpr StreamKernels streams = {InstructionSet::avx2,
                                   {&run_read<Doubles>, &run_copy<Doubles, false>, &run_triad<Doubles, false>,
                                    &run_copy<Doubles, true>, &run_triad<Doubles, true>}};

}  // namespace

constinit const KernelTable avx2_kernels = {compute, sizeof(compute) / sizeof(compute[0]), &streams};

}  // namespace gpuprof::cpu

#else

constinit const gpuprof::cpu::KernelTable gpuprof::cpu::avx2_kernels = {nullptr, 0, nullptr};

#endif
