// SPDX-License-Identifier: Apache-2.0
// What every processor of the architecture can do: vectors of 16 bytes through the compiler's own vectors.
#include "cpu/lanes.hpp"

#if defined(__x86_64__)
#include <emmintrin.h>
#endif

namespace gpuprof::cpu {
namespace {

template <typename T>
struct Generic {
    static constexpr unsigned lanes = 16 / sizeof(T);
    using Number = T;
    using Vector __attribute__((vector_size(16), may_alias)) = T;

    static Vector set(double value) noexcept { return static_cast<T>(value) - Vector{}; }
    static Vector load(const T* from) noexcept { return *reinterpret_cast<const Vector*>(from); }
    static void store(T* to, Vector value) noexcept { *reinterpret_cast<Vector*>(to) = value; }
    static Vector add(Vector a, Vector b) noexcept { return a + b; }
    static Vector multiply_add(Vector a, Vector b, Vector c) noexcept { return a * b + c; }
#if defined(__x86_64__)
    static void stream(double* to, Vector value) noexcept {
        _mm_stream_pd(to, reinterpret_cast<__m128d>(value));
    }
    static void drain() noexcept { _mm_sfence(); }
#endif
};

constexpr ComputeKernel compute[] = {
    multiply_add_kernel<Generic<double>, 12>(InstructionSet::generic, NumberType::fp64,
                                             "multiply and add, 12 accumulators"),
    multiply_add_kernel<Generic<float>, 12>(InstructionSet::generic, NumberType::fp32,
                                            "multiply and add, 12 accumulators"),
};

using Numbers = Generic<double>;
constexpr StreamKernels streams = {InstructionSet::generic,
                                   {&run_read<Numbers>, &run_copy<Numbers, false>, &run_triad<Numbers, false>,
#if defined(__x86_64__)
                                    &run_copy<Numbers, true>, &run_triad<Numbers, true>
#else
                                    nullptr, nullptr
#endif
                                   }};

}  // namespace

constinit const KernelTable generic_kernels = {compute, sizeof(compute) / sizeof(compute[0]), &streams};

bool run_chain(std::uint64_t rounds) noexcept {
    // Between registers: some processors add small constants for free.
#if defined(__x86_64__)
    std::uint64_t sum = 0;
    const std::uint64_t one = 1;
    for (std::uint64_t round = 0; round < rounds; ++round)
        __asm__ volatile(".rept 64\n\taddq %1, %0\n\t.endr" : "+r"(sum) : "r"(one));
    return true;
#elif defined(__aarch64__)
    std::uint64_t sum = 0;
    const std::uint64_t one = 1;
    for (std::uint64_t round = 0; round < rounds; ++round)
        __asm__ volatile(".rept 64\n\tadd %0, %0, %1\n\t.endr" : "+r"(sum) : "r"(one));
    return true;
#else
    static_cast<void>(rounds);
    return false;
#endif
}

}  // namespace gpuprof::cpu
