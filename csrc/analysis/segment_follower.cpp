// SPDX-License-Identifier: Apache-2.0
#include "analysis/segment_follower.hpp"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstring>
#include <filesystem>
#include <limits>
#include <system_error>

#include "core/clock.hpp"

namespace gpuprof {
namespace {

namespace fs = std::filesystem;

constexpr std::size_t batch_rows = 32'768;
constexpr std::int64_t shortest_baseline_ns = 1'000'000;
constexpr std::string_view collection_prefix = "generation ";

// A file that is open until the end, so that what was written can be read after the recording removed it. It
// is not mapped: a recording that ends cuts its segments off, and a mapped page after the end is a SIGBUS.
class OpenFile {
  public:
    explicit OpenFile(const std::string& path) : file_(::open(path.c_str(), O_RDONLY | O_CLOEXEC)) {}
    OpenFile(OpenFile&& other) noexcept : file_(std::exchange(other.file_, -1)) {}
    OpenFile& operator=(OpenFile&&) = delete;
    OpenFile(const OpenFile&) = delete;
    OpenFile& operator=(const OpenFile&) = delete;
    ~OpenFile() {
        if (file_ >= 0) ::close(file_);
    }
    bool is_open() const noexcept { return file_ >= 0; }
    // The number of bytes that were read.
    std::size_t read(void* target, std::size_t size, std::size_t offset) const noexcept {
        std::size_t done = 0;
        while (done < size) {
            const ssize_t count = ::pread(file_, static_cast<char*>(target) + done, size - done,
                                          static_cast<off_t>(offset + done));
            if (count < 0 && errno == EINTR) continue;
            if (count <= 0) break;
            done += static_cast<std::size_t>(count);
        }
        return done;
    }

  private:
    int file_;
};

// The header's values without its atomics, which cannot be copied.
struct HeaderCopy {
    alignas(SegmentHeader) std::byte bytes[sizeof(SegmentHeader)];
    const SegmentHeader& get() const noexcept { return *reinterpret_cast<const SegmentHeader*>(bytes); }
    bool read(const OpenFile& file) noexcept {
        if (file.read(bytes, sizeof(bytes), 0) != sizeof(bytes)) return false;
        const SegmentIdentity& identity = get().identity;
        return std::memcmp(identity.magic, segment_magic, sizeof(segment_magic)) == 0 &&
               identity.version == segment_version && get().checksum == fnv1a(&identity, sizeof(identity));
    }
};

struct FollowedSegment {
    OpenFile file;
    std::uint32_t index;
    std::uint32_t chunk_count;
    std::uint32_t known_chunks = 0;
};

// How far a chunk was read, and whose piece is at that position.
struct FollowedChunk {
    std::size_t segment;
    std::size_t offset;  // in the file
    std::size_t position = 0;
    std::uint32_t thread_number = 0;
    std::uint32_t sequence = 0;
    bool in_piece = false;
    bool is_held = false;  // an earlier piece of its thread was not read to the end
};

bool is_kind(std::uint32_t value, EventKind kind) noexcept {
    return value == static_cast<std::uint32_t>(kind);
}

TickScale scale_between(ClockPoint first, ClockPoint last, double ticks_per_ns_guess) {
    const std::int64_t elapsed_ns = last.monotonic_ns - first.monotonic_ns;
    if (elapsed_ns >= shortest_baseline_ns && last.ticks > first.ticks) {
        const double rate = static_cast<double>(last.ticks - first.ticks) / static_cast<double>(elapsed_ns);
        if (std::abs(rate / ticks_per_ns_guess - 1) < 0.1) return {first, last};
    }
    ClockPoint guessed = first;
    constexpr std::int64_t second_ns = 1'000'000'000;
    guessed.ticks += static_cast<std::uint64_t>(ticks_per_ns_guess * second_ns);
    guessed.monotonic_ns += second_ns;
    return {first, guessed};
}

}  // namespace

// One process of the recording: its files, and its threads with what is open in them.
class SegmentFollower::Process {
  public:
    Process(SegmentFollower& owner, const SegmentIdentity& identity)
        : owner_(owner),
          names_path_((fs::path(owner.folder_) / (std::to_string(identity.process_id) + "-" +
                                                  std::to_string(identity.process_key) + ".names"))
                          .string()),
          node_(0) {
        recorded_.process_id = identity.process_id;
        recorded_.parent_process_id = identity.parent_process_id;
        recorded_.process_key = identity.process_key;
        recorded_.first_point = recorded_.latest_point = identity.first_point;
        const double rate = identity.ticks_per_ns_guess;
        recorded_.ticks_per_ns_guess = rate > 1e-3 && rate < 1e3 ? rate : 1.0;
        node_ = owner.tree_.add_process(
            identity.process_id, owner.merger_.add("process " + std::to_string(identity.process_id), 0));
        owner.merger_.adopt_new(recorded_, name_ids_);
    }

    void add_segment(OpenFile file, const SegmentIdentity& identity) {
        const bool is_known = std::ranges::any_of(
            segments_, [&](const FollowedSegment& other) { return other.index == identity.segment_index; });
        if (!is_known) segments_.push_back({std::move(file), identity.segment_index, identity.chunk_count});
    }

    // Before new segments are looked for: of a process that has closed, all are there.
    void read_state(bool has_ended) {
        has_ended_ = has_ended_ || has_ended;
        for (const FollowedSegment& segment : segments_) {
            HeaderCopy header;
            if (segment.index != 0 || !header.read(segment.file)) continue;
            recorded_.closed = header.get().closed.load(std::memory_order_acquire) == 1;
            recorded_.dropped_events = header.get().dropped_events.load(std::memory_order_relaxed);
            if (header.get().latest_point.ticks > recorded_.first_point.ticks)
                recorded_.latest_point = header.get().latest_point;
        }
        has_ended_ = has_ended_ || recorded_.closed;
    }

    const RecordedProcess& recorded() const noexcept { return recorded_; }
    bool finished() const noexcept { return finished_; }

    // Returns whether events are left.
    bool poll(std::size_t& most_events, const Sink& sink);
    FollowedProcessState state() const;

  private:
    struct Thread {
        Thread(Process& process, std::uint32_t number, std::uint32_t system_id)
            : thread_id(system_id),
              cursor{process.recorded_,
                     process.name_ids_,
                     totals,
                     std::numeric_limits<std::uint64_t>::max(),
                     static_cast<std::uint64_t>(1e9 * process.recorded_.ticks_per_ns_guess),
                     process.recorded_.ticks_per_ns_guess},
              builder(process.setting(*this), process.node_, (process.recorded_.process_key << 20) ^ number,
                      system_id),
              added(cursor),
              modes{system_id, process.clock_, process.owner_.modes_},
              feed(cursor, builder, added, modes) {}
        Thread(const Thread&) = delete;
        Thread& operator=(const Thread&) = delete;

        std::uint32_t thread_id;
        std::uint32_t next_piece = 0;
        DecodeTotals totals;
        SpanColumns rows;
        LinkColumns links;
        ProcessCursor cursor;
        SpanBuilder builder;
        AddedEvents added;
        ModeSink modes;
        ThreadFeed feed;
    };

    BuilderSetting setting(Thread& thread);
    Thread& thread_of(const Event& mark);
    void read_names();
    void find_chunks();
    bool read_chunk(FollowedChunk& chunk);
    std::size_t load(const FollowedChunk& chunk);
    bool enter_piece(FollowedChunk& chunk, std::size_t count);
    bool feed_run(FollowedChunk& chunk, std::size_t count);
    bool must_wait(std::size_t at, std::size_t count);
    bool release_held();
    void hand_over(Thread& thread, bool all);
    void finish();

    SegmentFollower& owner_;
    std::string names_path_;
    RecordedProcess recorded_;
    TickToRun clock_{TickScale(ClockPoint{}, ClockPoint{}), 0};
    std::vector<std::uint32_t> name_ids_;
    std::unique_ptr<OpenFile> names_file_;
    std::string names_rest_;
    std::size_t names_offset_ = 0;
    std::uint32_t node_;
    ProcessRanges ranges_;
    ForwardCalls forward_{{}, {}};
    std::vector<FollowedSegment> segments_;
    std::vector<FollowedChunk> chunks_;
    std::map<std::uint32_t, std::unique_ptr<Thread>> threads_;
    std::vector<Event> events_;
    std::vector<std::uint32_t> kinds_;
    const Sink* sink_ = nullptr;
    std::uint64_t waiting_ticks_ = 0;
    std::uint64_t added_events_ = 0;
    std::uint64_t fed_events_ = 0;
    bool has_ended_ = false;
    bool finished_ = false;
};

BuilderSetting SegmentFollower::Process::setting(Thread& thread) {
    return {clock_,
            owner_.tree_,
            thread.totals,
            thread.rows,
            thread.links,
            owner_.next_span_id_,
            owner_.backward_,
            owner_.merger_.classes(),
            [this, &thread](bool may_move) {
                const std::size_t limit = may_move ? batch_rows * 2 : batch_rows;
                if (std::max(thread.rows.size(), thread.links.size()) >= limit) hand_over(thread, true);
            },
            owner_.merger_.scopes(),
            ranges_,
            forward_};
}

SegmentFollower::Process::Thread& SegmentFollower::Process::thread_of(const Event& mark) {
    const auto number = static_cast<std::uint32_t>(mark.ticks);
    auto& thread = threads_[number];
    if (thread == nullptr)
        thread = std::make_unique<Thread>(*this, number, static_cast<std::uint32_t>(mark.ticks >> 32));
    return *thread;
}

void SegmentFollower::Process::hand_over(Thread& thread, bool all) {
    if (!all && thread.builder.may_move_rows()) return;  // they wait until that operator has ended
    if (thread.rows.size() > 0) (*sink_)(state(), thread.rows);
    thread.rows.clear();
    thread.links.clear();
}

// After the events: a name is in the file before any event carries it.
void SegmentFollower::Process::read_names() {
    if (names_file_ == nullptr || !names_file_->is_open()) {
        names_file_ = std::make_unique<OpenFile>(names_path_);
        if (!names_file_->is_open()) return;
    }
    char block[1 << 14];
    while (const std::size_t count = names_file_->read(block, sizeof(block), names_offset_)) {
        names_offset_ += count;
        names_rest_.append(block, count);
    }
    std::size_t at = 0;
    if (names_offset_ == names_rest_.size()) {
        if (names_rest_.size() < sizeof(names_magic)) return;
        if (recorded_.names.empty()) at = sizeof(names_magic);
    }
    NameRecord head{};
    while (at + sizeof(head) <= names_rest_.size()) {
        std::memcpy(&head, names_rest_.data() + at, sizeof(head));
        if (head.length > longest_name_bytes || at + sizeof(head) + head.length > names_rest_.size()) break;
        recorded_.names.push_back({names_rest_.substr(at + sizeof(head), head.length), head.scope});
        at += sizeof(head) + head.length;
    }
    if (!recorded_.names.empty()) names_rest_.erase(0, at);
    owner_.merger_.adopt_new(recorded_, name_ids_);
}

void SegmentFollower::Process::find_chunks() {
    for (std::size_t i = 0; i < segments_.size(); ++i) {
        FollowedSegment& segment = segments_[i];
        HeaderCopy header;
        if (segment.known_chunks == segment.chunk_count || !header.read(segment.file)) continue;
        const std::uint32_t taken =
            std::min(header.get().chunks_taken.load(std::memory_order_acquire), segment.chunk_count);
        for (; segment.known_chunks < taken; ++segment.known_chunks)
            chunks_.push_back({i, header_bytes + segment.known_chunks * chunk_bytes});
    }
}

// Reads the rest of a chunk into `events_`; returns how many events are complete. An event whose kind is
// there in a first reading is complete in a second one.
std::size_t SegmentFollower::Process::load(const FollowedChunk& chunk) {
    const std::size_t room = chunk_events - chunk.position;
    events_.resize(room);
    kinds_.resize(room);
    const OpenFile& file = segments_[chunk.segment].file;
    const std::size_t offset = chunk.offset + chunk.position * sizeof(Event);
    const std::size_t count = file.read(events_.data(), room * sizeof(Event), offset) / sizeof(Event);
    for (std::size_t i = 0; i < count; ++i) kinds_[i] = events_[i].kind;
    std::atomic_thread_fence(std::memory_order_seq_cst);
    return std::min(count, file.read(events_.data(), count * sizeof(Event), offset) / sizeof(Event));
}

// Whether the event at `at` is the begin of something that has not ended, so that its kind is unknown. A
// short collection with events inside keeps its mark.
bool SegmentFollower::Process::must_wait(std::size_t at, std::size_t count) {
    if (!is_kind(kinds_[at], EventKind::pending) || has_ended_) return false;
    const Event& event = events_[at];
    const bool has_next = at + 1 < count && kinds_[at + 1] != 0;
    const auto second = static_cast<std::uint64_t>(1e9 * recorded_.ticks_per_ns_guess);
    const std::uint64_t now = read_ticks();
    const std::string_view name = event.name > 0 && event.name <= recorded_.names.size()
                                      ? std::string_view(recorded_.names[event.name - 1].text)
                                      : std::string_view();
    if (has_next && name.starts_with(collection_prefix) && now > event.ticks && now - event.ticks > second)
        return false;
    if (waiting_ticks_ == 0 || event.ticks < waiting_ticks_) waiting_ticks_ = event.ticks;
    return true;
}

// `chunk.position` is that of a thread's mark, of which `events_` are the rest of the chunk.
bool SegmentFollower::Process::enter_piece(FollowedChunk& chunk, std::size_t count) {
    chunk.is_held = false;
    if (count <= thread_mark_slots || !is_kind(kinds_[0], EventKind::thread)) return false;
    if (kinds_[thread_mark_slots] == 0) return false;  // its label may not be written
    const Event mark = events_[0];
    chunk.thread_number = static_cast<std::uint32_t>(mark.ticks);
    chunk.sequence = mark.name;
    Thread& thread = thread_of(mark);
    if (thread.next_piece != chunk.sequence) {
        chunk.is_held = true;
        return false;
    }
    thread.feed.begin_piece(chunk.sequence);
    chunk.position += thread_mark_slots;
    chunk.in_piece = true;
    return true;
}

// Returns whether anything was read.
bool SegmentFollower::Process::feed_run(FollowedChunk& chunk, std::size_t count) {
    std::size_t end = 0;
    while (end < count && kinds_[end] != 0 && !is_kind(kinds_[end], EventKind::thread) &&
           !must_wait(end, count))
        ++end;
    Thread& thread = *threads_[chunk.thread_number];
    if ((chunk.thread_number & added_thread_bit) != 0)
        added_events_ += end;
    else
        thread.feed.feed(std::span<const Event>(events_.data(), end));
    fed_events_ += end;
    chunk.position += end;
    const bool is_complete =
        chunk.position == chunk_events || (end < count && is_kind(kinds_[end], EventKind::thread));
    if (is_complete) {
        chunk.in_piece = false;
        thread.next_piece = chunk.sequence + 1;
    }
    return end > 0 || is_complete;
}

bool SegmentFollower::Process::read_chunk(FollowedChunk& chunk) {
    bool any = false;
    while (chunk.position < chunk_events) {
        const std::size_t count = load(chunk);
        read_names();
        const bool has_read = chunk.in_piece ? feed_run(chunk, count) : enter_piece(chunk, count);
        if (!has_read) break;
        any = true;
    }
    return any;
}

// Of a process that has ended: what lies between the pieces that are left was lost.
bool SegmentFollower::Process::release_held() {
    std::map<std::uint32_t, std::uint32_t> first;
    for (const FollowedChunk& chunk : chunks_)
        if (chunk.is_held) {
            const auto [place, is_new] = first.try_emplace(chunk.thread_number, chunk.sequence);
            if (!is_new) place->second = std::min(place->second, chunk.sequence);
        }
    for (const auto& [number, sequence] : first) threads_[number]->next_piece = sequence;
    return !first.empty();
}

bool SegmentFollower::Process::poll(std::size_t& most_events, const Sink& sink) {
    if (finished_) return false;
    sink_ = &sink;
    clock_ = owner_.clock();
    for (auto& [number, thread] : threads_) thread->builder.set_clock(clock_);
    waiting_ticks_ = 0;
    find_chunks();
    for (bool has_progress = true; has_progress;) {
        has_progress = false;
        for (FollowedChunk& chunk : chunks_) {
            const std::uint64_t before = fed_events_;
            has_progress = read_chunk(chunk) || has_progress;
            most_events -= std::min<std::size_t>(most_events, fed_events_ - before);
            if (most_events == 0) break;
        }
        if (most_events == 0) break;
        if (!has_progress && has_ended_) has_progress = release_held();
    }
    std::erase_if(chunks_, [](const FollowedChunk& chunk) { return chunk.position == chunk_events; });
    if (most_events > 0 && has_ended_) finish();
    for (auto& [number, thread] : threads_) hand_over(*thread, finished_);
    sink_ = nullptr;
    return most_events == 0;
}

void SegmentFollower::Process::finish() {
    std::uint64_t end = recorded_.latest_point.ticks;
    if (!recorded_.closed)
        for (const auto& [number, thread] : threads_) end = std::max(end, thread->feed.last());
    std::uint64_t latest = end;
    for (auto& [number, thread] : threads_) {
        const std::uint64_t last = thread->feed.last();
        latest = std::max(latest, last);
        thread->builder.finish(recorded_.dropped_events == 0 ? std::max(end, last) : last);
    }
    if (!threads_.empty()) ranges_.finish(setting(*threads_.begin()->second), latest);
    finished_ = true;
    chunks_.clear();
    segments_.clear();
    names_file_.reset();
}

FollowedProcessState SegmentFollower::Process::state() const {
    FollowedProcessState state;
    state.process_id = recorded_.process_id;
    state.parent_process_id = recorded_.parent_process_id;
    state.process_key = recorded_.process_key;
    state.closed = recorded_.closed;
    state.finished = finished_;
    state.start_ns = recorded_.first_point.monotonic_ns;
    std::uint64_t last = recorded_.first_point.ticks;
    for (const auto& [number, thread] : threads_) {
        last = std::max(last, thread->feed.last());
        state.spans += thread->totals.spans;
    }
    state.last_ns = threads_.empty() ? state.start_ns : clock_(last);
    state.waiting_ns = waiting_ticks_ == 0 ? 0 : clock_(waiting_ticks_);
    state.events = fed_events_;
    state.dropped_events = recorded_.dropped_events;
    state.added_events = added_events_;
    return state;
}

SegmentFollower::SegmentFollower(std::string folder)
    : folder_(std::move(folder)), backward_(merger_.add("backward", 0)) {}

SegmentFollower::~SegmentFollower() = default;

void SegmentFollower::find_segments() {
    std::error_code error;
    std::vector<fs::path> paths;
    for (fs::directory_iterator each(folder_, error), last; !error && each != last; each.increment(error))
        if (each->path().extension() == ".segment") paths.push_back(each->path());
    std::ranges::sort(paths);
    for (const fs::path& path : paths) {
        if (known_files_.contains(path.string())) continue;
        OpenFile file(path.string());
        HeaderCopy header;
        if (!file.is_open() || !header.read(file)) continue;
        known_files_[path.string()] = true;
        const SegmentIdentity& identity = header.get().identity;
        auto& process = processes_[{identity.process_key, identity.process_id}];
        if (process == nullptr) process = std::make_unique<Process>(*this, identity);
        process->add_segment(std::move(file), identity);
    }
}

// The decoder's scale where the recording has ended, and before that this machine's own clock.
TickToRun SegmentFollower::clock() const {
    const RecordedProcess* longest = nullptr;
    auto baseline = [](const RecordedProcess& process) {
        return process.latest_point.monotonic_ns - process.first_point.monotonic_ns;
    };
    bool all_closed = true;
    for (const auto& [key, process] : processes_) {
        all_closed = all_closed && process->recorded().closed;
        if (longest == nullptr || baseline(process->recorded()) > baseline(*longest))
            longest = &process->recorded();
    }
    if (longest == nullptr) return {TickScale(ClockPoint{}, ClockPoint{}), 0};
    const double guess = longest->ticks_per_ns_guess;
    const ClockPoint now = sample_clock();
    const double elapsed_ns = static_cast<double>(now.monotonic_ns - longest->first_point.monotonic_ns);
    const double ticks_ns = static_cast<double>(now.ticks - longest->first_point.ticks) / guess;
    const bool is_same_clock = elapsed_ns > 0 && std::abs(ticks_ns / elapsed_ns - 1) < 0.1;
    const bool uses_now = !all_closed && is_same_clock;
    return {scale_between(longest->first_point, uses_now ? now : longest->latest_point, guess), 0};
}

bool SegmentFollower::poll(const std::vector<std::uint32_t>& ended, std::size_t most_events,
                           const Sink& sink) {
    for (auto& [key, process] : processes_)
        process->read_state(std::ranges::find(ended, process->recorded().process_id) != ended.end());
    find_segments();
    bool has_more = false;
    for (auto& [key, process] : processes_) {
        if (most_events == 0) return true;
        has_more = process->poll(most_events, sink) || has_more;
    }
    return has_more;
}

std::vector<FollowedProcessState> SegmentFollower::processes() const {
    std::vector<FollowedProcessState> states;
    for (const auto& [key, process] : processes_) states.push_back(process->state());
    return states;
}

std::vector<DecodedMode> SegmentFollower::take_modes() {
    return std::exchange(modes_, {});
}

}  // namespace gpuprof
