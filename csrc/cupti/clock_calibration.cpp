// SPDX-License-Identifier: Apache-2.0
#include "cupti/clock_calibration.hpp"

#include <algorithm>
#include <cmath>
#include <iterator>
#include <limits>

#include "core/clock.hpp"

namespace gpuprof::cupti {
namespace {

constexpr int fewest_attempts = 10;
constexpr int most_attempts = 100;
// A thread that was interrupted in each of the first attempts tries again.
constexpr std::int64_t tight_ns = 5'000;
// How many readings back the rate is taken from: over one alone it would be as noisy as that.
constexpr std::size_t baseline_readings = 8;

}  // namespace

std::optional<ClockReading> read_clock(abi::GetTimestamp get_timestamp) noexcept {
    std::optional<ClockReading> best;
    for (int attempt = 0; attempt < most_attempts; ++attempt) {
        if (attempt >= fewest_attempts && best->error_ns <= tight_ns) break;
        std::uint64_t reading = 0;
        const std::int64_t before = monotonic_ns();
        if (get_timestamp(&reading) != abi::success) return std::nullopt;
        const std::int64_t half = (monotonic_ns() - before + 1) / 2;
        if (!best || half < best->error_ns) best = {before + half, static_cast<std::int64_t>(reading), half};
    }
    return best;
}

// --- an epoch -------------------------------------------------------------------------------------

double ClockCalibration::Epoch::rate() const noexcept {
    if (has_one_offset()) return 1.0;
    const ClockReading& last = readings.back();
    const ClockReading& first = readings[readings.size() - std::min(readings.size(), baseline_readings)];
    return static_cast<double>(last.cupti - first.cupti) /
           static_cast<double>(last.monotonic_ns - first.monotonic_ns);
}

// By how much the reading differs from what the rate so far predicts, beyond what inexact readings explain.
double ClockCalibration::Epoch::excess_ns(const ClockReading& reading) const noexcept {
    const ClockReading& last = readings.back();
    const ClockReading& first = readings[readings.size() - std::min(readings.size(), baseline_readings)];
    const auto ahead = static_cast<double>(reading.monotonic_ns - last.monotonic_ns);
    const auto baseline = static_cast<double>(last.monotonic_ns - first.monotonic_ns);
    const double rate = static_cast<double>(last.cupti - first.cupti) / baseline;
    const double difference_ns = std::abs(static_cast<double>(reading.cupti - last.cupti) / rate - ahead);
    const double explained_ns = static_cast<double>(reading.error_ns + last.error_ns) +
                                static_cast<double>(first.error_ns + last.error_ns) * ahead / baseline;
    return std::max(0.0, difference_ns - explained_ns);
}

std::int64_t ClockCalibration::Epoch::to_monotonic_ns(std::int64_t cupti) const noexcept {
    if (has_one_offset()) return cupti - (least_offset_ns + (greatest_offset_ns - least_offset_ns) / 2);
    const auto after =
        std::upper_bound(readings.begin(), readings.end(), cupti,
                         [](std::int64_t time, const ClockReading& reading) { return time < reading.cupti; });
    const ClockReading& from = after == readings.begin() ? *after : *std::prev(after);
    double ns_per_unit = 1.0 / rate();
    if (after != readings.begin() && after != readings.end())
        ns_per_unit = static_cast<double>(after->monotonic_ns - from.monotonic_ns) /
                      static_cast<double>(after->cupti - from.cupti);
    constexpr double farthest_ns = 0x1p61;
    const double distance_ns = static_cast<double>(cupti - from.cupti) * ns_per_unit;
    return from.monotonic_ns + std::llround(std::clamp(distance_ns, -farthest_ns, farthest_ns));
}

void ClockCalibration::Epoch::append(const ClockReading& reading) {
    readings.push_back(reading);
    const std::int64_t offset = reading.cupti - reading.monotonic_ns;
    least_offset_ns = std::max(least_offset_ns, offset - reading.error_ns);
    greatest_offset_ns = std::min(greatest_offset_ns, offset + reading.error_ns);
    error_ns = std::max(error_ns, reading.error_ns);
}

// --- all of them ----------------------------------------------------------------------------------

void ClockCalibration::add(const ClockReading& reading) {
    if (epochs_.empty()) return begin_epoch(reading);
    Epoch& epoch = epochs_.back();
    const ClockReading& last = epoch.readings.back();
    if (reading.monotonic_ns <= last.monotonic_ns) return;
    if (reading.cupti <= last.cupti) {
        note(reading.cupti == last.cupti ? ClockState::stopped : ClockState::changed);
        return begin_epoch(reading);
    }
    if (epoch.readings.size() > 1) {
        const double excess_ns = epoch.excess_ns(reading);
        if (!(excess_ns <= static_cast<double>(largest_error_ns))) {
            note(ClockState::changed);
            return begin_epoch(reading);
        }
        epoch.error_ns =
            std::max(epoch.error_ns, reading.error_ns + static_cast<std::int64_t>(excess_ns) + 1);
    }
    epoch.append(reading);
}

// An epoch of one reading defines no rate, and is replaced.
void ClockCalibration::begin_epoch(const ClockReading& reading) {
    if (!epochs_.empty() && epochs_.back().readings.size() == 1) epochs_.pop_back();
    constexpr auto most = std::numeric_limits<std::int64_t>::max();
    epochs_.push_back({{}, -most, most, 0});
    epochs_.back().append(reading);
}

void ClockCalibration::note(ClockState state) noexcept {
    state_ = std::max(state_, state);
}

std::optional<std::int64_t> ClockCalibration::to_monotonic_ns(std::int64_t cupti) const noexcept {
    for (std::size_t place = epochs_.size(); place-- > 0;) {
        const Epoch& epoch = epochs_[place];
        if (epoch.readings.size() < 2) continue;
        const bool is_first = place == 0, is_last = place + 1 == epochs_.size();
        const std::int64_t least = is_first ? epoch.readings.front().monotonic_ns - longest_outside_ns
                                            : epochs_[place - 1].readings.back().monotonic_ns;
        const std::int64_t greatest = is_last ? epoch.readings.back().monotonic_ns + longest_outside_ns
                                              : epochs_[place + 1].readings.front().monotonic_ns;
        const std::int64_t time = epoch.to_monotonic_ns(cupti);
        if (time >= least && time <= greatest) return time;
    }
    return std::nullopt;
}

std::int64_t ClockCalibration::error_ns() const noexcept {
    std::int64_t largest = 0;
    for (const Epoch& epoch : epochs_) {
        const bool is_tight = epoch.has_one_offset();
        largest = std::max(
            largest, is_tight ? (epoch.greatest_offset_ns - epoch.least_offset_ns + 1) / 2 : epoch.error_ns);
    }
    return largest;
}

}  // namespace gpuprof::cupti
