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

}  // namespace

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
    std::int64_t indexes[4];
    CHECK_EQ(pacer.take_more(indexes, 4, 0), std::size_t{0});
    CHECK(!pacer.is_finished());
}

TEST(a_batch_has_what_is_due_and_keeps_the_order) {
    Pacer pacer({0, 0, 0, 0, 0, 3'600'000'000'000});
    pacer.start(monotonic_ns());
    CHECK_EQ(pacer.take(never), std::int64_t{0});
    std::int64_t indexes[3];
    CHECK_EQ(pacer.take_more(indexes, 3, 0), std::size_t{3});
    CHECK_EQ(indexes[2], std::int64_t{3});
    CHECK_EQ(pacer.take_more(indexes, 3, 0), std::size_t{1});
    CHECK_EQ(indexes[0], std::int64_t{4});
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
