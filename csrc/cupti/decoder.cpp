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
};
// Version 18 is that of CUDA 11.8 and of 12.1, which differ, and 13.3 was not at hand: there only the
// library itself can tell.
constexpr RecordLengths lengths[] = {
    {20, 24, 208, 88, 96, 88, 40},           {26, 28, 208, 96, 96, 88, 56},
    {130000, 130099, 216, 96, 96, 88, 56},   {130100, 130299, 224, 96, 96, 88, 56},
    {130400, 130499, 248, 112, 96, 104, 56},
};

// Packed records stand at any multiple of 8, and the bytes may be anyone's.
template <typename T>
T read(const std::uint8_t* record, std::size_t offset) noexcept {
    T value;
    std::memcpy(&value, record + offset, sizeof(value));
    return value;
}

std::uint32_t kind_of(const std::uint8_t* record) noexcept {
    return read<std::uint32_t>(record, 0);
}

// How much of a record is read, 0 for kinds that are not.
std::size_t prefix_bytes(std::uint32_t kind) noexcept {
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
            return abi::synchronization_offset::prefix_bytes;
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

GpuRecord read_synchronization(const std::uint8_t* bytes) noexcept {
    namespace at = abi::synchronization_offset;
    GpuRecord record = blank_record(GpuRecordKind::synchronization);
    record.start_ns = read<std::int64_t>(bytes, at::start);
    record.end_ns = read<std::int64_t>(bytes, at::end);
    record.correlation_id = read<std::uint32_t>(bytes, at::correlation);
    record.context = read<std::uint32_t>(bytes, at::context);
    record.stream = read<std::uint32_t>(bytes, at::stream);
    record.detail = read<std::uint32_t>(bytes, at::type);
    return record;
}

GpuRecord read_record(const std::uint8_t* bytes, std::uint32_t kind, const NameResolver& name) {
    switch (kind) {
        case abi::memory_copy:
            return read_copy(bytes, false);
        case abi::memory_copy_peer:
            return read_copy(bytes, true);
        case abi::memory_set:
            return read_set(bytes);
        case abi::synchronization:
            return read_synchronization(bytes);
        default:
            return read_kernel(bytes, name);
    }
}

// CUPTI hands out work that has not ended with an end of 0, and work for which it had no memory with both 0.
bool has_times(const GpuRecord& record) noexcept {
    return record.start_ns > 0 && record.end_ns >= record.start_ns;
}

}  // namespace

DecodeCounts& DecodeCounts::operator+=(const DecodeCounts& other) noexcept {
    kernels += other.kernels;
    transfers += other.transfers;
    synchronizations += other.synchronizations;
    unfinished += other.unfinished;
    unknown += other.unknown;
    truncated += other.truncated;
    return *this;
}

std::uint64_t& DecodeCounts::of(GpuRecordKind kind) noexcept {
    if (kind == GpuRecordKind::kernel) return kernels;
    return kind == GpuRecordKind::synchronization ? synchronizations : transfers;
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
            default:
                return 0;
        }
    }
    return 0;
}

std::string why_not_decodable(std::uint32_t version, bool has_iterator) {
    if (version < oldest_version)
        return "is older than CUDA 11.8: install the nvidia-cuda-cupti that belongs to your CUDA";
    if (has_iterator || record_bytes(version, abi::kernel) != 0) return {};
    return "is of version " + version_text(version) +
           ", whose records this gpuprof does not know: update gpuprof, or name an older CUPTI in "
           "GPUPROF_CUPTI_LIBRARY";
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
        const std::size_t needed = prefix_bytes(kind);
        if (needed == 0) {
            ++counts.unknown;
            continue;
        }
        if (static_cast<std::size_t>(buffer.data() + buffer.size() - bytes) < needed) {
            ++counts.truncated;
            return counts;
        }
        const GpuRecord record = read_record(bytes, kind, name);
        if (!has_times(record)) {
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
