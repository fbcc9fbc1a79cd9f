// SPDX-License-Identifier: Apache-2.0
// The kernels compute what their names promise, and none is picked that the processor could not execute. No
// test judges how fast they are.
#include <atomic>
#include <chrono>
#include <cmath>
#include <numeric>
#include <thread>

#include "core/clock.hpp"
#include "cpu/dispatch.hpp"
#include "cpu/measure.hpp"
#include "cpu/team.hpp"
#include "support.hpp"

using namespace gpuprof::cpu;
using namespace gpuprof::test;

namespace {

// A processor that has everything, under a system that saves everything.
X86Facts everything() {
    X86Facts facts;
    facts.leaf1_ecx = facts.leaf7_ebx = facts.leaf7_ecx = facts.leaf7_edx = facts.leaf7_1_eax = ~0u;
    facts.saved_state = ~std::uint64_t{0};
    return facts;
}

InstructionSets sets(std::initializer_list<InstructionSet> wanted) {
    InstructionSets result;
    for (const InstructionSet set : wanted) result.add(set);
    return result;
}

constexpr std::uint32_t bit(unsigned number) {
    return std::uint32_t{1} << number;
}

// What a lane of `kernel` holds after `rounds`, by hand.
double lane_after(const ComputeKernel& kernel, std::uint64_t rounds, double factor, double term) {
    double x = 0;
    for (std::uint64_t i = 0; i < rounds; ++i)
        x = kernel.products == 1 ? x * factor + term : x + kernel.products * factor * term;
    return x;
}

struct Example {
    std::vector<double> target, first, second;
    Arrays arrays() { return {aligned(target), aligned(first), aligned(second), count, 3}; }
    std::size_t count;

    explicit Example(std::size_t size)
        : target(size + 8, -1), first(size + 8), second(size + 8), count(size) {
        for (std::size_t i = 0; i < size; ++i) {
            aligned(first)[i] = static_cast<double>(i);
            aligned(second)[i] = static_cast<double>(i % 7);
        }
    }
    static double* aligned(std::vector<double>& numbers) {
        const auto address = reinterpret_cast<std::uintptr_t>(numbers.data());
        return numbers.data() + (64 - address % 64) % 64 / sizeof(double);
    }
};

std::vector<InstructionSets> every_prefix_of_this_machine() {
    std::vector<InstructionSets> found;
    InstructionSets sets;
    for (std::size_t i = 0; i < instruction_set_count; ++i) {
        const auto set = static_cast<InstructionSet>(i);
        if (!available_sets().has(set)) continue;
        sets.add(set);
        found.push_back(sets);
    }
    return found;
}

}  // namespace

TEST(a_processor_with_everything_has_all_sets_but_those_of_arm) {
    const InstructionSets all = sets_of(everything());
    for (std::size_t i = 0; i < instruction_set_count; ++i) {
        const auto set = static_cast<InstructionSet>(i);
        CHECK_EQ(all.has(set), set != InstructionSet::neon);
    }
}

TEST(a_processor_with_nothing_has_the_generic_set) {
    CHECK(sets_of(X86Facts{}) == sets({InstructionSet::generic}));
}

TEST(what_the_system_does_not_save_is_not_used) {
    X86Facts facts = everything();
    facts.leaf1_ecx &= ~bit(27);
    CHECK(sets_of(facts) == sets({InstructionSet::generic}));
    facts = everything();
    facts.saved_state = 0x2;
    CHECK(sets_of(facts) == sets({InstructionSet::generic}));
    facts.saved_state = 0x6;
    CHECK(sets_of(facts) == sets({InstructionSet::generic, InstructionSet::avx2, InstructionSet::avx_vnni}));
    facts.saved_state = 0xe6;
    CHECK(sets_of(facts).has(InstructionSet::avx512_bf16));
    CHECK(!sets_of(facts).has(InstructionSet::amx_bf16));
    facts.saved_state = 0x600e6;
    CHECK(sets_of(facts).has(InstructionSet::amx_bf16));
}

TEST(each_bit_that_is_masked_takes_its_sets_away) {
    struct Masked {
        std::uint32_t X86Facts::* leaf;
        unsigned bit;
        std::vector<InstructionSet> gone;
    };
    using S = InstructionSet;
    const std::vector<S> beyond_512 = {S::avx512_vnni, S::avx512_bf16, S::avx512_fp16};
    std::vector<S> from_512 = beyond_512;
    from_512.push_back(S::avx512);
    std::vector<S> from_2 = from_512;
    from_2.insert(from_2.end(), {S::avx2, S::avx_vnni, S::amx_bf16, S::amx_int8});
    const std::vector<Masked> cases = {
        {&X86Facts::leaf1_ecx, 12, from_2},
        {&X86Facts::leaf1_ecx, 28, from_2},
        {&X86Facts::leaf7_ebx, 5, from_2},
        {&X86Facts::leaf7_ebx, 16, from_512},
        {&X86Facts::leaf7_ebx, 17, beyond_512},
        {&X86Facts::leaf7_ebx, 30, beyond_512},
        {&X86Facts::leaf7_ebx, 31, beyond_512},
        {&X86Facts::leaf7_ecx, 11, {S::avx512_vnni}},
        {&X86Facts::leaf7_edx, 22, {S::amx_bf16}},
        {&X86Facts::leaf7_edx, 23, {S::avx512_fp16}},
        {&X86Facts::leaf7_edx, 24, {S::amx_bf16, S::amx_int8}},
        {&X86Facts::leaf7_edx, 25, {S::amx_int8}},
        {&X86Facts::leaf7_1_eax, 4, {S::avx_vnni}},
        {&X86Facts::leaf7_1_eax, 5, {S::avx512_bf16}},
    };
    for (const Masked& each : cases) {
        X86Facts facts = everything();
        facts.*each.leaf &= ~bit(each.bit);
        for (std::size_t i = 0; i < instruction_set_count; ++i) {
            const auto set = static_cast<S>(i);
            const bool gone = std::find(each.gone.begin(), each.gone.end(), set) != each.gone.end();
            CHECK_EQ(sets_of(facts).has(set), set != S::neon && !gone);
        }
    }
}

TEST(dispatch_picks_only_what_is_allowed) {
    for (unsigned mask = 0; mask < 1u << instruction_set_count; ++mask) {
        InstructionSets allowed = sets({InstructionSet::generic});
        for (unsigned i = 0; i < instruction_set_count; ++i)
            if ((mask & bit(i)) != 0) allowed.add(static_cast<InstructionSet>(i));
        for (const ComputeKernel* kernel : compute_kernels(allowed)) CHECK(allowed.has(kernel->set));
        CHECK(allowed.has(stream_kernels(allowed).set));
    }
}

TEST(the_widest_streams_are_picked) {
    const InstructionSets generic = sets({InstructionSet::generic});
    CHECK(stream_kernels(generic).set == InstructionSet::generic);
    InstructionSets more = generic;
    more.add(InstructionSet::avx2);
    // Where the compiler has built it.
    const bool has_avx2 = compute_kernels(more).size() > compute_kernels(generic).size();
    CHECK(stream_kernels(more).set == (has_avx2 ? InstructionSet::avx2 : InstructionSet::generic));
}

TEST(names_go_both_ways) {
    for (std::size_t i = 0; i < instruction_set_count; ++i) {
        const auto set = static_cast<InstructionSet>(i);
        CHECK(instruction_set_named(name_of(set)) == set);
    }
    CHECK(!instruction_set_named("avx1024"));
}

TEST(compute_kernels_compute_what_they_count) {
    for (const ComputeKernel* kernel : compute_kernels(available_sets())) {
        if (!obtain(kernel->set)) continue;
        for (const std::uint64_t rounds : {0u, 1u, 2u, 7u}) {
            const double expected = kernel->lanes * lane_after(*kernel, rounds, 2, 3);
            CHECK_EQ(kernel->run(rounds, 2, 3), expected);
        }
        CHECK_EQ(kernel->operations_per_round(), 2.0 * kernel->lanes * kernel->products);
    }
}

TEST(compute_kernels_have_accumulators_enough) {
    for (const ComputeKernel* kernel : compute_kernels(available_sets())) {
        // A tile is an accumulator of 256 lanes; vectors here have 32 lanes at most.
        const bool is_tile = kernel->lanes >= 1024;
        CHECK(is_tile || kernel->lanes >= 12 * 2);
    }
    const double fp32 = compute_kernels(sets({InstructionSet::generic}))[1]->operations_per_round();
    CHECK_EQ(fp32, 2.0 * 12 * 4);
}

TEST(streams_write_what_they_should) {
    for (const InstructionSets& allowed : every_prefix_of_this_machine()) {
        const StreamKernels& kernels = stream_kernels(allowed);
        for (const std::size_t count : {Arrays::step, 5 * Arrays::step}) {
            for (std::size_t stream = 0; stream < stream_count; ++stream) {
                if (kernels.run[stream] == nullptr) continue;
                Example example(count);
                const Arrays arrays = example.arrays();
                const double sum = kernels.run[stream](arrays, 2);
                if (static_cast<Stream>(stream) == Stream::read)
                    CHECK_EQ(sum, static_cast<double>(count * (count - 1) / 2));
                for (std::size_t i = 0; i < count; ++i) {
                    const double triad = arrays.first[i] + 3 * arrays.second[i];
                    const double expected[] = {-1, arrays.first[i], triad, arrays.first[i], triad};
                    CHECK_EQ(arrays.target[i], expected[stream]);
                }
                // Nothing is written after the end.
                if (arrays.target + count < example.target.data() + example.target.size())
                    CHECK_EQ(arrays.target[count], -1.0);
            }
        }
    }
}

TEST(the_widest_non_temporal_streams_are_there_on_x86) {
#if defined(__x86_64__)
    for (auto* const run : stream_kernels(available_sets()).run) CHECK(run != nullptr);
#endif
}

TEST(a_team_does_each_job_once_and_together) {
    constexpr std::size_t size = 3;
    Team team(std::vector<int>(size, 0));
    std::atomic<int> done[size] = {};
    std::atomic<std::size_t> present{0};
    for (int job = 0; job < 20; ++job) {
        present = 0;
        const std::int64_t took_ns = team.run([&](std::size_t member) {
            ++present;
            // All members have begun before any may end.
            while (present < size) std::this_thread::yield();
            ++done[member];
        });
        CHECK(took_ns >= 0);
    }
    for (const auto& each : done) CHECK_EQ(each.load(), 20);
}

TEST(a_team_runs_on_the_given_processors) {
#if defined(__linux__)
    cpu_set_t allowed;
    CPU_ZERO(&allowed);
    REQUIRE(sched_getaffinity(0, sizeof(allowed), &allowed) == 0);
    int processor = 0;
    while (!CPU_ISSET(static_cast<std::size_t>(processor), &allowed)) ++processor;
    Team team({processor, 1'000'000, -1});
    std::atomic<int> seen{-1};
    team.run([&](std::size_t member) {
        if (member == 0) seen = sched_getcpu();
    });
    CHECK_EQ(seen.load(), processor);
    CHECK_EQ(team.pinned(), std::size_t{1});
    cpu_set_t after;
    CPU_ZERO(&after);
    REQUIRE(sched_getaffinity(0, sizeof(after), &after) == 0);
    CHECK(CPU_EQUAL(&allowed, &after));
#endif
}

TEST(measuring_gives_a_rate_for_each_repeat) {
    const Plan plan{{0, 0}, 0.001, 3, nullptr};
    for (const ComputeKernel* kernel : compute_kernels(available_sets())) {
        if (!obtain(kernel->set)) continue;
        const Rates rates = measure_compute(*kernel, plan);
        CHECK_EQ(rates.per_second.size(), std::size_t{3});
        for (const double rate : rates.per_second) CHECK(rate > 0 && std::isfinite(rate));
    }
    const std::vector<Stream> streams = {Stream::triad, Stream::read};
    // Fewer bytes than a step: each processor still has one step.
    for (const std::size_t array_bytes : {std::size_t{1}, std::size_t{100'000}}) {
        const std::vector<Rates> rates =
            measure_streams(stream_kernels(available_sets()), streams, array_bytes, plan);
        REQUIRE(rates.size() == 2);
        for (const Rates& each : rates) CHECK_EQ(each.per_second.size(), std::size_t{3});
    }
#if defined(__x86_64__) || defined(__aarch64__)
    CHECK_EQ(measure_clock(plan).per_second.size(), std::size_t{3});
#endif
}

namespace {

std::atomic<std::uint64_t> most_rounds{0};

// A member that works a little and waits long for its processor, as next to other programs.
double wait_for_the_processor(std::uint64_t rounds, double, double) noexcept {
    const std::int64_t until_ns = gpuprof::thread_processor_ns() + static_cast<std::int64_t>(rounds) * 1'000;
    while (gpuprof::thread_processor_ns() < until_ns) {
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
    most_rounds = std::max(most_rounds.load(), rounds);
    return 0;
}

}  // namespace

TEST(waiting_for_the_processor_does_not_count_as_work) {
    const ComputeKernel kernel{InstructionSet::generic, NumberType::fp64, 1, 1, "", &wait_for_the_processor};
    const Rates rates = measure_compute(kernel, Plan{{0}, 0.004, 3, nullptr});
    CHECK_EQ(rates.per_second.size(), std::size_t{3});
    // A round of 1 us: 4 ms take 4,000 of them, whatever the clock shows.
    CHECK(most_rounds >= 1'000 && most_rounds <= 8'000);
}

TEST(a_measurement_can_be_stopped) {
    int asked = 0;
    const Plan plan{{0}, 0.001, 1000, [&] { return ++asked < 4; }};
    const Rates rates = measure_compute(*compute_kernels(available_sets()).front(), plan);
    CHECK_EQ(rates.per_second.size(), std::size_t{2});
    CHECK_EQ(asked, 4);
}
