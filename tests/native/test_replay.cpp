// SPDX-License-Identifier: Apache-2.0
// The replay of lanes against a solver that repeats all rules until no time changes.
#include "analysis/replay.hpp"

#include <algorithm>
#include <random>
#include <stdexcept>

#include "check.hpp"

using namespace gpuprof;

namespace {

constexpr std::int64_t long_ago = std::numeric_limits<std::int64_t>::min() / 4;

struct Wait {
    std::size_t item, on;
    WaitsFor kind;
    std::int64_t lag;
};

// A program that is written down lane by lane.
struct Program {
    ReplayItems items;
    std::vector<Wait> waits;

    Program() { items.lane_begin.push_back(0); }
    std::size_t add(std::int64_t gap, std::int64_t least, std::int64_t delay = 0) {
        items.gap_ns.push_back(gap);
        items.least_ns.push_back(least);
        items.delay_ns.push_back(delay);
        return items.gap_ns.size() - 1;
    }
    void end_lane() { items.lane_begin.push_back(static_cast<std::int64_t>(items.gap_ns.size())); }
    const ReplayItems& finished() {
        std::stable_sort(waits.begin(), waits.end(),
                         [](const Wait& a, const Wait& b) { return a.item < b.item; });
        items.wait_begin.assign(items.gap_ns.size() + 1, 0);
        for (const Wait& wait : waits) {
            ++items.wait_begin[wait.item + 1];
            items.wait_item.push_back(static_cast<std::int64_t>(wait.on));
            items.wait_kind.push_back(wait.kind);
            items.wait_lag_ns.push_back(wait.lag);
        }
        for (std::size_t i = 1; i < items.wait_begin.size(); ++i)
            items.wait_begin[i] += items.wait_begin[i - 1];
        return items;
    }
};

ReplayTimes solve(const Program& program) {
    const ReplayItems& items = program.items;
    const std::size_t count = items.gap_ns.size();
    ReplayTimes times;
    times.start_ns.assign(count, long_ago);
    times.end_ns.assign(count, long_ago);
    for (bool changed = true; changed;) {
        changed = false;
        for (std::size_t item = 0; item < count; ++item) {
            std::int64_t start = long_ago;
            if (items.gap_ns[item] != ReplayItems::unordered) {
                const bool is_first = std::find(items.lane_begin.begin(), items.lane_begin.end(),
                                                static_cast<std::int64_t>(item)) != items.lane_begin.end();
                start = (is_first ? 0 : times.end_ns[item - 1]) + items.gap_ns[item];
            }
            std::int64_t end = long_ago;
            for (const Wait& wait : program.waits) {
                if (wait.item != item) continue;
                const bool of_start = wait.kind == WaitsFor::start_after_start;
                const std::int64_t time = (of_start ? times.start_ns : times.end_ns)[wait.on] + wait.lag;
                (wait.kind == WaitsFor::end_after_end ? end : start) =
                    std::max(wait.kind == WaitsFor::end_after_end ? end : start, time);
            }
            start += items.delay_ns[item];
            end = std::max(end, start + items.least_ns[item]);
            changed = changed || start != times.start_ns[item] || end != times.end_ns[item];
            times.start_ns[item] = start;
            times.end_ns[item] = end;
        }
    }
    return times;
}

}  // namespace

TEST(a_host_that_launches_and_waits) {
    Program program;
    const auto launch = program.add(0, 10);
    const auto wait = program.add(0, 2);
    const auto after = program.add(0, 5);
    program.end_lane();
    const auto kernel = program.add(ReplayItems::unordered, 100);
    program.end_lane();
    program.waits = {{kernel, launch, WaitsFor::start_after_start, 4},
                     {wait, kernel, WaitsFor::end_after_end, 1}};
    const ReplayTimes times = replay(program.finished());
    CHECK_EQ(times.start_ns[kernel], 4);
    CHECK_EQ(times.end_ns[kernel], 104);
    CHECK_EQ(times.end_ns[wait], 105);
    CHECK_EQ(times.end_ns[after], 110);
    CHECK_EQ(times.circular, 0);
}

TEST(random_programs_have_the_times_of_the_slow_solver) {
    std::mt19937 random(7);
    const auto below = [&](std::int64_t limit) {
        return std::uniform_int_distribution<std::int64_t>(0, limit - 1)(random);
    };
    for (int round = 0; round < 300; ++round) {
        Program program;
        const std::int64_t lanes = 1 + below(4);
        std::vector<std::pair<std::int64_t, std::size_t>> in_time;  // items, so that waits go back in time
        for (std::int64_t lane = 0; lane < lanes; ++lane) {
            std::int64_t time = 0;
            for (std::int64_t i = below(12); i > 0; --i) {
                const std::int64_t gap = below(5) == 0 ? ReplayItems::unordered : below(10);
                in_time.emplace_back(time += 1 + below(20), program.add(gap, below(30), below(3)));
            }
            program.end_lane();
        }
        std::sort(in_time.begin(), in_time.end());
        for (std::size_t later = 1; later < in_time.size(); ++later)
            for (std::int64_t i = below(3); i > 0; --i) {
                const std::size_t earlier =
                    in_time[static_cast<std::size_t>(below(static_cast<std::int64_t>(later)))].second;
                program.waits.push_back(
                    {in_time[later].second, earlier, static_cast<WaitsFor>(below(3)), below(40) - 5});
            }
        const ReplayTimes expected = solve(program);
        const ReplayTimes times = replay(program.finished());
        CHECK(times.start_ns == expected.start_ns);
        CHECK(times.end_ns == expected.end_ns);
        CHECK_EQ(times.circular, 0);
    }
}

TEST(items_that_wait_for_each_other_end_all_the_same) {
    Program program;
    const auto first = program.add(0, 10);
    program.end_lane();
    const auto second = program.add(0, 20);
    program.end_lane();
    program.waits = {{first, second, WaitsFor::start_after_end, 0},
                     {second, first, WaitsFor::start_after_end, 0}};
    const ReplayTimes times = replay(program.finished());
    CHECK_EQ(times.circular, 1);
    CHECK_EQ(times.end_ns[first], 10);
    CHECK_EQ(times.end_ns[second], 30);
}

TEST(an_item_may_wait_for_itself_or_for_a_later_one_of_its_lane) {
    Program program;
    const auto first = program.add(0, 10);
    const auto second = program.add(0, 20);
    program.end_lane();
    program.waits = {{first, first, WaitsFor::end_after_end, 0},
                     {first, second, WaitsFor::start_after_end, 0}};
    const ReplayTimes times = replay(program.finished());
    CHECK(times.circular >= 1);
    CHECK_EQ(times.end_ns[second], 30);
}

TEST(columns_that_do_not_fit_are_refused) {
    for (int broken = 0; broken < 4; ++broken) {
        Program program;
        program.add(0, 1);
        program.end_lane();
        program.waits = {{0, 0, WaitsFor::start_after_start, 0}};
        program.finished();
        if (broken == 0) program.items.wait_item[0] = 1;
        if (broken == 1) program.items.lane_begin.back() = 2;
        if (broken == 2) program.items.least_ns.clear();
        if (broken == 3) program.items.wait_kind[0] = static_cast<WaitsFor>(3);
        bool was_refused = false;
        try {
            replay(program.items);
        } catch (const std::invalid_argument&) {
            was_refused = true;
        }
        CHECK(was_refused);
    }
}

TEST(a_program_without_items_has_no_times) {
    Program program;
    CHECK(replay(program.finished()).end_ns.empty());
}
