// SPDX-License-Identifier: Apache-2.0
#include <poll.h>

#include <algorithm>
#include <limits>
#include <mutex>
#include <thread>
#include <vector>

#include "check.hpp"
#include "core/clock.hpp"
#include "load/pacer.hpp"

using namespace gpuprof;

namespace {

constexpr std::int64_t never = std::numeric_limits<std::int64_t>::max();

std::vector<std::int64_t> every(std::int64_t gap_ns, std::size_t count) {
    std::vector<std::int64_t> offsets;
    for (std::size_t index = 0; index < count; ++index)
        offsets.push_back(static_cast<std::int64_t>(index) * gap_ns);
    return offsets;
}

void check_nothing_was_early(const Pacer& pacer, const std::vector<std::int64_t>& offsets) {
    for (std::size_t index = 0; index < offsets.size(); ++index)
        CHECK(pacer.released_ns()[index] >= pacer.start_ns() + offsets[index]);
}

std::int64_t fake_now_ns = 0;

const PacerClock fake_clock{
    []() noexcept { return fake_now_ns; },
    [](std::int64_t wake_ns) noexcept { fake_now_ns = std::max(fake_now_ns, wake_ns); }};

}  // namespace

// By hand, in milliseconds: batches of up to 3, a wait of 2, a service of 5. Arrivals at 0 and 1 are sent
// when the oldest has waited 2. At 7 the server is free: 2.5, 2.6 and 2.7 fill a batch. At 12 it takes 2.8,
// which has waited long enough, alone. 20 waits until 22. At 31.9 the third of 30, 31 and 31.9 fills a batch.
// 40 is the last one and waits until 42.
TEST(a_batch_is_full_or_its_oldest_request_has_waited) {
    constexpr std::int64_t us = 1'000, ms = 1'000'000;
    Pacer pacer({0, 1 * ms, 2'500 * us, 2'600 * us, 2'700 * us, 2'800 * us, 20 * ms, 30 * ms, 31 * ms,
                 31'900 * us, 40 * ms},
                0, fake_clock);
    fake_now_ns = 1'000 * ms;
    pacer.start(fake_now_ns);
    std::vector<std::vector<std::int64_t>> batches;
    std::vector<std::int64_t> sent;
    for (std::int64_t first = 0; (first = pacer.take(never)) >= 0;) {
        std::vector<std::int64_t> batch(3);
        batch[0] = first;
        batch.resize(pacer.fill_batch(batch.data(), 3, 2 * ms));
        batches.push_back(batch);
        sent.push_back((fake_now_ns - pacer.start_ns()) / us);
        fake_now_ns += 5 * ms;
    }
    const std::vector<std::vector<std::int64_t>> expected{{0, 1}, {2, 3, 4}, {5}, {6}, {7, 8, 9}, {10}};
    CHECK(batches == expected);
    const std::vector<std::int64_t> expected_us{2'000, 7'000, 12'000, 22'000, 31'900, 42'000};
    CHECK(sent == expected_us);
}

TEST(threads_take_each_request_once_and_none_early) {
    const auto offsets = every(50'000, 400);
    Pacer pacer(offsets);
    pacer.start(monotonic_ns() + 1'000'000);
    std::mutex mutex;
    std::vector<std::int64_t> taken;
    std::vector<std::thread> threads;
    for (int thread = 0; thread < 4; ++thread)
        threads.emplace_back([&] {
            for (std::int64_t index = 0; (index = pacer.take(never)) >= 0;) {
                const std::lock_guard lock(mutex);
                taken.push_back(index);
            }
        });
    for (auto& thread : threads) thread.join();
    std::sort(taken.begin(), taken.end());
    CHECK_EQ(taken.size(), offsets.size());
    for (std::size_t index = 0; index < taken.size(); ++index)
        CHECK_EQ(taken[index], static_cast<std::int64_t>(index));
    check_nothing_was_early(pacer, offsets);
    CHECK(pacer.is_finished());
}

TEST(a_request_that_is_not_due_is_not_taken) {
    Pacer pacer({0, 3'600'000'000'000});
    pacer.start(monotonic_ns());
    CHECK_EQ(pacer.take(never), std::int64_t{0});
    CHECK_EQ(pacer.try_take(), Pacer::timed_out);
    CHECK_EQ(pacer.take(monotonic_ns() + 2'000'000), Pacer::timed_out);
    std::int64_t indexes[4] = {0};
    CHECK_EQ(pacer.fill_batch(indexes, 4, 0), std::size_t{1});
    CHECK(!pacer.is_finished());
}

TEST(a_batch_has_what_is_due_and_keeps_the_order) {
    Pacer pacer({0, 0, 0, 0, 0, 3'600'000'000'000});
    pacer.start(monotonic_ns());
    CHECK_EQ(pacer.take(never), std::int64_t{0});
    std::int64_t indexes[4] = {0};
    CHECK_EQ(pacer.fill_batch(indexes, 4, 0), std::size_t{4});
    CHECK_EQ(indexes[3], std::int64_t{3});
    indexes[0] = pacer.take(never);
    CHECK_EQ(indexes[0], std::int64_t{4});
    CHECK_EQ(pacer.fill_batch(indexes, 4, 0), std::size_t{1});
}

TEST(stopping_wakes_who_waits) {
    Pacer pacer({3'600'000'000'000});
    pacer.start(monotonic_ns());
    std::vector<std::int64_t> found(3, 0);
    std::vector<std::thread> threads;
    for (std::size_t thread = 0; thread < found.size(); ++thread)
        threads.emplace_back([&, thread] { found[thread] = pacer.take(never); });
    pacer.stop();
    for (auto& thread : threads) thread.join();
    for (const std::int64_t each : found) CHECK_EQ(each, Pacer::finished);
}

TEST(an_event_loop_gets_every_request_in_order) {
    const auto offsets = every(20'000, 1000);
    Pacer pacer(offsets);
    pacer.start(monotonic_ns() + 1'000'000);
    pollfd watched{pacer.begin_notifying(), POLLIN, 0};
    CHECK_EQ(pacer.begin_notifying(), watched.fd);
    std::size_t next = 0;
    while (next < offsets.size()) {
        REQUIRE(poll(&watched, 1, 30'000) == 1);
        const Pacer::Range range = pacer.take_ready();
        CHECK_EQ(range.begin, next);
        next = range.end;
    }
    check_nothing_was_early(pacer, offsets);
    CHECK(pacer.is_finished());
}

TEST(an_event_loop_is_woken_when_the_pacer_stops) {
    Pacer pacer({3'600'000'000'000});
    pacer.start(monotonic_ns());
    pollfd watched{pacer.begin_notifying(), POLLIN, 0};
    pacer.stop();
    CHECK_EQ(poll(&watched, 1, 30'000), 1);
    const Pacer::Range range = pacer.take_ready();
    CHECK_EQ(range.begin, range.end);
}
