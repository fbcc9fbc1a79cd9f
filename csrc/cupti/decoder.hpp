// SPDX-License-Identifier: Apache-2.0
// Buffers of CUPTI's activity records to GpuRecords. Pure: bytes in, records out.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <vector>

#include "core/reason.hpp"
#include "cupti/abi.hpp"
#include "cupti/gpu_records.hpp"

namespace gpuprof::cupti {

struct DecodeCounts {
    std::uint64_t kernels = 0;
    std::uint64_t transfers = 0;
    std::uint64_t synchronizations = 0;
    std::uint64_t graph_replays = 0;
    std::uint64_t event_records = 0;
    std::uint64_t calls = 0;
    std::uint64_t unfinished = 0;  // without times: not among the above
    std::uint64_t unknown = 0;     // of kinds that are not asked for
    std::uint64_t truncated = 0;   // buffers that end in the middle of a record, or cannot be walked on
    DecodeCounts& operator+=(const DecodeCounts& other) noexcept;
    // Where executions of this kind are counted.
    std::uint64_t& of(GpuRecordKind kind) noexcept;
};

// Whether, and if not why not, the records of a library of this version can be read. `has_iterator`: the
// library can be asked for the length of each record.
Reason why_not_decodable(std::uint32_t version, bool has_iterator);
// Newer than those whose headers were compared. Its records are read by what has never changed so far.
bool is_unknown_version(std::uint32_t version) noexcept;
// The length of a record, from a table of the versions whose headers were compared; 0 where not known.
std::size_t record_bytes(std::uint32_t version, std::uint32_t kind) noexcept;

// Finds the records of a buffer one after the other.
class Stride {
  public:
    // By the library itself, of this version.
    Stride(abi::ActivityGetNextRecord next_record, std::uint32_t version)
        : next_record_(next_record), version_(version) {}
    // By the table.
    explicit Stride(std::uint32_t version) : version_(version) {}

    enum class Step : std::uint8_t { record, end, broken };
    std::uint32_t version() const noexcept { return version_; }
    // Moves `record` on, which is null at first.
    Step next(std::span<std::uint8_t> buffer, std::uint8_t*& record) const noexcept;

  private:
    Step ask_library(std::span<std::uint8_t> buffer, std::uint8_t*& record) const noexcept;

    abi::ActivityGetNextRecord next_record_ = nullptr;
    std::uint32_t version_ = 0;
};

// The id of a kernel's name, which the library keeps.
using NameResolver = std::function<std::uint32_t(const char* name)>;

// Appends to `records`, with times on the library's own clock. The content of the buffer is not trusted: it
// may be cut off or damaged.
DecodeCounts decode_buffer(std::span<std::uint8_t> buffer, const Stride& stride, const NameResolver& name,
                           std::vector<GpuRecord>& records);

}  // namespace gpuprof::cupti
