// SPDX-License-Identifier: Apache-2.0
#include "cpu/measure.hpp"

#include <sys/mman.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <new>
#include <system_error>

#include "core/clock.hpp"
#include "cpu/team.hpp"

namespace gpuprof::cpu {
namespace {

constexpr std::int64_t ns_per_second = 1'000'000'000;
constexpr std::int64_t shortest_trial_ns = 2'000'000;
constexpr std::size_t line_bytes = 64;
// Arrays that begin alike in their pages would meet in the same sets of a cache.
constexpr std::size_t skew_bytes = 21 * line_bytes;

// What a kernel computed goes here, so that no compiler leaves the computing out.
std::atomic<double> sink{0};

using Loop = std::function<void(std::size_t member, std::uint64_t rounds)>;

std::int64_t time_rounds(Team& team, const Loop& loop, std::uint64_t rounds) {
    return std::max<std::int64_t>(1, team.run([&](std::size_t member) { loop(member, rounds); }));
}

// The processor time of the member that takes longest. In wall time, a member that waits for its processor
// makes one round look like thousands.
std::int64_t work_of_rounds(Team& team, const Loop& loop, std::uint64_t rounds) {
    std::vector<std::int64_t> spent_ns(team.size());
    team.run([&](std::size_t member) {
        const std::int64_t begin_ns = thread_processor_ns();
        loop(member, rounds);
        spent_ns[member] = thread_processor_ns() - begin_ns;
    });
    return std::max<std::int64_t>(1, *std::max_element(spent_ns.begin(), spent_ns.end()));
}

// The number of rounds that take about `seconds`; trying them also warms clocks and caches up.
std::uint64_t rounds_for(Team& team, const Loop& loop, double seconds) {
    const double wanted_ns = seconds * static_cast<double>(ns_per_second);
    const auto enough_ns = std::min(shortest_trial_ns, static_cast<std::int64_t>(wanted_ns));
    std::uint64_t rounds = 1;
    std::int64_t took_ns = work_of_rounds(team, loop, rounds);
    while (took_ns < enough_ns) took_ns = work_of_rounds(team, loop, rounds *= 2);
    const double wanted = static_cast<double>(rounds) * wanted_ns / static_cast<double>(took_ns);
    return std::max<std::uint64_t>(1, static_cast<std::uint64_t>(wanted));
}

// Clocks and caches may be faster than in the trial: `rounds` grows until a repeat is no shorter than half of
// what it should be.
std::int64_t time_enough(Team& team, const Loop& loop, std::uint64_t& rounds, double seconds) {
    const auto least_ns = static_cast<std::int64_t>(seconds * static_cast<double>(ns_per_second) / 2);
    std::int64_t took_ns = time_rounds(team, loop, rounds);
    while (took_ns < least_ns) took_ns = time_rounds(team, loop, rounds *= 2);
    return took_ns;
}

bool may_go_on(const Plan& plan) {
    return !plan.go_on || plan.go_on();
}

// A loop and what one round of one member is worth.
struct Contestant {
    Loop loop;
    double worth;
};

std::vector<Rates> measure(Team& team, const std::vector<Contestant>& contestants, const Plan& plan) {
    std::vector<Rates> results(contestants.size());
    std::vector<std::uint64_t> rounds;
    for (const Contestant& each : contestants) {
        if (!may_go_on(plan)) return results;
        rounds.push_back(rounds_for(team, each.loop, plan.seconds));
    }
    for (int repeat = 0; repeat < plan.repeats; ++repeat)
        for (std::size_t i = 0; i < contestants.size(); ++i) {
            if (!may_go_on(plan)) return results;
            const auto took_ns =
                static_cast<double>(time_enough(team, contestants[i].loop, rounds[i], plan.seconds));
            const double done = contestants[i].worth * static_cast<double>(rounds[i] * team.size());
            results[i].per_second.push_back(done / took_ns * static_cast<double>(ns_per_second));
        }
    for (Rates& result : results) result.pinned_threads = team.pinned();
    return results;
}

// Three arrays of `count` numbers each for every member, in one mapping without accessed pages.
class Storage {
  public:
    Storage(std::size_t members, std::size_t count)
        : count_(count),
          array_bytes_(round_up(count * sizeof(double)) + skew_bytes),
          size_(members * 3 * array_bytes_) {
        void* const memory = mmap(nullptr, size_, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        if (memory == MAP_FAILED) throw std::system_error(errno, std::generic_category());
        memory_ = static_cast<std::byte*>(memory);
    }
    Storage(const Storage&) = delete;
    Storage& operator=(const Storage&) = delete;
    ~Storage() { munmap(memory_, size_); }

    Arrays of(std::size_t member) const noexcept {
        return {array(3 * member), array(3 * member + 1), array(3 * member + 2), count_, 0.5};
    }
    void fill(std::size_t member) const noexcept {
        for (std::size_t i = 0; i < 3; ++i)
            std::fill_n(array(3 * member + i), count_, static_cast<double>(i));
    }

  private:
    static std::size_t round_up(std::size_t bytes) noexcept {
        constexpr std::size_t page_bytes = 4096;
        return (bytes + page_bytes - 1) / page_bytes * page_bytes;
    }
    double* array(std::size_t number) const noexcept {
        return reinterpret_cast<double*>(memory_ + number * array_bytes_);
    }

    std::size_t count_, array_bytes_, size_;
    std::byte* memory_ = nullptr;
};

double arrays_named_by(Stream stream) noexcept {
    switch (stream) {
        case Stream::read:
            return 1;
        case Stream::copy:
        case Stream::copy_non_temporal:
            return 2;
        default:
            return 3;
    }
}

}  // namespace

Rates measure_compute(const ComputeKernel& kernel, const Plan& plan) {
    Team team(plan.processors);
    // Halving and adding one comes to rest at 2, far from overflow and from denormal numbers.
    const Contestant contestant{[&](std::size_t, std::uint64_t rounds) {
                                    sink.store(kernel.run(rounds, kernel.products == 1 ? 0.5 : 1, 1),
                                               std::memory_order_relaxed);
                                },
                                kernel.operations_per_round()};
    return measure(team, {contestant}, plan).front();
}

std::vector<Rates> measure_streams(const StreamKernels& kernels, const std::vector<Stream>& streams,
                                   std::size_t array_bytes, const Plan& plan) {
    constexpr std::size_t step = Arrays::step;
    const std::size_t steps = array_bytes / sizeof(double) / plan.processors.size() / step;
    const std::size_t count = std::max<std::size_t>(1, steps) * step;
    Team team(plan.processors);
    const Storage storage(team.size(), count);
    team.run([&](std::size_t member) { storage.fill(member); });
    std::vector<Contestant> contestants;
    for (const Stream stream : streams) {
        auto* const run = kernels.run[static_cast<std::size_t>(stream)];
        contestants.push_back({[&storage, run](std::size_t member, std::uint64_t passes) {
                                   sink.store(run(storage.of(member), passes), std::memory_order_relaxed);
                               },
                               arrays_named_by(stream) * static_cast<double>(count * sizeof(double))});
    }
    return measure(team, contestants, plan);
}

Rates measure_clock(const Plan& plan) {
    if (!run_chain(1)) return {};
    Team team(plan.processors);
    const Contestant contestant{[](std::size_t, std::uint64_t rounds) { run_chain(rounds); },
                                static_cast<double>(chain_length)};
    Rates rates = measure(team, {contestant}, plan).front();
    for (double& rate : rates.per_second) rate /= static_cast<double>(team.size());
    return rates;
}

}  // namespace gpuprof::cpu
