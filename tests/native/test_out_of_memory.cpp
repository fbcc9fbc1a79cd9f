// SPDX-License-Identifier: Apache-2.0
// Each allocation of an operation fails once, in turn: the measured program continues, and what is
// recorded afterwards is right.
#include <barrier>
#include <cstdlib>
#include <mutex>

#include "support.hpp"

using namespace gpuprof;
using namespace gpuprof::test;

namespace {

// Counts down with each allocation of this thread; the one that meets zero fails.
thread_local int allocations_left = -1;
std::atomic<bool> no_memory{false};  // for any thread
const pthread_t first_thread = pthread_self();
std::atomic<unsigned> calls_of_others{0};

void note_caller() noexcept {
    if (pthread_equal(pthread_self(), first_thread) == 0) ++calls_of_others;
}

void* allocate(std::size_t size, std::size_t alignment) noexcept {
    note_caller();
    if (no_memory) return nullptr;
    if (allocations_left >= 0 && allocations_left-- == 0) return nullptr;
    return std::aligned_alloc(alignment, (size + alignment - 1) / alignment * alignment);
}

void* allocate_or_throw(std::size_t size, std::size_t alignment) {
    if (void* memory = allocate(size, alignment)) return memory;
    throw std::bad_alloc();
}

template <typename Body>
bool fails_at(int allocation, Body body) {
    allocations_left = allocation;
    body();
    const bool failed = allocations_left < 0;
    allocations_left = -1;
    return failed;
}

}  // namespace

// Not looked into, or the compiler warns of null in the library's own code.
[[gnu::noipa]] void* operator new(std::size_t size) {
    return allocate_or_throw(size, 16);
}
void* operator new(std::size_t size, std::align_val_t alignment) {
    return allocate_or_throw(size, static_cast<std::size_t>(alignment));
}
void* operator new(std::size_t size, const std::nothrow_t&) noexcept {
    return allocate(size, 16);
}
void* operator new(std::size_t size, std::align_val_t alignment, const std::nothrow_t&) noexcept {
    return allocate(size, static_cast<std::size_t>(alignment));
}
[[gnu::noipa]] void operator delete(void* memory) noexcept {
    note_caller();
    std::free(memory);
}
[[gnu::noipa]] void operator delete(void* memory, std::size_t) noexcept {
    note_caller();
    std::free(memory);
}
void operator delete(void* memory, std::align_val_t) noexcept {
    std::free(memory);
}
void operator delete(void* memory, std::size_t, std::align_val_t) noexcept {
    std::free(memory);
}

TEST(names_stay_with_their_ids) {
    Recorder& recorder = Recorder::instance();
    const TemporaryFolder folder;
    start(folder);
    std::map<std::uint32_t, std::string> given;
    int failed = 0;
    for (int round = 0; round < 300; ++round) {
        const std::string text = "a name too long to be stored in place " + std::to_string(round);
        std::uint32_t id = 0;
        if (fails_at(round % 8, [&] { id = recorder.intern(text); })) {
            failed += id == 0 ? 1 : 0;
            id = recorder.intern(text);
        }
        REQUIRE(id != 0);
        CHECK(given.emplace(id, text).second);
    }
    CHECK(failed > 50);
    recorder.stop();
    const RecordedFolder recorded = read_folder(folder());
    REQUIRE(recorded.processes.size() == 1);
    CHECK_EQ(recorded.processes[0].names.size(), given.size());
    for (const auto& [id, text] : given) CHECK_EQ(recorded.processes[0].names.at(id - 1).text, text);
}

namespace {

// Each thread emits once with its allocation number `failing(thread)` failing, then once more.
template <typename Choice>
void attach_threads(unsigned threads, Choice failing) {
    const TemporaryFolder folder;
    start(folder);
    std::atomic<unsigned> failed{0};
    std::mutex one_at_a_time;
    std::barrier all_were_here(threads);  // so that there is a log more each time
    run_in_threads(threads, [&](unsigned thread) {
        {
            const std::lock_guard lock(one_at_a_time);
            const int allocation = failing(thread);
            if (fails_at(allocation, [] { emit(EventKind::span_begin, 1); }) && allocation >= 0) ++failed;
        }
        all_were_here.arrive_and_wait();
        emit(EventKind::span_end, 1);  // attaches those that failed
        all_were_here.arrive_and_wait();
    });
    CHECK(failed >= threads / 2);
    // Would walk through a log that was given up and is still listed.
    CHECK_EQ(Recorder::instance().stop().dropped_events, 0u);
    const Spans spans = decode_folder(folder());
    CHECK_EQ(spans.run.totals.events, 2 * threads - failed);
    CHECK_EQ(spans.run.totals.damaged_events, 0u);
}

}  // namespace

// Comes before the next one, as long as the lists are short and grow with each thread. No more threads
// than the first segment has chunks: then nothing but the lists allocates.
TEST(threads_without_memory_for_the_lists_are_not_recorded) {
    attach_threads(16, [](unsigned thread) { return thread % 2 == 0 ? 1 : 2; });
}

TEST(threads_without_memory_for_their_log_are_not_recorded) {
    attach_threads(64, [](unsigned thread) { return thread % 2 == 0 ? 0 : -1; });
}

namespace {

constexpr std::uint32_t first_segment_events = 16 * (chunk_events - thread_mark_slots);

// The first event, with which the thread gets its log, has memory.
void emit_without_memory(std::uint32_t events) {
    emit(EventKind::span_begin, 1);
    no_memory = true;
    for (std::uint32_t i = 1; i < events; ++i) emit(EventKind::span_begin, 1);
    no_memory = false;
}

}  // namespace

TEST(a_segment_that_cannot_be_described_is_a_storage_failure) {
    const TemporaryFolder folder;
    start(folder);
    emit_without_memory(first_segment_events + 1);
    emit(EventKind::span_begin, 1);
    const RecorderTotals totals = Recorder::instance().stop();
    CHECK(totals.storage_failed);
    CHECK_EQ(totals.dropped_events, 2u);
    CHECK_EQ(decode_folder(folder()).run.totals.events, first_segment_events);
}

// Whether the thread that opens segments ahead has tried by then or has not.
TEST(a_segment_that_could_not_be_opened_ahead_is_opened_when_it_is_needed) {
    const TemporaryFolder folder;
    start(folder);
    emit_without_memory(first_segment_events);
    for (std::uint32_t i = 0; i < 4 * first_segment_events; ++i) emit(EventKind::span_begin, 1);
    const RecorderTotals totals = Recorder::instance().stop();
    CHECK(!totals.storage_failed);
    CHECK_EQ(totals.dropped_events, 0u);
    CHECK_EQ(decode_folder(folder()).run.totals.events, 5 * first_segment_events);
}

// glibc gives a thread an arena of 64 MiB of address space with its first allocation or release.
TEST(the_thread_that_prepares_memory_allocates_nothing) {
    const TemporaryFolder folder;
    start(folder);
    const unsigned before = calls_of_others;
    for (std::uint32_t i = 0; i < 20 * first_segment_events; ++i) emit(EventKind::span_begin, 1);
    CHECK_EQ(Recorder::instance().stop().dropped_events, 0u);
    CHECK_EQ(calls_of_others.load(), before);
}
