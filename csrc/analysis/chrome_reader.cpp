// SPDX-License-Identifier: Apache-2.0
#include "analysis/chrome_reader.hpp"

#include <algorithm>
#include <array>

#include "analysis/json_text.hpp"

namespace gpuprof {
namespace {

// Processes and threads that are named and not numbered get numbers from here on.
constexpr std::int64_t first_made_id = 1'000'000'000;
constexpr std::size_t longest_fact_bytes = 4096;
// Kineto's facts about the devices and the rank; other lists and objects next to the events are ignored.
constexpr std::size_t longest_nested_fact_bytes = std::size_t{1} << 20;

bool is_wanted_nested_fact(std::string_view key) {
    return key == "deviceProperties" || key == "distributedInfo";
}

std::uint32_t number32(std::string_view written) {
    const auto value = json_integer(written);
    return value && *value >= 0 && *value < std::int64_t{ChromeReader::unknown}
               ? static_cast<std::uint32_t>(*value)
               : ChromeReader::unknown;
}

std::uint64_t number64(std::string_view written) {
    const auto value = json_integer(written);
    return value && *value >= 0 ? static_cast<std::uint64_t>(*value) : ChromeReader::unknown_long;
}

std::array<std::uint32_t, 3> triple(std::string_view written) {
    std::array<std::uint32_t, 3> values{ChromeReader::unknown, ChromeReader::unknown, ChromeReader::unknown};
    JsonCursor cursor(written);
    if (!cursor.enter('[')) return values;
    for (std::size_t i = 0; i < values.size() && cursor.next_element(); ++i)
        values[i] = number32(cursor.value());
    return values;
}

}  // namespace

struct ChromeReader::Event {
    char phase = '\0';
    std::string name, category;
    std::int64_t process_id = 0, thread_id = 0, start_ns = 0, duration_ns = 0;
    bool has_start = false, has_duration = false;
    std::uint32_t correlation_id = unknown, device = unknown, context = unknown, stream = unknown;
    std::uint32_t registers = unknown, shared_bytes = unknown, graph_id = unknown;
    std::uint64_t external_id = unknown_long, bytes = unknown_long, graph_node_id = unknown_long;
    std::array<std::uint32_t, 3> grid{unknown, unknown, unknown}, block{unknown, unknown, unknown};
};

bool ChromeReader::is_whole() const noexcept {
    // The list form may lack its closing bracket: its writers end by being killed.
    return state_ == State::after || (is_array_ && state_ == State::in_events && !collecting_);
}

std::vector<std::string> ChromeReader::take_texts() {
    return std::exchange(fresh_texts_, {});
}

void ChromeReader::fail(std::string problem) {
    state_ = State::broken;
    problem_ = std::move(problem);
}

void ChromeReader::feed(std::string_view bytes) {
    for (const char c : bytes) {
        if (state_ == State::broken || state_ == State::after) return;
        step(c);
    }
}

// Follows strings and brackets; what lies inside an event is kept whole for later.
void ChromeReader::step(char c) {
    if (in_nested_fact_ && scalar_.size() <= longest_nested_fact_bytes) scalar_.push_back(c);
    if (collecting_) {
        event_.push_back(c);
        if (event_.size() > longest_event_bytes) return fail("an event is larger than 16 MiB");
    }
    if (in_string_) {
        if (!collecting_ && !in_nested_fact_ && state_ == State::in_object && depth_ == 1 &&
            scalar_.size() < longest_fact_bytes)
            scalar_.push_back(c);
        if (escaped_)
            escaped_ = false;
        else if (c == '\\')
            escaped_ = true;
        else if (c == '"')
            in_string_ = false;
        return;
    }
    if (c == '"') in_string_ = true;
    if (!collecting_) return step_outside(c);
    if (c == '{' || c == '[') ++depth_;
    if (c == '}' || c == ']') --depth_;
    if (depth_ > (is_array_ ? 1 : 2)) return;
    collecting_ = false;
    take_event();
}

void ChromeReader::step_outside(char c) {
    const bool is_blank = c == ' ' || c == '\n' || c == '\r' || c == '\t';
    if (state_ == State::before) {
        if (!is_blank && static_cast<unsigned char>(c) < 0x80) begin(c);  // or a byte order mark
        return;
    }
    if (state_ == State::in_events && depth_ == (is_array_ ? 1 : 2)) {
        if (!is_blank) step_between_events(c);
        return;
    }
    if (depth_ == 1 && step_in_object(c, is_blank)) return;
    if (c == '{' || c == '[') ++depth_;
    if (c == '}' || c == ']') --depth_;
    if (in_nested_fact_ && depth_ == 1) in_nested_fact_ = false;
    if (depth_ == 0) state_ = State::after;
}

void ChromeReader::begin(char c) {
    if (c != '{' && c != '[') return fail("it does not begin as JSON does");
    is_array_ = has_events_ = c == '[';
    state_ = is_array_ ? State::in_events : State::in_object;
    depth_ = 1;
    expects_key_ = true;
}

void ChromeReader::step_between_events(char c) {
    if (c == '{') {
        ++depth_;
        collecting_ = true;
        event_.assign(1, c);
    } else if (c == ']') {
        --depth_;
        state_ = is_array_ ? State::after : State::in_object;
        scalar_.clear();
    } else if (c != ',') {
        fail("its list of events holds what is no event");
    }
}

// Returns whether nothing is left to do for this character.
bool ChromeReader::step_in_object(char c, bool is_blank) {
    if (c == ':' && expects_key_) {
        key_ = json_string(scalar_);
        scalar_.clear();
        expects_key_ = false;
        return true;
    }
    if (c == ',' || c == '}') note_scalar();
    if (c == '[' && key_ == "traceEvents") {
        depth_ = 2;
        state_ = State::in_events;
        has_events_ = true;
        return true;
    }
    if ((c == '[' || c == '{') && is_wanted_nested_fact(key_)) {
        scalar_.assign(1, c);
        in_nested_fact_ = true;
        return false;
    }
    const bool is_bracket = c == '{' || c == '}' || c == '[' || c == ']';
    if (c != ',' && !is_bracket && !is_blank && scalar_.size() < longest_fact_bytes) scalar_.push_back(c);
    return false;
}

void ChromeReader::note_scalar() {
    const bool is_too_long = scalar_.size() > longest_nested_fact_bytes;
    const bool is_nested = !scalar_.empty() && (scalar_[0] == '[' || scalar_[0] == '{');
    if (!key_.empty() && !scalar_.empty() && !is_too_long)
        facts_[key_] = is_nested ? scalar_ : json_string(scalar_);
    key_.clear();
    scalar_.clear();
    expects_key_ = true;
}

std::uint32_t ChromeReader::intern(const std::string& text) {
    const auto [found, is_new] = numbers_.try_emplace(text, static_cast<std::uint32_t>(numbers_.size()));
    if (is_new) fresh_texts_.push_back(text);
    return found->second;
}

std::int64_t ChromeReader::number_of(std::string_view written, bool is_thread) {
    constexpr std::int64_t widest = 0x7FFFFFFF;
    const auto number = json_integer(written);
    if (number && *number >= 0 && (is_thread || *number <= widest)) return *number;
    const std::string text = json_string(written);
    const auto [found, is_new] =
        made_ids_.try_emplace(text, first_made_id + static_cast<std::int64_t>(made_ids_.size()));
    return found->second;
}

void ChromeReader::take_event() {
    Event event;
    std::string key;
    std::string_view arguments, process, thread;
    JsonCursor cursor(event_);
    if (!cursor.enter('{')) return;
    while (cursor.next_key(key)) {
        const std::string_view value = cursor.value();
        if (key == "ph") event.phase = json_string(value).substr(0, 1).c_str()[0];
        if (key == "name") event.name = json_string(value);
        if (key == "cat") event.category = json_string(value);
        if (key == "pid") process = value;
        if (key == "tid") thread = value;
        if (key == "args") arguments = value;
        if (key == "ts" || key == "dur") {
            const auto time = json_microseconds(value);
            (key == "ts" ? event.has_start : event.has_duration) = time.has_value();
            (key == "ts" ? event.start_ns : event.duration_ns) = time.value_or(0);
        }
    }
    ++counts_.events;
    if (!cursor.ok()) {
        ++counts_.damaged;
        return;
    }
    event.process_id = process.empty() ? 0 : number_of(process, false);
    event.thread_id = thread.empty() ? event.process_id : number_of(thread, true);
    for (const auto& [written, is_thread] : {std::pair{process, false}, std::pair{thread, true}}) {
        const std::int64_t id = is_thread ? event.thread_id : event.process_id;
        if (id >= first_made_id && !written.empty() && !json_integer(written))
            track_names_.try_emplace({event.process_id, is_thread ? id : -1}, json_string(written));
    }
    if (event.phase == 'M') return name_track(event, arguments);
    if (!arguments.empty() && arguments[0] == '{') read_arguments(event, arguments);
    place(event);
}

void ChromeReader::name_track(const Event& event, std::string_view arguments) {
    const bool of_process = event.name == "process_name";
    if (!of_process && event.name != "thread_name") return;
    JsonCursor cursor(arguments);
    std::string key;
    if (!cursor.enter('{')) return;
    while (cursor.next_key(key)) {
        const std::string_view value = cursor.value();
        if (key == "name")
            track_names_[{event.process_id, of_process ? -1 : event.thread_id}] = json_string(value);
    }
}

void ChromeReader::read_arguments(Event& event, std::string_view arguments) {
    JsonCursor cursor(arguments);
    std::string key;
    if (!cursor.enter('{')) return;
    while (cursor.next_key(key)) {
        const std::string_view value = cursor.value();
        if (key == "correlation") event.correlation_id = number32(value);
        if (key == "External id" || key == "external id") event.external_id = number64(value);
        if (key == "device") event.device = number32(value);
        if (key == "context") event.context = number32(value);
        if (key == "stream") event.stream = number32(value);
        if (key == "bytes") event.bytes = number64(value);
        if (key == "registers per thread") event.registers = number32(value);
        if (key == "shared memory") event.shared_bytes = number32(value);
        if (key == "graph id") event.graph_id = number32(value);
        if (key == "graph node id") event.graph_node_id = number64(value);
        if (key == "grid") event.grid = triple(value);
        if (key == "block") event.block = triple(value);
    }
}

void ChromeReader::place(const Event& event) {
    if (event.phase == 'X' || event.phase == 'B' || event.phase == 'E') {
        if (!event.has_start || (event.phase == 'X' && !event.has_duration)) {
            ++counts_.damaged;
            return;
        }
        last_ns_ = std::max(last_ns_, event.start_ns + std::max<std::int64_t>(0, event.duration_ns));
    }
    if (event.phase == 'X') return add(event);
    if (event.phase == 'E') return end(event);
    if (event.phase == 'B')
        begun_[{event.process_id, event.thread_id}].push_back(
            Begun{intern(event.category), intern(event.name), event.start_ns});
    else
        ++counts_.not_taken[event.phase];
}

void ChromeReader::end(const Event& event) {
    auto& open = begun_[{event.process_id, event.thread_id}];
    if (open.empty()) {
        ++counts_.unmatched_ends;
        return;
    }
    const Begun begun = open.back();
    open.pop_back();
    Event whole = event;
    whole.start_ns = begun.start_ns;
    whole.duration_ns = event.start_ns - begun.start_ns;
    add(whole);
    if (whole.duration_ns < 0) return;
    columns_.category.back() = begun.category;
    columns_.name.back() = begun.name;
}

void ChromeReader::add(const Event& event) {
    if (event.duration_ns < 0) {
        ++counts_.negative;
        return;
    }
    Columns& to = columns_;
    to.process_id.push_back(event.process_id);
    to.thread_id.push_back(event.thread_id);
    to.start_ns.push_back(event.start_ns);
    to.duration_ns.push_back(event.duration_ns);
    to.category.push_back(intern(event.category));
    to.name.push_back(intern(event.name));
    to.correlation_id.push_back(event.correlation_id);
    to.external_id.push_back(event.external_id);
    to.device.push_back(event.device);
    to.context.push_back(event.context);
    to.stream.push_back(event.stream);
    to.registers.push_back(event.registers);
    to.shared_bytes.push_back(event.shared_bytes);
    to.graph_id.push_back(event.graph_id);
    to.graph_node_id.push_back(event.graph_node_id);
    to.bytes.push_back(event.bytes);
    to.grid_x.push_back(event.grid[0]);
    to.grid_y.push_back(event.grid[1]);
    to.grid_z.push_back(event.grid[2]);
    to.block_x.push_back(event.block[0]);
    to.block_y.push_back(event.block[1]);
    to.block_z.push_back(event.block[2]);
}

void ChromeReader::finish() {
    for (auto& [track, open] : begun_) {
        for (const Begun& begun : open) {
            Event event;
            event.process_id = track.first;
            event.thread_id = track.second;
            event.start_ns = begun.start_ns;
            event.duration_ns = std::max<std::int64_t>(0, last_ns_ - begun.start_ns);
            add(event);
            columns_.category.back() = begun.category;
            columns_.name.back() = begun.name;
            ++counts_.unfinished;
        }
        open.clear();
    }
}

}  // namespace gpuprof
