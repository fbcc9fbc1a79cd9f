// SPDX-License-Identifier: Apache-2.0
#include <sys/stat.h>

#include <algorithm>
#include <system_error>

#include "fake_recording.hpp"
#include "support.hpp"

using namespace gpuprof;
using namespace gpuprof::test;

namespace {

// Two threads in three chunks: the first is full, the second passes from one thread to the other.
FakeRecording example() {
    FakeRecording recording;
    const std::uint32_t work = recording.name("work"), rest = recording.name("rest");
    recording.thread(1);
    for (std::uint64_t i = 0; i < (chunk_events - thread_mark_slots) / 2; ++i)
        recording.span(work, 2 * i, 2 * i + 1);
    recording.thread(1, 1);
    recording.span(work, 10'000, 10'005);
    recording.pass_to(2);
    recording.span(rest, 20'000, 20'007);
    recording.thread(2, 1);
    recording.span(rest, 30'000, 30'009);
    return recording;
}

std::uint64_t count_events(const RecordedFolder& folder) {
    std::uint64_t events = 0;
    for (const RecordedProcess& process : folder.processes)
        for (const auto& [thread, numbers] : numbers_by_thread(process)) events += numbers.size();
    return events;
}

// The number of the example's events in the first `slots` places.
std::uint64_t events_in_front(FakeRecording recording, std::size_t slots) {
    std::uint64_t events = 0;
    for (std::size_t slot = 0; slot < slots; ++slot) {
        const auto& chunk = recording.chunks()[slot / chunk_events];
        const std::size_t at = slot % chunk_events;
        const bool is_mark = at < 2 || (slot / chunk_events == 1 && (at == 4 || at == 5));
        if (at < chunk.size() && !is_mark) ++events;
    }
    return events;
}

bool mentions(const std::vector<std::string>& lines, const std::string& text) {
    return std::any_of(lines.begin(), lines.end(),
                       [&](const std::string& line) { return line.find(text) != std::string::npos; });
}

Bytes front(const Bytes& bytes, std::size_t length) {
    return {bytes.begin(), bytes.begin() + static_cast<std::ptrdiff_t>(length)};
}

}  // namespace

TEST(a_whole_recording) {
    const TemporaryFolder folder;
    example().write(folder());
    const RecordedFolder recorded = read_folder(folder());
    REQUIRE(recorded.processes.size() == 1);
    const RecordedProcess& process = recorded.processes[0];
    CHECK_EQ(recorded.damage.size(), 0u);
    CHECK_EQ(process.names.size(), 2u);
    REQUIRE(process.pieces.size() == 4);
    for (std::size_t i = 0; i < 4; ++i) {
        CHECK_EQ(process.pieces[i].thread_number, i < 2 ? 1u : 2u);
        CHECK_EQ(process.pieces[i].thread_id, i < 2 ? 501u : 502u);
        CHECK_EQ(process.pieces[i].sequence, i % 2);
        CHECK_EQ(process.pieces[i].thread_name, "worker");
    }
    CHECK_EQ(count_events(recorded), chunk_events - thread_mark_slots + 6);
}

TEST(segments_cut_at_every_kind_of_place) {
    const FakeRecording recording = example();
    const Bytes whole = recording.segment();
    std::vector<std::size_t> lengths{0, 1, sizeof(SegmentIdentity), sizeof(SegmentHeader), header_bytes - 1};
    for (std::size_t chunk = 0; chunk < 3; ++chunk)
        for (std::size_t more = 0; more <= 9 * sizeof(Event); ++more)
            lengths.push_back(header_bytes + chunk * chunk_bytes + more);
    lengths.push_back(whole.size() - 1);
    const TemporaryFolder folder;
    recording.write(folder());
    for (const std::size_t length : lengths) {
        write_file(folder / (recording.stem() + ".0.segment"), front(whole, length));
        const RecordedFolder recorded = read_folder(folder());
        CHECK_EQ(recorded.damage.size(), 1u);
        const std::size_t slots = length < header_bytes ? 0 : (length - header_bytes) / sizeof(Event);
        if (!CHECK_EQ(count_events(recorded), events_in_front(recording, slots)))
            std::fprintf(stderr, "  cut to %zu bytes\n", length);
    }
}

TEST(names_cut_at_every_place) {
    FakeRecording recording;
    for (const char* text : {"a", "", "longer name"}) recording.name(text);
    recording.thread(1);
    for (const std::uint32_t name : {1u, 2u, 3u}) recording.span(name, 10 * name, 10 * name + 5);
    const Bytes whole = recording.names();
    const std::vector<std::size_t> ends{8, 8 + 9, 8 + 9 + 8, 8 + 9 + 8 + 19};  // after each record
    CHECK_EQ(whole.size(), ends.back());
    const TemporaryFolder folder;
    recording.write(folder());
    for (std::size_t length = 0; length <= whole.size(); ++length) {
        write_file(folder / (recording.stem() + ".names"), front(whole, length));
        const RecordedFolder recorded = read_folder(folder());
        REQUIRE(recorded.processes.size() == 1);
        const auto after = std::upper_bound(ends.begin(), ends.end(), length);
        const auto expected = std::max<std::ptrdiff_t>(0, after - ends.begin() - 1);
        CHECK_EQ(recorded.processes[0].names.size(), static_cast<std::size_t>(expected));
        const bool is_boundary = std::find(ends.begin(), ends.end(), length) != ends.end();
        CHECK_EQ(recorded.damage.size(), is_boundary ? 0u : 1u);
        CHECK_EQ(decode_folder(folder()).run.totals.spans, 3u);
    }
}

TEST(a_names_file_that_is_lost) {
    const TemporaryFolder folder;
    example().write(folder());
    fs::remove(folder / (example().stem() + ".names"));
    const Spans spans = decode_folder(folder());
    CHECK_EQ(spans.run.damage.size(), 1u);
    CHECK_EQ(spans.count("(lost name)"), spans.rows.size());
    CHECK(spans.rows.size() > 2000);
}

// A process makes the file and then writes into it; it may be read, or killed, in between.
TEST(a_names_file_that_is_just_being_made) {
    const TemporaryFolder folder;
    const FakeRecording recording;
    recording.write(folder());
    write_file(folder / (recording.stem() + ".names"), {});
    const RecordedFolder recorded = read_folder(folder());
    REQUIRE(recorded.processes.size() == 1);
    CHECK_EQ(recorded.damage.size(), 0u);
}

TEST(empty_and_missing_folders) {
    const TemporaryFolder folder;
    const Spans spans = decode_folder(folder());
    CHECK_EQ(spans.run.processes.size(), 0u);
    CHECK_EQ(spans.run.damage.size(), 0u);
    bool refused = false;
    try {
        read_folder(folder / "missing");
    } catch (const std::system_error&) {
        refused = true;
    }
    CHECK(refused);
}

std::vector<std::string> files_of(const RecordedFolder& recorded) {
    std::vector<std::string> files;
    for (const Damage& damage : recorded.damage) files.push_back(damage.file);
    return files;
}

TEST(foreign_files_are_named_and_passed_over) {
    const TemporaryFolder folder;
    const FakeRecording recording = example();
    recording.write(folder());
    const std::uint64_t events = count_events(read_folder(folder()));
    write_file(folder / "empty.segment", {});
    write_file(folder / "text.segment", Bytes(100'000, 'x'));
    write_file(folder / "notes.txt", Bytes(10, 'x'));
    fs::create_directory(folder / "folder.segment");
    fs::create_symlink(folder / "nowhere", folder / "link.segment");
    REQUIRE(mkfifo((folder / "pipe.segment").c_str(), 0644) == 0);  // an open that waits for a writer
    FakeRecording newer;
    newer.identity.version = segment_version + 1;
    newer.thread(1);
    write_file(folder / "newer.segment", newer.segment());
    const RecordedFolder recorded = read_folder(folder());
    CHECK_EQ(recorded.processes.size(), 1u);
    CHECK_EQ(count_events(recorded), events);
    CHECK_EQ(recorded.damage.size(), 6u);
    for (const char* name : {"empty", "text", "folder", "link", "pipe", "newer"})
        CHECK(mentions(files_of(recorded), std::string(name) + ".segment"));
    CHECK(!mentions(files_of(recorded), "notes.txt"));
}

TEST(a_segment_that_is_there_twice_counts_once) {
    const TemporaryFolder folder;
    const FakeRecording recording = example();
    recording.write(folder());
    const Spans once = decode_folder(folder());
    write_file(folder / "a copy.segment", recording.segment());
    const Spans twice = decode_folder(folder());
    CHECK_EQ(once.run.damage.size(), 0u);
    CHECK_EQ(twice.run.damage.size(), 1u);
    CHECK_EQ(twice.run.totals.events, once.run.totals.events);
    CHECK_EQ(twice.run.totals.damaged_events, 0u);
    CHECK_EQ(twice.rows.size(), once.rows.size());
}

TEST(a_first_mark_that_is_damaged_loses_its_chunk_with_a_report) {
    for (const std::uint32_t kind : {0u, 1u, 9u}) {
        const TemporaryFolder folder;
        FakeRecording recording = example();
        recording.chunks()[1][0].kind = kind;
        recording.write(folder());
        const Spans spans = decode_folder(folder());
        CHECK_EQ(spans.run.totals.events, chunk_events - thread_mark_slots + 2);
        CHECK(spans.run.totals.damaged_events >= 4);
    }
}

TEST(an_event_that_vanished_is_counted_as_damaged) {
    const TemporaryFolder folder;
    FakeRecording recording = example();
    recording.chunks()[0][100] = Event{};
    recording.write(folder());
    const Spans spans = decode_folder(folder());
    CHECK_EQ(spans.run.totals.damaged_events, 1u);
}

TEST(chunks_that_were_reserved_only_are_no_damage) {
    const TemporaryFolder folder;
    FakeRecording recording = example();
    recording.chunks().emplace_back();
    Bytes bytes = recording.segment();
    auto* header = reinterpret_cast<SegmentHeader*>(bytes.data());
    header->chunks_taken = 3;
    write_file(folder / (recording.stem() + ".0.segment"), bytes);
    write_file(folder / (recording.stem() + ".names"), recording.names());
    const Spans spans = decode_folder(folder());
    CHECK_EQ(spans.run.damage.size(), 0u);
    CHECK_EQ(spans.run.totals.damaged_events, 0u);
}
