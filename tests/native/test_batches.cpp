// SPDX-License-Identifier: Apache-2.0
// Rows are handed out in batches, and some are merged into others after they were written.
#include <random>
#include <set>

#include "fake_recording.hpp"
#include "support.hpp"

using namespace gpuprof;
using namespace gpuprof::test;

TEST(rows_come_in_batches_with_their_names) {
    FakeRecording recording;
    for (std::uint32_t i = 0; i < 100; ++i) recording.name("name " + std::to_string(i));
    recording.thread(1);
    for (std::uint32_t i = 0; i < 1000; ++i) recording.span(1 + i % 100, 10ull * i, 10ull * i + 5);
    const TemporaryFolder folder;
    recording.write(folder());
    std::size_t rows = 0, batches = 0;
    decode_run(read_folder(folder()), 64, [&](const Batch& batch) {
        CHECK_EQ(batch.process.process_id, 100u);
        CHECK(batch.rows.size() >= 1 && batch.rows.size() <= 64);
        for (const std::uint32_t name : batch.rows.name)
            CHECK_EQ(batch.names.at(name - 1).text, "name " + std::to_string(rows++ % 100));
        ++batches;
    });
    CHECK_EQ(rows, 1000u);
    CHECK_EQ(batches, 16u);
}

// Rows that are merged into others must not have left with an earlier batch.
TEST(batches_change_nothing) {
    FakeRecording recording;
    for (const char* name : {"epoch", "aten::mul", "aten::add", "step"}) recording.name(name);
    std::mt19937_64 random(11);
    recording.thread(1);
    std::uint64_t now = 0;
    recording.event(EventKind::operator_begin, 1, now);  // record_function around all
    for (int i = 0, open = 0; i < 3000; ++i) {
        const bool begins = open < 6 && random() % 2 == 0;
        if (!begins && open == 0) continue;
        const auto name = static_cast<std::uint32_t>(2 + random() % 2);
        recording.event(begins ? EventKind::operator_begin : EventKind::operator_end, begins ? name : 0,
                        now += 3);
        open += begins ? 1 : -1;
    }
    const TemporaryFolder folder;
    recording.write(folder());
    const Spans whole = decode_folder(folder(), 1 << 20);
    CHECK(whole.rows.size() > 500);
    CHECK(2 * whole.rows.size() < whole.run.totals.events);  // some were merged
    for (const std::size_t batch_rows : {64u, 100u, 1000u}) {
        const Spans batched = decode_folder(folder(), batch_rows);
        CHECK(batched.rows.span_id == whole.rows.span_id);
        CHECK(batched.rows.parent_id == whole.rows.parent_id);
        CHECK(batched.rows.depth == whole.rows.depth);
        CHECK(batched.rows.duration_ns == whole.rows.duration_ns);
        CHECK_EQ(batched.run.totals.spans, whole.rows.size());
    }
}

TEST(every_parent_is_there_however_small_the_batches) {
    FakeRecording recording;
    recording.name("aten::mul");
    recording.name("inner");
    recording.thread(1);
    recording.event(EventKind::operator_begin, 1, 0);
    recording.event(EventKind::operator_begin, 1, 1);
    for (std::uint64_t i = 0; i < 100; ++i) recording.span(2, 10 * i + 2, 10 * i + 5);
    recording.event(EventKind::operator_end, 0, 5000);
    recording.event(EventKind::operator_end, 0, 5001);
    const TemporaryFolder folder;
    recording.write(folder());
    for (std::size_t batch_rows = 1; batch_rows < 120; ++batch_rows) {
        const Spans spans = decode_folder(folder(), batch_rows);
        const std::set<std::int64_t> ids(spans.rows.span_id.begin(), spans.rows.span_id.end());
        for (const std::int64_t parent : spans.rows.parent_id) CHECK(parent == -1 || ids.contains(parent));
        CHECK_EQ(spans.run.totals.spans, spans.rows.size());
    }
}
