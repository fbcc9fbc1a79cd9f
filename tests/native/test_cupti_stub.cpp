// SPDX-License-Identifier: Apache-2.0
// The life of a GPU recording against stub libraries. A pass here is no evidence about a real GPU.
#include <dlfcn.h>
#include <sys/resource.h>

#include <csignal>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <map>
#include <set>

#include "core/platform.hpp"
#include "cupti/collector.hpp"
#include "cupti/kernel_names.hpp"
#include "gpu_support.hpp"

namespace gpuprof::test {
namespace {

namespace abi = cupti::abi;
using cupti::Collector;
using cupti::CollectorOptions;
using cupti::GpuTotals;
using cupti::Started;
using std::chrono::milliseconds;

struct Stub {
    void (*reset)() = function_of<void (*)()>(STUB_CUPTI, "stub_reset");
    void (*set)(const char*, long long) = function_of<void (*)(const char*, long long)>(STUB_CUPTI,
                                                                                        "stub_set");
    long long (*count)(const char*) = function_of<long long (*)(const char*)>(STUB_CUPTI, "stub_count");
    void (*launch)(std::uint32_t, const char*, long long, long long) =
        function_of<void (*)(std::uint32_t, const char*, long long, long long)>(STUB_CUPTI, "stub_launch");
    void (*copy)(std::uint32_t, unsigned long long, long long, long long) =
        function_of<void (*)(std::uint32_t, unsigned long long, long long, long long)>(STUB_CUPTI,
                                                                                       "stub_copy");
    void (*kernel)(std::uint32_t, const char*, long long, long long, std::uint64_t, std::uint64_t) =
        function_of<void (*)(std::uint32_t, const char*, long long, long long, std::uint64_t, std::uint64_t)>(
            STUB_CUPTI, "stub_kernel");
    void (*graph)(std::uint32_t, std::uint32_t, long long, long long) =
        function_of<void (*)(std::uint32_t, std::uint32_t, long long, long long)>(STUB_CUPTI, "stub_graph");
    void (*record_event)(std::uint32_t, std::uint32_t, std::uint32_t, std::uint64_t) =
        function_of<void (*)(std::uint32_t, std::uint32_t, std::uint32_t, std::uint64_t)>(
            STUB_CUPTI, "stub_record_event");
    void (*wait_event)(std::uint32_t, std::uint32_t, std::uint32_t, std::uint64_t, long long, long long) =
        function_of<void (*)(std::uint32_t, std::uint32_t, std::uint32_t, std::uint64_t, long long,
                             long long)>(STUB_CUPTI, "stub_wait_event");
    void (*graph_node)(std::uint64_t, std::uint64_t) =
        function_of<void (*)(std::uint64_t, std::uint64_t)>(STUB_CUPTI, "stub_graph_node");
    std::uint8_t* (*request)() = function_of<std::uint8_t* (*)()>(STUB_CUPTI, "stub_request");
    void (*complete)(std::uint8_t*,
                     std::size_t) = function_of<void (*)(std::uint8_t*, std::size_t)>(STUB_CUPTI,
                                                                                      "stub_complete");
};

void set_driver(int initialized, int version = 13000, int devices = 1) {
    function_of<void (*)(int, int, int)>(STUB_CUDA, "stub_cuda_set")(initialized, version, devices);
}

// A driver that is in use, and a stub as new.
Stub& fresh_stub() {
    set_driver(1);
    static Stub stub;
    stub.reset();
    setenv("GPUPROF_CUPTI_LIBRARY", STUB_CUPTI, 1);
    return stub;
}

CollectorOptions patient() {
    CollectorOptions options;
    options.flush_period = milliseconds(60'000);
    options.retry_period = milliseconds(1);
    options.longest_wait = milliseconds(60'000);
    return options;
}

CollectorOptions impatient() {
    CollectorOptions options = patient();
    options.longest_wait = milliseconds(20);
    return options;
}

std::string name_of(const TemporaryFolder& folder, std::uint32_t id) {
    const RecordedFolder recorded = read_folder(folder());
    return id == 0 ? "" : recorded.processes.at(0).names.at(id - 1).text;
}

// Read through another clock, whose readings have an error.
bool is_near(std::int64_t time_ns, std::int64_t expected_ns) {
    return std::llabs(time_ns - expected_ns) <= cupti::ClockCalibration::largest_error_ns;
}

// Now and a little later, as a kernel of this recording would have it.
struct Times {
    long long start = monotonic_ns();
    long long end = start + 1000;
};

}  // namespace

TEST(without_a_driver_in_the_process_nothing_is_loaded) {
    const TemporaryFolder folder;
    start(folder);
    setenv("GPUPROF_CUPTI_LIBRARY", STUB_CUPTI, 1);
    const Started started = Collector::instance().start(patient());
    CHECK_EQ(started.reason, ReasonCode::cuda_not_in_use);
    CHECK(dlopen(STUB_CUPTI, RTLD_NOW | RTLD_NOLOAD) == nullptr);
    CHECK_EQ(folder.files(".gpu").size(), 0u);
    Collector::instance().stop();
    Recorder::instance().stop();
}

TEST(a_driver_that_the_program_has_not_initialized_is_left_alone) {
    const TemporaryFolder folder;
    start(folder);
    set_driver(0);
    CHECK_EQ(Collector::instance().start(patient()).reason, ReasonCode::cuda_not_initialized);
    set_driver(1, 13000, 0);
    CHECK_EQ(Collector::instance().start(patient()).reason, ReasonCode::driver_without_device);
    CHECK(dlopen(STUB_CUPTI, RTLD_NOW | RTLD_NOLOAD) == nullptr);
    Recorder::instance().stop();
}

TEST(kernels_and_copies_are_recorded_with_their_launches) {
    Stub& stub = fresh_stub();
    const TemporaryFolder folder;
    start(folder);
    const Started started = Collector::instance().start(patient());
    CHECK_EQ(started.reason, ReasonCode::none);
    CHECK_EQ(started.path, STUB_CUPTI);
    CHECK_EQ(started.version, 130001u);
    const Times times;
    stub.launch(11, "_Z4gemmIfEvPT_i", times.start, times.end);
    run_in_threads(2, [&](unsigned i) { stub.copy(20 + i, 4096, times.start, times.end); });
    const GpuTotals totals = Collector::instance().stop();
    Recorder::instance().stop();
    CHECK_EQ(totals.counts.kernels, 1u);
    CHECK_EQ(totals.counts.transfers, 2u);
    CHECK_EQ(totals.dropped + totals.counts.unfinished + totals.counts.unknown + totals.stale, 0u);
    CHECK(totals.clock_error_ns.has_value() && *totals.clock_error_ns < 50'000);
    CHECK(totals.clock == cupti::ClockState::steady);
    CHECK_EQ(totals.problem, ReasonCode::none);

    const GpuFileContent content = read_gpu_file(folder);
    CHECK(std::memcmp(content.head.magic, gpu_magic, sizeof(gpu_magic)) == 0);
    CHECK_EQ(content.head.version, 1u);
    CHECK_EQ(content.head.record_bytes, 128u);
    CHECK_EQ(content.head.process_id, static_cast<std::uint32_t>(getpid()));
    REQUIRE(content.records.size() == 3);
    const GpuRecord& kernel = content.records[0];
    CHECK_EQ(kernel.kind, 1u);
    CHECK_EQ(kernel.correlation_id, 11u);
    CHECK(is_near(kernel.start_ns, times.start));
    CHECK_EQ(kernel.end_ns - kernel.start_ns, times.end - times.start);
    CHECK_EQ(kernel.stream, 7u);
    CHECK_EQ(kernel.bytes, unknown_u64);
    CHECK_EQ(name_of(folder, kernel.name), "void gemm<float>(float*, int)");
    const GpuRecord& copy = content.records[1];
    CHECK_EQ(copy.kind, 2u);
    CHECK_EQ(copy.bytes, 4096u);
    CHECK_EQ(copy.source_kind, 2u);
    CHECK_EQ(copy.destination_kind, 3u);
    CHECK_EQ(copy.grid[0], unknown_u32);

    std::multiset<std::uint32_t> launched;
    for (const Event& event : gpu_events(folder))
        if (event.kind == static_cast<std::uint32_t>(EventKind::launch)) launched.insert(event.name);
    CHECK(launched == (std::multiset<std::uint32_t>{11, 20, 21}));
    CHECK_EQ(decode_folder(folder()).run.totals.damaged_events, 0u);
}

TEST(graph_nodes_are_noted_on_the_thread_that_makes_them) {
    Stub& stub = fresh_stub();
    const TemporaryFolder folder;
    start(folder);
    CHECK_EQ(Collector::instance().start(patient()).reason, ReasonCode::none);
    stub.graph_node(501, 0);
    stub.graph_node(901, 501);
    Collector::instance().stop();
    stub.graph_node(502, 0);
    Recorder::instance().stop();
    const std::vector<Event> events = gpu_events(folder);
    REQUIRE(events.size() == 3);
    CHECK_EQ(events[0].kind, 21u);
    CHECK_EQ(events[0].ticks, 501u);
    CHECK_EQ(events[1].kind, 22u);
    CHECK_EQ(events[1].ticks, 501u);
    CHECK_EQ(events[2].kind, 23u);
    CHECK_EQ(events[2].ticks, 901u);
    CHECK_EQ(decode_folder(folder()).run.totals.damaged_events, 0u);
}

TEST(refusals_have_a_reason_and_leave_nothing_on) {
    Stub& stub = fresh_stub();
    const TemporaryFolder folder;
    start(folder);
    struct Refusal {
        const char* function;
        int error;
        ReasonCode code;
    };
    for (const auto& [function, error, code] :
         {Refusal{"cuptiSubscribe", 39, ReasonCode::cupti_taken},
          Refusal{"cuptiActivityEnable", 35, ReasonCode::cupti_no_permission},
          Refusal{"cuptiEnableCallback", 999, ReasonCode::cupti_error},
          Refusal{"cuptiActivityRegisterCallbacks", 9, ReasonCode::cupti_gpu_lost},
          Refusal{"cuptiGetVersion", 999, ReasonCode::cupti_without_version}}) {
        stub.set(function, error);
        const Reason reason = Collector::instance().start(patient()).reason;
        CHECK_EQ(reason, code);
        CHECK_EQ(reason.number, error);
        CHECK_EQ(stub.count("subscribers") + stub.count("callbacks") + stub.count("kinds"), 0);
        CHECK_EQ(folder.files(".gpu").size(), 0u);
        stub.set(function, 0);
    }
    CHECK_EQ(Collector::instance().start(patient()).reason, ReasonCode::none);
    CHECK_EQ(Collector::instance().start(patient()).reason, ReasonCode::already_on);
    Collector::instance().stop();
    set_driver(1, 12040);
    CHECK_EQ(Collector::instance().start(patient()).reason, ReasonCode::cupti_newer_than_driver);
    set_driver(1);
    setenv("GPUPROF_CUPTI_LIBRARY", "/nowhere/libcupti.so", 1);
    CHECK_EQ(Collector::instance().start(patient()).reason, ReasonCode::named_library_not_loaded);
    Recorder::instance().stop();
}

TEST(versions_that_are_not_known) {
    Stub& stub = fresh_stub();
    const TemporaryFolder folder;
    start(folder);
    stub.set("version", 990000);
    set_driver(1, 99000);
    const Started newer = Collector::instance().start(patient());
    CHECK_EQ(newer.reason, ReasonCode::none);
    CHECK(newer.version_is_unknown);
    CHECK_EQ(newer.version, 990000u);
    const Times times;
    for (std::uint32_t i = 0; i < 3; ++i) stub.launch(i, "kernel", times.start, times.end);
    CHECK_EQ(Collector::instance().stop().counts.kernels, 3u);
    stub.set("version", 17);
    CHECK_EQ(Collector::instance().start(patient()).reason, ReasonCode::cupti_too_old);

    setenv("GPUPROF_CUPTI_LIBRARY", STUB_CUPTI_PLAIN, 1);
    const auto set_plain = function_of<void (*)(const char*, long long)>(STUB_CUPTI_PLAIN, "stub_set");
    set_plain("version", 990000);
    CHECK_EQ(Collector::instance().start(patient()).reason, ReasonCode::cupti_unknown_version);
    set_plain("version", 130401);
    CHECK_EQ(Collector::instance().start(patient()).reason, ReasonCode::none);
    const auto launch = function_of<void (*)(std::uint32_t, const char*, long long, long long)>(
        STUB_CUPTI_PLAIN, "stub_launch");
    for (std::uint32_t i = 0; i < 3; ++i) launch(i, "kernel", times.start, monotonic_ns() + 1000);
    CHECK_EQ(Collector::instance().stop().counts.kernels, 3u);
    Recorder::instance().stop();
}

TEST(drops_are_counted) {
    Stub& stub = fresh_stub();
    const TemporaryFolder folder;
    start(folder);
    Collector::instance().start(patient());
    stub.set("dropped", 5);
    std::vector<std::uint8_t*> taken;
    for (std::uint8_t* buffer = stub.request(); buffer != nullptr; buffer = stub.request())
        taken.push_back(buffer);
    CHECK_EQ(taken.size(), cupti::most_buffers);
    const Times times;
    stub.launch(1, "kernel", times.start, times.end);
    for (std::uint8_t* buffer : taken) stub.complete(buffer, 0);
    const GpuTotals totals = Collector::instance().stop();
    Recorder::instance().stop();
    CHECK_EQ(totals.dropped, 6u);
    CHECK_EQ(totals.counts.kernels, 0u);
    CHECK_EQ(totals.held_buffers, 0u);
}

TEST(buffers_that_are_not_ours_or_not_held_are_left_alone) {
    Stub& stub = fresh_stub();
    const TemporaryFolder folder;
    start(folder);
    Collector::instance().start(patient());
    std::vector<std::uint8_t> other(4096);
    stub.complete(other.data(), other.size());
    std::uint8_t* const buffer = stub.request();
    stub.complete(buffer + 8, 100);
    stub.complete(buffer, 0);
    stub.complete(buffer, 4096);
    CHECK_EQ(Collector::instance().stop().counts.truncated, 0u);
    Recorder::instance().stop();
}

TEST(work_that_ends_late_is_waited_for_without_force) {
    Stub& stub = fresh_stub();
    const TemporaryFolder folder;
    start(folder);
    Collector::instance().start(patient());
    const Times times;
    stub.launch(1, "kernel", times.start, times.end);
    stub.set("running_flushes", 4);
    CHECK_EQ(Collector::instance().stop().counts.kernels, 1u);
    CHECK_EQ(stub.count("flush"), 5);
    CHECK_EQ(stub.count("forced flush"), 0);
    Recorder::instance().stop();
}

TEST(work_that_does_not_end_is_forced_out_and_counted) {
    Stub& stub = fresh_stub();
    const TemporaryFolder folder;
    start(folder);
    Collector::instance().start(impatient());
    const Times times;
    stub.launch(1, "kernel", times.start, 0);
    stub.launch(2, "kernel", 0, 0);
    stub.launch(3, "kernel", times.start, times.end);
    stub.set("running_flushes", 1'000'000);
    const GpuTotals totals = Collector::instance().stop();
    Recorder::instance().stop();
    CHECK_EQ(stub.count("forced flush"), 1);
    CHECK_EQ(totals.counts.unfinished, 2u);
    CHECK_EQ(totals.counts.kernels, 1u);
    CHECK_EQ(read_gpu_file(folder).records.size(), 1u);
}

TEST(a_flush_that_fails_is_reported_once) {
    Stub& stub = fresh_stub();
    const TemporaryFolder folder;
    start(folder);
    Collector::instance().start(patient());
    stub.set("flush", 9);
    CHECK_EQ(Collector::instance().stop().problem, ReasonCode::cupti_gpu_lost);
    Recorder::instance().stop();
}

TEST(a_device_that_is_lost_in_a_flush_is_not_waited_for) {
    Stub& stub = fresh_stub();
    const TemporaryFolder folder;
    start(folder);
    Collector::instance().start(patient());
    const Times times;
    stub.launch(1, "kernel", times.start, 0);
    stub.set("running_flushes", 1'000'000);
    stub.set("flush", 9);
    stub.set("forced flush", 9);
    const GpuTotals totals = Collector::instance().stop();
    CHECK_EQ(totals.problem, ReasonCode::cupti_gpu_lost);
    CHECK_EQ(totals.counts.kernels, 0u);
    Recorder::instance().stop();
}

TEST(an_empty_buffer_that_cupti_keeps_is_not_waited_for) {
    Stub& stub = fresh_stub();
    const TemporaryFolder folder;
    start(folder);
    stub.set("keeps_empty_buffer", 1);
    Collector::instance().start(patient());
    const Times times;
    stub.launch(1, "kernel", times.start, times.end);
    const GpuTotals totals = Collector::instance().stop();
    CHECK_EQ(totals.counts.kernels, 1u);
    CHECK_EQ(totals.held_buffers, 0u);
    CHECK_EQ(stub.count("flush"), 1);
    CHECK_EQ(stub.count("forced flush"), 1);
    Recorder::instance().stop();
}

namespace {

// What became of a launch right after the start, and of one after `change`, as far as it is in the file.
struct TwoLaunches {
    GpuTotals totals;
    std::vector<GpuRecord> records;
    Times first, second;
};

TwoLaunches launch_around(Stub& stub, const std::function<void()>& change) {
    TwoLaunches result;
    const TemporaryFolder folder;
    start(folder);
    CollectorOptions options = patient();
    options.flush_period = milliseconds(2);
    CHECK_EQ(Collector::instance().start(options).reason, ReasonCode::none);
    result.first = Times{};
    stub.launch(1, "kernel", result.first.start, result.first.end);
    wait_until([&] { return stub.count("flush") >= 3; });
    change();
    const long long flushes = stub.count("flush");
    wait_until([&] { return stub.count("flush") >= flushes + 2; });
    result.second = Times{};
    stub.launch(2, "kernel", result.second.start, result.second.end);
    result.totals = Collector::instance().stop();
    Recorder::instance().stop();
    result.records = read_gpu_file(folder).records;
    return result;
}

void check_right_times(const TwoLaunches& launches) {
    CHECK_EQ(launches.totals.outside + launches.records.size(), 2u);
    for (const GpuRecord& record : launches.records) {
        const Times& expected = record.correlation_id == 1 ? launches.first : launches.second;
        CHECK(is_near(record.start_ns, expected.start));
        CHECK(is_near(record.end_ns, expected.end));
    }
}

}  // namespace

TEST(clocks_of_another_offset_and_rate_give_right_times) {
    const std::pair<long long, long long> clocks[] = {
        {0, 5'000'000'000'000}, {2500, 0}, {2500, 77}, {400, 9'000'000'000}};
    for (const auto& [permille, ahead] : clocks) {
        Stub& stub = fresh_stub();
        stub.set("clock_permille", permille);
        stub.set("clock_ahead_ns", ahead);
        const TwoLaunches launches = launch_around(stub, [] {});
        CHECK(launches.totals.clock == cupti::ClockState::steady);
        CHECK(launches.totals.clock_error_ns < cupti::ClockCalibration::largest_error_ns);
        CHECK_EQ(launches.records.size(), 2u);
        check_right_times(launches);
        CHECK_EQ(stub.count("cuptiActivityRegisterTimestampCallback"), 0);
    }
}

TEST(a_clock_that_another_tool_replaces_in_the_middle_is_noticed) {
    Stub& stub = fresh_stub();
    const TwoLaunches launches = launch_around(stub, [&] { stub.set("clock_permille", 2500); });
    CHECK(launches.totals.clock == cupti::ClockState::changed);
    check_right_times(launches);
}

TEST(a_clock_that_jumps_is_noticed) {
    for (const long long jump_ns : {1'000'000LL, 3'600'000'000'000LL, -2'000'000'000LL}) {
        Stub& stub = fresh_stub();
        const TwoLaunches launches = launch_around(stub, [&] { stub.set("clock_ahead_ns", jump_ns); });
        CHECK(launches.totals.clock == cupti::ClockState::changed);
    }
}

TEST(a_stopped_clock_gives_no_times) {
    Stub& stub = fresh_stub();
    stub.set("clock_stopped_at", 4711);
    const TwoLaunches launches = launch_around(stub, [] {});
    CHECK(launches.totals.clock == cupti::ClockState::stopped);
    CHECK_EQ(launches.records.size(), 0u);
    CHECK_EQ(launches.totals.outside, 2u);
}

TEST(a_clock_that_cannot_be_read_gives_no_times) {
    Stub& stub = fresh_stub();
    stub.set("cuptiGetTimestamp", 15);
    const TwoLaunches launches = launch_around(stub, [] {});
    CHECK(launches.totals.clock == cupti::ClockState::unreadable);
    CHECK(!launches.totals.clock_error_ns.has_value());
    CHECK_EQ(launches.totals.outside, 2u);
}

TEST(times_before_and_outside_the_recording_are_left_out) {
    Stub& stub = fresh_stub();
    const TemporaryFolder folder;
    start(folder);
    Collector::instance().start(patient());
    const Times times;
    constexpr long long second_ns = 1'000'000'000;
    stub.launch(1, "kernel", times.start, times.end);
    stub.launch(2, "just before it", times.start - second_ns / 2, times.end - second_ns / 2);
    stub.launch(3, "long before it", times.start - 2 * second_ns, times.end - 2 * second_ns);
    stub.launch(4, "after it", times.start + 2 * second_ns, times.end + 2 * second_ns);
    const GpuTotals totals = Collector::instance().stop();
    Recorder::instance().stop();
    CHECK_EQ(totals.counts.kernels, 1u);
    CHECK_EQ(totals.stale, 1u);
    CHECK_EQ(totals.outside, 2u);
    REQUIRE(read_gpu_file(folder).records.size() == 1);
}

TEST(two_hundred_threads_that_launch_lose_nothing) {
    constexpr unsigned threads = 200;
    constexpr std::uint32_t launches = 5;
    // With the attribute and without: then CUPTI keeps a buffer for each thread.
    for (const long long error : {0, 999}) {
        Stub& stub = fresh_stub();
        stub.set("cuptiActivitySetAttribute", error);
        const TemporaryFolder folder;
        start(folder);
        CHECK_EQ(Collector::instance().start(patient()).reason, ReasonCode::none);
        CHECK_EQ(stub.count("per thread"), error == 0 ? 0 : 1);
        const Times times;
        run_in_threads(threads, [&](unsigned i) {
            for (std::uint32_t j = 0; j < launches; ++j)
                stub.launch(i * launches + j, "kernel", times.start, times.end);
        });
        const GpuTotals totals = Collector::instance().stop();
        Recorder::instance().stop();
        CHECK_EQ(totals.counts.kernels, threads * launches);
        CHECK_EQ(totals.dropped, 0u);
        CHECK_EQ(read_gpu_file(folder).records.size(), threads * launches);
    }
}

TEST(buffers_come_zeroed_and_the_setting_is_taken_back) {
    Stub& stub = fresh_stub();
    const TemporaryFolder folder;
    start(folder);
    CollectorOptions options = patient();
    options.flush_period = milliseconds(1);
    CHECK_EQ(Collector::instance().start(options).reason, ReasonCode::none);
    CHECK_EQ(stub.count("zeroed"), 1);
    for (std::uint32_t i = 0; i < 20; ++i) {
        const Times times;
        stub.launch(i, "kernel", times.start, times.end);
        const long long flushes = stub.count("flush");
        wait_until([&] { return stub.count("flush") > flushes; });
    }
    CHECK_EQ(Collector::instance().stop().counts.kernels, 20u);
    Recorder::instance().stop();
    CHECK_EQ(stub.count("zeroed buffers"), 0);
    CHECK_EQ(stub.count("dirty bytes"), 0);
    CHECK_EQ(stub.count("zeroed"), 0);
}

TEST(where_another_tool_has_the_callbacks_records_of_calls_are_used) {
    for (const long long through_runtime : {0, 1})
        for (const long long no_choice : {0, 15}) {
            Stub& stub = fresh_stub();
            stub.set("cuptiSubscribe", 39);
            stub.set("through_runtime", through_runtime);
            stub.set("cuptiActivityEnableRuntimeApi", no_choice);
            const TemporaryFolder folder;
            start(folder);
            CollectorOptions options = patient();
            const Started refused = Collector::instance().start(options);
            CHECK_EQ(refused.reason, ReasonCode::cupti_taken);
            options.session.with_callbacks = false;
            const Started started = Collector::instance().start(options);
            CHECK_EQ(started.reason, ReasonCode::none);
            CHECK_EQ(started.session.chosen_calls, no_choice == 0);
            if (no_choice == 0) CHECK(stub.count("calls left out") > 0);
            CHECK_EQ(stub.count("thread id type"), 1);
            const Times times;
            std::uint32_t other_thread = 0;
            stub.launch(1, "kernel", times.start, times.end);
            run_in_threads(1, [&](unsigned) {
                other_thread = system_thread_id();
                stub.launch(2, "kernel", times.start, times.end);
            });
            const GpuTotals totals = Collector::instance().stop();
            Recorder::instance().stop();
            CHECK_EQ(totals.counts.kernels, 2u);
            CHECK_EQ(totals.counts.calls, 2u);
            CHECK_EQ(stub.count("subscribers") + stub.count("callbacks") + stub.count("kinds") +
                         stub.count("thread id type"),
                     0);
            for (const GpuRecord& record : read_gpu_file(folder).records) {
                if (record.kind != static_cast<std::uint32_t>(GpuRecordKind::call)) continue;
                CHECK_EQ(record.thread, record.correlation_id == 1 ? system_thread_id() : other_thread);
                CHECK(is_near(record.start_ns, times.start) || record.start_ns >= times.start);
            }
        }
}

TEST(calls_find_what_was_open_on_their_thread) {
    Stub& stub = fresh_stub();
    stub.set("cuptiSubscribe", 39);
    const TemporaryFolder folder;
    start(folder);
    CollectorOptions options = patient();
    options.session.with_callbacks = false;
    CHECK_EQ(Collector::instance().start(options).reason, ReasonCode::none);
    Recorder& recorder = Recorder::instance();
    const NameKey name = recorder.name_key(recorder.intern("step"));
    const Times times;
    recorder.emit(EventKind::span_begin, name);
    stub.launch(1, "kernel", times.start, times.end);
    recorder.emit(EventKind::span_end, name);
    stub.launch(2, "kernel", times.start, times.end);
    // A thread that records nothing else.
    run_in_threads(1, [&](unsigned) { stub.launch(3, "kernel", times.start, times.end); });
    Collector::instance().stop();
    recorder.stop();
    std::map<std::uint64_t, std::int64_t> spans;
    for (const Link& link : links_of(folder)) {
        spans[link.id] = link.span_id;
        CHECK(link.launch_end_ns >= link.launch_ns);
    }
    CHECK_EQ(spans.size(), 3u);
    CHECK(spans[1] >= 0);
    CHECK_EQ(spans[2], -1);
    CHECK_EQ(spans[3], -1);
}

TEST(a_graph_is_one_record_where_that_is_wanted) {
    for (const bool whole : {false, true}) {
        Stub& stub = fresh_stub();
        const TemporaryFolder folder;
        start(folder);
        CollectorOptions options = patient();
        options.session.whole_graphs = whole;
        const Started started = Collector::instance().start(options);
        CHECK_EQ(started.session.whole_graphs, whole);
        const Times times;
        for (std::uint64_t node = 1; node <= 5; ++node)
            stub.kernel(1, "kernel", times.start, times.end, node, 0);
        stub.graph(1, 9, times.start, times.end);
        stub.launch(2, "kernel", times.start, times.end);
        const GpuTotals totals = Collector::instance().stop();
        Recorder::instance().stop();
        CHECK_EQ(totals.counts.kernels, whole ? 1u : 6u);
        CHECK_EQ(totals.counts.graph_replays, whole ? 1u : 0u);
        CHECK_EQ(stub.count("kinds"), 0);
        for (const GpuRecord& record : read_gpu_file(folder).records)
            if (record.kind == static_cast<std::uint32_t>(GpuRecordKind::graph_replay)) {
                CHECK_EQ(record.graph_id, 9u);
                CHECK_EQ(record.correlation_id, 1u);
                CHECK(is_near(record.start_ns, times.start));
            }
    }
}

TEST(records_of_events_and_waits_for_them_carry_one_id) {
    for (const std::uint32_t version : {24u, 28u, 130001u}) {
        Stub& stub = fresh_stub();
        stub.set("version", version);
        const TemporaryFolder folder;
        start(folder);
        const Started started = Collector::instance().start(patient());
        const bool has_ids = version >= abi::first_version_with_event_ids;
        CHECK_EQ(started.session.event_records, has_ids);
        const Times times;
        stub.record_event(1, 7, 3, 0x100000005ull);
        stub.wait_event(2, 13, 3, 0x100000005ull, times.start, times.end);
        const GpuTotals totals = Collector::instance().stop();
        Recorder::instance().stop();
        CHECK_EQ(totals.counts.event_records, has_ids ? 1u : 0u);
        CHECK_EQ(totals.counts.synchronizations, 1u);
        CHECK_EQ(totals.counts.unfinished, 0u);
        for (const GpuRecord& record : read_gpu_file(folder).records) {
            CHECK_EQ(record.event_id, 3u);
            CHECK_EQ(record.event_sync_id, has_ids ? 0x100000005ull : 0u);
            const bool is_wait = record.kind == static_cast<std::uint32_t>(GpuRecordKind::synchronization);
            CHECK_EQ(record.stream, is_wait ? 13u : 7u);
        }
    }
}

TEST(what_an_older_cupti_lacks_is_left_out) {
    Stub& stub = fresh_stub();
    const TemporaryFolder folder;
    start(folder);
    stub.set("refused_kind", abi::graph_trace);
    CollectorOptions options = patient();
    options.session.whole_graphs = true;
    const Started started = Collector::instance().start(options);
    CHECK_EQ(started.reason, ReasonCode::none);
    CHECK(!started.session.whole_graphs);
    Collector::instance().stop();
    stub.set("refused_kind", abi::cuda_event);
    CHECK(!Collector::instance().start(patient()).session.event_records);
    Collector::instance().stop();
    CHECK_EQ(stub.count("kinds"), 0);
    Recorder::instance().stop();
}

TEST(launches_have_an_end) {
    Stub& stub = fresh_stub();
    const TemporaryFolder folder;
    start(folder);
    CHECK_EQ(Collector::instance().start(patient()).reason, ReasonCode::none);
    const Times times;
    for (std::uint32_t i = 1; i <= 100; ++i) stub.launch(i, "kernel", times.start, times.end);
    Collector::instance().stop();
    Recorder::instance().stop();
    // Also where batches are as small as can be.
    for (const std::size_t batch_rows : {1u, 7u, 1000u}) {
        const std::vector<Link> links = links_of(folder, batch_rows);
        CHECK_EQ(links.size(), 100u);
        for (const Link& link : links) CHECK(link.launch_end_ns >= link.launch_ns && link.launch_ns > 0);
    }
}

TEST(many_recordings_in_one_process) {
    Stub& stub = fresh_stub();
    for (std::uint32_t round = 1; round <= 30; ++round) {
        const TemporaryFolder folder;
        start(folder);
        CHECK_EQ(Collector::instance().start(patient()).reason, ReasonCode::none);
        const Times times;
        for (std::uint32_t i = 0; i < round; ++i) stub.launch(i, "kernel", times.start, times.end);
        CHECK_EQ(Collector::instance().stop().counts.kernels, round);
        CHECK_EQ(stub.count("subscribers") + stub.count("callbacks") + stub.count("kinds"), 0);
        Recorder::instance().stop();
        const GpuFileContent content = read_gpu_file(folder);
        REQUIRE(content.records.size() == round);
        CHECK_EQ(name_of(folder, content.records.back().name), "kernel");
    }
    CHECK_EQ(stub.count("cuptiActivityRegisterTimestampCallback"), 0);
}

TEST(twice_in_one_recording) {
    Stub& stub = fresh_stub();
    const TemporaryFolder folder;
    start(folder);
    for (int part = 0; part < 2; ++part) {
        Collector::instance().start(patient());
        const Times times;
        stub.launch(1, "kernel", times.start, times.end);
        Collector::instance().stop();
    }
    Recorder::instance().stop();
    CHECK_EQ(read_gpu_file(folder).records.size(), 2u);
}

TEST(threads_that_launch_while_it_starts_and_stops) {
    Stub& stub = fresh_stub();
    const TemporaryFolder folder;
    start(folder);
    std::atomic<bool> done{false};
    std::thread launching([&] {
        for (std::uint32_t i = 0; !done; ++i) {
            const Times times;
            stub.launch(i, "kernel", times.start, times.end);
        }
    });
    std::uint64_t kernels = 0;
    for (int round = 0; round < 10; ++round) {
        CollectorOptions options = patient();
        options.flush_period = milliseconds(1);
        CHECK_EQ(Collector::instance().start(options).reason, ReasonCode::none);
        kernels += Collector::instance().stop().counts.kernels;
    }
    done = true;
    launching.join();
    Recorder::instance().stop();
    CHECK_EQ(read_gpu_file(folder).records.size(), kernels);
}

TEST(a_forked_child_never_calls_cupti) {
    Stub& stub = fresh_stub();
    const TemporaryFolder folder;
    start(folder);
    Collector::instance().start(patient());
    const Times times;
    stub.launch(1, "kernel", times.start, times.end);
    const pid_t child = start_child([&] {
        const long long flushes = stub.count("flush");
        const long long enabled = stub.count("cuptiEnableCallback");
        CHECK_EQ(Collector::instance().start(patient()).reason, ReasonCode::forked);
        CHECK_EQ(Collector::instance().stop().counts.kernels, 0u);
        CHECK_EQ(stub.count("flush"), flushes);
        CHECK_EQ(stub.count("cuptiEnableCallback"), enabled);
        Recorder::instance().stop();
    });
    CHECK_EQ(wait_for(child), 0);
    CHECK_EQ(Collector::instance().stop().counts.kernels, 1u);
    Recorder::instance().stop();
    CHECK_EQ(read_gpu_file(folder).records.size(), 1u);
}

TEST(a_disk_that_is_full) {
    const TemporaryFolder folder;
    GpuFile file;
    file.open({folder / "1-2.gpu", 2});
    struct rlimit before{};
    getrlimit(RLIMIT_FSIZE, &before);
    std::signal(SIGXFSZ, SIG_IGN);
    const struct rlimit small{sizeof(GpuFileHead) + sizeof(GpuRecord), before.rlim_max};
    setrlimit(RLIMIT_FSIZE, &small);
    const std::vector<GpuRecord> one(1);
    CHECK(file.append(one));
    CHECK(!file.append(one));
    setrlimit(RLIMIT_FSIZE, &before);
    CHECK(!file.append(one));
    CHECK_EQ(file.error(), EFBIG);
}

TEST(kernel_names_are_as_people_write_them) {
    CHECK_EQ(cupti::readable_kernel_name("_Z4gemmIfEvPT_i"), "void gemm<float>(float*, int)");
    CHECK_EQ(cupti::readable_kernel_name("i"), "i");
    CHECK_EQ(cupti::readable_kernel_name("_Znot mangled"), "_Znot mangled");
    std::string text = "a";
    while (text.size() < 5000) text += "\xC3\xA9";
    const std::string cut = cupti::readable_kernel_name(text.c_str());
    CHECK_EQ(cut.size(), 4095u);
    CHECK_EQ(cut, text.substr(0, 4095));
}

// Last: after it, CUPTI is left alone in this process.
TEST(a_library_that_hangs_does_not_hang_the_program) {
    Stub& stub = fresh_stub();
    const TemporaryFolder folder;
    start(folder);
    CollectorOptions options = patient();
    options.longest_stop = milliseconds(50);
    Collector::instance().start(options);
    stub.set("hang", 1);
    CHECK_EQ(Collector::instance().stop().problem, ReasonCode::hung);
    CHECK_EQ(Collector::instance().start(patient()).reason, ReasonCode::stuck);
    Recorder::instance().stop();
    stub.set("hang", 0);
}

}  // namespace gpuprof::test
