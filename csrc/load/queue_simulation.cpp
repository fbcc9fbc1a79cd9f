// SPDX-License-Identifier: Apache-2.0
#include "load/queue_simulation.hpp"

#include <algorithm>
#include <cstddef>
#include <functional>
#include <queue>
#include <stdexcept>
#include <utility>

namespace gpuprof {

namespace {

// splitmix64 (Steele, Lea and Flood, OOPSLA 2014): one number for each request, in any order.
std::uint64_t mix(std::uint64_t value) {
    value += 0x9E3779B97F4A7C15U;
    value = (value ^ (value >> 30U)) * 0xBF58476D1CE4E5B9U;
    value = (value ^ (value >> 27U)) * 0x94D049BB133111EBU;
    return value ^ (value >> 31U);
}

double uniform(std::uint64_t seed, std::uint64_t number) {
    return static_cast<double>(mix(mix(seed) ^ number) >> 11U) * 0x1.0p-53;
}

constexpr std::int64_t none = -1;

struct Machine {
    std::int64_t in_service = 0;
    std::int64_t free_slots = 0;
    std::int64_t waiting = 0;
    std::int64_t first = none;  // of the requests that wait
    std::int64_t last = none;
};

struct Departure {
    double at_s;
    std::int64_t machine;
    std::int64_t requests;
    bool operator>(const Departure& other) const { return at_s > other.at_s; }
};

class Simulation {
  public:
    Simulation(const std::vector<double>& arrivals_s, const ServiceTimes& times, const Farm& farm)
        : arrivals_s_(arrivals_s),
          times_(times),
          farm_(farm),
          machines_(static_cast<std::size_t>(farm.machines)),
          next_(arrivals_s.size(), none),
          latencies_s_(arrivals_s.size()) {
        for (auto& machine : machines_) machine.free_slots = farm.slots;
    }

    std::vector<double> run() {
        for (std::size_t request = 0; request < arrivals_s_.size(); ++request) {
            depart_until(arrivals_s_[request]);
            const auto machine = route(request);
            enqueue(machines_[machine], static_cast<std::int64_t>(request));
            start(machine, arrivals_s_[request]);
        }
        while (!departures_.empty()) depart();
        return std::move(latencies_s_);
    }

  private:
    std::size_t route(std::size_t request) const {
        const auto count = machines_.size();
        if (farm_.router == Router::random) {
            const auto place = uniform(~farm_.seed, request) * static_cast<double>(count);
            return std::min(static_cast<std::size_t>(place), count - 1);
        }
        const auto load = [](const Machine& machine) { return machine.in_service + machine.waiting; };
        const auto least = std::min_element(
            machines_.begin(), machines_.end(),
            [&](const Machine& one, const Machine& other) { return load(one) < load(other); });
        return static_cast<std::size_t>(least - machines_.begin());
    }

    void enqueue(Machine& machine, std::int64_t request) {
        if (machine.last == none)
            machine.first = request;
        else
            next_[static_cast<std::size_t>(machine.last)] = request;
        machine.last = request;
        ++machine.waiting;
    }

    // Starts a batch of what waits, if a slot is free.
    void start(std::size_t number, double now_s) {
        auto& machine = machines_[number];
        if (machine.free_slots == 0 || machine.waiting == 0) return;
        const auto batch = std::min(machine.waiting, farm_.largest_batch);
        machine.waiting -= batch;
        machine.in_service += batch;
        --machine.free_slots;
        const auto end_s = now_s + service_s(machine.in_service, static_cast<std::uint64_t>(machine.first));
        for (std::int64_t each = 0; each < batch; ++each) {
            const auto request = static_cast<std::size_t>(machine.first);
            latencies_s_[request] = end_s - arrivals_s_[request];
            machine.first = next_[request];
        }
        if (machine.waiting == 0) machine.first = machine.last = none;
        departures_.push({end_s, static_cast<std::int64_t>(number), batch});
    }

    double service_s(std::int64_t in_service, std::uint64_t request) const {
        const auto& levels = times_.in_service;
        auto level = static_cast<std::size_t>(std::lower_bound(levels.begin(), levels.end(), in_service) -
                                              levels.begin());
        level = std::min(level, levels.size() - 1);
        const auto count = times_.begin[level + 1] - times_.begin[level];
        const auto place =
            static_cast<std::int64_t>(uniform(farm_.seed, request) * static_cast<double>(count));
        return times_.seconds[static_cast<std::size_t>(times_.begin[level] + std::min(place, count - 1))];
    }

    void depart() {
        const auto departure = departures_.top();
        departures_.pop();
        const auto number = static_cast<std::size_t>(departure.machine);
        machines_[number].in_service -= departure.requests;
        ++machines_[number].free_slots;
        start(number, departure.at_s);
    }

    void depart_until(double now_s) {
        while (!departures_.empty() && departures_.top().at_s <= now_s) depart();
    }

    const std::vector<double>& arrivals_s_;
    const ServiceTimes& times_;
    const Farm& farm_;
    std::vector<Machine> machines_;
    std::vector<std::int64_t> next_;  // the request after this one in its queue
    std::vector<double> latencies_s_;
    std::priority_queue<Departure, std::vector<Departure>, std::greater<>> departures_;
};

void check(const ServiceTimes& times, const Farm& farm) {
    const auto levels = times.in_service.size();
    bool fits = levels > 0 && times.begin.size() == levels + 1 && times.begin.front() == 0 &&
                times.begin.back() == static_cast<std::int64_t>(times.seconds.size());
    for (std::size_t level = 0; fits && level < levels; ++level)
        fits = times.begin[level] < times.begin[level + 1] &&
               (level == 0 || times.in_service[level - 1] < times.in_service[level]);
    if (!fits || farm.machines < 1 || farm.slots < 1 || farm.largest_batch < 1)
        throw std::invalid_argument("the columns of the service times do not fit together");
}

}  // namespace

std::vector<double> simulate_farm(const std::vector<double>& arrivals_s, const ServiceTimes& times,
                                  const Farm& farm) {
    check(times, farm);
    return Simulation(arrivals_s, times, farm).run();
}

}  // namespace gpuprof
