// SPDX-License-Identifier: Apache-2.0
#include <fcntl.h>
#include <sys/stat.h>

#include <barrier>
#include <system_error>

#include "support.hpp"

using namespace gpuprof;
using namespace gpuprof::test;

namespace {

constexpr std::uint32_t room_of_a_chunk = chunk_events - thread_mark_slots;

// Every thread of the only process wrote emit_numbered_spans(count), and the decoder agrees.
void check_whole(const TemporaryFolder& folder, std::size_t threads, std::uint32_t count) {
    const RecordedFolder recorded = read_folder(folder());
    REQUIRE(recorded.processes.size() == 1);
    CHECK(recorded.processes[0].closed);
    CHECK_EQ(recorded.damage.size(), 0u);
    const auto numbers = numbers_by_thread(recorded.processes[0]);
    CHECK_EQ(numbers.size(), threads);
    for (const auto& [thread, list] : numbers) CHECK(are_numbered_spans(list, count));
    const Spans spans = decode_folder(folder());
    CHECK_EQ(spans.run.totals.events, 2 * threads * count);
    CHECK_EQ(spans.run.totals.spans, threads * count);
    CHECK_EQ(spans.run.totals.damaged_events, 0u);
    CHECK_EQ(spans.run.totals.unmatched_ends, 0u);
    CHECK_EQ(spans.run.totals.unfinished_spans, 0u);
}

std::uint64_t chunks_on_disk(const TemporaryFolder& folder) {
    std::uint64_t bytes = 0;
    for (const auto& path : folder.files(".segment")) bytes += fs::file_size(path) - header_bytes;
    return bytes / chunk_bytes;
}

}  // namespace

TEST(more_threads_than_chunks_of_a_segment) {
    constexpr unsigned threads = 40;
    constexpr std::uint32_t count = 5000;  // three chunks a thread
    const TemporaryFolder folder;
    start(folder);
    std::barrier gate(threads);
    run_in_threads(threads, [&](unsigned) {
        gate.arrive_and_wait();
        emit_numbered_spans(count);
    });
    const RecorderTotals totals = Recorder::instance().stop();
    CHECK_EQ(totals.dropped_events, 0u);
    CHECK(!totals.storage_failed);
    CHECK(folder.files(".segment").size() > 1);
    check_whole(folder, threads, count);
}

TEST(a_recording_with_a_limit_keeps_it_and_counts_what_it_drops) {
    constexpr std::uint64_t events = 400'000;  // 98 chunks
    for (const std::size_t chunks : {3u, 16u, 30u, 50u}) {
        const TemporaryFolder folder;
        Recorder::instance().start(folder(), false, chunks * chunk_bytes + 1);
        CHECK(!Recorder::instance().limit_reached());
        run_in_threads(2, [&](unsigned) { emit_numbered_spans(events / 4); });
        CHECK(Recorder::instance().limit_reached());
        CHECK(chunks_on_disk(folder) <= chunks);
        const RecorderTotals totals = Recorder::instance().stop();
        CHECK(totals.limit_reached);
        CHECK(!totals.storage_failed);
        const Spans spans = decode_folder(folder());
        CHECK_EQ(spans.run.totals.events + totals.dropped_events, events);
        CHECK(spans.run.totals.events >= (chunks - 2) * (chunk_events - thread_mark_slots));
    }
    const TemporaryFolder folder;
    start(folder);
    run_in_threads(1, [&](unsigned) { emit_numbered_spans(events / 2); });
    const RecorderTotals totals = Recorder::instance().stop();
    CHECK(!totals.limit_reached);
    CHECK_EQ(totals.dropped_events, 0u);
}

TEST(later_threads_continue_in_the_chunks_of_ended_ones) {
    constexpr unsigned threads = 200;
    const TemporaryFolder folder;
    start(folder);
    for (unsigned i = 0; i < threads; ++i) run_in_threads(1, [](unsigned) { emit_numbered_spans(5); });
    Recorder::instance().stop();
    check_whole(folder, threads, 5);
    CHECK_EQ(chunks_on_disk(folder), 1u);  // 200 * (2 + 10) places of 4096
}

TEST(a_chunk_that_is_nearly_full_is_not_handed_on) {
    const TemporaryFolder folder;
    start(folder);
    constexpr std::uint32_t count = (room_of_a_chunk - 20) / 2;
    run_in_threads(1, [](unsigned) { emit_numbered_spans(count); });
    run_in_threads(1, [](unsigned) { emit_numbered_spans(count); });
    Recorder::instance().stop();
    check_whole(folder, 2, count);
    CHECK_EQ(chunks_on_disk(folder), 2u);
}

TEST(a_chunk_is_filled_to_its_last_place) {
    const TemporaryFolder folder;
    start(folder);
    static_assert(room_of_a_chunk % 2 == 0);
    run_in_threads(2, [](unsigned) { emit_numbered_spans(room_of_a_chunk / 2); });
    Recorder::instance().stop();
    check_whole(folder, 2, room_of_a_chunk / 2);
    CHECK_EQ(chunks_on_disk(folder), 2u);
}

TEST(threads_that_come_and_go_in_waves) {
    constexpr unsigned threads = 16, waves = 20;
    const TemporaryFolder folder;
    start(folder);
    for (unsigned wave = 0; wave < waves; ++wave)
        run_in_threads(threads, [](unsigned) { emit_numbered_spans(700); });
    Recorder::instance().stop();
    check_whole(folder, threads * waves, 700);
}

TEST(a_thread_carries_its_name_and_id) {
    const TemporaryFolder folder;
    start(folder);
    std::uint32_t id = 0;
    run_in_threads(1, [&](unsigned) {
        pthread_setname_np(pthread_self(), "fifteen-letters");  // as long as the system allows
        id = static_cast<std::uint32_t>(gettid());
        emit_numbered_spans(1);
    });
    Recorder::instance().stop();
    const Spans spans = decode_folder(folder());
    REQUIRE(spans.run.threads.size() == 1);
    CHECK_EQ(spans.run.threads[0].name, "fifteen-letters");
    CHECK_EQ(spans.run.threads[0].thread_id, id);
    CHECK_EQ(spans.run.totals.events, 2u);
}

TEST(several_recordings_with_names_of_their_own) {
    Recorder& recorder = Recorder::instance();
    std::uint32_t generation = recorder.generation();
    for (int round = 0; round < 5; ++round) {
        const TemporaryFolder folder;
        start(folder);
        CHECK_EQ(recorder.generation(), ++generation);
        // Each round in another order, so that an id kept from the last one would show.
        for (int i = 0; i < 3; ++i) {
            const std::uint32_t id = recorder.intern("name " + std::to_string((i + round) % 3));
            CHECK_EQ(id, static_cast<std::uint32_t>(i + 1));
            for (int spans = 0; spans <= (i + round) % 3; ++spans) {
                emit(EventKind::span_begin, id);
                emit(EventKind::span_end, id);
            }
        }
        recorder.stop();
        const Spans spans = decode_folder(folder());
        for (std::size_t i = 0; i < 3; ++i) CHECK_EQ(spans.count("name " + std::to_string(i)), i + 1);
        CHECK_EQ(spans.run.totals.spans, 6u);
    }
}

TEST(two_recordings_in_one_folder_stay_apart) {
    const TemporaryFolder folder;
    for (const char* name : {"first", "second"}) {
        start(folder);
        const std::uint32_t id = Recorder::instance().intern(name);
        emit(EventKind::span_begin, id);
        emit(EventKind::span_end, id);
        Recorder::instance().stop();
    }
    const Spans spans = decode_folder(folder());
    CHECK_EQ(spans.run.processes.size(), 2u);
    CHECK_EQ(spans.count("first"), 1u);
    CHECK_EQ(spans.count("second"), 1u);
}

TEST(stop_without_a_start_and_events_without_a_recording) {
    const RecorderTotals totals = Recorder::instance().stop();
    CHECK_EQ(totals.dropped_events, 0u);
    CHECK(!totals.storage_failed);
    emit_numbered_spans(10);
    CHECK(!Recorder::active());
    const TemporaryFolder folder;
    start(folder);
    Recorder::instance().stop();
    CHECK_EQ(Recorder::instance().stop().dropped_events, 0u);
    CHECK_EQ(decode_folder(folder()).run.totals.events, 0u);
}

TEST(a_second_start_is_refused_and_disturbs_nothing) {
    const TemporaryFolder folder, other;
    start(folder);
    run_in_threads(1, [](unsigned) { emit_numbered_spans(3); });
    bool refused = false;
    try {
        start(other);
    } catch (const std::logic_error&) {
        refused = true;
    }
    CHECK(refused);
    CHECK(other.files(".segment").empty());
    CHECK(Recorder::active());
    run_in_threads(1, [](unsigned) { emit_numbered_spans(3); });
    Recorder::instance().stop();
    check_whole(folder, 2, 3);
}

TEST(an_event_of_the_recording_before_is_not_written) {
    const TemporaryFolder first, second;
    Recorder& recorder = Recorder::instance();
    start(first);
    const NameKey old_key = recorder.name_key(recorder.intern("old"));
    recorder.stop();
    recorder.emit(EventKind::span_begin, old_key);
    start(second);
    const NameKey new_key = recorder.name_key(recorder.intern("new"));
    CHECK_EQ(static_cast<std::uint32_t>(old_key), static_cast<std::uint32_t>(new_key));
    recorder.emit(EventKind::span_begin, new_key);
    recorder.emit(EventKind::span_end, old_key);
    recorder.emit(EventKind::span_end, new_key);
    recorder.stop();
    CHECK_EQ(decode_folder(first()).run.totals.events, 0u);
    const Spans spans = decode_folder(second());
    CHECK_EQ(spans.run.totals.events, 2u);
    CHECK_EQ(spans.count("new"), 1u);
}

TEST(a_folder_that_cannot_be_written) {
    const TemporaryFolder folder;
    const std::uint32_t generation = Recorder::instance().generation();
    const int file = creat((folder / "file").c_str(), 0644);
    REQUIRE(file >= 0);
    close(file);
    for (const std::string& path : {folder / "missing", folder / "file"}) {
        std::string message;
        try {
            Recorder::instance().start(path);
        } catch (const std::system_error& error) {
            message = error.what();
        }
        CHECK(message.find(path) != std::string::npos);
        CHECK(!Recorder::active());
        CHECK_EQ(Recorder::instance().generation(), generation);
        emit_numbered_spans(10);
        CHECK_EQ(Recorder::instance().stop().dropped_events, 0u);
    }
    start(folder);
    run_in_threads(1, [](unsigned) { emit_numbered_spans(10); });
    Recorder::instance().stop();
    check_whole(folder, 1, 10);
}

TEST(blocks_are_reserved_before_they_are_mapped) {
    const TemporaryFolder folder;
    start(folder);
    run_in_threads(20, [](unsigned) { emit_numbered_spans(room_of_a_chunk / 2); });
    const auto segments = folder.files(".segment");
    CHECK(segments.size() >= 2);  // one more may be opened ahead
    for (const auto& path : segments) {
        struct stat status{};
        REQUIRE(stat(path.c_str(), &status) == 0);
        CHECK(status.st_size >= static_cast<off_t>(header_bytes + 16 * chunk_bytes));
        CHECK(status.st_blocks * 512 >= status.st_size);
    }
    Recorder::instance().stop();
    CHECK_EQ(chunks_on_disk(folder), 20u);  // unused chunks are given back
}

TEST(an_event_that_is_reserved_gets_its_kind_later_or_is_taken_back) {
    const TemporaryFolder folder;
    start(folder);
    Recorder& recorder = Recorder::instance();
    const NameKey key = recorder.name_key(recorder.intern("pause"));
    const NameKey inside = recorder.name_key(recorder.intern("inside"));
    ThreadLog* const log = recorder.current_log();
    REQUIRE(log != nullptr);
    Event* const kept = Recorder::reserve(*log, key, read_ticks());
    REQUIRE(kept != nullptr);
    recorder.emit(EventKind::span_begin, inside);
    recorder.emit(EventKind::span_end, inside);
    CHECK(Recorder::fulfil(*log, kept, EventKind::collection_begin, key));
    recorder.emit(EventKind::collection_end, key);
    Event* const last = Recorder::reserve(*log, key, read_ticks());
    Recorder::withdraw(*log, last, key);
    CHECK(log->cursor == last);  // its place is free again
    Event* const not_last = Recorder::reserve(*log, key, read_ticks());
    recorder.emit(EventKind::span_begin, inside);
    recorder.emit(EventKind::span_end, inside);
    Recorder::withdraw(*log, not_last, key);
    Recorder::instance().stop();
    CHECK(!Recorder::fulfil(*log, not_last, EventKind::collection_begin, key));
    Recorder::withdraw(*log, not_last, key);
    const Spans spans = decode_folder(folder());
    REQUIRE(spans.rows.size() == 3);
    CHECK_EQ(spans.name(0), "inside");
    CHECK_EQ(spans.rows.parent_id[0], spans.rows.span_id[1]);
    CHECK_EQ(spans.name(1), "pause");
    CHECK_EQ(spans.rows.parent_id[2], -1);
    CHECK_EQ(spans.run.totals.damaged_events, 0u);
}

TEST(an_event_is_reserved_in_the_next_chunk_where_one_is_full) {
    const TemporaryFolder folder;
    start(folder);
    Recorder& recorder = Recorder::instance();
    const NameKey key = recorder.name_key(recorder.intern("pause"));
    emit_numbered_spans(room_of_a_chunk / 2);
    ThreadLog* const log = recorder.current_log();
    CHECK(log->cursor == log->limit);
    Event* const event = Recorder::reserve(*log, key, read_ticks());
    REQUIRE(event != nullptr);
    CHECK(event == log->cursor - 1);
    CHECK(Recorder::fulfil(*log, event, EventKind::collection_begin, key));
    recorder.emit(EventKind::collection_end, key);
    Recorder::instance().stop();
    const Spans spans = decode_folder(folder());
    CHECK_EQ(spans.name(spans.rows.size() - 1), "pause");
}
