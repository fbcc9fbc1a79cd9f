// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace gpuprof {

// Writes a trace in Perfetto's protobuf format, piece by piece. Each track is a packet sequence of its own:
// its times are differences to the packet before, and names are written once per track.
class PerfettoEncoder {
  public:
    enum class TrackKind : std::uint8_t { group, process, thread, lane, counter };
    struct Track {
        TrackKind kind = TrackKind::group;
        std::uint32_t parent = 0;  // 0: none
        std::string name;
        std::int64_t process_id = 0;
        std::int64_t thread_id = 0;
    };
    struct Slice {
        std::uint32_t name = 0;      // index of names
        std::uint32_t category = 0;  // index of categories
        std::int32_t level = 0;      // how many slices are open around it
        std::int64_t start_ns = 0;
        std::int64_t duration_ns = 0;
        const std::uint64_t* flows = nullptr;  // arrows that begin here
        std::size_t flow_count = 0;
        std::uint64_t ending_flow = 0;  // 0: none
    };

    // `origin_unix_ns` is what a clock on the wall showed at time 0.
    PerfettoEncoder(std::int64_t origin_unix_ns, std::vector<std::string> categories);
    void add_names(std::vector<std::string> names);
    // Returns the track's number; lanes and counters are below their parent.
    std::uint32_t add_track(const Track& track);
    // Slices of a track come in the order of their begin.
    void add_slice(std::uint32_t track, const Slice& slice);
    void add_reading(std::uint32_t track, std::int64_t time_ns, double value);
    // Ends what is open on all tracks.
    void finish();
    // What was written since the last call.
    std::string take();

  private:
    struct State {
        bool began = false;
        std::int64_t last_ns = 0;
        std::vector<std::int64_t> open_ends;
        std::vector<bool> known_names;
        std::vector<bool> known_categories;
    };

    State& state(std::uint32_t track);
    void begin_sequence(std::uint32_t track);
    void end_slices(std::uint32_t track, std::size_t level);
    void write_event(std::uint32_t track, std::int64_t time_ns, const std::string& event,
                     const std::string& interned);
    static void intern(std::string& into, std::vector<bool>& known, std::uint32_t field, std::uint32_t index,
                       const std::vector<std::string>& texts);

    std::vector<std::string> names_;
    std::vector<std::string> categories_;
    std::vector<State> tracks_;
    std::string output_, event_, interned_, packet_;
};

}  // namespace gpuprof
