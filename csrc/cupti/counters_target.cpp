// SPDX-License-Identifier: Apache-2.0
#include "cupti/counters_target.hpp"

#include <algorithm>
#include <charconv>
#include <cstring>
#include <new>
#include <optional>
#include <utility>

namespace gpuprof::cupti {
namespace {

// Limit of the program's memory for the values of all ranges. Only a device reports the size of one.
constexpr std::size_t most_image_bytes = std::size_t{256} << 20;
constexpr std::size_t fewest_ranges = 16;

// CUPTI names automatic ranges by numbers, in the order in which their kernels ran.
std::optional<std::size_t> number_of(const char* name) noexcept {
    if (name == nullptr) return std::nullopt;
    std::size_t number = 0;
    const char* const end = name + std::strlen(name);
    const auto parsed = std::from_chars(name, end, number);
    return parsed.ec == std::errc{} && parsed.ptr == end ? std::optional(number) : std::nullopt;
}

}  // namespace

RangeProfiler::~RangeProfiler() {
    disable();
}

CounterError RangeProfiler::begin(const CounterApi& api, void* context, std::span<const std::uint8_t> config,
                                  std::span<const char* const> counters, std::size_t most_ranges) noexcept {
    api_ = &api;
    most_ranges_ = most_ranges;
    dropped_ = 0;
    auto enable = abi::with_length<abi::RangeProfilerEnable>();
    enable.context = context;
    CounterError error{"cuptiRangeProfilerEnable", api.enable(&enable)};
    if (error) return error;
    profiler_ = enable.profiler;
    try {
        error = make_image(counters);
    } catch (const std::bad_alloc&) {
        error = {"a counter data image", abi::out_of_memory};
    }
    if (!error) error = configure(config);
    if (!error) {
        auto start = abi::with_length<abi::RangeProfilerStart>();
        start.profiler = profiler_;
        error = {"cuptiRangeProfilerStart", api.start(&start)};
    }
    if (error) disable();
    return error;
}

// Fewer ranges where so many would not fit.
CounterError RangeProfiler::make_image(std::span<const char* const> counters) {
    std::size_t bytes = 0;
    for (;;) {
        if (const CounterError error = find_image_bytes(counters, bytes)) return error;
        if (bytes <= most_image_bytes || most_ranges_ <= fewest_ranges) break;
        most_ranges_ /= 2;
    }
    image_.assign(bytes, 0);
    auto parameters = abi::with_length<abi::RangeProfilerInitializeImage>();
    parameters.profiler = profiler_;
    parameters.image_bytes = image_.size();
    parameters.image = image_.data();
    return {"cuptiRangeProfilerCounterDataImageInitialize", api_->initialize_image(&parameters)};
}

CounterError RangeProfiler::find_image_bytes(std::span<const char* const> counters,
                                             std::size_t& bytes) const noexcept {
    auto parameters = abi::with_length<abi::RangeProfilerGetCounterDataSize>();
    parameters.profiler = profiler_;
    parameters.metrics = const_cast<const char**>(counters.data());
    parameters.count = counters.size();
    parameters.most_ranges = most_ranges_;
    parameters.most_tree_nodes = static_cast<std::uint32_t>(most_ranges_);
    const std::uint32_t result = api_->get_data_size(&parameters);
    bytes = parameters.image_bytes;
    return {"cuptiRangeProfilerGetCounterDataSize", result};
}

CounterError RangeProfiler::configure(std::span<const std::uint8_t> config) noexcept {
    auto parameters = abi::with_length<abi::RangeProfilerSetConfig>();
    parameters.profiler = profiler_;
    parameters.config_bytes = config.size();
    parameters.config = config.data();
    parameters.image_bytes = image_.size();
    parameters.image = image_.data();
    parameters.range_mode = abi::automatic_ranges;
    parameters.replay_mode = abi::kernel_replay;
    parameters.most_ranges = most_ranges_;
    parameters.nesting_levels = 1;
    parameters.least_nesting_level = 1;
    parameters.target_nesting_level = 1;
    return {"cuptiRangeProfilerSetConfig", api_->set_config(&parameters)};
}

CounterError RangeProfiler::end() noexcept {
    if (profiler_ == nullptr) return {};
    const CounterError stopped = stop();
    const CounterError disabled = disable();
    return stopped ? stopped : disabled;
}

CounterError RangeProfiler::stop() noexcept {
    auto stop = abi::with_length<abi::RangeProfilerStop>();
    stop.profiler = profiler_;
    if (const std::uint32_t result = api_->stop(&stop); result != abi::success)
        return {"cuptiRangeProfilerStop", result};
    auto decode = abi::with_length<abi::RangeProfilerDecodeData>();
    decode.profiler = profiler_;
    const std::uint32_t result = api_->decode(&decode);
    dropped_ = decode.dropped_ranges;
    return {"cuptiRangeProfilerDecodeData", result};
}

CounterError RangeProfiler::disable() noexcept {
    if (profiler_ == nullptr) return {};
    auto parameters = abi::with_length<abi::RangeProfilerDisable>();
    parameters.profiler = std::exchange(profiler_, nullptr);
    return {"cuptiRangeProfilerDisable", api_->disable(&parameters)};
}

std::vector<std::size_t> RangeProfiler::ranges() const {
    if (image_.empty()) return {};
    auto info = abi::with_length<abi::RangeProfilerGetCounterDataInfo>();
    info.image = image_.data();
    info.image_bytes = image_.size();
    if (api_->get_data_info(&info) != abi::success) return {};
    std::vector<std::pair<std::size_t, std::size_t>> numbered;
    for (std::size_t range = 0; range < info.ranges; ++range) {
        auto parameters = abi::with_length<abi::RangeProfilerGetRangeInfo>();
        parameters.image = image_.data();
        parameters.image_bytes = image_.size();
        parameters.range = range;
        parameters.delimiter = "/";
        const bool told =
            api_->get_range_info != nullptr && api_->get_range_info(&parameters) == abi::success;
        const std::optional<std::size_t> number = told ? number_of(parameters.name) : std::nullopt;
        numbered.emplace_back(number.value_or(range), range);
    }
    std::ranges::stable_sort(numbered);
    std::vector<std::size_t> ranges;
    ranges.reserve(numbered.size());
    for (const auto& [number, range] : numbered) ranges.push_back(range);
    return ranges;
}

}  // namespace gpuprof::cupti
