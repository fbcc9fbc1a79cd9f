// SPDX-License-Identifier: Apache-2.0
#include "cpu/lanes.hpp"

#if defined(__AVX512F__)
#include <immintrin.h>

namespace gpuprof::cpu {
namespace {

struct Doubles {
    static constexpr unsigned lanes = 8;
    using Vector = __m512d;
    using Number = double;
    static Vector set(double value) noexcept { return _mm512_set1_pd(value); }
    static Vector load(const double* from) noexcept { return _mm512_load_pd(from); }
    static void store(double* to, Vector value) noexcept { _mm512_store_pd(to, value); }
    static void stream(double* to, Vector value) noexcept { _mm512_stream_pd(to, value); }
    static void drain() noexcept { _mm_sfence(); }
    static Vector add(Vector a, Vector b) noexcept { return _mm512_add_pd(a, b); }
    static Vector multiply_add(Vector a, Vector b, Vector c) noexcept { return _mm512_fmadd_pd(a, b, c); }
};

struct Floats {
    static constexpr unsigned lanes = 16;
    using Vector = __m512;
    using Number = float;
    static Vector set(double value) noexcept { return _mm512_set1_ps(static_cast<float>(value)); }
    static Vector multiply_add(Vector a, Vector b, Vector c) noexcept { return _mm512_fmadd_ps(a, b, c); }
};

constexpr ComputeKernel compute[] = {
    multiply_add_kernel<Doubles, 24>(InstructionSet::avx512, NumberType::fp64, "FMA, 24 accumulators"),
    multiply_add_kernel<Floats, 24>(InstructionSet::avx512, NumberType::fp32, "FMA, 24 accumulators"),
};

constexpr StreamKernels streams = {InstructionSet::avx512,
                                   {&run_read<Doubles>, &run_copy<Doubles, false>, &run_triad<Doubles, false>,
                                    &run_copy<Doubles, true>, &run_triad<Doubles, true>}};

}  // namespace

constinit const KernelTable avx512_kernels = {compute, sizeof(compute) / sizeof(compute[0]), &streams};

}  // namespace gpuprof::cpu

#else

constinit const gpuprof::cpu::KernelTable gpuprof::cpu::avx512_kernels = {nullptr, 0, nullptr};

#endif
