// SPDX-License-Identifier: Apache-2.0
// A recording made by hand: one process whose clock ticks once a nanosecond, so times are exact.
#pragma once

#include <cstdio>
#include <cstring>
#include <fstream>
#include <string>
#include <utility>
#include <vector>

#include "core/layout.hpp"

namespace gpuprof::test {

using Bytes = std::vector<char>;

inline void write_file(const std::string& path, const Bytes& bytes) {
    // A file that is overwritten may be flushed at once (ext4's auto_da_alloc); thousands are written here.
    std::remove(path.c_str());
    std::ofstream(path, std::ios::binary).write(bytes.data(), static_cast<std::streamsize>(bytes.size()));
}

template <typename T>
void add_bytes(Bytes& bytes, const T& value) {
    const auto* first = reinterpret_cast<const char*>(&value);
    bytes.insert(bytes.end(), first, first + sizeof(T));
}

class FakeRecording {
  public:
    static constexpr std::uint64_t origin = 5'000'000'000;  // ticks and monotonic nanoseconds alike
    static constexpr std::uint64_t length = 2'000'000'000;

    explicit FakeRecording(std::uint32_t process_id = 100) {
        std::memcpy(identity.magic, segment_magic, sizeof(segment_magic));
        identity.version = segment_version;
        identity.process_id = process_id;
        identity.parent_process_id = 1;
        identity.process_key = 7000 + process_id;
        identity.first_point = {origin, static_cast<std::int64_t>(origin)};
        identity.ticks_per_ns_guess = 1.0;
    }

    SegmentIdentity identity{};
    ClockPoint latest{origin + length, static_cast<std::int64_t>(origin + length)};
    bool closed = true;
    std::uint64_t dropped = 0;

    std::uint32_t name(const std::string& text, std::uint32_t scope = 0) {
        names_.emplace_back(text, scope);
        return static_cast<std::uint32_t>(names_.size());
    }

    // The events from here on are of this thread and in a chunk of their own.
    void thread(std::uint32_t number, std::uint32_t sequence = 0, const std::string& label = "worker") {
        chunks_.emplace_back();
        pass_to(number, sequence, label);
    }

    // The same in the middle of a chunk, as where a thread took over the rest of an ended one.
    void pass_to(std::uint32_t number, std::uint32_t sequence = 0, const std::string& label = "worker") {
        raw(EventKind::thread, sequence, std::uint64_t{500 + number} << 32 | number);
        ThreadLabel text{};
        label.copy(text.text, sizeof(text.text) - 1);
        Event event{};
        std::memcpy(&event, &text, sizeof(text));
        chunks_.back().push_back(event);
    }

    // `at_ns` counts from the origin.
    void event(EventKind kind, std::uint32_t name, std::uint64_t at_ns) { raw(kind, name, origin + at_ns); }
    void raw(EventKind kind, std::uint32_t name, std::uint64_t ticks) {
        chunks_.back().push_back({ticks, name, static_cast<std::uint32_t>(kind)});
    }
    void span(std::uint32_t name, std::uint64_t begin_ns, std::uint64_t end_ns) {
        event(EventKind::span_begin, name, begin_ns);
        event(EventKind::span_end, name, end_ns);
    }
    std::vector<std::vector<Event>>& chunks() { return chunks_; }

    // The segment's bytes; `whole` fills the last chunk to its end, as the recorder leaves it.
    Bytes segment(bool whole = true) const {
        SegmentIdentity described = identity;
        described.chunk_count = static_cast<std::uint32_t>(chunks_.size());
        SegmentHeader header{};
        header.identity = described;
        header.checksum = fnv1a(&described, sizeof(described));
        header.latest_point = latest;
        header.dropped_events = dropped;
        header.closed = closed ? 1 : 0;
        header.chunks_taken = described.chunk_count;
        Bytes bytes;
        add_bytes(bytes, header);
        bytes.resize(header_bytes);
        for (std::size_t i = 0; i < chunks_.size(); ++i) {
            for (const Event& event : chunks_[i]) add_bytes(bytes, event);
            if (whole || i + 1 < chunks_.size()) bytes.resize(header_bytes + (i + 1) * chunk_bytes);
        }
        return bytes;
    }

    Bytes names() const {
        Bytes bytes;
        add_bytes(bytes, names_magic);
        for (const auto& [text, scope] : names_) {
            add_bytes(bytes, NameRecord{static_cast<std::uint32_t>(text.size()), scope});
            bytes.insert(bytes.end(), text.begin(), text.end());
        }
        return bytes;
    }

    std::string stem() const {
        return std::to_string(identity.process_id) + "-" + std::to_string(identity.process_key);
    }
    void write(const std::string& folder) const {
        write_file(folder + "/" + stem() + ".0.segment", segment());
        write_file(folder + "/" + stem() + ".names", names());
    }

  private:
    std::vector<std::vector<Event>> chunks_;
    std::vector<std::pair<std::string, std::uint32_t>> names_;
};

}  // namespace gpuprof::test
