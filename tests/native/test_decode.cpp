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
    CHECK_EQ(spans.rows.duration_ns[1], 0);  // the last instant that is known
    CHECK_EQ(spans.rows.duration_ns[2], 1000);
    CHECK(!spans.run.processes.at(0).closed);
    CHECK_EQ(spans.run.processes.at(0).end_ns, 5000);
}

TEST(ticks_that_go_backwards) {
    FakeRecording recording;
    recording.name("work");
    recording.thread(1);
    recording.span(1, 100, 950);
    recording.event(EventKind::span_begin, 1, 1000);
    recording.event(EventKind::span_end, 1, 900);
    recording.span(1, 2000, 2500);
    const Spans spans = decode(recording);
    REQUIRE(spans.rows.size() == 3);
    CHECK_EQ(spans.run.totals.damaged_events, 1u);
    CHECK_EQ(spans.rows.start_ns[1], 1000);
    CHECK_EQ(spans.rows.duration_ns[1], 0);
    CHECK_EQ(spans.rows.duration_ns[2], 500);
}

// A thread reads the clock and only then asks whether there is a recording.
TEST(a_first_tick_from_just_before_the_recording_is_no_damage) {
    FakeRecording recording;
    recording.name("work");
    recording.thread(1);
    recording.raw(EventKind::span_begin, 1, FakeRecording::origin - 500);
    recording.event(EventKind::span_end, 1, 900);
    recording.thread(2);
    recording.raw(EventKind::span_begin, 1, 12);  // this one is
    recording.event(EventKind::span_end, 1, 900);
    const Spans spans = decode(recording);
    REQUIRE(spans.rows.size() == 2);
    CHECK_EQ(spans.run.totals.damaged_events, 1u);
    for (const std::int64_t duration : spans.rows.duration_ns) CHECK_EQ(duration, 900);
}

TEST(a_tick_that_leaps_affects_no_other_thread) {
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
    child.identity.first_point = {FakeRecording::origin + 500,
                                  static_cast<std::int64_t>(FakeRecording::origin + 500)};
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

// Another tool's record of a thread, as add_thread() leaves it.
TEST(added_operators_fall_into_their_places) {
    FakeRecording recording;
    recording.name("step");
    recording.name("aten::mm");
    recording.thread(1);
    recording.span(1, 1000, 2000);
    recording.span(1, 3000, 4000);
    recording.chunks().emplace_back();
    recording.raw(EventKind::thread, 0, std::uint64_t{501} << 32 | added_thread_bit | 1);
    recording.chunks().back().push_back(Event{});
    for (const std::uint64_t at : {500u, 1500u, 3500u, 9000u}) {
        recording.event(EventKind::operator_begin, 2, at);
        recording.event(EventKind::operator_end, 0, at + 100);
    }
    recording.raw(EventKind::operator_begin, 2, 5);  // damaged, either way
    recording.raw(EventKind::operator_end, 0, std::uint64_t{1} << 63);
    const Spans spans = decode(recording);
    REQUIRE(spans.rows.size() == 7);
    CHECK_EQ(spans.run.threads.size(), 1u);
    CHECK_EQ(spans.run.totals.events, 14u);
    CHECK_EQ(spans.run.totals.damaged_events, 2u);
    CHECK_EQ(spans.count("aten::mm"), 5u);
    int inside = 0;
    for (std::size_t i = 0; i < spans.rows.size(); ++i) {
        CHECK(spans.rows.start_ns[i] >= 0 && spans.rows.duration_ns[i] >= 0);
        if (spans.rows.parent_id[i] != -1) ++inside;
    }
    CHECK_EQ(inside, 2);
}

TEST(gpu_work_is_linked_to_spans) {
    FakeRecording recording;
    recording.name("step");
    recording.thread(1);
    recording.event(EventKind::span_begin, 1, 1000);
    recording.event(EventKind::launch, 77, 1500);
    recording.raw(EventKind::graph_node, 0, 40);
    recording.raw(EventKind::graph_clone, 0, 40);
    recording.raw(EventKind::graph_clone_of, 0, 41);
    recording.event(EventKind::span_end, 1, 2000);
    const TemporaryFolder folder;
    recording.write(folder());
    std::vector<std::uint64_t> ids;
    decode_run(read_folder(folder()), 64, [&](const Batch& batch) {
        ids = batch.links.id;
        REQUIRE(batch.rows.size() == 1 && ids.size() == 3);
        CHECK_EQ(batch.links.span_id[0], batch.rows.span_id[0]);
        CHECK_EQ(batch.links.span_id[1], batch.rows.span_id[0]);
        CHECK_EQ(batch.links.span_id[2], 40);  // what the clone was made of
        CHECK_EQ(batch.links.launch_ns[0], 1500);
    });
    CHECK(ids == std::vector<std::uint64_t>({77, 40, 41}));
}

TEST(every_batch_that_was_added_to_a_thread_counts_once) {
    FakeRecording recording;
    recording.name("step");
    recording.name("aten::mm");
    recording.thread(1);
    recording.span(1, 1000, 2000);
    recording.chunks().emplace_back();
    for (const std::uint32_t batch : {1u, 2u})
        for (const std::uint64_t thread : {501u, 777u}) {  // the second has no events of its own
            const std::uint64_t at = 1000 * batch + 100;
            recording.raw(EventKind::thread, 0,
                          thread << 32 | added_thread_bit | (2 * batch + (thread == 777)));
            recording.chunks().back().push_back(Event{});
            recording.event(EventKind::operator_begin, 2, at);
            recording.event(EventKind::operator_end, 0, at + 100);
        }
    const Spans spans = decode(recording);
    CHECK_EQ(spans.run.threads.size(), 2u);
    CHECK_EQ(spans.count("aten::mm"), 4u);
    CHECK_EQ(spans.run.totals.damaged_events, 0u);
    CHECK_EQ(std::ranges::count(spans.rows.parent_id, -1), 4);  // all but the operator inside the step
}

TEST(an_id_beyond_the_names_is_a_lost_name) {
    FakeRecording recording;
    recording.name("work");
    recording.name("scoped by itself", 2);
    recording.name("scoped by an unknown id", 77);
    recording.thread(1);
    for (const std::uint32_t name : {1u, 2u, 3u, 4u, 0xFFFFFFFFu}) recording.span(name, 10ull, 10ull);
    const Spans spans = decode(recording);
    CHECK_EQ(spans.count("(lost name)"), 2u);
    CHECK_EQ(spans.count("work"), 1u);
    CHECK_EQ(spans.count("scoped by itself"), 1u);
    CHECK_EQ(spans.count("scoped by an unknown id"), 1u);
}

TEST(what_interrupts_a_program_is_a_span_of_its_own_kind) {
    FakeRecording recording;
    const std::uint32_t work = recording.name("work"), collection = recording.name("generation 2"),
                        compilation = recording.name("compilation 0/0");
    recording.thread(1);
    recording.event(EventKind::span_begin, work, 1000);
    recording.event(EventKind::collection_begin, collection, 1100);
    recording.event(EventKind::collection_end, collection, 1400);
    recording.event(EventKind::compile_begin, compilation, 1500);
    recording.event(EventKind::compile_end, compilation, 1700);
    recording.event(EventKind::span_end, work, 2000);
    const Spans spans = decode(recording);
    REQUIRE(spans.rows.size() == 3);
    CHECK_EQ(spans.rows.kind[0], 11);
    CHECK_EQ(spans.rows.duration_ns[0], 300);
    CHECK_EQ(spans.rows.kind[1], 6);
    CHECK_EQ(spans.rows.duration_ns[1], 200);
    CHECK_EQ(spans.rows.parent_id[0], spans.rows.span_id[2]);
    CHECK_EQ(spans.rows.duration_ns[2], 1000);
    CHECK_EQ(spans.run.totals.damaged_events, 0u);
}

TEST(a_pending_begin_is_nothing) {
    FakeRecording recording;
    const std::uint32_t work = recording.name("work");
    recording.thread(1);
    recording.event(EventKind::pending, work, 1000);
    recording.span(work, 1100, 1200);
    const Spans spans = decode(recording);
    REQUIRE(spans.rows.size() == 1);
    CHECK_EQ(spans.rows.parent_id[0], -1);
    CHECK_EQ(spans.run.totals.damaged_events, 0u);
    CHECK_EQ(spans.run.totals.unfinished_spans, 0u);
}
