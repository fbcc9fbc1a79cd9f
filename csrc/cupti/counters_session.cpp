// SPDX-License-Identifier: Apache-2.0
#include "cupti/counters_session.hpp"

#include <algorithm>
#include <cmath>
#include <exception>
#include <limits>

#include "core/dynamic_library.hpp"
#include "cuda/driver.hpp"
#include "cupti/kernel_names.hpp"

namespace gpuprof::cupti {
namespace {

// Copies and fills are recorded too.
constexpr std::size_t launches_per_kernel = 4;
constexpr double no_value = std::numeric_limits<double>::quiet_NaN();

template <typename Sequence>
std::int64_t count_of(const Sequence& sequence) noexcept {
    return static_cast<std::int64_t>(sequence.size());
}

}  // namespace

CounterSession& CounterSession::instance() {
    static auto* const session = new CounterSession;
    return *session;
}

CountersOpened CounterSession::open(const std::vector<std::string>& folders,
                                    const std::vector<std::string>& types,
                                    std::size_t most_kernels) noexcept {
    CountersOpened opened;
    std::lock_guard lock(mutex_);
    most_kernels_ = most_kernels;
    try {
        prepare(folders, types, opened);
    } catch (const std::exception& error) {
        opened.reason = reason_of(error);
    }
    if (opened.reason) deinitialize();
    return opened;
}

// Requires mutex_. The order is CUPTI's: a missing permission is found before a kernel runs.
void CounterSession::prepare(const std::vector<std::string>& folders, const std::vector<std::string>& types,
                             CountersOpened& opened) {
    deinitialize();
    library_ = load_library(folders);
    opened.path = library_.path;
    opened.version = library_.version;
    opened.reason = library_.reason;
    if (!library_.available()) return;
    opened.reason = why_no_counters(library_, api_);
    if (opened.reason) return;
    opened.reason = find_device();
    if (opened.reason) return;
    CounterError error = initialize();
    if (!error) {
        opened.reason = why_unsupported();
        if (opened.reason) return;
        error = ask_chip();
    }
    if (!error) error = ask_availability();
    opened.reason = error ? explain(error) : choose(types, opened);
    opened.chip = chip_.name;
}

Reason CounterSession::find_device() {
    const LoadedLibrary driver(cuda::driver_name);
    const auto get_context = find_function<int (*)(void**)>(driver.handle(), "cuCtxGetCurrent");
    const auto get_device = find_function<int (*)(int*)>(driver.handle(), "cuCtxGetDevice");
    context_ = nullptr;
    if (get_context == nullptr || get_device == nullptr)
        return {ReasonCode::driver_lacks_function, {}, "cuCtxGetDevice"};
    if (get_context(&context_) != abi::driver_success || context_ == nullptr) return {ReasonCode::no_context};
    if (get_device(&device_) != abi::driver_success) return {ReasonCode::context_without_device};
    return {};
}

CounterError CounterSession::initialize() noexcept {
    auto parameters = abi::with_length<abi::ProfilerInitialize>();
    const CounterError error{"cuptiProfilerInitialize", api_.initialize(&parameters)};
    initialized_ = !error;
    return error;
}

// The device's calls have the same result, but without the cause.
Reason CounterSession::why_unsupported() const {
    auto device = abi::with_length<abi::ProfilerDeviceSupported>();
    device.device = device_;
    device.interface = abi::range_profiling;
    const bool told = api_.device_supported(&device) == abi::success;
    if (!told || device.is_supported == abi::supported || device.is_supported == abi::support_unknown)
        return {};
    if (device.virtual_gpu == abi::disabled) return {ReasonCode::counters_switched_off};
    const auto lacks = [](std::uint32_t level) {
        return level == abi::unsupported || level == abi::disabled;
    };
    const char* what = "device";
    if (lacks(device.architecture)) what = "architecture";
    if (lacks(device.sli)) what = "sli";
    if (lacks(device.virtual_gpu)) what = "virtual_gpu";
    if (lacks(device.confidential_computing)) what = "confidential_computing";
    if (lacks(device.mining_device)) what = "mining_device";
    if (lacks(device.wsl)) what = "wsl";
    return {ReasonCode::counters_unsupported, {}, what};
}

CounterError CounterSession::ask_chip() {
    auto parameters = abi::with_length<abi::DeviceGetChipName>();
    parameters.device = static_cast<std::size_t>(device_);
    const CounterError error{"cuptiDeviceGetChipName", api_.get_chip_name(&parameters)};
    if (!error && parameters.chip != nullptr) chip_.name = parameters.chip;
    return error;
}

CounterError CounterSession::ask_availability() {
    auto parameters = abi::with_length<abi::ProfilerGetCounterAvailability>();
    if (library_.version >= abi::device_level_since) {
        parameters.structure_bytes += sizeof(parameters.with_device_level);
        parameters.with_device_level = 1;
    }
    parameters.context = context_;
    CounterError error{"cuptiProfilerGetCounterAvailability", api_.get_availability(&parameters)};
    if (error) return error;
    chip_.availability.resize(parameters.image_bytes);
    parameters.image = chip_.availability.data();
    error.result = api_.get_availability(&parameters);
    return error;
}

Reason CounterSession::choose(const std::vector<std::string>& types, CountersOpened& opened) {
    opened.metrics =
        choose_metrics(types, [this](std::span<const char* const> counters) -> std::optional<std::size_t> {
            const CounterConfig tried = configure(api_, chip_, counters);
            return tried.error ? std::nullopt : std::optional(tried.passes);
        });
    counters_.clear();
    for (const ChosenMetric& metric : opened.metrics)
        if (metric.counter != nullptr) counters_.push_back(metric.counter);
    config_ = configure(api_, chip_, counters_);
    opened.passes = config_.passes;
    if (config_.error) return explain(config_.error);
    if (counters_.empty()) return {ReasonCode::counters_missing, {}, chip_.name};
    return {};
}

Reason CounterSession::begin() noexcept {
    std::lock_guard lock(mutex_);
    try {
        if (!initialized_) return {ReasonCode::counters_not_open};
        CounterError error{
            "cuptiSubscribe",
            LaunchLog::instance().begin(library_.api, context_, launches_per_kernel * most_kernels_)};
        if (!error) error = profiler_.begin(api_, context_, config_.image, counters_, most_kernels_);
        if (error) LaunchLog::instance().end();
        return error ? explain(error) : Reason();
    } catch (const std::exception& error) {
        LaunchLog::instance().end();
        return reason_of(error);
    }
}

CountersMeasured CounterSession::end() noexcept {
    std::lock_guard lock(mutex_);
    CountersMeasured measured;
    LaunchLog::set_operator(no_operator);
    const CounterError error = profiler_.end();
    LaunchLog::instance().end();
    try {
        if (error)
            measured.reason = explain(error);
        else
            collect(measured);
    } catch (const std::exception& failure) {
        measured.kernels.clear();
        measured.reason = reason_of(failure);
    }
    return measured;
}

// Ranges have no names of their own: the n-th one is the n-th kernel that was launched, and where their
// numbers differ they cannot be matched. Kernels that came too late for the image are known by name.
void CounterSession::collect(CountersMeasured& measured) const {
    const LaunchLog& log = LaunchLog::instance();
    std::vector<Launch> kernels;
    bool several = false;
    for (const Launch& launch : log.launches()) {
        if (launch.kind == LaunchKind::kernel) kernels.push_back(launch);
        if (launch.kind != LaunchKind::kernel) measured.incomplete.push_back(launch.operator_number);
        several = several || launch.kind == LaunchKind::several;
    }
    const std::vector<std::size_t> ranges = profiler_.ranges();
    if (log.lost() > 0) {
        measured.reason = {ReasonCode::too_many_launches, {}, {}, count_of(log.launches())};
        return;
    }
    if (several || ranges.size() + profiler_.dropped() != kernels.size()) {
        const ReasonCode code = several ? ReasonCode::graphs_unmatched : ReasonCode::kernels_unmatched;
        measured.reason = {code, {}, {}, count_of(ranges), count_of(kernels)};
        return;
    }
    const CounterHost host(api_, chip_);
    if (host.error()) {
        measured.reason = explain(host.error());
        return;
    }
    for (std::size_t at = 0; at < kernels.size(); ++at) {
        const std::int64_t number = kernels[at].operator_number;
        if (at >= ranges.size())
            measured.incomplete.push_back(number);
        else
            measured.kernels.push_back({number,
                                        readable_kernel_name(std::string(log.name_of(kernels[at])).c_str()),
                                        values_of(host, ranges[at])});
    }
}

std::vector<double> CounterSession::values_of(const CounterHost& host, std::size_t range) const {
    std::vector<double> values(counters_.size(), no_value);
    if (host.evaluate(profiler_.image(), range, counters_, values)) std::ranges::fill(values, no_value);
    for (double& value : values)
        if (!std::isfinite(value) || value < 0) value = no_value;
    return values;
}

void CounterSession::close() noexcept {
    std::lock_guard lock(mutex_);
    LaunchLog::instance().end();
    profiler_.end();
    profiler_.forget();
    deinitialize();
}

// Requires mutex_.
void CounterSession::deinitialize() noexcept {
    if (!initialized_) return;
    initialized_ = false;
    auto parameters = abi::with_length<abi::ProfilerDeinitialize>();
    api_.deinitialize(&parameters);
}

}  // namespace gpuprof::cupti
