// SPDX-License-Identifier: Apache-2.0
#include "cupti/counters_host.hpp"

namespace gpuprof::cupti {
namespace {

// CUPTI's structures want pointers to what it only reads.
const char** names_of(std::span<const char* const> metrics) noexcept {
    return const_cast<const char**>(metrics.data());
}

}  // namespace

CounterHost::CounterHost(const CounterApi& api, const Chip& chip) noexcept : api_(api) {
    auto parameters = abi::with_length<abi::HostInitialize>();
    parameters.profiler_type = abi::range_profiler_type;
    parameters.chip = chip.name.c_str();
    parameters.availability = chip.availability.empty() ? nullptr : chip.availability.data();
    error_ = {"cuptiProfilerHostInitialize", api.host_initialize(&parameters)};
    if (!error_) host_ = parameters.host;
}

CounterHost::~CounterHost() {
    if (host_ == nullptr) return;
    auto parameters = abi::with_length<abi::HostDeinitialize>();
    parameters.host = host_;
    api_.host_deinitialize(&parameters);
}

CounterError CounterHost::add(std::span<const char* const> metrics) noexcept {
    auto parameters = abi::with_length<abi::HostConfigAddMetrics>();
    parameters.host = host_;
    parameters.metrics = names_of(metrics);
    parameters.count = metrics.size();
    return {"cuptiProfilerHostConfigAddMetrics", api_.add_metrics(&parameters)};
}

CounterError CounterHost::make_config(std::vector<std::uint8_t>& config) const {
    auto size = abi::with_length<abi::HostGetConfigImageSize>();
    size.host = host_;
    if (const std::uint32_t result = api_.get_config_size(&size); result != abi::success)
        return {"cuptiProfilerHostGetConfigImageSize", result};
    config.resize(size.image_bytes);
    auto parameters = abi::with_length<abi::HostGetConfigImage>();
    parameters.host = host_;
    parameters.image_bytes = config.size();
    parameters.image = config.data();
    return {"cuptiProfilerHostGetConfigImage", api_.get_config(&parameters)};
}

CounterError CounterHost::count_passes(std::vector<std::uint8_t>& config,
                                       std::size_t& passes) const noexcept {
    auto parameters = abi::with_length<abi::HostGetNumOfPasses>();
    parameters.image_bytes = config.size();
    parameters.image = config.data();
    const std::uint32_t result = api_.get_passes(&parameters);
    passes = parameters.passes;
    return {"cuptiProfilerHostGetNumOfPasses", result};
}

CounterError CounterHost::evaluate(std::span<const std::uint8_t> image, std::size_t range,
                                   std::span<const char* const> metrics,
                                   std::span<double> values) const noexcept {
    auto parameters = abi::with_length<abi::HostEvaluateToGpuValues>();
    parameters.host = host_;
    parameters.image = image.data();
    parameters.image_bytes = image.size();
    parameters.range = range;
    parameters.metrics = names_of(metrics);
    parameters.count = metrics.size();
    parameters.values = values.data();
    return {"cuptiProfilerHostEvaluateToGpuValues", api_.evaluate(&parameters)};
}

CounterConfig configure(const CounterApi& api, const Chip& chip, std::span<const char* const> metrics) {
    CounterConfig config;
    CounterHost host(api, chip);
    config.error = host.error();
    if (!config.error) config.error = host.add(metrics);
    if (!config.error) config.error = host.make_config(config.image);
    if (!config.error) config.error = host.count_passes(config.image, config.passes);
    return config;
}

std::vector<std::string> supported_chips(const CounterApi& api) {
    auto parameters = abi::with_length<abi::HostGetSupportedChips>();
    if (api.get_supported_chips(&parameters) != abi::success || parameters.chips == nullptr) return {};
    return {parameters.chips, parameters.chips + parameters.count};
}

}  // namespace gpuprof::cupti
