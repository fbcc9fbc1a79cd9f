// SPDX-License-Identifier: Apache-2.0
// The host side of CUPTI's profiler, for real: it needs no GPU and no driver. Which counters chips have, and
// that what is read by default takes one pass.
#include <dlfcn.h>

#include <algorithm>

#include "check.hpp"
#include "cupti/counters_choice.hpp"
#include "cupti/counters_host.hpp"

#if defined(REAL_CUPTI)
#include <cupti_version.h>

namespace gpuprof::test {
namespace {

using cupti::ChosenMetric;
using cupti::CounterApi;
using cupti::CounterConfig;

// Newer ones crash without a driver, or return nothing. Then do not ask a library for its version.
constexpr bool works_without_driver = CUPTI_API_VERSION < 130100;

bool loads(CounterApi& api) {
    void* const library = works_without_driver ? dlopen(REAL_CUPTI, RTLD_NOW | RTLD_LOCAL) : nullptr;
    if (library != nullptr && cupti::find_counter_functions(library, api) == nullptr) return true;
    std::fprintf(stderr,
                 "skipped: %s has no host side that works without a driver; "
                 "pip install nvidia-cuda-cupti==13.0.*\n",
                 REAL_CUPTI);
    return false;
}

struct Chosen {
    std::vector<ChosenMetric> metrics;
    CounterConfig config;
    const char* counter(const std::string& name) const {
        for (const ChosenMetric& metric : metrics)
            if (name == metric.name) return metric.counter;
        return nullptr;
    }
};

Chosen choose(const CounterApi& api, const char* name, std::vector<std::string> types) {
    const cupti::Chip chip{name, {}};
    Chosen chosen;
    chosen.metrics = cupti::choose_metrics(types, [&](std::span<const char* const> counters) {
        const CounterConfig tried = configure(api, chip, counters);
        return tried.error ? std::nullopt : std::optional(tried.passes);
    });
    std::vector<const char*> counters;
    for (const ChosenMetric& metric : chosen.metrics)
        if (metric.counter != nullptr) counters.push_back(metric.counter);
    chosen.config = configure(api, chip, counters);
    return chosen;
}

std::string text(const char* counter) {
    return counter != nullptr ? counter : "none";
}

}  // namespace

TEST(the_chips_of_today_are_known) {
    CounterApi api;
    if (!loads(api)) return;
    const std::vector<std::string> chips = cupti::supported_chips(api);
    for (const char* const chip : {"TU102", "GA100", "AD102", "GH100", "GB100"})
        CHECK(std::ranges::find(chips, chip) != chips.end());
    CHECK_EQ(configure(api, {"no chip", {}}, {}).error.function, std::string("cuptiProfilerHostInitialize"));
}

TEST(one_pass_gives_bytes_time_and_the_tensor_work_of_the_type_in_use) {
    CounterApi api;
    if (!loads(api)) return;
    struct Expected {
        const char* chip;
        const char* type;
        const char* tensor;
    };
    for (const auto& [chip, type, tensor] : {
             Expected{"GH100", "bf16", "sm__ops_path_tensor_src_bf16_dst_fp32.sum"},
             Expected{"GH100", "tf32", "sm__ops_path_tensor_src_tf32_dst_fp32.sum"},
             Expected{"GB100", "bf16", "sm__ops_path_tensor_src_bf16_dst_fp32.sum"},
             Expected{"GA100", "fp16", "sm__ops_path_tensor_src_fp16_dst_fp32.sum"},
             Expected{"AD102", "tf32", "sm__ops_path_tensor_src_tf32_dst_fp32.sum"},
             Expected{"TU104", "fp16", "sm__ops_path_tensor_src_fp16_bf16_tf32_dst_fp32.sum"},
         }) {
        const Chosen chosen = choose(api, chip, {type});
        CHECK_EQ(chosen.config.error.result, 0u);
        CHECK_EQ(chosen.config.passes, 1u);
        CHECK(!chosen.config.image.empty());
        CHECK_EQ(text(chosen.counter("dram_bytes")), "dram__bytes.sum");
        CHECK_EQ(text(chosen.counter("time_ns")), "gpu__time_duration.sum");
        CHECK_EQ(text(chosen.counter(std::string("tensor_operations.") + type)), tensor);
    }
}

TEST(what_would_need_a_second_pass_or_does_not_exist_is_none) {
    CounterApi api;
    if (!loads(api)) return;
    const Chosen hopper = choose(api, "GH100", {"fp16", "nonsense"});
    CHECK_EQ(hopper.config.passes, 1u);
    CHECK_EQ(text(hopper.counter("tensor_operations.fp16")), "none");  // it alone takes two
    CHECK(hopper.counter("tensor_active") != nullptr);
    CHECK(hopper.counter("dram_bytes") != nullptr);
    const Chosen shared_memory = choose(api, "GB10B", {"bf16"});  // its memory is the processor's
    CHECK_EQ(shared_memory.config.passes, 1u);
    CHECK_EQ(text(shared_memory.counter("dram_bytes")), "none");
    CHECK(shared_memory.counter("l2_bytes") != nullptr);
    const Chosen unknown = choose(api, "no chip", {"bf16"});
    CHECK(unknown.config.error);
    CHECK(std::ranges::all_of(unknown.metrics,
                              [](const ChosenMetric& metric) { return metric.counter == nullptr; }));
}

TEST(an_image_that_is_none_has_no_values) {
    CounterApi api;
    if (!loads(api)) return;
    const char* const counters[] = {"dram__bytes.sum"};
    const cupti::Chip chip{"GH100", {}};
    const cupti::CounterHost host(api, chip);
    CHECK(!host.error());
    const std::vector<std::uint8_t> image(1024);
    double value = -1;
    const cupti::CounterError error = host.evaluate(image, 0, counters, {&value, 1});
    CHECK(error);
    CHECK_EQ(explain(error).detail, "cuptiProfilerHostEvaluateToGpuValues");
}

}  // namespace gpuprof::test
#else
TEST(skipped_without_cupti) {
    std::fprintf(stderr,
                 "skipped: no libcupti next to its headers (pip install nvidia-cuda-cupti==13.0.*), or built "
                 "for a sanitizer, under which it cannot be loaded\n");
}
#endif
