// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <csignal>
#include <functional>

#include "support.hpp"

using namespace gpuprof;
using namespace gpuprof::test;

namespace {

void emit_span(std::uint32_t name) {
    emit(EventKind::span_begin, name);
    emit(EventKind::span_end, name);
}

// Rows of the decoded process `id` that carry `name`.
std::size_t count_in_process(const std::string& folder, pid_t id, const std::string& name) {
    std::size_t found = 0;
    decode_run(read_folder(folder), 64, [&](const Batch& batch) {
        if (batch.process.process_id != static_cast<std::uint32_t>(id)) return;
        for (const std::uint32_t row : batch.rows.name)
            if (batch.names.at(row - 1).text == name) ++found;
    });
    return found;
}

class Pipe {
  public:
    Pipe() {
        if (pipe(ends_) != 0) throw std::runtime_error("no pipe");
    }
    Pipe(const Pipe&) = delete;
    Pipe& operator=(const Pipe&) = delete;
    ~Pipe() {
        close(ends_[0]);
        close(ends_[1]);
    }
    void signal() { CHECK_EQ(write(ends_[1], "x", 1), 1); }
    void wait() {
        char byte = 0;
        CHECK_EQ(read(ends_[0], &byte, 1), 1);
    }

  private:
    int ends_[2] = {-1, -1};
};

}  // namespace

TEST(a_child_records_files_of_its_own) {
    const TemporaryFolder folder;
    start(folder);
    const std::uint32_t before = Recorder::instance().intern("before the fork");
    emit_span(before);
    const pid_t child = start_child([&] {
        CHECK(Recorder::active());
        const std::uint32_t own = Recorder::instance().intern("child's own");
        for (int i = 0; i < 10; ++i) emit_span(before);
        emit_span(own);
        CHECK_EQ(Recorder::instance().stop().dropped_events, 0u);
    });
    CHECK_EQ(wait_for(child), 0);
    const std::uint32_t own = Recorder::instance().intern("parent's own");
    emit_span(own);
    Recorder::instance().stop();

    CHECK_EQ(folder.files(".segment").size(), 2u);
    CHECK_EQ(folder.files(".names").size(), 2u);
    CHECK_EQ(count_in_process(folder(), child, "before the fork"), 10u);
    CHECK_EQ(count_in_process(folder(), child, "child's own"), 1u);
    CHECK_EQ(count_in_process(folder(), getpid(), "before the fork"), 1u);
    CHECK_EQ(count_in_process(folder(), getpid(), "parent's own"), 1u);
    const Spans spans = decode_folder(folder());
    CHECK_EQ(spans.run.totals.spans, 13u);
    REQUIRE(spans.run.processes.size() == 2);
    CHECK_EQ(spans.run.processes[0].process_id, static_cast<std::uint32_t>(getpid()));
    CHECK_EQ(spans.run.processes[1].parent_process_id, static_cast<std::uint32_t>(getpid()));
    for (const DecodedThread& thread : spans.run.threads) CHECK_EQ(thread.thread_id, thread.process_id);
}

TEST(what_threads_of_the_parent_left_over_is_not_the_childs) {
    const TemporaryFolder folder;
    start(folder);
    run_in_threads(4, [](unsigned) { emit_numbered_spans(10); });
    const pid_t child = start_child([] {
        emit_numbered_spans(5);
        CHECK_EQ(Recorder::instance().stop().dropped_events, 0u);
    });
    CHECK_EQ(wait_for(child), 0);
    run_in_threads(1, [](unsigned) { emit_numbered_spans(10); });
    Recorder::instance().stop();
    CHECK_EQ(decode_folder(folder()).run.totals.spans, 55u);
}

TEST(a_child_that_records_nothing_leaves_no_file) {
    const TemporaryFolder folder;
    start(folder);
    CHECK_EQ(wait_for(start_child([] {})), 0);
    Recorder::instance().stop();
    CHECK_EQ(folder.files(".segment").size(), 1u);
}

TEST(a_child_without_stop_loses_nothing) {
    const TemporaryFolder folder;
    start(folder);
    const std::uint32_t name = Recorder::instance().intern("work");
    const pid_t child = start_child([&] {
        emit_numbered_spans(5000);
        emit_span(name);
        emit(EventKind::span_begin, name);
        _exit(7);
    });
    CHECK_EQ(wait_for(child), 7);
    Recorder::instance().stop();
    const Spans spans = decode_folder(folder());
    CHECK_EQ(spans.run.totals.events, 10'003u);
    CHECK_EQ(spans.run.totals.unfinished_spans, 1u);
    CHECK_EQ(std::count_if(spans.run.processes.begin(), spans.run.processes.end(),
                           [](const DecodedProcess& process) { return process.closed; }),
             1);
}

TEST(a_span_that_is_open_at_the_fork) {
    const TemporaryFolder folder;
    start(folder);
    const std::uint32_t name = Recorder::instance().intern("around the fork");
    emit(EventKind::span_begin, name);
    const pid_t child = start_child([&] { emit(EventKind::span_end, name); });
    CHECK_EQ(wait_for(child), 0);
    emit(EventKind::span_end, name);
    Recorder::instance().stop();
    CHECK_EQ(count_in_process(folder(), getpid(), "around the fork"), 1u);
    const Spans spans = decode_folder(folder());
    CHECK_EQ(spans.run.totals.unmatched_ends, 1u);
    CHECK_EQ(spans.run.totals.spans, 1u);
}

TEST(forks_while_four_threads_emit) {
    constexpr int children = sanitized ? 12 : 40;
    constexpr std::uint32_t count = 3000;
    const TemporaryFolder folder;
    start(folder);
    const std::uint32_t name = Recorder::instance().intern("interned in the parent");
    std::atomic<bool> finished{false};
    std::atomic<std::uint64_t> emitted{0};
    std::vector<std::thread> threads;
    for (int i = 0; i < 4; ++i)
        threads.emplace_back([&] {
            // A limit, since a slow disk should not be filled by a fast loop.
            for (int round = 0; !finished && round < 3000; ++round) {
                Recorder::instance().intern("round " + std::to_string(round));
                for (int k = 0; k < 50; ++k) emit_span(name);
                emitted += 100;
            }
        });
    std::vector<pid_t> ids;
    for (int i = 0; i < children; ++i) {
        ids.push_back(start_child([&] {
            for (std::uint32_t k = 0; k < count; ++k) emit_span(name);
            CHECK_EQ(Recorder::instance().stop().dropped_events, 0u);
        }));
    }
    for (const pid_t id : ids) CHECK_EQ(wait_for(id), 0);
    finished = true;
    for (std::thread& thread : threads) thread.join();
    Recorder::instance().stop();
    for (const pid_t id : ids) CHECK_EQ(count_in_process(folder(), id, "interned in the parent"), count);
    const Spans spans = decode_folder(folder());
    CHECK_EQ(spans.run.totals.events, emitted + 2u * count * children);
    CHECK_EQ(spans.run.totals.damaged_events, 0u);
    CHECK_EQ(spans.run.damage.size(), 0u);
}

TEST(grandchildren) {
    constexpr int generations = 5;
    const TemporaryFolder folder;
    start(folder);
    const std::uint32_t shared = Recorder::instance().intern("shared");
    const std::function<void(int)> live = [&](int generation) {
        emit_span(shared);
        emit_span(Recorder::instance().intern("generation " + std::to_string(generation)));
        if (generation == generations) return;
        CHECK_EQ(wait_for(start_child([&] {
                     live(generation + 1);
                     Recorder::instance().stop();
                 })),
                 0);
        emit_span(shared);
    };
    live(0);
    Recorder::instance().stop();
    const Spans spans = decode_folder(folder());
    CHECK_EQ(spans.run.processes.size(), generations + 1u);
    CHECK_EQ(spans.count("shared"), 2 * generations + 1u);
    for (int i = 0; i <= generations; ++i) CHECK_EQ(spans.count("generation " + std::to_string(i)), 1u);
    for (std::size_t i = 1; i < spans.run.processes.size(); ++i)
        CHECK_EQ(spans.run.processes[i].parent_process_id, spans.run.processes[i - 1].process_id);
}

TEST(a_child_of_a_closed_run_whose_folder_is_gone) {
    Pipe gone;
    pid_t child = 0;
    {
        const TemporaryFolder folder;
        start(folder);
        const std::uint32_t name = Recorder::instance().intern("work");
        emit_span(name);
        child = start_child([&] {
            gone.wait();
            CHECK(Recorder::instance().intern("new name") != 0);
            for (int i = 0; i < 5000; ++i) emit_span(name);
            const RecorderTotals totals = Recorder::instance().stop();
            CHECK(totals.storage_failed);
            CHECK_EQ(totals.dropped_events, 10'000u);
            const TemporaryFolder next;
            start(next);
            emit_numbered_spans(10);
            CHECK_EQ(Recorder::instance().stop().dropped_events, 0u);
            CHECK_EQ(decode_folder(next()).run.totals.spans, 10u);
        });
        Recorder::instance().stop();
    }
    gone.signal();
    CHECK_EQ(wait_for(child), 0);
}

TEST(a_child_of_a_process_that_does_not_record) {
    const TemporaryFolder folder;
    emit_numbered_spans(1);
    const pid_t child = start_child([&] {
        emit_numbered_spans(1);
        start(folder);
        emit_numbered_spans(4);
        Recorder::instance().stop();
    });
    CHECK_EQ(wait_for(child), 0);
    CHECK(!Recorder::active());
    CHECK_EQ(decode_folder(folder()).run.totals.spans, 4u);
}

TEST(a_child_that_is_forked_by_a_thread_that_never_emitted) {
    const TemporaryFolder folder;
    start(folder);
    emit_numbered_spans(2);
    int code = -1;
    run_in_threads(1, [&](unsigned) {
        code = wait_for(start_child([] {
            emit_numbered_spans(3);
            Recorder::instance().stop();
        }));
    });
    CHECK_EQ(code, 0);
    Recorder::instance().stop();
    CHECK_EQ(decode_folder(folder()).run.totals.spans, 5u);
}
