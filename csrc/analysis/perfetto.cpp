// SPDX-License-Identifier: Apache-2.0
#include "analysis/perfetto.hpp"

#include <algorithm>
#include <bit>
#include <stdexcept>
#include <utility>

namespace gpuprof {
namespace {

// Numbers of the fields in perfetto_trace.proto.
enum Trace : std::uint32_t { trace_packet = 1 };
enum Packet : std::uint32_t {
    packet_clock_snapshot = 6,
    packet_timestamp = 8,
    packet_sequence = 10,
    packet_track_event = 11,
    packet_interned_data = 12,
    packet_sequence_flags = 13,
    packet_clock = 58,
    packet_defaults = 59,
    packet_track_descriptor = 60,
};
enum Event : std::uint32_t {
    event_category = 3,
    event_type = 9,
    event_name = 10,
    event_track = 11,
    event_double_value = 44,
    event_flow = 47,
    event_ending_flow = 48,
};
enum EventType : std::uint64_t { slice_begin = 1, slice_end = 2, counter_value = 4 };
enum Descriptor : std::uint32_t {
    track_uuid = 1,
    track_name = 2,
    track_process = 3,
    track_thread = 4,
    track_parent = 5,
    track_counter = 8,
};
enum Flags : std::uint64_t { state_cleared = 1, needs_state = 2 };
enum Interned : std::uint32_t { interned_categories = 1, interned_names = 2 };

constexpr std::uint64_t realtime_clock = 1;
constexpr std::uint64_t boottime_clock = 6;
constexpr std::uint64_t difference_clock = 64;  // the first that a sequence may define

void varint(std::string& out, std::uint64_t value) {
    for (; value >= 0x80; value >>= 7) out.push_back(static_cast<char>(value | 0x80));
    out.push_back(static_cast<char>(value));
}

void number(std::string& out, std::uint32_t field, std::uint64_t value) {
    varint(out, std::uint64_t{field} << 3);
    varint(out, value);
}

void bytes(std::string& out, std::uint32_t field, std::string_view value) {
    varint(out, std::uint64_t{field} << 3 | 2);
    varint(out, value.size());
    out.append(value);
}

void fixed(std::string& out, std::uint32_t field, std::uint64_t value) {
    varint(out, std::uint64_t{field} << 3 | 1);
    for (int i = 0; i < 8; ++i) out.push_back(static_cast<char>(value >> (8 * i)));
}

std::string clock(std::uint64_t id, std::uint64_t time, bool counts_differences = false) {
    std::string text;
    number(text, 1, id);
    number(text, 2, time);
    if (counts_differences) number(text, 3, 1);
    return text;
}

// Process and thread ids are 32 bits in the schema and negative ones sign-extended.
std::uint64_t id32(std::int64_t id) {
    return static_cast<std::uint64_t>(std::int64_t{static_cast<std::int32_t>(id)});
}

std::string describe(std::uint32_t uuid, const PerfettoEncoder::Track& track) {
    using Kind = PerfettoEncoder::TrackKind;
    std::string text, part;
    number(text, track_uuid, uuid);
    if (track.parent != 0) number(text, track_parent, track.parent);
    if (track.kind == Kind::process) {
        number(part, 1, id32(track.process_id));
        bytes(part, 6, track.name);
        bytes(text, track_process, part);
    } else if (track.kind == Kind::thread) {
        number(part, 1, id32(track.process_id));
        number(part, 2, id32(track.thread_id));
        bytes(part, 5, track.name);
        bytes(text, track_thread, part);
    } else {
        bytes(text, track_name, track.name);
        if (track.kind == Kind::counter) bytes(text, track_counter, {});
    }
    return text;
}

}  // namespace

PerfettoEncoder::PerfettoEncoder(std::int64_t origin_unix_ns, std::vector<std::string> categories)
    : categories_(std::move(categories)) {
    std::string snapshot;
    bytes(snapshot, 1, clock(boottime_clock, 0));
    bytes(snapshot, 1, clock(realtime_clock, static_cast<std::uint64_t>(origin_unix_ns)));
    packet_.clear();
    bytes(packet_, packet_clock_snapshot, snapshot);
    number(packet_, packet_sequence, 1);
    bytes(output_, trace_packet, packet_);
}

void PerfettoEncoder::add_names(std::vector<std::string> names) {
    for (std::string& name : names) names_.push_back(std::move(name));
}

std::uint32_t PerfettoEncoder::add_track(const Track& track) {
    tracks_.emplace_back();
    const auto uuid = static_cast<std::uint32_t>(tracks_.size());
    packet_.clear();
    bytes(packet_, packet_track_descriptor, describe(uuid, track));
    number(packet_, packet_sequence, 1);
    bytes(output_, trace_packet, packet_);
    return uuid;
}

PerfettoEncoder::State& PerfettoEncoder::state(std::uint32_t track) {
    if (track == 0 || track > tracks_.size()) throw std::out_of_range("no such track");
    return tracks_[track - 1];
}

void PerfettoEncoder::begin_sequence(std::uint32_t track) {
    State& at = state(track);
    if (at.began) return;
    at.began = true;
    std::string snapshot, defaults, event_defaults;
    bytes(snapshot, 1, clock(boottime_clock, 0));
    bytes(snapshot, 1, clock(difference_clock, 0, true));
    number(event_defaults, event_track, track);
    bytes(defaults, packet_track_event, event_defaults);
    number(defaults, packet_clock, difference_clock);
    packet_.clear();
    bytes(packet_, packet_clock_snapshot, snapshot);
    number(packet_, packet_sequence, track + std::uint64_t{1});
    number(packet_, packet_sequence_flags, state_cleared);
    bytes(packet_, packet_defaults, defaults);
    bytes(output_, trace_packet, packet_);
}

void PerfettoEncoder::write_event(std::uint32_t track, std::int64_t time_ns, const std::string& event,
                                  const std::string& interned) {
    begin_sequence(track);
    State& at = state(track);
    const std::int64_t now = std::max(time_ns, at.last_ns);
    packet_.clear();
    number(packet_, packet_timestamp, static_cast<std::uint64_t>(now - at.last_ns));
    at.last_ns = now;
    number(packet_, packet_sequence, track + std::uint64_t{1});
    bytes(packet_, packet_track_event, event);
    if (!interned.empty()) bytes(packet_, packet_interned_data, interned);
    number(packet_, packet_sequence_flags, needs_state);
    bytes(output_, trace_packet, packet_);
}

void PerfettoEncoder::intern(std::string& into, std::vector<bool>& known, std::uint32_t field,
                             std::uint32_t index, const std::vector<std::string>& texts) {
    if (index >= texts.size()) throw std::out_of_range("no such name");
    if (known.size() <= index) known.resize(texts.size());
    if (known[index]) return;
    known[index] = true;
    std::string entry;
    number(entry, 1, index + std::uint64_t{1});
    bytes(entry, 2, texts[index]);
    bytes(into, field, entry);
}

void PerfettoEncoder::end_slices(std::uint32_t track, std::size_t level) {
    State& at = state(track);
    while (at.open_ends.size() > level) {
        event_.clear();
        number(event_, event_type, slice_end);
        write_event(track, at.open_ends.back(), event_, {});
        at.open_ends.pop_back();
    }
}

void PerfettoEncoder::add_slice(std::uint32_t track, const Slice& slice) {
    State& at = state(track);
    end_slices(track, static_cast<std::size_t>(std::max(slice.level, 0)));
    interned_.clear();
    intern(interned_, at.known_names, interned_names, slice.name, names_);
    intern(interned_, at.known_categories, interned_categories, slice.category, categories_);
    event_.clear();
    number(event_, event_category, slice.category + std::uint64_t{1});
    number(event_, event_type, slice_begin);
    number(event_, event_name, slice.name + std::uint64_t{1});
    for (std::size_t i = 0; i < slice.flow_count; ++i) fixed(event_, event_flow, slice.flows[i]);
    if (slice.ending_flow != 0) fixed(event_, event_ending_flow, slice.ending_flow);
    write_event(track, slice.start_ns, event_, interned_);
    at.open_ends.push_back(slice.start_ns + slice.duration_ns);
}

void PerfettoEncoder::add_reading(std::uint32_t track, std::int64_t time_ns, double value) {
    event_.clear();
    number(event_, event_type, counter_value);
    fixed(event_, event_double_value, std::bit_cast<std::uint64_t>(value));
    write_event(track, time_ns, event_, {});
}

void PerfettoEncoder::finish() {
    for (std::uint32_t track = 1; track <= tracks_.size(); ++track) end_slices(track, 0);
}

std::string PerfettoEncoder::take() {
    return std::exchange(output_, {});
}

}  // namespace gpuprof
