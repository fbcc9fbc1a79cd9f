// SPDX-License-Identifier: Apache-2.0
#include "core/clock.hpp"

#include <limits>

#if defined(__x86_64__)
#include <cpuid.h>
#endif

namespace gpuprof {
namespace {

ClockKind detect_clock() noexcept {
#if defined(__x86_64__)
    unsigned eax = 0, ebx = 0, ecx = 0, edx = 0;
    // Leaf 0x80000007, EDX bit 8: the counter runs at one rate in every power state.
    if (__get_cpuid(0x80000007u, &eax, &ebx, &ecx, &edx) != 0 && (edx & (1u << 8)) != 0)
        return ClockKind::tsc;
    return ClockKind::monotonic;
#elif defined(__aarch64__)
    return ClockKind::arm_counter;
#else
    return ClockKind::monotonic;
#endif
}

}  // namespace

const ClockKind clock_kind = detect_clock();

std::uint64_t read_slow_ticks() noexcept {
    return static_cast<std::uint64_t>(monotonic_ns());
}

ClockPoint sample_clock() noexcept {
    constexpr int attempts = 16;
    ClockPoint best;
    std::uint64_t tightest = std::numeric_limits<std::uint64_t>::max();
    for (int attempt = 0; attempt < attempts; ++attempt) {
        const std::uint64_t before = read_ticks();
        const std::int64_t now = monotonic_ns();
        const std::uint64_t after = read_ticks();
        if (after - before < tightest) {
            tightest = after - before;
            best = {before + (after - before) / 2, now};
        }
    }
    return best;
}

std::int64_t realtime_ns() noexcept {
    timespec now{};
    clock_gettime(CLOCK_REALTIME, &now);
    return static_cast<std::int64_t>(now.tv_sec) * 1'000'000'000 + now.tv_nsec;
}

TickScale::TickScale(ClockPoint first, ClockPoint last) noexcept : origin_(first) {
    const auto ticks = static_cast<double>(static_cast<std::int64_t>(last.ticks - first.ticks));
    const auto elapsed = static_cast<double>(last.monotonic_ns - first.monotonic_ns);
    if (ticks > 0 && elapsed > 0) ns_per_tick_ = elapsed / ticks;
}

}  // namespace gpuprof
