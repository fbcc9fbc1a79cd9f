// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <optional>

#include "cupti/abi.hpp"

namespace gpuprof::cupti {

// How the clock of CUPTI's records stands to the monotonic one.
struct ClockCheck {
    std::int64_t ahead_ns;  // CUPTI's reading minus ours
    std::int64_t error_ns;  // half the time between the two readings of ours around it
};

// The tightest of several brackets; nothing where CUPTI does not answer.
std::optional<ClockCheck> check_clock(abi::GetTimestamp get_timestamp) noexcept;

// What is to be taken off CUPTI's times. Readings of one clock differ by less than a millisecond.
std::int64_t clock_correction_ns(const std::optional<ClockCheck>& check) noexcept;

}  // namespace gpuprof::cupti
