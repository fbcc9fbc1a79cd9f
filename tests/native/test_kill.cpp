// SPDX-License-Identifier: Apache-2.0
// GPUPROF_KILL_SPANS: how many spans each thread is to write at most.
#include <array>
#include <csignal>

#include "support.hpp"

using namespace gpuprof;
using namespace gpuprof::test;

namespace {

constexpr unsigned threads = 8;

std::uint32_t spans_per_thread() {
    if (const char* wish = std::getenv("GPUPROF_KILL_SPANS"))
        return static_cast<std::uint32_t>(std::strtoul(wish, nullptr, 10));
    return sanitized ? 100'000 : 1'000'000;
}

struct alignas(64) Progress {
    std::atomic<std::uint32_t> events{0};
    std::atomic<std::uint32_t> thread_id{0};
};
using ProgressOfAll = std::array<Progress, threads>;

std::uint64_t sum(const ProgressOfAll& progress) {
    std::uint64_t events = 0;
    for (const Progress& thread : progress) events += thread.events.load(std::memory_order_relaxed);
    return events;
}

void write_spans(Progress& progress, std::uint32_t spans) {
    progress.thread_id = static_cast<std::uint32_t>(gettid());
    for (std::uint32_t i = 0; i < spans; ++i) {
        emit(EventKind::span_begin, i + 1);
        progress.events.store(2 * i + 1, std::memory_order_release);
        emit(EventKind::span_end, i + 1);
        progress.events.store(2 * i + 2, std::memory_order_release);
    }
}

// Event k of a thread is the begin (k even) or the end (k odd) of span k / 2 + 1: a number that is
// missing anywhere, not only at the end, shows.
std::uint64_t check_thread(const RecordedProcess& process, std::uint32_t thread_id, std::uint32_t counted) {
    std::uint64_t at = 0;
    for (const ThreadPiece& piece : process.pieces) {
        if (piece.thread_id != thread_id) continue;
        for (const Event& event : piece.events) {
            if (event.kind == 0) continue;
            const auto kind = at % 2 == 0 ? EventKind::span_begin : EventKind::span_end;
            if (event.name != at / 2 + 1 || event.kind != static_cast<std::uint32_t>(kind)) {
                CHECK_EQ(at, std::uint64_t{0} + counted);
                return at;
            }
            ++at;
        }
    }
    CHECK(at >= counted);
    CHECK(at <= std::uint64_t{1} + counted);
    return at;
}

void kill_after(double share) {
    const std::uint32_t spans = spans_per_thread();
    const TemporaryFolder folder;
    const SharedMemory<ProgressOfAll> progress;
    const pid_t child = start_child([&] {
        start(folder);
        run_in_threads(threads, [&](unsigned i) { write_spans((*progress)[i], spans); });
    });
    const auto enough = static_cast<std::uint64_t>(share * 2 * threads * spans);
    while (sum(*progress) < enough) sched_yield();
    kill(child, SIGKILL);
    CHECK_EQ(wait_for(child), 1000 + SIGKILL);

    const RecordedFolder recorded = read_folder(folder());
    CHECK_EQ(recorded.damage.size(), 0u);
    REQUIRE(recorded.processes.size() == 1);
    CHECK(!recorded.processes[0].closed);
    std::uint64_t found = 0;
    for (const Progress& thread : *progress)
        found += check_thread(recorded.processes[0], thread.thread_id, thread.events);
    CHECK(found >= sum(*progress));
    CHECK(found < 2ull * threads * spans);  // killed in the middle indeed

    std::uint64_t rows = 0;
    const DecodedRun run = decode_run(recorded, 1 << 16, [&](const Batch& batch) {
        rows += batch.rows.size();
        for (const std::int64_t duration : batch.rows.duration_ns) CHECK(duration >= 0);
    });
    CHECK_EQ(run.totals.events, found);
    CHECK_EQ(run.totals.damaged_events, 0u);
    CHECK_EQ(run.totals.spans, rows);
    CHECK_EQ(run.totals.spans, (found + run.totals.unfinished_spans) / 2);
    CHECK(run.totals.unfinished_spans <= threads);
}

}  // namespace

TEST(killed_in_the_middle) {
    kill_after(0.5);
}

TEST(killed_early) {
    for (int i = 1; i <= 10; ++i) kill_after(0.002 * i);
}
