// SPDX-License-Identifier: Apache-2.0
// Starts and stops while other threads continue to emit: the main test for the thread sanitizer.
#include <set>

#include "support.hpp"

using namespace gpuprof;
using namespace gpuprof::test;

namespace {

constexpr unsigned emitters = 8;
constexpr int restarts = sanitized ? 60 : 100;

class Crowd {
  public:
    template <typename Body>
    Crowd(unsigned count, Body body) {
        for (unsigned i = 0; i < count; ++i)
            threads_.emplace_back([this, body, i] {
                while (!stopped_.load(std::memory_order_relaxed)) body(i);
            });
    }
    ~Crowd() {
        stopped_ = true;
        for (std::thread& thread : threads_) thread.join();
    }

  private:
    std::atomic<bool> stopped_{false};
    std::vector<std::thread> threads_;
};

void wait_until_above(const std::atomic<std::uint64_t>& counter, std::uint64_t bound) {
    while (counter.load(std::memory_order_relaxed) <= bound) sched_yield();
}

// A begin or an end at either edge may lie outside the recording: at most one of each a thread.
void check_recording(const TemporaryFolder& folder, std::uint64_t threads) {
    const Spans spans = decode_folder(folder());
    CHECK_EQ(spans.run.damage.size(), 0u);
    CHECK_EQ(spans.run.totals.damaged_events, 0u);
    CHECK_EQ(spans.run.totals.dropped_events, 0u);
    CHECK(spans.run.totals.unmatched_ends <= threads);
    CHECK(spans.run.totals.unfinished_spans <= threads);
    CHECK_EQ(spans.count("work"), spans.rows.size());
    for (const std::int64_t duration : spans.rows.duration_ns) CHECK(duration >= 0);
    REQUIRE(spans.run.processes.size() == 1);
    CHECK(spans.run.processes[0].closed);
}

}  // namespace

TEST(many_restarts_under_eight_emitting_threads) {
    std::atomic<std::uint64_t> rounds{0};
    const Crowd crowd(emitters, [&](unsigned) {
        // The only name, so it has the same id in every recording.
        const std::uint32_t name = Recorder::instance().intern("work");
        for (int i = 0; i < 100; ++i) {
            emit(EventKind::span_begin, name);
            emit(EventKind::span_end, name);
        }
        rounds.fetch_add(1, std::memory_order_relaxed);
    });
    std::uint64_t spans = 0;
    for (int i = 0; i < restarts; ++i) {
        const TemporaryFolder folder;
        start(folder);
        CHECK_EQ(Recorder::instance().intern("work"), 1u);
        wait_until_above(rounds, rounds.load() + static_cast<std::uint64_t>(i % 7));
        Recorder::instance().stop();
        if (i % 10 == 0) check_recording(folder, emitters);
        spans += decode_folder(folder()).run.totals.spans;
    }
    CHECK(spans > 0);
}

TEST(restarts_under_threads_that_live_shortly) {
    std::atomic<std::uint64_t> rounds{0};
    const Crowd crowd(4, [&](unsigned) {
        run_in_threads(2, [](unsigned) {
            const std::uint32_t name = Recorder::instance().intern("work");
            emit(EventKind::span_begin, name);
            emit(EventKind::span_end, name);
        });
        rounds.fetch_add(1, std::memory_order_relaxed);
    });
    for (int i = 0; i < restarts; ++i) {
        const TemporaryFolder folder;
        start(folder);
        CHECK_EQ(Recorder::instance().intern("work"), 1u);
        wait_until_above(rounds, rounds.load() + 2);
        Recorder::instance().stop();
        // A thread may begin in one recording and end in the next, so every thread may be torn.
        const Spans spans = decode_folder(folder());
        check_recording(folder, spans.run.threads.size());
    }
}

TEST(names_are_interned_while_recordings_start_and_stop) {
    std::atomic<std::uint64_t> rounds{0};
    const Crowd crowd(4, [&](unsigned thread) {
        const std::uint64_t round = rounds.fetch_add(1, std::memory_order_relaxed);
        const std::string text = std::to_string(thread) + " " + std::to_string(round % 1000);
        CHECK(Recorder::instance().intern(text) != 0);
    });
    for (int i = 0; i < restarts; ++i) {
        const TemporaryFolder folder;
        start(folder);
        emit(EventKind::span_begin, Recorder::instance().intern("outer"));
        wait_until_above(rounds, rounds.load() + 50);
        Recorder::instance().stop();
        const RecordedFolder recorded = read_folder(folder());
        REQUIRE(recorded.processes.size() == 1);
        CHECK_EQ(recorded.damage.size(), 0u);
        std::set<std::string> names;
        for (const RecordedName& name : recorded.processes[0].names) CHECK(names.insert(name.text).second);
        CHECK_EQ(names.count("outer"), 1u);
    }
}
