// SPDX-License-Identifier: Apache-2.0
#include "cuda/device_bench.hpp"

#include <sched.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <map>
#include <utility>

#include "core/clock.hpp"

namespace gpuprof::cuda {
namespace {

// As ceilings.cu has them.
constexpr unsigned threads_per_block = 256;
constexpr double operations_per_round = 8 * 16 * 2;
constexpr std::size_t piece_bytes = 16;

constexpr double ns_per_second = 1e9;
constexpr unsigned most_rounds = 1u << 30;
// Fewer than may wait in line without the launching call waiting too.
constexpr unsigned launches = 256;
constexpr unsigned first_busy_rounds = 2000;  // thousands of cycles: about a millisecond
constexpr unsigned most_busy_rounds = first_busy_rounds << 5;

int attribute_of(const LaunchDriver& driver, int device, int which) {
    int value = 0;
    return driver.get_attribute(&value, which, device) == success ? value : 0;
}

std::string text_of(const Uuid& uuid) {
    constexpr const char* digits = "0123456789abcdef";
    std::string text;
    for (int i = 0; i < 16; ++i) {
        if (i == 4 || i == 6 || i == 8 || i == 10) text += '-';
        text += digits[uuid.bytes[i] / 16];
        text += digits[uuid.bytes[i] % 16];
    }
    return text;
}

DeviceFacts describe(const LaunchDriver& driver, int ordinal) {
    int device = 0;
    driver.check(driver.get_device(&device, ordinal), "device " + std::to_string(ordinal));
    DeviceFacts facts;
    std::array<char, 256> name{};
    if (driver.get_name(name.data(), static_cast<int>(name.size()) - 1, device) == success)
        facts.name = name.data();
    Uuid uuid{};
    if (driver.get_uuid(&uuid, device) == success) facts.uuid = text_of(uuid);
    facts.capability = 10 * attribute_of(driver, device, attribute::capability_major) +
                       attribute_of(driver, device, attribute::capability_minor);
    facts.multiprocessors = attribute_of(driver, device, attribute::multiprocessors);
    facts.clock_khz = attribute_of(driver, device, attribute::clock_khz);
    facts.memory_clock_khz = attribute_of(driver, device, attribute::memory_clock_khz);
    facts.memory_bus_bits = attribute_of(driver, device, attribute::memory_bus_bits);
    facts.l2_cache_bytes = attribute_of(driver, device, attribute::l2_cache_bytes);
    if (driver.get_total_memory(&facts.memory_bytes, device) != success) facts.memory_bytes = 0;
    return facts;
}

bool may_go_on(const GpuEffort& effort) {
    return !effort.go_on || effort.go_on();
}

}  // namespace

std::vector<DeviceFacts> describe_devices(const LaunchDriver& driver) {
    int count = 0;
    driver.check(driver.get_count(&count), "the number of GPUs is not known");
    std::vector<DeviceFacts> devices;
    devices.reserve(static_cast<std::size_t>(std::max(0, count)));
    for (int ordinal = 0; ordinal < count; ++ordinal) devices.push_back(describe(driver, ordinal));
    return devices;
}

// Arrays that are there for one measurement.
class DeviceBench::Memory {
  public:
    Memory(const LaunchDriver& driver, std::size_t count, std::size_t bytes, StreamHandle stream)
        : driver_(driver) {
        try {
            for (std::size_t i = 0; i < count; ++i) add(bytes, stream);
        } catch (...) {
            release();
            throw;
        }
    }
    Memory(const Memory&) = delete;
    Memory& operator=(const Memory&) = delete;
    ~Memory() { release(); }

    Address operator[](std::size_t number) const { return number < count_ ? arrays_[number] : 0; }

  private:
    void add(std::size_t bytes, StreamHandle stream) {
        driver_.check(driver_.allocate(&arrays_[count_], bytes), "no memory for the arrays");
        ++count_;
        driver_.check(driver_.fill(arrays_[count_ - 1], 0, bytes, stream), "memory cannot be filled");
    }
    void release() noexcept {
        while (count_ > 0) driver_.release(arrays_[--count_]);
    }

    const LaunchDriver& driver_;
    std::array<Address, 3> arrays_{};
    std::size_t count_ = 0;
};

// What a call that failed has written is no handle.
template <typename Make>
void DeviceBench::obtain(void*& handle, const char* what, Make make) {
    void* made = nullptr;
    driver_.check(make(&made), what);
    handle = made;
}

DeviceBench::DeviceBench(const LaunchDriver& driver, int ordinal, const Compiler& compiler)
    : driver_(driver) {
    driver_.check(driver_.get_device(&device_, ordinal), "device " + std::to_string(ordinal));
    const DeviceFacts facts = describe(driver_, ordinal);
    const std::vector<char> image = compile(compiler, ceilings_source, "ceilings.cu", facts.capability);
    const int threads = attribute_of(driver_, device_, attribute::threads_per_multiprocessor);
    const int resident = std::max(1, threads / static_cast<int>(threads_per_block));
    blocks_ = static_cast<unsigned>(std::max(1, facts.multiprocessors) * resident);
    try {
        obtain(context_, "no context on the GPU",
               [&](auto* made) { return driver_.retain_context(made, device_); });
        driver_.check(driver_.set_context(context_), "no context on the GPU");
        obtain(module_, "the kernels cannot be loaded",
               [&](auto* made) { return driver_.load_module(made, image.data()); });
        obtain(stream_, "no stream",
               [&](auto* made) { return driver_.create_stream(made, non_blocking_stream); });
        for (EventHandle* event : {&begin_, &end_})
            obtain(*event, "no event", [&](auto* made) { return driver_.create_event(made, default_event); });
    } catch (...) {
        release();
        throw;
    }
}

DeviceBench::~DeviceBench() {
    release();
}

void DeviceBench::release() noexcept {
    for (EventHandle* event : {&begin_, &end_})
        if (auto* const one = std::exchange(*event, nullptr)) driver_.destroy_event(one);
    if (auto* const stream = std::exchange(stream_, nullptr)) driver_.destroy_stream(stream);
    if (auto* const module = std::exchange(module_, nullptr)) driver_.unload_module(module);
    if (std::exchange(context_, nullptr) != nullptr) driver_.release_context(device_);
}

std::size_t DeviceBench::free_bytes() const {
    std::size_t free = 0, total = 0;
    driver_.check(driver_.get_free_memory(&free, &total), "the free memory is not known");
    return free;
}

FunctionHandle DeviceBench::function(const std::string& name) const {
    FunctionHandle found = nullptr;
    driver_.check(driver_.get_function(&found, module_, name.c_str()), "no kernel " + name);
    return found;
}

void DeviceBench::launch(FunctionHandle kernel, unsigned blocks, Arguments arguments) const {
    void* pointers[] = {&arguments.first, &arguments.second, &arguments.third, &arguments.pieces,
                        &arguments.rounds};
    driver_.check(
        driver_.launch(kernel, blocks, 1, 1, threads_per_block, 1, 1, 0, stream_, pointers, nullptr),
        "a kernel cannot be launched");
}

// Polled in a loop of bounded length, because a synchronization may never return.
void DeviceBench::wait(const GpuEffort& effort) const {
    const std::int64_t begun = monotonic_ns();
    int result = driver_.query_event(end_);
    while (result == not_ready) {
        if (monotonic_ns() - begun > effort.longest_wait_ns) throw GpuError("the GPU did not finish in time");
        sched_yield();
        result = driver_.query_event(end_);
    }
    driver_.check(result, "a kernel failed");
}

double DeviceBench::elapsed_ns() const {
    float milliseconds = 0;
    driver_.check(driver_.elapsed_ms(&milliseconds, begin_, end_), "no time of an event");
    return std::max(1.0, static_cast<double>(milliseconds) * 1e6);
}

double DeviceBench::time_ns(FunctionHandle kernel, const Arguments& arguments,
                            const GpuEffort& effort) const {
    driver_.check(driver_.record_event(begin_, stream_), "an event cannot be recorded");
    launch(kernel, blocks_, arguments);
    driver_.check(driver_.record_event(end_, stream_), "an event cannot be recorded");
    wait(effort);
    return elapsed_ns();
}

// Finding out how many rounds last long enough also warms clocks and caches up. A round that another program
// held up took few rounds for many: they grow until a repeat is no shorter than half of what it should be.
std::vector<double> DeviceBench::round_ns(FunctionHandle kernel, Arguments arguments,
                                          const GpuEffort& effort) const {
    const double wanted_ns = effort.seconds * ns_per_second;
    std::vector<double> results;
    auto timed = [&] {
        double took_ns = time_ns(kernel, arguments, effort);
        while (took_ns < wanted_ns / 2 && arguments.rounds < most_rounds && may_go_on(effort)) {
            arguments.rounds *= 2;
            took_ns = time_ns(kernel, arguments, effort);
        }
        return took_ns;
    };
    timed();
    for (int repeat = 0; repeat < effort.repeats && may_go_on(effort); ++repeat)
        results.push_back(timed() / arguments.rounds);
    return results;
}

std::vector<double> DeviceBench::measure_compute(const std::string& dtype, const GpuEffort& effort) {
    FunctionHandle kernel = nullptr;
    if (driver_.get_function(&kernel, module_, ("gpuprof_fma_" + dtype).c_str()) != success) return {};
    const double lanes = dtype == "fp16" || dtype == "bf16" ? 2 : 1;
    const double worth = operations_per_round * lanes * threads_per_block * blocks_;
    std::vector<double> rates = round_ns(kernel, {}, effort);
    for (double& rate : rates) rate = worth / rate * ns_per_second;
    return rates;
}

std::vector<double> DeviceBench::measure_stream(const std::string& stream, std::size_t array_bytes,
                                                const GpuEffort& effort) {
    static const std::map<std::string, std::size_t> arrays{{"read", 1}, {"copy", 2}, {"triad", 3}};
    const auto found = arrays.find(stream);
    if (found == arrays.end()) throw GpuError("no stream is called " + stream);
    const std::size_t pieces = std::max<std::size_t>(1, array_bytes / piece_bytes);
    const Memory memory(driver_, found->second, pieces * piece_bytes, stream_);
    const auto worth = static_cast<double>(found->second * pieces * piece_bytes);
    std::vector<double> rates =
        round_ns(function("gpuprof_" + stream), {memory[0], memory[1], memory[2], pieces, 1}, effort);
    for (double& rate : rates) rate = worth / rate * ns_per_second;
    return rates;
}

// `was_late` where the GPU came to the empty kernels before the last of them was in line.
double DeviceBench::queued_ns(unsigned busy_rounds, const GpuEffort& effort, bool& was_late) const {
    FunctionHandle empty = function("gpuprof_empty");
    if (busy_rounds > 0) {
        Arguments busy;
        busy.rounds = busy_rounds;
        launch(function("gpuprof_busy"), 1, busy);
    }
    driver_.check(driver_.record_event(begin_, stream_), "an event cannot be recorded");
    for (unsigned i = 0; i < launches; ++i) launch(empty, 1, {});
    driver_.check(driver_.record_event(end_, stream_), "an event cannot be recorded");
    was_late = driver_.query_event(begin_) != not_ready;
    wait(effort);
    return elapsed_ns() / launches;
}

LaunchTimes DeviceBench::measure_launch(const GpuEffort& effort) {
    LaunchTimes times;
    unsigned busy_rounds = first_busy_rounds;
    bool was_late = false;
    queued_ns(0, effort, was_late);  // the first launches load the kernels
    for (int repeat = 0; repeat < effort.repeats && may_go_on(effort); ++repeat) {
        times.period_ns.push_back(queued_ns(0, effort, was_late));
        double floor_ns = queued_ns(busy_rounds, effort, was_late);
        while (was_late && busy_rounds < most_busy_rounds)
            floor_ns = queued_ns(busy_rounds *= 2, effort, was_late);
        if (!was_late) times.floor_ns.push_back(floor_ns);
    }
    return times;
}

}  // namespace gpuprof::cuda
