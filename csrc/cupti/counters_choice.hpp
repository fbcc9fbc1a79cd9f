// SPDX-License-Identifier: Apache-2.0
// Which counters are read: as many as one pass gives, the most important ones first. A second pass would have
// every kernel run twice, with the memory that it changes put back in between.
#pragma once

#include <cstddef>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <vector>

namespace gpuprof::cupti {

// What is measured, under a name that is the same on every chip.
struct ChosenMetric {
    const char* name;
    const char* unit;
    const char* counter = nullptr;  // CUPTI's name for it on this chip; null: not to be had in the pass
};

// In how many passes counters can be read together; nothing where one of them does not exist.
using CountPasses = std::function<std::optional<std::size_t>(std::span<const char* const> counters)>;

// `types` are those that the program calculates in, the most used one first, by the names of the ceilings:
// "bf16", "fp16", "tf32", "fp64", "int8", "fp8". Others have no tensor counters.
std::vector<ChosenMetric> choose_metrics(std::span<const std::string> types, const CountPasses& count_passes);

}  // namespace gpuprof::cupti
