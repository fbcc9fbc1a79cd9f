// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cstdint>
#include <ctime>

#if defined(__x86_64__) || defined(_M_X64)
#include <x86intrin.h>
#endif

namespace gpuprof {

enum class ClockKind : std::uint32_t { monotonic = 0, tsc = 1, arm_counter = 2 };

// One instant, read on the tick counter and on the monotonic clock.
struct ClockPoint {
    std::uint64_t ticks = 0;
    std::int64_t monotonic_ns = 0;
};

extern const ClockKind clock_kind;

inline std::int64_t monotonic_ns() noexcept {
    timespec now{};
    clock_gettime(CLOCK_MONOTONIC, &now);
    return static_cast<std::int64_t>(now.tv_sec) * 1'000'000'000 + now.tv_nsec;
}

// What this thread has spent on a processor.
inline std::int64_t thread_processor_ns() noexcept {
    timespec now{};
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
    return static_cast<std::int64_t>(now.tv_sec) * 1'000'000'000 + now.tv_nsec;
}

// The counter of a machine that has none at a steady rate. Out of line: it would cost the others registers.
std::uint64_t read_slow_ticks() noexcept;

// rdtsc without a fence: 10 ns instead of rdtscp's 19, and what may slip past it is a few instructions.
inline std::uint64_t read_ticks() noexcept {
#if defined(__aarch64__)
    std::uint64_t ticks;
    asm volatile("mrs %0, cntvct_el0" : "=r"(ticks));
    return ticks;
#else
#if defined(__x86_64__) || defined(_M_X64)
    if (clock_kind == ClockKind::tsc) [[likely]]
        return __rdtsc();
#endif
    return read_slow_ticks();
#endif
}

// Both clocks at one instant: the tightest of several brackets, so that a preemption cannot skew it.
ClockPoint sample_clock() noexcept;

std::int64_t realtime_ns() noexcept;

// Ticks to monotonic nanoseconds through two points of one counter.
class TickScale {
  public:
    TickScale(ClockPoint first, ClockPoint last) noexcept;
    // Ticks of another machine or of damaged files may be anything: times stop 73 years from the origin.
    std::int64_t to_monotonic_ns(std::uint64_t ticks) const noexcept {
        constexpr double farthest_ns = 0x1p61;
        const auto delta = static_cast<double>(static_cast<std::int64_t>(ticks - origin_.ticks));
        return origin_.monotonic_ns +
               static_cast<std::int64_t>(std::clamp(delta * ns_per_tick_, -farthest_ns, farthest_ns));
    }
    double ns_per_tick() const noexcept { return ns_per_tick_; }

  private:
    ClockPoint origin_;
    double ns_per_tick_ = 1.0;
};

}  // namespace gpuprof
