// SPDX-License-Identifier: Apache-2.0
// The content of a run's `segments/<pid>-<process_key>.gpu`: a header, then records in no order, each
// appended whole. A process that is killed loses only what CUPTI had not handed over yet.
#pragma once

#include <cstdint>
#include <cstring>

namespace gpuprof {

constexpr char gpu_magic[8] = {'G', 'P', 'U', 'P', 'R', 'O', 'F', 'G'};
constexpr std::uint32_t gpu_file_version = 1;

struct GpuFileHead {
    char magic[8];
    std::uint32_t version;
    std::uint32_t record_bytes;
    std::uint32_t process_id;
    std::uint32_t parent_process_id;
    std::uint64_t process_key;
    char reserved[32];
};
static_assert(sizeof(GpuFileHead) == 64);

enum class GpuRecordKind : std::uint32_t {
    kernel = 1,
    memory_copy = 2,      // detail: CUPTI's kind of copy
    memory_set = 3,       // the memory that is set is the destination
    synchronization = 4,  // on the CPU's side; detail: CUPTI's kind of synchronization
    timed_layer = 5,   // between two CUDA events; detail: the id of the timed layer around it on its stream
    graph_replay = 6,  // of a CUDA graph as a whole, where its nodes have no records
    event_record = 7,  // of a CUDA event on a stream; without times
    call = 8,          // of the driver or the runtime, on the CPU's side, without callbacks for launches
};

// A value that the library's version does not report, or that a kind of record does not have.
constexpr std::uint32_t unknown_u32 = 0xFFFFFFFFu;
constexpr std::uint64_t unknown_u64 = ~std::uint64_t{0};

// Executions without times, because the device's buffer ran out or they had not ended, are counted and
// not written.
struct GpuRecord {
    std::int64_t start_ns;  // CLOCK_MONOTONIC
    std::int64_t end_ns;
    std::uint64_t graph_node_id;  // 0: not of a graph
    std::uint64_t bytes;
    std::uint32_t kind;
    std::uint32_t correlation_id;
    std::uint32_t name;  // id in the process's names file, 0 unknown
    std::uint32_t device;
    std::uint32_t context;
    std::uint32_t stream;
    std::uint32_t grid[3];
    std::uint32_t block[3];
    std::uint32_t registers;
    std::uint32_t static_shared_bytes;
    std::uint32_t dynamic_shared_bytes;
    std::uint32_t graph_id;     // of the executable graph; ids are reused. 0: not of a graph
    std::uint32_t source_kind;  // CUPTI's kinds of memory
    std::uint32_t destination_kind;
    std::uint32_t detail;
    // 0 in files of versions before these fields, and where a record has none.
    std::uint32_t thread;         // as the system numbers it; of calls
    std::uint64_t event_sync_id;  // by which waits find the record of the event that they wait for
    std::uint32_t event_id;       // CUPTI's number of the CUDA event, which is used again
    std::uint32_t reserved;
};
static_assert(sizeof(GpuRecord) == 128);

// A record of which nothing is known yet.
inline GpuRecord blank_record(GpuRecordKind kind) noexcept {
    GpuRecord record{};
    std::memset(&record, 0xFF, sizeof(record));
    record.kind = static_cast<std::uint32_t>(kind);
    record.name = 0;
    record.thread = record.event_id = record.reserved = 0;
    record.event_sync_id = 0;
    return record;
}

}  // namespace gpuprof
