// SPDX-License-Identifier: Apache-2.0
// The half of CUPTI's profiler that needs no GPU: which counters a chip has, in how many passes they are
// read, and what the numbers in a counter data image mean.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "cupti/counters_api.hpp"

namespace gpuprof::cupti {

// The name of a chip, and the facts that the device reports about its counters; empty without a device.
struct Chip {
    std::string name;
    std::vector<std::uint8_t> availability;
};

// One use of CUPTI's host object. Metrics can only be added to it, so each choice has one of its own.
class CounterHost {
  public:
    CounterHost(const CounterApi& api, const Chip& chip) noexcept;
    ~CounterHost();
    CounterHost(const CounterHost&) = delete;
    CounterHost& operator=(const CounterHost&) = delete;

    // Of the beginning.
    const CounterError& error() const noexcept { return error_; }
    CounterError add(std::span<const char* const> metrics) noexcept;
    CounterError make_config(std::vector<std::uint8_t>& config) const;
    CounterError count_passes(std::vector<std::uint8_t>& config, std::size_t& passes) const noexcept;
    // `values` has room for one of each metric.
    CounterError evaluate(std::span<const std::uint8_t> image, std::size_t range,
                          std::span<const char* const> metrics, std::span<double> values) const noexcept;

  private:
    const CounterApi& api_;
    void* host_ = nullptr;
    CounterError error_;
};

struct CounterConfig {
    CounterError error;
    std::vector<std::uint8_t> image;
    std::size_t passes = 0;
};

CounterConfig configure(const CounterApi& api, const Chip& chip, std::span<const char* const> metrics);

// The chips that this CUPTI knows; none if it cannot list them.
std::vector<std::string> supported_chips(const CounterApi& api);

}  // namespace gpuprof::cupti
