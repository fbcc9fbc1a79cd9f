// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

namespace gpuprof {

// Reads Chrome's trace format, as Kineto and others write it, from pieces of any size: events are taken out
// of the text one by one, so memory does not grow with the file.
class ChromeReader {
  public:
    static constexpr std::size_t longest_event_bytes = std::size_t{1} << 24;
    static constexpr std::uint32_t unknown = 0xFFFFFFFFu;
    static constexpr std::uint64_t unknown_long = ~std::uint64_t{0};

    // One element a complete event. `category` and `name` are indices of `texts`.
    struct Columns {
        std::vector<std::int64_t> process_id, thread_id, start_ns, duration_ns;
        std::vector<std::uint32_t> category, name, correlation_id;
        std::vector<std::uint64_t> external_id;
        // Of device work; `unknown` if the trace does not contain it.
        std::vector<std::uint32_t> device, context, stream, registers, shared_bytes, graph_id;
        std::vector<std::uint32_t> grid_x, grid_y, grid_z, block_x, block_y, block_z;
        std::vector<std::uint64_t> bytes, graph_node_id;
    };
    struct Counts {
        std::uint64_t events = 0;
        std::uint64_t damaged = 0;         // no JSON, or without what an event needs
        std::uint64_t negative = 0;        // durations
        std::uint64_t unmatched_ends = 0;  // E without B
        std::uint64_t unfinished = 0;      // B without E
        // Asynchronous events and others that are no slices, by phase.
        std::map<char, std::uint64_t> not_taken;
    };
    // What the text is; `broken` stops the reading.
    enum class State : std::uint8_t { before, in_object, in_events, after, broken };

    void feed(std::string_view bytes);
    // Closes what never ended at the last instant that is known.
    void finish();

    State state() const noexcept { return state_; }
    // The list of events began and, where its form asks for it, ended.
    bool has_events() const noexcept { return has_events_; }
    bool is_whole() const noexcept;
    const std::string& problem() const noexcept { return problem_; }
    const Counts& counts() const noexcept { return counts_; }
    std::size_t rows() const noexcept { return columns_.name.size(); }
    Columns take() { return std::exchange(columns_, {}); }
    // Texts in the order of their numbers, those that are new since the call before.
    std::vector<std::string> take_texts();
    // Names that the trace gives to its processes and threads, by (process, thread); -1 is the process
    // itself.
    const std::map<std::pair<std::int64_t, std::int64_t>, std::string>& track_names() const noexcept {
        return track_names_;
    }
    // Values of the outer object: texts without their quotes, and what is a list or an object as it is
    // written, of those alone that are read later.
    const std::map<std::string, std::string>& facts() const noexcept { return facts_; }

  private:
    struct Begun {
        std::uint32_t category;
        std::uint32_t name;
        std::int64_t start_ns;
    };
    struct Event;

    void step(char c);
    void step_outside(char c);
    void begin(char c);
    void step_between_events(char c);
    bool step_in_object(char c, bool is_blank);
    void note_scalar();
    void take_event();
    void place(const Event& event);
    void add(const Event& event);
    void end(const Event& event);
    void name_track(const Event& event, std::string_view arguments);
    void read_arguments(Event& event, std::string_view arguments);
    std::int64_t number_of(std::string_view written, bool is_thread);
    std::uint32_t intern(const std::string& text);
    void fail(std::string problem);

    State state_ = State::before;
    bool is_array_ = false;  // the events are in the outermost list
    bool has_events_ = false;
    bool in_string_ = false, escaped_ = false;
    std::int64_t depth_ = 0;
    bool expects_key_ = false;
    std::string key_, scalar_, event_;
    bool collecting_ = false, in_nested_fact_ = false;
    std::string problem_;
    Counts counts_;
    Columns columns_;
    std::int64_t last_ns_ = 0;
    std::unordered_map<std::string, std::uint32_t> numbers_;
    std::vector<std::string> fresh_texts_;
    std::map<std::string, std::int64_t> made_ids_;
    std::map<std::pair<std::int64_t, std::int64_t>, std::vector<Begun>> begun_;
    std::map<std::pair<std::int64_t, std::int64_t>, std::string> track_names_;
    std::map<std::string, std::string> facts_;
};

}  // namespace gpuprof
