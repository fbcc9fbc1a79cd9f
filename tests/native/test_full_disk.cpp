// SPDX-License-Identifier: Apache-2.0
// A limit on the size of files simulates a full disk. Limits last, so each test runs in a child.
#include <fcntl.h>
#include <pthread.h>
#include <sys/resource.h>

#include <cerrno>
#include <csignal>
#include <system_error>

#include "support.hpp"

using namespace gpuprof;
using namespace gpuprof::test;

namespace {

bool a_timer_runs = false;  // its signals end a call of the kernel that lets them

constexpr rlim_t first_segment_bytes = header_bytes + 16 * chunk_bytes;
constexpr std::uint64_t first_segment_events = 16 * (chunk_events - thread_mark_slots);

void limit_files(rlim_t bytes) {
    signal(SIGXFSZ, SIG_IGN);  // as Python does
    rlimit limit{};
    REQUIRE(getrlimit(RLIMIT_FSIZE, &limit) == 0);
    limit.rlim_cur = bytes;
    REQUIRE(setrlimit(RLIMIT_FSIZE, &limit) == 0);
}

template <typename Body>
void in_child(Body body) {
    CHECK_EQ(wait_for(start_child(body)), 0);
}

std::uint64_t recorded_events(const TemporaryFolder& folder) {
    return decode_folder(folder()).run.totals.events;
}

bool is_blocked(int signal) {
    sigset_t blocked;
    pthread_sigmask(SIG_SETMASK, nullptr, &blocked);
    return sigismember(&blocked, signal) == 1;
}

}  // namespace

// Found before the C library's function; behaves as on tmpfs of an older kernel.
extern "C" [[gnu::visibility("default")]] int posix_fallocate(int file, off_t begin, off_t size) {
    if (a_timer_runs && !is_blocked(SIGPROF)) return EINTR;
    return fallocate(file, 0, begin, size) == 0 ? 0 : errno;
}

TEST(a_timer_of_the_program_keeps_no_segment_from_being_made) {
    in_child([] {
        a_timer_runs = true;
        const TemporaryFolder folder;
        start(folder);
        emit_numbered_spans(200'000);
        const RecorderTotals totals = Recorder::instance().stop();
        CHECK(!totals.storage_failed);
        CHECK(!is_blocked(SIGPROF));
        CHECK_EQ(recorded_events(folder), 400'000u);
    });
}

TEST(dropped_events_are_counted_exactly) {
    in_child([] {
        constexpr std::uint32_t threads = 4, spans = 20'000;
        const TemporaryFolder folder;
        limit_files(first_segment_bytes + chunk_bytes);
        start(folder);
        run_in_threads(threads, [](unsigned) { emit_numbered_spans(spans); });
        const RecorderTotals totals = Recorder::instance().stop();
        CHECK(totals.storage_failed);
        CHECK(totals.storage_error.find(folder()) != std::string::npos);
        const Spans decoded = decode_folder(folder());
        CHECK_EQ(decoded.run.totals.events + totals.dropped_events, 2 * threads * spans);
        // Less what a thread that was done early left over in its chunk.
        CHECK(decoded.run.totals.events <= first_segment_events);
        CHECK(decoded.run.totals.events > first_segment_events - threads * chunk_events);
        CHECK_EQ(decoded.run.totals.dropped_events, totals.dropped_events);
        CHECK_EQ(decoded.run.totals.damaged_events, 0u);
        CHECK_EQ(decoded.run.damage.size(), 0u);
        CHECK_EQ(folder.files(".segment").size(), 1u);
    });
}

TEST(what_ended_threads_left_over_is_still_used) {
    in_child([] {
        const TemporaryFolder folder;
        limit_files(first_segment_bytes);
        start(folder);
        for (int i = 0; i < 100; ++i) run_in_threads(1, [](unsigned) { emit_numbered_spans(300); });
        const RecorderTotals totals = Recorder::instance().stop();
        CHECK_EQ(totals.dropped_events, 0u);
        CHECK_EQ(recorded_events(folder), 60'000u);
    });
}

TEST(a_killed_process_has_counted_its_dropped_events) {
    const TemporaryFolder folder;
    const pid_t child = start_child([&] {
        limit_files(first_segment_bytes);
        start(folder);
        emit_numbered_spans(40'000);
        raise(SIGKILL);
    });
    CHECK_EQ(wait_for(child), 1000 + SIGKILL);
    const Spans spans = decode_folder(folder());
    CHECK_EQ(spans.run.totals.events, first_segment_events);
    CHECK_EQ(spans.run.totals.dropped_events, 80'000 - first_segment_events);
    REQUIRE(spans.run.processes.size() == 1);
    CHECK(!spans.run.processes[0].closed);
}

TEST(what_children_without_any_room_drop_is_counted) {
    const TemporaryFolder folder;
    start(folder);
    emit_numbered_spans(10);
    for (int i = 0; i < 2; ++i) {
        const pid_t child = start_child([] {
            limit_files(1000);
            emit_numbered_spans(50);
            // Its own child has no room either.
            CHECK_EQ(wait_for(start_child([] { emit_numbered_spans(5); })), 0);
        });
        CHECK_EQ(wait_for(child), 0);
    }
    CHECK_EQ(Recorder::instance().stop().dropped_events, 0u);
    const Spans spans = decode_folder(folder());
    CHECK_EQ(spans.run.totals.spans, 10u);
    CHECK_EQ(spans.run.totals.dropped_events, 220u);
    REQUIRE(spans.run.damage.size() == 1);
    CHECK(spans.run.damage[0].kind == DamageKind::no_room);
    CHECK_EQ(spans.run.damage[0].count, 4u);
}

TEST(the_next_recording_has_room_again) {
    in_child([] {
        limit_files(first_segment_bytes);
        {
            const TemporaryFolder folder;
            start(folder);
            emit_numbered_spans(40'000);
            CHECK(Recorder::instance().stop().dropped_events > 0);
        }
        limit_files(RLIM_INFINITY);
        const TemporaryFolder folder;
        start(folder);
        emit_numbered_spans(40'000);
        const RecorderTotals totals = Recorder::instance().stop();
        CHECK_EQ(totals.dropped_events, 0u);
        CHECK(!totals.storage_failed);
        CHECK_EQ(totals.storage_error, "");
        CHECK_EQ(recorded_events(folder), 80'000u);
    });
}

TEST(no_room_to_begin_with) {
    in_child([] {
        const TemporaryFolder folder;
        limit_files(first_segment_bytes - 1);
        int error = 0;
        try {
            start(folder);
        } catch (const std::system_error& thrown) {
            error = thrown.code().value();
        }
        CHECK_EQ(error, EFBIG);
        CHECK(!Recorder::active());
        CHECK(fs::is_empty(folder()));
        limit_files(RLIM_INFINITY);
        start(folder);
        emit_numbered_spans(1);
        Recorder::instance().stop();
        CHECK_EQ(recorded_events(folder), 2u);
    });
}

TEST(no_room_for_names) {
    in_child([] {
        const TemporaryFolder folder;
        start(folder);
        Recorder& recorder = Recorder::instance();
        const std::uint32_t kept = recorder.intern("kept");
        limit_files(8192);
        const std::uint32_t cut = recorder.intern(std::string(10'000, 'x'));
        const std::uint32_t lost = recorder.intern("lost");
        CHECK(kept != cut && cut != lost && lost != 0);
        for (const std::uint32_t name : {kept, cut, lost}) {
            emit(EventKind::span_begin, name);
            emit(EventKind::span_end, name);
        }
        CHECK(recorder.stop().storage_failed);
        const Spans spans = decode_folder(folder());
        CHECK_EQ(spans.run.totals.spans, 3u);
        CHECK_EQ(spans.count("kept"), 1u);
        CHECK_EQ(spans.count("(lost name)"), 2u);
        CHECK_EQ(spans.run.damage.size(), 1u);
    });
}
