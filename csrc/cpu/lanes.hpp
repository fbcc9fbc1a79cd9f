// SPDX-License-Identifier: Apache-2.0
// Kernels over any vector type, for the files of kernels alone. All of it has internal linkage: each file
// compiles its own copy with its own flags.
#pragma once

#include <cstddef>
#include <cstdint>

#include "cpu/kernels.hpp"

namespace gpuprof::cpu {
namespace {

// The sum of a vector's numbers.
template <typename Number, typename Vector>
[[maybe_unused]] double total_of(const Vector& value) noexcept {
    Number parts[sizeof(Vector) / sizeof(Number)];
    __builtin_memcpy(parts, &value, sizeof(value));
    double sum = 0;
    for (const Number part : parts) sum += static_cast<double>(part);
    return sum;
}

// The trip counts are constants and the bodies are small: every optimizing compiler keeps `sum` in
// registers. `V` gives Vector, Number, lanes, set, add,
// multiply_add, load, store, stream and drain.
template <typename V, unsigned accumulators>
[[maybe_unused]] double run_multiply_add(std::uint64_t rounds, double factor, double term) noexcept {
    typename V::Vector sum[accumulators];
    for (auto& each : sum) each = V::set(0);
    const auto scale = V::set(factor), addend = V::set(term);
    for (std::uint64_t round = 0; round < rounds; ++round) {
#pragma GCC unroll 32
        for (unsigned i = 0; i < accumulators; ++i) sum[i] = V::multiply_add(sum[i], scale, addend);
    }
    double total = 0;
    for (const auto& each : sum) total += total_of<typename V::Number>(each);
    return total;
}

// `V` gives Vector and Number (the accumulator's), lanes, products, zero, spread and dot.
template <typename V, unsigned accumulators>
[[maybe_unused]] double run_dot(std::uint64_t rounds, double factor, double term) noexcept {
    typename V::Vector sum[accumulators];
    for (auto& each : sum) each = V::zero();
    const auto left = V::spread(factor);
    const auto right = V::spread(term);
    for (std::uint64_t round = 0; round < rounds; ++round) {
#pragma GCC unroll 32
        for (unsigned i = 0; i < accumulators; ++i) sum[i] = V::dot(sum[i], left, right);
    }
    double total = 0;
    for (const auto& each : sum) total += total_of<typename V::Number>(each);
    return total;
}

// A compiler barrier: memory may have changed, so a pass is not merged with the next, and a loop over a
// copy does not become a call of memcpy, whose stores are of a kind of its own choice.
[[maybe_unused]] inline void touch_memory() noexcept {
    __asm__ volatile("" ::: "memory");
}

// Four places at once: what fetches ahead stops at the end of a page, and one place alone would wait there.
template <typename V>
[[maybe_unused]] double run_read(const Arrays& arrays, std::uint64_t passes) noexcept {
    constexpr unsigned places = 4, width = 2;
    static_assert(Arrays::step % (places * width * V::lanes) == 0);
    const std::size_t part = arrays.count / places;
    double total = 0;
    for (std::uint64_t pass = 0; pass < passes; ++pass) {
        typename V::Vector sum[places * width];
        for (auto& each : sum) each = V::set(0);
        for (std::size_t at = 0; at < part; at += width * V::lanes) {
#pragma GCC unroll 8
            for (unsigned i = 0; i < places * width; ++i)
                sum[i] = V::add(sum[i], V::load(arrays.first + at + i / width * part + i % width * V::lanes));
        }
        total = 0;
        for (const auto& each : sum) total += total_of<typename V::Number>(each);
        touch_memory();
    }
    return total;
}

template <typename V, bool non_temporal>
inline void write(double* to, typename V::Vector value) noexcept {
    if constexpr (non_temporal)
        V::stream(to, value);
    else
        V::store(to, value);
}

template <typename V, bool non_temporal>
[[maybe_unused]] double run_copy(const Arrays& arrays, std::uint64_t passes) noexcept {
    const Arrays own = arrays;
    for (std::uint64_t pass = 0; pass < passes; ++pass)
        for (std::size_t at = 0; at < own.count; at += 4 * V::lanes) {
#pragma GCC unroll 4
            for (unsigned i = 0; i < 4; ++i) {
                const std::size_t place = at + i * V::lanes;
                write<V, non_temporal>(own.target + place, V::load(own.first + place));
            }
            touch_memory();
        }
    if constexpr (non_temporal) V::drain();
    return 0;
}

template <typename V, bool non_temporal>
[[maybe_unused]] double run_triad(const Arrays& arrays, std::uint64_t passes) noexcept {
    const Arrays own = arrays;
    const auto factor = V::set(own.factor);
    for (std::uint64_t pass = 0; pass < passes; ++pass)
        for (std::size_t at = 0; at < own.count; at += 4 * V::lanes) {
#pragma GCC unroll 4
            for (unsigned i = 0; i < 4; ++i) {
                const std::size_t place = at + i * V::lanes;
                const auto value =
                    V::multiply_add(V::load(own.second + place), factor, V::load(own.first + place));
                write<V, non_temporal>(own.target + place, value);
            }
            touch_memory();
        }
    if constexpr (non_temporal) V::drain();
    return 0;
}

template <typename V, unsigned accumulators>
constexpr ComputeKernel multiply_add_kernel(InstructionSet set, NumberType type,
                                            const char* method) noexcept {
    return {set, type, accumulators * V::lanes, 1, method, &run_multiply_add<V, accumulators>};
}

template <typename V, unsigned accumulators>
constexpr ComputeKernel dot_kernel(InstructionSet set, NumberType type, const char* method) noexcept {
    return {set, type, accumulators * V::lanes, V::products, method, &run_dot<V, accumulators>};
}

}  // namespace
}  // namespace gpuprof::cpu
