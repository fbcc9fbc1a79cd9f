// SPDX-License-Identifier: Apache-2.0
#include "cupti/decoder.hpp"

#include <cstring>

#include "cupti/loader.hpp"

namespace gpuprof::cupti {
namespace {

constexpr std::uint32_t oldest_version = 18;
constexpr std::uint32_t last_plain_version = 28;
constexpr std::uint32_t first_dated_version = 130000;
constexpr std::uint32_t last_compared_version = 130499;

struct RecordLengths {
    std::uint32_t first_version;
    std::uint32_t last_version;
    std::size_t kernel;
    std::size_t copy;
    std::size_t peer_copy;
    std::size_t set;
    std::size_t synchronization;
    std::size_t cuda_event;
    std::size_t graph_trace;  // 0: not known
};
// Version 18 is that of CUDA 11.8 and of 12.1, which differ, and 13.3 was not available: for these only the
// library reports the length.
constexpr RecordLengths lengths[] = {
    {20, 23, 208, 88, 96, 88, 40, 24, 0},          {24, 24, 208, 88, 96, 88, 40, 24, 56},
    {26, 28, 208, 96, 96, 88, 56, 56, 56},         {130000, 130099, 216, 96, 96, 88, 56, 56, 56},
    {130100, 130299, 224, 96, 96, 88, 56, 56, 56}, {130400, 130499, 248, 112, 96, 104, 56, 56, 56},
};
constexpr std::size_t call_bytes = 40;  // in all versions

// Packed records are at any multiple of 8, and the bytes may have any type.
template <typename T>
T read(const std::uint8_t* record, std::size_t offset) noexcept {
    T value;
    std::memcpy(&value, record + offset, sizeof(value));
    return value;
}

std::uint32_t kind_of(const std::uint8_t* record) noexcept {
    return read<std::uint32_t>(record, 0);
}

bool has_event_ids(std::uint32_t version) noexcept {
    return version >= abi::first_version_with_event_ids;
}

// How much of a record is read, 0 for kinds that are not.
std::size_t prefix_bytes(std::uint32_t kind, std::uint32_t version) noexcept {
    switch (kind) {
        case abi::kernel:
        case abi::concurrent_kernel:
            return abi::kernel_offset::prefix_bytes;
        case abi::memory_copy:
            return abi::copy_offset::prefix_bytes;
        case abi::memory_copy_peer:
            return abi::peer_copy_offset::prefix_bytes;
        case abi::memory_set:
            return abi::set_offset::prefix_bytes;
        case abi::synchronization:
            return has_event_ids(version) ? abi::synchronization_offset::prefix_bytes_with_ids
                                          : abi::synchronization_offset::prefix_bytes;
        case abi::cuda_event:
            return has_event_ids(version) ? abi::cuda_event_offset::prefix_bytes_with_ids
                                          : abi::cuda_event_offset::prefix_bytes;
        case abi::graph_trace:
            return abi::graph_trace_offset::prefix_bytes;
        case abi::driver_call:
        case abi::runtime_call:
            return abi::call_offset::prefix_bytes;
        default:
            return 0;
    }
}

GpuRecord read_kernel(const std::uint8_t* bytes, const NameResolver& name) {
    namespace at = abi::kernel_offset;
    GpuRecord record = blank_record(GpuRecordKind::kernel);
    record.start_ns = read<std::int64_t>(bytes, at::start);
    record.end_ns = read<std::int64_t>(bytes, at::end);
    record.graph_node_id = read<std::uint64_t>(bytes, at::graph_node);
    record.correlation_id = read<std::uint32_t>(bytes, at::correlation);
    record.name = name(read<const char*>(bytes, at::name));
    record.device = read<std::uint32_t>(bytes, at::device);
    record.context = read<std::uint32_t>(bytes, at::context);
    record.stream = read<std::uint32_t>(bytes, at::stream);
    std::memcpy(record.grid, bytes + at::grid, sizeof(record.grid));
    std::memcpy(record.block, bytes + at::block, sizeof(record.block));
    record.registers = read<std::uint16_t>(bytes, at::registers);
    record.static_shared_bytes = read<std::uint32_t>(bytes, at::static_shared);
    record.dynamic_shared_bytes = read<std::uint32_t>(bytes, at::dynamic_shared);
    record.graph_id = read<std::uint32_t>(bytes, at::graph);
    return record;
}

GpuRecord read_transfer(const std::uint8_t* bytes, GpuRecordKind kind) noexcept {
    namespace at = abi::transfer_offset;
    GpuRecord record = blank_record(kind);
    record.start_ns = read<std::int64_t>(bytes, at::start);
    record.end_ns = read<std::int64_t>(bytes, at::end);
    record.bytes = read<std::uint64_t>(bytes, at::bytes);
    record.device = read<std::uint32_t>(bytes, at::device);
    record.context = read<std::uint32_t>(bytes, at::context);
    record.stream = read<std::uint32_t>(bytes, at::stream);
    return record;
}

GpuRecord read_copy(const std::uint8_t* bytes, bool between_devices) noexcept {
    GpuRecord record = read_transfer(bytes, GpuRecordKind::memory_copy);
    record.detail = bytes[abi::transfer_offset::copy_kind];
    record.source_kind = bytes[abi::transfer_offset::source_kind];
    record.destination_kind = bytes[abi::transfer_offset::destination_kind];
    namespace one = abi::copy_offset;
    namespace two = abi::peer_copy_offset;
    record.correlation_id = read<std::uint32_t>(bytes, between_devices ? two::correlation : one::correlation);
    record.graph_node_id = read<std::uint64_t>(bytes, between_devices ? two::graph_node : one::graph_node);
    record.graph_id = read<std::uint32_t>(bytes, between_devices ? two::graph : one::graph);
    return record;
}

GpuRecord read_set(const std::uint8_t* bytes) noexcept {
    namespace at = abi::set_offset;
    GpuRecord record = read_transfer(bytes, GpuRecordKind::memory_set);
    record.destination_kind = read<std::uint16_t>(bytes, at::memory_kind);
    record.correlation_id = read<std::uint32_t>(bytes, at::correlation);
    record.graph_node_id = read<std::uint64_t>(bytes, at::graph_node);
    record.graph_id = read<std::uint32_t>(bytes, at::graph);
    return record;
}

// Ones in every bit: the field does not apply.
std::uint32_t known_event(std::uint32_t id) noexcept {
    return id == unknown_u32 ? 0 : id;
}
std::uint64_t known_sync_id(std::uint64_t id) noexcept {
    return id == unknown_u64 || id == unknown_u32 ? 0 : id;
}

GpuRecord read_synchronization(const std::uint8_t* bytes, std::uint32_t version) noexcept {
    namespace at = abi::synchronization_offset;
    GpuRecord record = blank_record(GpuRecordKind::synchronization);
    record.start_ns = read<std::int64_t>(bytes, at::start);
    record.end_ns = read<std::int64_t>(bytes, at::end);
    record.correlation_id = read<std::uint32_t>(bytes, at::correlation);
    record.context = read<std::uint32_t>(bytes, at::context);
    record.stream = read<std::uint32_t>(bytes, at::stream);
    record.detail = read<std::uint32_t>(bytes, at::type);
    record.event_id = known_event(read<std::uint32_t>(bytes, at::event));
    if (has_event_ids(version))
        record.event_sync_id = known_sync_id(read<std::uint64_t>(bytes, at::event_sync));
    return record;
}

GpuRecord read_cuda_event(const std::uint8_t* bytes, std::uint32_t version) noexcept {
    namespace at = abi::cuda_event_offset;
    GpuRecord record = blank_record(GpuRecordKind::event_record);
    record.start_ns = record.end_ns = 0;
    record.correlation_id = read<std::uint32_t>(bytes, at::correlation);
    record.context = read<std::uint32_t>(bytes, at::context);
    record.stream = read<std::uint32_t>(bytes, at::stream);
    record.event_id = known_event(read<std::uint32_t>(bytes, at::event));
    if (!has_event_ids(version)) return record;
    record.device = read<std::uint32_t>(bytes, at::device);
    record.event_sync_id = known_sync_id(read<std::uint64_t>(bytes, at::event_sync));
    return record;
}

GpuRecord read_graph_trace(const std::uint8_t* bytes) noexcept {
    namespace at = abi::graph_trace_offset;
    GpuRecord record = blank_record(GpuRecordKind::graph_replay);
    record.start_ns = read<std::int64_t>(bytes, at::start);
    record.end_ns = read<std::int64_t>(bytes, at::end);
    record.correlation_id = read<std::uint32_t>(bytes, at::correlation);
    record.device = read<std::uint32_t>(bytes, at::device);
    record.context = read<std::uint32_t>(bytes, at::context);
    record.stream = read<std::uint32_t>(bytes, at::stream);
    record.graph_id = read<std::uint32_t>(bytes, at::graph);
    record.graph_node_id = 0;
    return record;
}

GpuRecord read_call(const std::uint8_t* bytes) noexcept {
    namespace at = abi::call_offset;
    GpuRecord record = blank_record(GpuRecordKind::call);
    record.start_ns = read<std::int64_t>(bytes, at::start);
    record.end_ns = read<std::int64_t>(bytes, at::end);
    record.correlation_id = read<std::uint32_t>(bytes, at::correlation);
    record.thread = read<std::uint32_t>(bytes, at::thread);
    record.detail = read<std::uint32_t>(bytes, at::function);
    return record;
}

GpuRecord read_record(const std::uint8_t* bytes, std::uint32_t kind, std::uint32_t version,
                      const NameResolver& name) {
    switch (kind) {
        case abi::memory_copy:
            return read_copy(bytes, false);
        case abi::memory_copy_peer:
            return read_copy(bytes, true);
        case abi::memory_set:
            return read_set(bytes);
        case abi::synchronization:
            return read_synchronization(bytes, version);
        case abi::cuda_event:
            return read_cuda_event(bytes, version);
        case abi::graph_trace:
            return read_graph_trace(bytes);
        case abi::driver_call:
        case abi::runtime_call:
            return read_call(bytes);
        default:
            return read_kernel(bytes, name);
    }
}

// CUPTI hands out work that has not ended with an end of 0, and work for which it had no memory with both 0.
bool lacks_times(const GpuRecord& record) noexcept {
    if (record.kind == static_cast<std::uint32_t>(GpuRecordKind::event_record)) return false;
    return !(record.start_ns > 0 && record.end_ns >= record.start_ns);
}

}  // namespace

DecodeCounts& DecodeCounts::operator+=(const DecodeCounts& other) noexcept {
    kernels += other.kernels;
    transfers += other.transfers;
    synchronizations += other.synchronizations;
    graph_replays += other.graph_replays;
    event_records += other.event_records;
    calls += other.calls;
    unfinished += other.unfinished;
    unknown += other.unknown;
    truncated += other.truncated;
    return *this;
}

std::uint64_t& DecodeCounts::of(GpuRecordKind kind) noexcept {
    switch (kind) {
        case GpuRecordKind::kernel:
            return kernels;
        case GpuRecordKind::synchronization:
            return synchronizations;
        case GpuRecordKind::graph_replay:
            return graph_replays;
        case GpuRecordKind::event_record:
            return event_records;
        case GpuRecordKind::call:
            return calls;
        default:
            return transfers;
    }
}

bool is_unknown_version(std::uint32_t version) noexcept {
    const bool plain = version >= oldest_version && version <= last_plain_version;
    return !plain && (version < first_dated_version || version > last_compared_version);
}

std::size_t record_bytes(std::uint32_t version, std::uint32_t kind) noexcept {
    for (const RecordLengths& row : lengths) {
        if (version < row.first_version || version > row.last_version) continue;
        switch (kind) {
            case abi::kernel:
            case abi::concurrent_kernel:
                return row.kernel;
            case abi::memory_copy:
                return row.copy;
            case abi::memory_copy_peer:
                return row.peer_copy;
            case abi::memory_set:
                return row.set;
            case abi::synchronization:
                return row.synchronization;
            case abi::cuda_event:
                return row.cuda_event;
            case abi::graph_trace:
                return row.graph_trace;
            case abi::driver_call:
            case abi::runtime_call:
                return call_bytes;
            default:
                return 0;
        }
    }
    return 0;
}

Reason why_not_decodable(std::uint32_t version, bool has_iterator) {
    if (version < oldest_version) return {ReasonCode::cupti_too_old};
    if (has_iterator || record_bytes(version, abi::kernel) != 0) return {};
    return {ReasonCode::cupti_unknown_version, {}, version_text(version)};
}

Stride::Step Stride::next(std::span<std::uint8_t> buffer, std::uint8_t*& record) const noexcept {
    if (next_record_ != nullptr) return ask_library(buffer, record);
    std::size_t offset = 0;
    if (record != nullptr) {
        const std::size_t length = record_bytes(version_, kind_of(record));
        if (length == 0) return Step::broken;
        offset = static_cast<std::size_t>(record - buffer.data()) + length;
    }
    if (offset == buffer.size()) return Step::end;
    if (offset > buffer.size() || buffer.size() - offset < sizeof(std::uint32_t)) return Step::broken;
    record = buffer.data() + offset;
    return Step::record;
}

Stride::Step Stride::ask_library(std::span<std::uint8_t> buffer, std::uint8_t*& record) const noexcept {
    if (buffer.empty()) return Step::end;
    void* next = record;
    const std::uint32_t result = next_record_(buffer.data(), buffer.size(), &next);
    if (result == abi::max_limit_reached) return Step::end;
    if (result != abi::success) return Step::broken;
    auto* const found = static_cast<std::uint8_t*>(next);
    const std::uint8_t* const limit = buffer.data() + buffer.size() - sizeof(std::uint32_t);
    if (found < buffer.data() || found > limit || (record != nullptr && found <= record)) return Step::broken;
    record = found;
    return Step::record;
}

DecodeCounts decode_buffer(std::span<std::uint8_t> buffer, const Stride& stride, const NameResolver& name,
                           std::vector<GpuRecord>& records) {
    DecodeCounts counts;
    std::uint8_t* bytes = nullptr;
    Stride::Step step = stride.next(buffer, bytes);
    for (; step == Stride::Step::record; step = stride.next(buffer, bytes)) {
        const std::uint32_t kind = kind_of(bytes);
        const std::size_t needed = prefix_bytes(kind, stride.version());
        if (needed == 0) {
            ++counts.unknown;
            continue;
        }
        if (static_cast<std::size_t>(buffer.data() + buffer.size() - bytes) < needed) {
            ++counts.truncated;
            return counts;
        }
        const GpuRecord record = read_record(bytes, kind, stride.version(), name);
        if (lacks_times(record)) {
            ++counts.unfinished;
            continue;
        }
        ++counts.of(static_cast<GpuRecordKind>(record.kind));
        records.push_back(record);
    }
    if (step == Stride::Step::broken) ++counts.truncated;
    return counts;
}

}  // namespace gpuprof::cupti
