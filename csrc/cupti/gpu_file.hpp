// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <span>
#include <string>

#include "core/recorder.hpp"
#include "cupti/gpu_records.hpp"

namespace gpuprof {

// Appends records to this process's file of a recording. After a write that failed it writes no more, so
// that no record is at a wrong offset.
class GpuFile {
  public:
    GpuFile() = default;
    GpuFile(const GpuFile&) = delete;
    GpuFile& operator=(const GpuFile&) = delete;
    ~GpuFile() { close(); }

    // Creates the file, or continues it if this process has begun it in the same recording. Throws
    // std::system_error.
    void open(const ProcessFile& file);
    // False when the records are not on the disk.
    bool append(std::span<const GpuRecord> records) noexcept;
    void close() noexcept;
    // Removes a file without records: it would mean that the GPU was recorded and idle.
    static void remove_empty(const ProcessFile& file) noexcept;
    int error() const noexcept { return error_; }  // errno of the write that failed, or 0

  private:
    bool write_whole(const void* data, std::size_t size) noexcept;

    int file_ = -1;
    int error_ = 0;
};

}  // namespace gpuprof
