// SPDX-License-Identifier: Apache-2.0
#include "cupti/clock_check.hpp"

#include <cstdlib>

#include "core/clock.hpp"

namespace gpuprof::cupti {

std::optional<ClockCheck> check_clock(abi::GetTimestamp get_timestamp) noexcept {
    std::optional<ClockCheck> best;
    for (int attempt = 0; attempt < 10; ++attempt) {
        std::uint64_t reading = 0;
        const std::int64_t before = monotonic_ns();
        if (get_timestamp(&reading) != abi::success) return std::nullopt;
        const std::int64_t half = (monotonic_ns() - before + 1) / 2;
        if (!best || half < best->error_ns)
            best = {static_cast<std::int64_t>(reading - static_cast<std::uint64_t>(before + half)), half};
    }
    return best;
}

std::int64_t clock_correction_ns(const std::optional<ClockCheck>& check) noexcept {
    constexpr std::int64_t same_clock_ns = 1'000'000;
    return check && std::llabs(check->ahead_ns) > same_clock_ns ? check->ahead_ns : 0;
}

}  // namespace gpuprof::cupti
