// SPDX-License-Identifier: Apache-2.0
// Times, names and processes of whole recordings, and ticks that cannot be.
#include "fake_recording.hpp"
#include "support.hpp"

using namespace gpuprof;
using namespace gpuprof::test;

namespace {

Spans decode(const FakeRecording& recording) {
    const TemporaryFolder folder;
    recording.write(folder());
    return decode_folder(folder());
}

}  // namespace

TEST(times_are_exact) {
    FakeRecording recording;
    const std::uint32_t outer = recording.name("outer"), inner = recording.name("inner");
    recording.thread(1);
    recording.event(EventKind::span_begin, outer, 1000);
    recording.span(inner, 1200, 1500);
    recording.event(EventKind::span_end, outer, 2000);
    const Spans spans = decode(recording);
    REQUIRE(spans.rows.size() == 2);
    CHECK_EQ(spans.name(0), "inner");
    CHECK_EQ(spans.rows.start_ns[0], 1200);
    CHECK_EQ(spans.rows.duration_ns[0], 300);
    CHECK_EQ(spans.rows.parent_id[0], spans.rows.span_id[1]);
    CHECK_EQ(spans.rows.depth[0], 1);
    CHECK_EQ(spans.rows.start_ns[1], 1000);
    CHECK_EQ(spans.rows.duration_ns[1], 1000);
    CHECK_EQ(spans.rows.parent_id[1], -1);
    CHECK_EQ(spans.rows.thread_id[1], 501);
    CHECK_EQ(spans.run.origin_monotonic_ns, static_cast<std::int64_t>(FakeRecording::origin));
    REQUIRE(spans.run.processes.size() == 1);
    CHECK_EQ(spans.run.processes[0].start_ns, 0);
    CHECK_EQ(spans.run.processes[0].end_ns, static_cast<std::int64_t>(FakeRecording::length));
}

TEST(a_clock_of_another_rate) {
    FakeRecording recording;
    recording.name("work");
    recording.latest.ticks = FakeRecording::origin + 3 * FakeRecording::length;  // 3 GHz
    recording.identity.ticks_per_ns_guess = 2.9;
    recording.thread(1);
    recording.span(1, 3000, 6000);
    const Spans spans = decode(recording);
    REQUIRE(spans.rows.size() == 1);
    CHECK_EQ(spans.rows.start_ns[0], 1000);
    CHECK_EQ(spans.rows.duration_ns[0], 1000);
}

TEST(a_process_that_died_at_once_is_timed_by_the_guess) {
    FakeRecording recording;
    recording.name("work");
    recording.identity.ticks_per_ns_guess = 2.0;
    recording.latest = recording.identity.first_point;
    recording.closed = false;
    recording.thread(1);
    recording.span(1, 2000, 6000);
    recording.event(EventKind::span_begin, 1, 8000);
    recording.event(EventKind::span_begin, 1, 10'000);
    const Spans spans = decode(recording);
    REQUIRE(spans.rows.size() == 3);
    CHECK_EQ(spans.rows.start_ns[0], 1000);
    CHECK_EQ(spans.rows.duration_ns[0], 2000);
    CHECK_EQ(spans.run.totals.unfinished_spans, 2u);
    CHECK_EQ(spans.rows.duration_ns[1], 0);     // the last instant that is known
    CHECK_EQ(spans.rows.duration_ns[2], 1000);
    CHECK(!spans.run.processes.at(0).closed);
    CHECK_EQ(spans.run.processes.at(0).end_ns, 5000);
}

TEST(ticks_that_go_backwards) {
    FakeRecording recording;
    recording.name("work");
    recording.thread(1);
    recording.event(EventKind::span_begin, 1, 1000);
    recording.event(EventKind::span_end, 1, 900);
    recording.span(1, 2000, 2500);
    const Spans spans = decode(recording);
    REQUIRE(spans.rows.size() == 2);
    CHECK_EQ(spans.run.totals.damaged_events, 1u);
    CHECK_EQ(spans.rows.duration_ns[0], 0);
    CHECK_EQ(spans.rows.duration_ns[1], 500);
}

TEST(a_tick_that_leaps_takes_nobody_along) {
    for (const std::uint64_t leap : {std::uint64_t{1} << 30, std::uint64_t{1} << 50, std::uint64_t{1} << 63})
        for (const bool before_context : {false, true}) {
            FakeRecording recording;
            recording.name("work");
            recording.closed = false;
            recording.thread(1);
            recording.span(1, 1000, 1500);
            recording.event(EventKind::span_begin, 1, 2000 + leap);
            if (before_context) recording.raw(EventKind::context, 0, 0);
            recording.event(EventKind::span_end, 1, 2500);
            recording.span(1, 3000, 3500);
            const Spans spans = decode(recording);
            REQUIRE(spans.rows.size() == 3);
            CHECK_EQ(spans.run.totals.damaged_events, 1u);
            CHECK_EQ(spans.rows.start_ns[1], 1500);
            CHECK_EQ(spans.rows.duration_ns[1], 1000);
            CHECK_EQ(spans.rows.start_ns[2], 3000);
            CHECK_EQ(spans.rows.duration_ns[2], 500);
        }
}

TEST(a_last_tick_that_leaps_out_of_any_run) {
    for (const bool closed : {true, false}) {
        FakeRecording recording;
        recording.name("work");
        recording.closed = closed;
        recording.thread(1);
        recording.event(EventKind::span_begin, 1, 1000);
        recording.event(EventKind::span_end, 1, std::uint64_t{1} << 62);
        const Spans spans = decode(recording);
        REQUIRE(spans.rows.size() == 1);
        CHECK_EQ(spans.run.totals.damaged_events, 1u);
        CHECK_EQ(spans.rows.duration_ns[0], 0);
        CHECK_EQ(spans.run.processes.at(0).end_ns, static_cast<std::int64_t>(FakeRecording::length));
    }
}

TEST(pieces_of_a_thread_are_put_in_order) {
    FakeRecording recording;
    recording.name("work");
    recording.thread(1, 1);
    recording.event(EventKind::span_end, 1, 5000);
    recording.thread(1, 2);
    recording.span(1, 6000, 6100);
    recording.thread(1, 0);
    recording.event(EventKind::span_begin, 1, 1000);
    const Spans spans = decode(recording);
    REQUIRE(spans.rows.size() == 2);
    CHECK_EQ(spans.run.totals.damaged_events, 0u);
    CHECK_EQ(spans.rows.duration_ns[0], 4000);
    CHECK_EQ(spans.run.threads.size(), 1u);
}

TEST(processes_share_names_and_time) {
    const TemporaryFolder folder;
    FakeRecording parent(100), child(101);
    parent.name("only here");
    parent.name("shared");
    child.name("shared");
    child.identity.parent_process_id = 100;
    child.identity.first_point = {FakeRecording::origin + 500, static_cast<std::int64_t>(FakeRecording::origin + 500)};
    parent.thread(1);
    parent.span(2, 1000, 2000);
    child.thread(1);
    child.span(1, 1500, 1700);
    parent.dropped = 3;
    child.dropped = 4;
    parent.write(folder());
    child.write(folder());
    const Spans spans = decode_folder(folder());
    REQUIRE(spans.rows.size() == 2);
    CHECK_EQ(spans.rows.name[0], spans.rows.name[1]);
    CHECK_EQ(spans.name(0), "shared");
    CHECK_EQ(spans.rows.start_ns[1], 1500);
    CHECK_EQ(spans.rows.duration_ns[1], 200);
    CHECK_EQ(spans.run.processes.at(1).start_ns, 500);
    CHECK_EQ(spans.run.processes.at(1).parent_process_id, 100u);
    CHECK_EQ(spans.run.totals.dropped_events, 7u);
}

TEST(rows_come_in_batches_with_their_names) {
    FakeRecording recording;
    for (std::uint32_t i = 0; i < 100; ++i) recording.name("name " + std::to_string(i));
    recording.thread(1);
    for (std::uint32_t i = 0; i < 1000; ++i) recording.span(1 + i % 100, 10ull * i, 10ull * i + 5);
    const TemporaryFolder folder;
    recording.write(folder());
    std::size_t rows = 0, batches = 0;
    decode_run(read_folder(folder()), 64,
               [&](const DecodedProcess& process, const SpanColumns& batch, const std::vector<RecordedName>& names) {
                   CHECK_EQ(process.process_id, 100u);
                   CHECK(batch.size() >= 1 && batch.size() <= 64);
                   for (const std::uint32_t name : batch.name)
                       CHECK_EQ(names.at(name - 1).text, "name " + std::to_string(rows++ % 100));
                   ++batches;
               });
    CHECK_EQ(rows, 1000u);
    CHECK_EQ(batches, 16u);
}

TEST(an_id_beyond_the_names_is_a_lost_name) {
    FakeRecording recording;
    recording.name("work");
    recording.name("scoped by itself", 2);
    recording.name("scoped by nobody", 77);
    recording.thread(1);
    for (const std::uint32_t name : {1u, 2u, 3u, 4u, 0xFFFFFFFFu}) recording.span(name, 10ull, 10ull);
    const Spans spans = decode(recording);
    CHECK_EQ(spans.count("(lost name)"), 2u);
    CHECK_EQ(spans.count("work"), 1u);
    CHECK_EQ(spans.count("scoped by itself"), 1u);
    CHECK_EQ(spans.count("scoped by nobody"), 1u);
}
