// SPDX-License-Identifier: Apache-2.0
// Times the kernels on chosen processors.
#pragma once

#include <cstddef>
#include <functional>
#include <vector>

#include "cpu/kernels.hpp"

namespace gpuprof::cpu {

struct Plan {
    // As the system numbers them; a thread for each.
    std::vector<int> processors;
    // How long one repeat takes, roughly.
    double seconds = 0.05;
    int repeats = 5;
    // Asked between two repeats; false ends the measurement, which then has fewer of them.
    std::function<bool()> go_on;
};

// One rate for each repeat, of all processors together.
struct Rates {
    std::vector<double> per_second;
    std::size_t pinned_threads = 0;
};

// Operations per second.
Rates measure_compute(const ComputeKernel& kernel, const Plan& plan);

// Bytes that the kernel names, per second, for each of `streams` in their order: read 1, copy 2 and triad 3
// times an array. What caches move besides is not in it. Each array holds `array_bytes` (rounded down to a
// whole number of steps for each processor), and each processor works on its own part, which it was the first
// to touch. Repeats go round the streams, so that a drift of the machine meets all alike.
std::vector<Rates> measure_streams(const StreamKernels& kernels, const std::vector<Stream>& streams,
                                   std::size_t array_bytes, const Plan& plan);

// Cycles per second of one core's clock, by additions that wait for each other; the rate is the mean over the
// processors. Empty where there is no such chain.
Rates measure_clock(const Plan& plan);

}  // namespace gpuprof::cpu
