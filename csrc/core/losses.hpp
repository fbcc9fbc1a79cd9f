// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

#include "core/layout.hpp"

namespace gpuprof {

// Counts the events of a process that can make no segment of its own, in a file that the recording's first
// process made while there was room. The file is a segment without chunks: `dropped_events` are those of all
// such processes, `chunks_taken` is how many these are. Not thread-safe.
class Losses {
  public:
    Losses() = default;
    Losses(const Losses&) = delete;
    Losses& operator=(const Losses&) = delete;
    ~Losses() { close(); }

    static std::string path_in(const std::string& folder) { return folder + "/losses"; }

    // Counts one event of this process. If the file cannot be opened, the loss is not counted.
    void add_event(const std::string& folder) noexcept;
    void close() noexcept;

  private:
    void open(const std::string& folder) noexcept;

    SegmentHeader* header_ = nullptr;
    bool was_opened_ = false;
};

}  // namespace gpuprof
