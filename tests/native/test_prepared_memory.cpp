// SPDX-License-Identifier: Apache-2.0
// The thread that has the kernel provide memory ahead of a recording that needs much of it.
#include <sys/mman.h>
#include <sys/resource.h>

#include <atomic>
#include <csignal>
#include <fstream>
#include <sstream>
#include <string_view>

#include "support.hpp"

using namespace gpuprof;
using namespace gpuprof::test;

namespace {

constexpr std::uint32_t piece_events = chunk_events - thread_mark_slots;

void emit_pieces(std::uint32_t pieces) {
    for (std::uint32_t i = 0; i < pieces * piece_events; ++i) emit(EventKind::span_begin, 1);
}

#if defined(__linux__)

// The folders of this process's threads that prepare memory.
std::vector<fs::path> preparing_threads() {
    std::vector<fs::path> found;
    for (const auto& task : fs::directory_iterator("/proc/self/task")) {
        std::string name;
        std::getline(std::ifstream(task.path() / "comm"), name);
        if (name == "gpuprof-memory") found.push_back(task.path());
    }
    return found;
}

// A thread takes its name after it began.
void await_preparing_thread() {
    while (preparing_threads().empty()) sched_yield();
}

std::string status_line(const fs::path& task, std::string_view key) {
    std::ifstream status(task / "status");
    for (std::string line; std::getline(status, line);)
        if (line.starts_with(key)) return line.substr(key.size());
    return {};
}

// How much of this process's mapped segments has memory, in KiB.
std::size_t resident_segments_kib() {
    std::ifstream maps("/proc/self/smaps");
    std::size_t found = 0;
    bool is_segment = false;
    for (std::string line; std::getline(maps, line);) {
        if (line.find('-') < line.find(' ')) is_segment = line.ends_with(".segment");
        if (is_segment && line.starts_with("Rss:")) found += std::stoul(line.substr(4));
    }
    return found;
}

bool kernel_provides_memory_on_request() {
    alignas(4096) static char page[4096];
    return madvise(page, sizeof(page), MADV_POPULATE_WRITE) == 0;
}

TEST(the_memory_of_the_first_events_is_there_before_them) {
    if (!kernel_provides_memory_on_request()) return;
    const TemporaryFolder folder;
    start(folder);
    CHECK(resident_segments_kib() >= 16 * chunk_bytes / 1024);
    Recorder::instance().stop();
}

TEST(a_short_recording_begins_no_thread) {
    const TemporaryFolder folder;
    start(folder);
    emit_pieces(7);
    CHECK(preparing_threads().empty());
    Recorder::instance().stop();
}

TEST(a_recording_on_one_processor_begins_no_thread) {
    const TemporaryFolder folder;
    start(folder);
    std::thread([] {
        cpu_set_t one;
        CPU_ZERO(&one);
        CPU_SET(static_cast<std::size_t>(sched_getcpu()), &one);
        CHECK_EQ(sched_setaffinity(0, sizeof(one), &one), 0);
        emit_pieces(20);
        CHECK(preparing_threads().empty());
    }).join();
    CHECK_EQ(Recorder::instance().stop().dropped_events, 0u);
    CHECK_EQ(decode_folder(folder()).run.totals.events, 20 * piece_events);
}

// It would wait for other threads as well, while the recording thread waits for it.
TEST(a_thread_of_low_priority_begins_none) {
    const TemporaryFolder folder;
    start(folder);
    std::thread([] {
        CHECK_EQ(setpriority(PRIO_PROCESS, 0, 19), 0);
        emit_pieces(20);
        CHECK(preparing_threads().empty());
    }).join();
    emit_pieces(1);
    await_preparing_thread();
    CHECK_EQ(Recorder::instance().stop().dropped_events, 0u);
}

// As while a child of a closed run stops: what it had opened ahead goes.
TEST(a_reader_next_to_a_process_that_stops_sees_no_damage) {
    const TemporaryFolder folder;
    std::atomic<bool> done{false};
    std::thread reader([&] {
        while (!done) CHECK_EQ(read_folder(folder()).damage.size(), 0u);
    });
    for (int i = 0; i < 20; ++i) {
        Recorder::instance().start(folder(), true);
        emit_pieces(9);
        Recorder::instance().stop();
    }
    done = true;
    reader.join();
}

TEST(the_thread_ends_with_the_recording_and_leaves_no_file) {
    const TemporaryFolder folder;
    for (std::uint32_t recording = 1; recording <= 3; ++recording) {
        start(folder);
        emit_pieces(9);
        await_preparing_thread();
        CHECK_EQ(preparing_threads().size(), 1u);
        while (folder.files(".segment").size() < recording + 1) sched_yield();  // one is opened ahead
        CHECK_EQ(Recorder::instance().stop().dropped_events, 0u);
        CHECK(preparing_threads().empty());
        CHECK_EQ(folder.files(".segment").size(), recording);
    }
    CHECK_EQ(decode_folder(folder()).run.totals.events, 3 * 9 * piece_events);
}

TEST(the_programs_signals_are_left_to_its_own_threads) {
    const TemporaryFolder folder;
    start(folder);
    emit_pieces(9);
    await_preparing_thread();
    std::istringstream blocked(status_line(preparing_threads().front(), "SigBlk:"));
    std::uint64_t mask = 0;
    blocked >> std::hex >> mask;
    for (const int number : {SIGINT, SIGTERM, SIGALRM, SIGPROF, SIGUSR1, SIGCHLD})
        CHECK(mask >> (number - 1) & 1);
    sigset_t own;
    pthread_sigmask(SIG_SETMASK, nullptr, &own);
    CHECK_EQ(sigismember(&own, SIGINT), 0);
    Recorder::instance().stop();
}

// A fork with other threads is warned of by Python, and a mutex that one of them held is lost to the child.
TEST(no_thread_is_there_at_a_fork_and_a_forked_child_begins_none) {
    const TemporaryFolder folder;
    start(folder);
    emit_pieces(9);
    await_preparing_thread();
    const pid_t child = start_child([] {
        emit_pieces(20);
        CHECK(preparing_threads().empty());
        CHECK_EQ(Recorder::instance().stop().dropped_events, 0u);
    });
    CHECK(preparing_threads().empty());
    emit_pieces(1);
    await_preparing_thread();
    CHECK_EQ(wait_for(child), 0);
    emit_pieces(20);
    CHECK_EQ(Recorder::instance().stop().dropped_events, 0u);
    CHECK_EQ(decode_folder(folder()).run.totals.events, 50 * piece_events);
}

#endif

TEST(many_forks_while_memory_is_prepared) {
    const TemporaryFolder folder;
    start(folder);
    constexpr std::uint32_t pieces = 60, threads = 2;
    std::atomic<bool> done{false};
    std::thread forking([&] {
        while (!done) CHECK_EQ(wait_for(start_child([] { emit(EventKind::span_begin, 1); })), 0);
    });
    run_in_threads(threads, [](unsigned) { emit_pieces(pieces); });
    done = true;
    forking.join();
    CHECK_EQ(Recorder::instance().stop().dropped_events, 0u);
    std::uint64_t own = 0;
    const Spans spans = decode_folder(folder());
    CHECK_EQ(spans.run.totals.damaged_events, 0u);
    own = spans.run.totals.events;
    CHECK(own > threads * pieces * piece_events);  // the children's are there, too
}

TEST(many_threads_that_outrun_the_preparation) {
    const TemporaryFolder folder;
    constexpr std::uint32_t pieces = 100, threads = 8;
    start(folder);
    run_in_threads(threads, [](unsigned) { emit_pieces(pieces); });
    CHECK_EQ(Recorder::instance().stop().dropped_events, 0u);
    const Spans spans = decode_folder(folder());
    CHECK_EQ(spans.run.totals.damaged_events, 0u);
    CHECK_EQ(spans.run.totals.events, threads * pieces * piece_events);
}

}  // namespace
