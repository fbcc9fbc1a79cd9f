// SPDX-License-Identifier: Apache-2.0
// CUPTI's range profiler on one context, from `begin` to `end`: each kernel is a range.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "cupti/counters_api.hpp"

namespace gpuprof::cupti {

class RangeProfiler {
  public:
    RangeProfiler() = default;
    ~RangeProfiler();
    RangeProfiler(const RangeProfiler&) = delete;
    RangeProfiler& operator=(const RangeProfiler&) = delete;

    // Kernels of `context` are measured from now on, at most `most_ranges` of them. The config must stay.
    CounterError begin(const CounterApi& api, void* context, std::span<const std::uint8_t> config,
                       std::span<const char* const> counters, std::size_t most_ranges) noexcept;
    // Waits for the context's work.
    CounterError end() noexcept;
    // Gives the image's memory back.
    void forget() noexcept { std::vector<std::uint8_t>().swap(image_); }

    std::span<const std::uint8_t> image() const noexcept { return image_; }
    // The ranges that `image` holds, in the order in which their kernels ran.
    std::vector<std::size_t> ranges() const;
    // Kernels that there was no room for.
    std::size_t dropped() const noexcept { return dropped_; }
    std::size_t most_ranges() const noexcept { return most_ranges_; }

  private:
    CounterError make_image(std::span<const char* const> counters);
    CounterError find_image_bytes(std::span<const char* const> counters, std::size_t& bytes) const noexcept;
    CounterError configure(std::span<const std::uint8_t> config) noexcept;
    CounterError stop() noexcept;
    CounterError disable() noexcept;

    const CounterApi* api_ = nullptr;
    void* profiler_ = nullptr;
    std::size_t most_ranges_ = 0;
    std::size_t dropped_ = 0;
    std::vector<std::uint8_t> image_;
};

}  // namespace gpuprof::cupti
