// SPDX-License-Identifier: Apache-2.0
#include "analysis/segment_reader.hpp"

#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <filesystem>
#include <limits>
#include <map>
#include <system_error>

#include "core/losses.hpp"

namespace gpuprof {
namespace {

namespace fs = std::filesystem;

constexpr double fewest_ticks_per_ns = 1e-3, most_ticks_per_ns = 1e3;

// Leaves room for sums and differences of times.
bool is_instant(const ClockPoint& point) noexcept {
    return point.monotonic_ns >= 0 && point.monotonic_ns < std::numeric_limits<std::int64_t>::max() / 4;
}

const SegmentHeader* valid_header(const MappedFile& file) noexcept {
    if (file.size() < header_bytes) return nullptr;
    const auto* header = reinterpret_cast<const SegmentHeader*>(file.data());
    const SegmentIdentity& identity = header->identity;
    if (std::memcmp(identity.magic, segment_magic, sizeof(segment_magic)) != 0) return nullptr;
    if (identity.version != segment_version || !is_instant(identity.first_point)) return nullptr;
    return header->checksum == fnv1a(&identity, sizeof(identity)) ? header : nullptr;
}

double rate_of(const SegmentIdentity& identity) noexcept {
    const double rate = identity.ticks_per_ns_guess;
    return rate >= fewest_ticks_per_ns && rate <= most_ticks_per_ns ? rate : 1.0;
}

// The latest point changes and is under no checksum: one that is damaged shows by its rate.
bool is_plausible(const SegmentIdentity& identity, const ClockPoint& last) noexcept {
    const ClockPoint& first = identity.first_point;
    if (!is_instant(last) || last.ticks < first.ticks || last.monotonic_ns < first.monotonic_ns) return false;
    constexpr double slack_ns = 2e4;
    const auto ticks_ns = static_cast<double>(last.ticks - first.ticks) / rate_of(identity);
    const auto elapsed_ns = static_cast<double>(last.monotonic_ns - first.monotonic_ns);
    return std::abs(ticks_ns - elapsed_ns) <= slack_ns + elapsed_ns / 10;
}

void adopt_header(RecordedProcess& process, const SegmentHeader& header, const std::string& path,
                  std::vector<Damage>& damage) {
    const SegmentIdentity& identity = header.identity;
    process.process_id = identity.process_id;
    process.parent_process_id = identity.parent_process_id;
    process.process_key = identity.process_key;
    process.first_point = identity.first_point;
    process.ticks_per_ns_guess = rate_of(identity);
    if (process.segments.empty()) process.latest_point = identity.first_point;
    process.segments.push_back(identity.segment_index);
    if (!is_plausible(identity, header.latest_point))
        damage.push_back({DamageKind::clock_point, path});
    else if (header.latest_point.ticks > process.latest_point.ticks)
        process.latest_point = header.latest_point;
    process.closed = process.closed || header.closed.load(std::memory_order_relaxed) == 1;
    process.dropped_events += header.dropped_events.load(std::memory_order_relaxed);
}

std::uint64_t count_written(std::span<const Event> events) {
    return static_cast<std::uint64_t>(
        std::count_if(events.begin(), events.end(), [](const Event& event) { return event.kind != 0; }));
}

bool is_kind(const Event& event, EventKind kind) noexcept {
    return event.kind == static_cast<std::uint32_t>(kind);
}

bool is_thread_mark(const Event& event) noexcept {
    return is_kind(event, EventKind::thread);
}

// Splits a chunk where it passed from one thread to another.
void collect_pieces(std::span<const Event> chunk, bool taken, RecordedProcess& process) {
    if (chunk.empty() || (chunk[0].kind == 0 && !taken)) return;
    if (!is_thread_mark(chunk[0])) {
        process.damaged_events += count_written(chunk);
        return;
    }
    std::size_t at = 0;
    while (at + thread_mark_slots <= chunk.size()) {
        const Event& mark = chunk[at];
        ThreadPiece piece;
        piece.thread_id = static_cast<std::uint32_t>(mark.ticks >> 32);
        piece.thread_number = static_cast<std::uint32_t>(mark.ticks);
        piece.sequence = mark.name;
        const auto* label = reinterpret_cast<const char*>(&chunk[at + 1]);
        piece.thread_name.assign(label, strnlen(label, sizeof(ThreadLabel)));
        const std::size_t begin = at + thread_mark_slots;
        std::size_t end = begin;
        for (; end < chunk.size() && !is_thread_mark(chunk[end]); ++end) {
            piece.has_layer_nodes |= is_kind(chunk[end], EventKind::layer_nodes);
            piece.has_backward_nodes |= is_kind(chunk[end], EventKind::backward_node);
        }
        piece.events = chunk.subspan(begin, end - begin);
        process.pieces.push_back(std::move(piece));
        at = end;
    }
}

void read_segment(std::unique_ptr<MappedFile> file, RecordedProcess& process, const std::string& path,
                  std::vector<Damage>& damage) {
    const auto& header = *reinterpret_cast<const SegmentHeader*>(file->data());
    adopt_header(process, header, path, damage);
    const std::size_t taken =
        std::min(header.chunks_taken.load(std::memory_order_relaxed), header.identity.chunk_count);
    const std::size_t present = (file->size() - header_bytes) / sizeof(Event);
    if (present < taken * chunk_events)
        damage.push_back({DamageKind::segment_cut_short, path, taken * chunk_events - present});
    const auto* events = reinterpret_cast<const Event*>(file->data() + header_bytes);
    for (std::size_t first = 0; first < present; first += chunk_events) {
        const std::span chunk(events + first, std::min(chunk_events, present - first));
        collect_pieces(chunk, first / chunk_events < taken, process);
        release_pages(chunk);
    }
    process.files.push_back(std::move(file));
}

std::vector<RecordedName> read_names(const std::string& path, bool has_events, std::vector<Damage>& damage) {
    const MappedFile file(path);
    std::vector<RecordedName> names;
    // A process without events may be just making it, or was killed meanwhile.
    if (file.size() == 0 && !has_events) return names;
    if (file.size() < sizeof(names_magic) ||
        std::memcmp(file.data(), names_magic, sizeof(names_magic)) != 0) {
        damage.push_back({DamageKind::names_no_file, path});
        return names;
    }
    std::size_t at = sizeof(names_magic);
    while (at < file.size()) {
        NameRecord head{};
        const bool has_head = at + sizeof(head) <= file.size();
        if (has_head) std::memcpy(&head, file.data() + at, sizeof(head));
        at += sizeof(head);
        if (!has_head || head.length > longest_name_bytes || at + head.length > file.size()) {
            damage.push_back({DamageKind::names_cut, path, names.size()});
            break;
        }
        names.push_back(
            {std::string(reinterpret_cast<const char*>(file.data() + at), head.length), head.scope});
        at += head.length;
    }
    return names;
}

void sort_pieces(RecordedProcess& process) {
    std::ranges::sort(process.pieces, [](const ThreadPiece& a, const ThreadPiece& b) {
        return a.thread_number != b.thread_number ? a.thread_number < b.thread_number
                                                  : a.sequence < b.sequence;
    });
}

Damage unreadable(const std::string& path, const std::system_error& error) {
    return {DamageKind::unreadable, path, 0, 0, error.code().message()};
}

using ProcessMap = std::map<std::pair<std::uint64_t, std::uint32_t>, RecordedProcess>;

void read_one(const fs::path& path, ProcessMap& processes, std::vector<Damage>& damage) {
    auto file = std::make_unique<MappedFile>(path.string());
    const SegmentHeader* header = valid_header(*file);
    if (header == nullptr) {
        damage.push_back({DamageKind::segment_header, path.string()});
        return;
    }
    RecordedProcess& process = processes[{header->identity.process_key, header->identity.process_id}];
    const std::uint32_t index = header->identity.segment_index;
    if (std::ranges::find(process.segments, index) != process.segments.end()) {
        damage.push_back({DamageKind::segment_copy, path.string()});
        return;
    }
    read_segment(std::move(file), process, path.string(), damage);
}

// What processes lost that could make no segment. A recording of an older version has no such file.
void read_losses(const std::string& path, RecordedFolder& result) {
    if (::access(path.c_str(), F_OK) != 0) return;
    const MappedFile file(path);
    const SegmentHeader* header = valid_header(file);
    if (header == nullptr) {
        result.damage.push_back({DamageKind::losses_header, path});
        return;
    }
    result.dropped_events = header->dropped_events.load(std::memory_order_relaxed);
    const std::uint32_t processes = header->chunks_taken.load(std::memory_order_relaxed);
    if (processes > 0) result.damage.push_back({DamageKind::no_room, {}, processes});
}

// A missing segment means missing events, except for the last segment of a process.
void miss_segments(const RecordedProcess& process, std::vector<Damage>& damage) {
    if (process.segments.empty()) return;
    const std::size_t expected = std::size_t{std::ranges::max(process.segments)} + 1;
    if (const std::size_t missing = expected - process.segments.size(); missing > 0)
        damage.push_back({DamageKind::segments_missing, {}, missing, process.process_id});
}

}  // namespace

void release_pages(std::span<const Event> events) noexcept {
    constexpr std::uintptr_t page = 4096;
    const auto begin = (reinterpret_cast<std::uintptr_t>(events.data()) + page - 1) & ~(page - 1);
    const auto end = reinterpret_cast<std::uintptr_t>(events.data() + events.size()) & ~(page - 1);
    // NOLINTNEXTLINE(performance-no-int-to-ptr): rounded to pages, as numbers
    if (begin < end) madvise(reinterpret_cast<void*>(begin), end - begin, MADV_DONTNEED);
}

RecordedFolder read_folder(const std::string& folder) {
    RecordedFolder result;
    ProcessMap processes;
    std::vector<fs::path> paths;
    for (const auto& entry : fs::directory_iterator(folder)) paths.push_back(entry.path());
    std::ranges::sort(paths);
    for (const auto& path : paths) {
        if (path.extension() != ".segment") continue;
        try {
            read_one(path, processes, result.damage);
        } catch (const std::system_error& error) {
            // One that was opened ahead goes when its process stops. A gap is noticed below.
            std::error_code ignored;
            if (!fs::exists(fs::symlink_status(path, ignored))) continue;
            result.damage.push_back(unreadable(path.string(), error));
        }
    }
    try {
        read_losses(Losses::path_in(folder), result);
    } catch (const std::system_error& error) {
        result.damage.push_back(unreadable(Losses::path_in(folder), error));
    }
    for (auto& [key, process] : processes) {
        const auto stem = std::to_string(process.process_id) + "-" + std::to_string(process.process_key);
        const bool has_events = !process.pieces.empty();
        const std::string path = (fs::path(folder) / (stem + ".names")).string();
        try {
            process.names = read_names(path, has_events, result.damage);
        } catch (const std::system_error& error) {
            // A process that was killed before its first event may have no names file yet.
            if (has_events) result.damage.push_back(unreadable(path, error));
        }
        const std::string gpu_path = (fs::path(folder) / (stem + ".gpu")).string();
        try {
            process.calls = read_calls(gpu_path);
        } catch (const std::system_error& error) {
            result.damage.push_back(unreadable(gpu_path, error));
        }
        miss_segments(process, result.damage);
        sort_pieces(process);
        result.processes.push_back(std::move(process));
    }
    return result;
}

}  // namespace gpuprof
