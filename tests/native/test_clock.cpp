// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cmath>
#include <cstdlib>

#include "core/clock.hpp"
#include "support.hpp"

using namespace gpuprof;
using namespace gpuprof::test;

namespace {

// read_ticks() has no fence of its own and may start before an earlier load has ended.
void wait_for_loads() {
#if defined(__x86_64__)
    _mm_lfence();
#endif
}

}  // namespace

TEST(a_scale_is_exact_at_and_between_its_points) {
    const TickScale scale({1000, 5000}, {2000, 5500});
    CHECK_EQ(scale.ns_per_tick(), 0.5);
    CHECK_EQ(scale.to_monotonic_ns(1000), 5000);
    CHECK_EQ(scale.to_monotonic_ns(1500), 5250);
    CHECK_EQ(scale.to_monotonic_ns(2000), 5500);
    CHECK_EQ(scale.to_monotonic_ns(900), 4950);
    CHECK_EQ(scale.to_monotonic_ns(4000), 6500);
}

TEST(a_scale_without_a_baseline_counts_ticks) {
    for (const TickScale& scale :
         {TickScale({7, 9}, {7, 9}), TickScale({7, 9}, {7, 12}), TickScale({7, 9}, {3, 12})}) {
        CHECK_EQ(scale.ns_per_tick(), 1.0);
        CHECK_EQ(scale.to_monotonic_ns(17), 19);
    }
}

TEST(a_scale_holds_for_a_month_of_a_counter_that_began_anywhere) {
    constexpr std::int64_t month_ns = 2'592'000'000'000'000;
    for (const std::uint64_t first : {std::uint64_t{0}, std::uint64_t{1} << 62, ~std::uint64_t{0} - 1000}) {
        const TickScale scale({first, 100}, {first + 3ull * month_ns, 100 + month_ns});
        for (const std::int64_t at : {std::int64_t{1}, month_ns / 7, month_ns - 1})
            CHECK(std::abs(scale.to_monotonic_ns(first + 3ull * static_cast<std::uint64_t>(at)) - at - 100) <=
                  1);
    }
}

TEST(points_never_go_back) {
    ClockPoint last = sample_clock();
    for (int i = 0; i < 20'000; ++i) {
        const ClockPoint next = sample_clock();
        CHECK(next.ticks >= last.ticks);
        CHECK(next.monotonic_ns >= last.monotonic_ns);
        last = next;
    }
    CHECK(last.monotonic_ns <= monotonic_ns());
    CHECK(last.ticks <= read_ticks());
}

TEST(ticks_never_go_back_from_thread_to_thread) {
    std::atomic<std::uint64_t> latest{0};
    std::atomic<int> broken{0};
    run_in_threads(8, [&](unsigned) {
        for (int i = 0; i < 20'000; ++i) {
            const std::uint64_t seen = latest.load(std::memory_order_acquire);
            wait_for_loads();
            const std::uint64_t now = read_ticks();
            broken += now < seen ? 1 : 0;
            std::uint64_t expected = seen;
            while (expected < now && !latest.compare_exchange_weak(expected, now)) {
            }
        }
    });
    CHECK_EQ(broken, 0);
}

TEST(a_calibrated_scale_agrees_with_the_monotonic_clock) {
    const ClockPoint first = sample_clock();
    std::vector<ClockPoint> between;
    while (monotonic_ns() < first.monotonic_ns + 50'000'000) between.push_back(sample_clock());
    const TickScale scale(first, sample_clock());
    std::vector<std::int64_t> errors;
    for (const ClockPoint& point : between)
        errors.push_back(std::abs(scale.to_monotonic_ns(point.ticks) - point.monotonic_ns));
    // The median, since a point may have been preempted in each of its attempts.
    std::nth_element(errors.begin(), errors.begin() + static_cast<std::ptrdiff_t>(errors.size() / 2),
                     errors.end());
    CHECK(errors[errors.size() / 2] < 5000);
}
