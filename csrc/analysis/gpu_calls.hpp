// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace gpuprof {

// A call that launched work on a GPU, as CUPTI recorded it where no callback did.
struct RecordedCall {
    std::uint32_t thread_id = 0;
    std::uint32_t correlation_id = 0;
    std::int64_t start_ns = 0;  // on the monotonic clock
    std::int64_t end_ns = 0;
};

// The calls among a process's GPU records, by thread and then in time, one for each correlation id: a call of
// the runtime and that of the driver inside it are the outer one. Empty if it is not a GPU file;
// the reader of its other records reports that. Throws std::system_error.
std::vector<RecordedCall> read_calls(const std::string& path);

}  // namespace gpuprof
