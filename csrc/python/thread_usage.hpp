// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <cstdint>
#include <vector>

namespace gpuprof::python {

// What the kernel has counted for one thread since its start. -1 is a count that is unavailable.
struct ThreadUsage {
    std::int64_t thread_id = 0;
    std::int64_t start_ns = -1;   // on the monotonic clock, to the kernel's clock tick (10 ms)
    std::int64_t cpu_ns = -1;     // on a processor
    std::int64_t queued_ns = -1;  // ready to run, without a processor
    std::int64_t voluntary_switches = -1, involuntary_switches = -1;
};
using ThreadName = std::array<char, 16>;

struct NamedUsage {
    ThreadUsage usage;
    ThreadName name{};  // ends with a zero
};

// Reads the threads of this process except one, those without Python too. Empty where the system has no
// /proc. A thread that ends meanwhile is left out.
void read_thread_usage(std::vector<NamedUsage>& found, std::int64_t except);

// How long a thread has been ready to run without a processor; -1 where the kernel does not count it.
std::int64_t thread_queued_ns(std::int64_t thread_id) noexcept;

// Whether a thread runs or is ready to run, as far as the system reports it.
bool is_thread_ready(std::int64_t thread_id) noexcept;

// Whether this process has another thread that has not ended. True where the system does not report it.
bool has_other_threads() noexcept;

}  // namespace gpuprof::python
