// SPDX-License-Identifier: Apache-2.0
// CUPTI's clock against the monotonic one. CUPTI reads the real-time clock unless somebody in the process
// gave it another: PyTorch's Kineto gives it ticks of the processor, at each of its sessions. So nothing is
// assumed: offset and rate are measured again and again, and a change is noticed.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "cupti/abi.hpp"

namespace gpuprof::cupti {

// CUPTI's clock, read between two readings of ours.
struct ClockReading {
    std::int64_t monotonic_ns;  // half way between ours
    std::int64_t cupti;         // in whatever unit
    std::int64_t error_ns;      // half the time between ours
};

// The tightest of several brackets; nothing where CUPTI refuses.
std::optional<ClockReading> read_clock(abi::GetTimestamp get_timestamp) noexcept;

enum class ClockState : std::uint32_t {
    steady = 0,
    unreadable = 1,  // CUPTI refused a reading
    stopped = 2,     // two readings were the same
    changed = 3,     // it jumped, or continued at another rate
};

// Times on CUPTI's clock to the monotonic one, by readings in the order of time. An epoch is a stretch in
// which the clock kept its rate; where it did not, records of the time between two epochs may be of either.
class ClockCalibration {
  public:
    // From here on a clock is taken for changed, and a recording for incomplete.
    static constexpr std::int64_t largest_error_ns = 50'000;
    static constexpr std::int64_t longest_outside_ns = 1'000'000'000;
    // Between the first two readings of an epoch, which give the first rate.
    static constexpr std::int64_t shortest_baseline_ns = 200'000;

    // Throws std::bad_alloc.
    void add(const ClockReading& reading);
    void note_refusal() noexcept { note(ClockState::unreadable); }
    // Whether the present epoch has one reading, and so no rate.
    bool needs_rate() const noexcept { return epochs_.empty() || epochs_.back().readings.size() == 1; }
    const ClockReading& latest() const noexcept { return epochs_.back().readings.back(); }
    bool empty() const noexcept { return epochs_.empty(); }

    // Nothing where the time belongs to no epoch: it lies more than `longest_outside_ns` before the first
    // reading or after the last.
    std::optional<std::int64_t> to_monotonic_ns(std::int64_t cupti) const noexcept;
    // The worst so far.
    ClockState state() const noexcept { return state_; }
    // How far off times may be, as measured; how CUPTI brings the GPU's clock to the CPU's is its own.
    std::int64_t error_ns() const noexcept;

  private:
    struct Epoch {
        std::vector<ClockReading> readings;
        // Bounds of the one offset that explains all readings of a clock that counts nanoseconds.
        std::int64_t least_offset_ns;
        std::int64_t greatest_offset_ns;
        std::int64_t error_ns;

        bool has_one_offset() const noexcept { return least_offset_ns <= greatest_offset_ns; }
        double rate() const noexcept;
        double excess_ns(const ClockReading& reading) const noexcept;
        std::int64_t to_monotonic_ns(std::int64_t cupti) const noexcept;
        void append(const ClockReading& reading);
    };

    void begin_epoch(const ClockReading& reading);
    void note(ClockState state) noexcept;

    std::vector<Epoch> epochs_;
    ClockState state_ = ClockState::steady;
};

}  // namespace gpuprof::cupti
