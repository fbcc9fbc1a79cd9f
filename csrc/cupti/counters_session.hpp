// SPDX-License-Identifier: Apache-2.0
// Hardware counters of single kernels, with the operators that launched them. `open` once, then any number
// of times `begin`, the work itself, `end`; at last `close`. Errors are values, and nothing throws.
#pragma once

#include <cstddef>
#include <cstdint>
#include <mutex>
#include <string>
#include <vector>

#include "cupti/counters_choice.hpp"
#include "cupti/counters_host.hpp"
#include "cupti/counters_launches.hpp"
#include "cupti/counters_target.hpp"
#include "cupti/loader.hpp"

namespace gpuprof::cupti {

struct CountersOpened {
    Reason reason;  // why there are none
    std::string path;
    std::uint32_t version = 0;
    std::string chip;
    std::size_t passes = 0;
    std::vector<ChosenMetric> metrics;
};

struct MeasuredKernel {
    std::int64_t operator_number = no_operator;
    std::string name;
    std::vector<double> values;  // one for each metric that was chosen; NaN: none
};

struct CountersMeasured {
    Reason reason;  // why nothing was measured, or why results cannot be matched
    std::vector<MeasuredKernel> kernels;
    // Operators of which something is missing: a copy, which is no range, or a kernel that had no room.
    std::vector<std::int64_t> incomplete;
};

class CounterSession {
  public:
    static CounterSession& instance();
    CounterSession(const CounterSession&) = delete;
    CounterSession& operator=(const CounterSession&) = delete;

    // For the calling thread's CUDA context. `folders` as `load_library` has them, `types` as
    // `choose_metrics` has them. At most `most_kernels` between a begin and its end.
    CountersOpened open(const std::vector<std::string>& folders, const std::vector<std::string>& types,
                        std::size_t most_kernels) noexcept;
    // Returns why nothing is measured, or nothing.
    Reason begin() noexcept;
    CountersMeasured end() noexcept;
    void close() noexcept;

  private:
    CounterSession() = default;
    ~CounterSession() = default;

    void prepare(const std::vector<std::string>& folders, const std::vector<std::string>& types,
                 CountersOpened& opened);
    Reason find_device();
    CounterError initialize() noexcept;
    Reason why_unsupported() const;
    CounterError ask_chip();
    CounterError ask_availability();
    Reason choose(const std::vector<std::string>& types, CountersOpened& opened);
    void collect(CountersMeasured& measured) const;
    std::vector<double> values_of(const CounterHost& host, std::size_t range) const;
    void deinitialize() noexcept;

    std::mutex mutex_;
    Library library_;
    CounterApi api_;
    bool initialized_ = false;
    void* context_ = nullptr;
    int device_ = 0;
    std::size_t most_kernels_ = 0;
    Chip chip_;
    CounterConfig config_;
    std::vector<const char*> counters_;
    RangeProfiler profiler_;
};

}  // namespace gpuprof::cupti
