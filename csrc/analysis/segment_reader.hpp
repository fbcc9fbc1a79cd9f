// SPDX-License-Identifier: Apache-2.0
// Reads what a recording left in its folder, whole or not. Never trusts a byte of it.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "analysis/gpu_calls.hpp"
#include "analysis/mapped_file.hpp"
#include "core/layout.hpp"

namespace gpuprof {

// Consecutive events of one thread.
struct ThreadPiece {
    std::uint32_t thread_number = 0;
    std::uint32_t sequence = 0;
    std::uint32_t thread_id = 0;
    std::string thread_name;
    std::span<const Event> events;
    bool has_layer_nodes = false;
    bool has_backward_nodes = false;
};

// Lets the system take back the pages of events that were read: they count as memory of this process,
// which may be the measured one. Reading them again is possible.
void release_pages(std::span<const Event> events) noexcept;

struct RecordedName {
    std::string text;
    std::uint32_t scope = 0;
};

struct RecordedProcess {
    std::uint32_t process_id = 0;
    std::uint32_t parent_process_id = 0;
    std::uint64_t process_key = 0;
    ClockPoint first_point;
    ClockPoint latest_point;
    double ticks_per_ns_guess = 1.0;
    bool closed = false;
    std::uint64_t dropped_events = 0;
    std::uint64_t damaged_events = 0;
    std::vector<RecordedName> names;  // the name with id i is at i - 1
    std::vector<ThreadPiece> pieces;  // by thread number, then in time
    std::vector<std::unique_ptr<MappedFile>> files;
    std::vector<std::uint32_t> segments;  // indices of those that were read
    std::vector<RecordedCall> calls;      // by thread, then in time
};

enum class DamageKind : std::uint8_t {
    clock_point,
    segment_cut_short,
    segment_header,
    segment_copy,
    segments_missing,
    names_no_file,
    names_cut,
    losses_header,
    no_room,
    unreadable,
};

// What of a recording's files is missing or cannot be read.
struct Damage {
    DamageKind kind;
    std::string file;         // empty where it is no single one
    std::uint64_t count = 0;  // of what the kind counts, else 0
    std::uint32_t process_id = 0;
    std::string error{};  // of the system, where the file is unreadable
};

struct RecordedFolder {
    std::vector<RecordedProcess> processes;  // in the order of their start
    std::vector<Damage> damage;
    std::uint64_t dropped_events = 0;  // of processes that could make no file
};

// Throws std::system_error when the folder cannot be listed; damaged files are reported, not thrown.
RecordedFolder read_folder(const std::string& folder);

}  // namespace gpuprof
