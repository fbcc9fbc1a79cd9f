// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <vector>

namespace gpuprof {

// Measured service times in seconds, by the number of requests that a machine has in service.
struct ServiceTimes {
    std::vector<std::int64_t> in_service;  // ascending
    std::vector<std::int64_t> begin;       // times of in_service[i]: [begin[i], begin[i + 1])
    std::vector<double> seconds;
};

enum class Router : std::uint8_t { random, least_loaded };

struct Farm {
    std::int64_t machines = 1;
    std::int64_t slots = 1;          // batches that a machine has in service at the same time
    std::int64_t largest_batch = 1;  // requests of one batch: as many as wait when a slot becomes free
    Router router = Router::random;
    std::uint64_t seed = 0;
};

// Returns the latency of each request of a farm whose machines have a queue each, in order of arrival.
// `arrivals_s` is ascending. A service time is drawn from those measured with as many requests in service, or
// with the next larger number. The draw of a request is the same for any number of machines, so that farms
// differ by their machines alone. Throws std::invalid_argument if the columns do not fit together.
std::vector<double> simulate_farm(const std::vector<double>& arrivals_s, const ServiceTimes& times,
                                  const Farm& farm);

}  // namespace gpuprof
