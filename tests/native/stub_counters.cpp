// SPDX-License-Identifier: Apache-2.0
// Replaces CUPTI's profiler: its life cycle, and numbers that the tests script. Its numbers are not those of
// any GPU.
//
// Settings: a function's name is the error that it returns; "missing COUNTER" and "passes COUNTER" set
// what a chip has; "value COUNTER" is that of the first kernel, and the next ones have one more each; "none
// COUNTER" has no value; "bytes of a range"; "names reversed"; "extra ranges" are more than were launched.
#include <algorithm>
#include <cstring>
#include <limits>
#include <set>
#include <vector>

#include "cupti/counters_abi.hpp"
#include "stub_cupti.hpp"

namespace {

namespace abi = gpuprof::cupti::abi;

constexpr std::uint32_t invalid_parameter = 1;
constexpr std::size_t head_bytes = 16;

struct Host {
    std::vector<std::string> counters;
};

struct Profiler {
    void* context = nullptr;
    std::uint8_t* image = nullptr;
    std::size_t room = 0;
    std::size_t dropped = 0;
    bool configured = false;
    bool started = false;
};

Profiler& profiler() {
    static auto* const only = new Profiler;
    return *only;
}

long long& hosts() {
    static long long open = 0;
    return open;
}

struct ImageHead {
    std::size_t ranges;
    std::size_t initialized;
};
static_assert(sizeof(ImageHead) == head_bytes);

ImageHead& head_of(const std::uint8_t* image) {
    return *reinterpret_cast<ImageHead*>(const_cast<std::uint8_t*>(image));
}

// The length that the caller passes must be that of the structure.
template <typename Structure>
std::uint32_t begin_call(const char* function, const Structure* parameters) {
    if (const std::uint32_t error = answer(function); error != 0) return error;
    if (parameters->structure_bytes != abi::length_of<Structure> || parameters->reserved != nullptr)
        return invalid_parameter;
    return abi::success;
}

#define BEGIN_CALL(name) \
    if (const std::uint32_t error = begin_call(name, parameters); error != 0) return error

std::size_t passes_of(const std::vector<std::string>& counters) {
    std::size_t passes = 1;
    for (const std::string& counter : counters)
        passes = std::max(passes, static_cast<std::size_t>(setting("passes " + counter)));
    return passes;
}

}  // namespace

// A kernel, with the range that the profiler makes of it.
EXPORT void stub_measured_launch(const char* kernel, void* context) {
    stub_driver_call(307, kernel, context, 0);
    Profiler& on = profiler();
    if (!on.started || on.context != context) return;
    if (head_of(on.image).ranges < on.room)
        ++head_of(on.image).ranges;
    else
        ++on.dropped;
}

EXPORT long long stub_open_hosts() {
    return hosts();
}

// --- the device -----------------------------------------------------------------------------------

EXPORT std::uint32_t cuptiProfilerInitialize(abi::ProfilerInitialize* parameters) {
    return begin_call("cuptiProfilerInitialize", parameters);
}

EXPORT std::uint32_t cuptiProfilerDeInitialize(abi::ProfilerDeinitialize* parameters) {
    return begin_call("cuptiProfilerDeInitialize", parameters);
}

EXPORT std::uint32_t cuptiDeviceGetChipName(abi::DeviceGetChipName* parameters) {
    BEGIN_CALL("cuptiDeviceGetChipName");
    parameters->chip = "STUB100";
    return abi::success;
}

EXPORT std::uint32_t cuptiProfilerGetCounterAvailability(abi::ProfilerGetCounterAvailability* parameters) {
    // Newer versions know one member more.
    auto known = *parameters;
    if (setting("version") >= abi::device_level_since && known.with_device_level == 1)
        --known.structure_bytes;
    if (const std::uint32_t error = begin_call("cuptiProfilerGetCounterAvailability", &known); error != 0)
        return error;
    if (parameters->image == nullptr)
        parameters->image_bytes = 8;
    else
        std::memset(parameters->image, 1, parameters->image_bytes);
    return abi::success;
}

EXPORT std::uint32_t cuptiProfilerDeviceSupported(abi::ProfilerDeviceSupported* parameters) {
    BEGIN_CALL("cuptiProfilerDeviceSupported");
    const auto level = [](const char* key) {
        return setting(key) != 0 ? static_cast<std::uint32_t>(setting(key)) : abi::supported;
    };
    parameters->is_supported = level("support");
    parameters->architecture = level("architecture");
    parameters->sli = level("sli");
    parameters->virtual_gpu = level("virtual GPU");
    parameters->confidential_computing = level("confidential computing");
    parameters->mining_device = level("mining device");
    parameters->wsl = level("wsl");
    return abi::success;
}

// --- the host side --------------------------------------------------------------------------------

EXPORT std::uint32_t cuptiProfilerHostInitialize(abi::HostInitialize* parameters) {
    BEGIN_CALL("cuptiProfilerHostInitialize");
    if (std::strcmp(parameters->chip, "STUB100") != 0) return abi::invalid_chip_name;
    ++hosts();
    parameters->host = new Host;
    return abi::success;
}

EXPORT std::uint32_t cuptiProfilerHostDeinitialize(abi::HostDeinitialize* parameters) {
    BEGIN_CALL("cuptiProfilerHostDeinitialize");
    --hosts();
    delete static_cast<Host*>(parameters->host);
    return abi::success;
}

EXPORT std::uint32_t cuptiProfilerHostGetSupportedChips(abi::HostGetSupportedChips* parameters) {
    BEGIN_CALL("cuptiProfilerHostGetSupportedChips");
    static const char* const chips[] = {"STUB100"};
    parameters->count = 1;
    parameters->chips = chips;
    return abi::success;
}

EXPORT std::uint32_t cuptiProfilerHostConfigAddMetrics(abi::HostConfigAddMetrics* parameters) {
    BEGIN_CALL("cuptiProfilerHostConfigAddMetrics");
    for (std::size_t at = 0; at < parameters->count; ++at) {
        const std::string counter = parameters->metrics[at];
        if (setting("missing " + counter) != 0) return abi::invalid_metric_name;
        static_cast<Host*>(parameters->host)->counters.push_back(counter);
    }
    return abi::success;
}

EXPORT std::uint32_t cuptiProfilerHostGetConfigImageSize(abi::HostGetConfigImageSize* parameters) {
    BEGIN_CALL("cuptiProfilerHostGetConfigImageSize");
    parameters->image_bytes = sizeof(std::size_t);
    return abi::success;
}

EXPORT std::uint32_t cuptiProfilerHostGetConfigImage(abi::HostGetConfigImage* parameters) {
    BEGIN_CALL("cuptiProfilerHostGetConfigImage");
    const std::size_t passes = passes_of(static_cast<Host*>(parameters->host)->counters);
    std::memcpy(parameters->image, &passes, sizeof(passes));
    return abi::success;
}

EXPORT std::uint32_t cuptiProfilerHostGetNumOfPasses(abi::HostGetNumOfPasses* parameters) {
    BEGIN_CALL("cuptiProfilerHostGetNumOfPasses");
    std::memcpy(&parameters->passes, parameters->image, sizeof(parameters->passes));
    return abi::success;
}

EXPORT std::uint32_t cuptiProfilerHostEvaluateToGpuValues(abi::HostEvaluateToGpuValues* parameters) {
    BEGIN_CALL("cuptiProfilerHostEvaluateToGpuValues");
    for (std::size_t at = 0; at < parameters->count; ++at) {
        const std::string counter = parameters->metrics[at];
        parameters->values[at] =
            setting("none " + counter) != 0
                ? std::numeric_limits<double>::quiet_NaN()
                : static_cast<double>(setting("value " + counter)) + static_cast<double>(parameters->range);
    }
    return abi::success;
}

// --- the range profiler ---------------------------------------------------------------------------

EXPORT std::uint32_t cuptiRangeProfilerEnable(abi::RangeProfilerEnable* parameters) {
    BEGIN_CALL("cuptiRangeProfilerEnable");
    if (profiler().context != nullptr) return abi::hardware_busy;
    profiler() = Profiler{};
    profiler().context = parameters->context;
    parameters->profiler = &profiler();
    return abi::success;
}

EXPORT std::uint32_t cuptiRangeProfilerDisable(abi::RangeProfilerDisable* parameters) {
    profiler() = Profiler{};
    return begin_call("cuptiRangeProfilerDisable", parameters);
}

EXPORT std::uint32_t cuptiRangeProfilerGetCounterDataSize(abi::RangeProfilerGetCounterDataSize* parameters) {
    BEGIN_CALL("cuptiRangeProfilerGetCounterDataSize");
    if (parameters->most_tree_nodes < parameters->most_ranges) return invalid_parameter;
    const long long each = std::max(8LL, setting("bytes of a range"));
    parameters->image_bytes = head_bytes + parameters->most_ranges * static_cast<std::size_t>(each);
    return abi::success;
}

EXPORT std::uint32_t cuptiRangeProfilerCounterDataImageInitialize(
    abi::RangeProfilerInitializeImage* parameters) {
    BEGIN_CALL("cuptiRangeProfilerCounterDataImageInitialize");
    head_of(parameters->image) = {0, 1};
    return abi::success;
}

EXPORT std::uint32_t cuptiRangeProfilerSetConfig(abi::RangeProfilerSetConfig* parameters) {
    BEGIN_CALL("cuptiRangeProfilerSetConfig");
    if (parameters->range_mode != abi::automatic_ranges || parameters->replay_mode != abi::kernel_replay ||
        parameters->nesting_levels != 1 || head_of(parameters->image).initialized != 1)
        return abi::invalid_operation;
    profiler().image = parameters->image;
    profiler().room = parameters->most_ranges;
    profiler().configured = true;
    return abi::success;
}

EXPORT std::uint32_t cuptiRangeProfilerStart(abi::RangeProfilerStart* parameters) {
    BEGIN_CALL("cuptiRangeProfilerStart");
    if (!profiler().configured) return abi::invalid_operation;
    profiler().started = true;
    return abi::success;
}

EXPORT std::uint32_t cuptiRangeProfilerStop(abi::RangeProfilerStop* parameters) {
    BEGIN_CALL("cuptiRangeProfilerStop");
    if (!profiler().started) return abi::invalid_operation;
    profiler().started = false;
    parameters->all_passes_submitted = 1;
    return abi::success;
}

EXPORT std::uint32_t cuptiRangeProfilerDecodeData(abi::RangeProfilerDecodeData* parameters) {
    BEGIN_CALL("cuptiRangeProfilerDecodeData");
    if (profiler().started) return abi::invalid_operation;
    head_of(profiler().image).ranges += static_cast<std::size_t>(setting("extra ranges"));
    parameters->dropped_ranges = profiler().dropped;
    return abi::success;
}

EXPORT std::uint32_t cuptiRangeProfilerGetCounterDataInfo(abi::RangeProfilerGetCounterDataInfo* parameters) {
    BEGIN_CALL("cuptiRangeProfilerGetCounterDataInfo");
    parameters->ranges = head_of(parameters->image).ranges;
    return abi::success;
}

EXPORT std::uint32_t cuptiRangeProfilerCounterDataGetRangeInfo(abi::RangeProfilerGetRangeInfo* parameters) {
    BEGIN_CALL("cuptiRangeProfilerCounterDataGetRangeInfo");
    static auto* const names = new std::set<std::string>;
    const std::size_t last = head_of(parameters->image).ranges - 1;
    const std::size_t number = setting("names reversed") != 0 ? last - parameters->range : parameters->range;
    parameters->name = names->insert(std::to_string(number)).first->c_str();
    return abi::success;
}
