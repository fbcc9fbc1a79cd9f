// SPDX-License-Identifier: Apache-2.0
// Hardware counters against stub libraries: the life cycle, and whose numbers are whose. A pass here
// is no evidence about a real GPU.
#include <dlfcn.h>

#include <cmath>
#include <cstdlib>

#include "cupti/counters_session.hpp"
#include "gpu_support.hpp"

namespace gpuprof::test {
namespace {

using cupti::CounterSession;
using cupti::CountersMeasured;
using cupti::CountersOpened;
using cupti::LaunchLog;

constexpr const char* dram = "dram__bytes.sum";
constexpr const char* tensor = "sm__ops_path_tensor_src_bf16_dst_fp32.sum";
constexpr std::uint32_t copy_call = 277, fill_call = 216, graph_launch = 514, launch_kernel = 307;

struct Stub {
    void (*reset)() = function_of<void (*)()>(STUB_CUPTI, "stub_reset");
    void (*set)(const char*, long long) = function_of<void (*)(const char*, long long)>(STUB_CUPTI,
                                                                                        "stub_set");
    long long (*count)(const char*) = function_of<long long (*)(const char*)>(STUB_CUPTI, "stub_count");
    void (*call)(std::uint32_t, const char*, void*,
                 int) = function_of<void (*)(std::uint32_t, const char*, void*, int)>(STUB_CUPTI,
                                                                                      "stub_driver_call");
    void (*launch)(const char*, void*) = function_of<void (*)(const char*, void*)>(STUB_CUPTI,
                                                                                   "stub_measured_launch");
    long long (*hosts)() = function_of<long long (*)()>(STUB_CUPTI, "stub_open_hosts");
};

void* context() {
    void* current = nullptr;
    function_of<int (*)(void**)>(STUB_CUDA, "cuCtxGetCurrent")(&current);
    return current;
}

// A driver that is in use, and a stub as new.
Stub& fresh_stub() {
    function_of<void (*)(int, int, int)>(STUB_CUDA, "stub_cuda_set")(1, 13000, 1);
    static Stub stub;
    CounterSession::instance().close();
    stub.reset();
    setenv("GPUPROF_CUPTI_LIBRARY", STUB_CUPTI, 1);
    return stub;
}

CountersOpened open(std::size_t most_kernels = 64) {
    return CounterSession::instance().open({}, {"bf16"}, most_kernels);
}

Reason open_and_begin(std::size_t most_kernels = 64) {
    const CountersOpened opened = open(most_kernels);
    return opened.reason ? opened.reason : CounterSession::instance().begin();
}

void launch_for(Stub& stub, std::int64_t number, const char* kernel) {
    LaunchLog::set_operator(number);
    stub.launch(kernel, context());
    LaunchLog::set_operator(cupti::no_operator);
}

const cupti::ChosenMetric& metric(const CountersOpened& opened, const std::string& name) {
    for (const cupti::ChosenMetric& each : opened.metrics)
        if (name == each.name) return each;
    throw std::runtime_error(name);
}

// Nothing of ours is left on: no subscriber, no host object, and the profiler can be had again.
void is_clean(Stub& stub) {
    CounterSession::instance().close();
    CHECK_EQ(stub.count("subscribers"), 0);
    CHECK_EQ(stub.hosts(), 0);
    CHECK_EQ(stub.count("cuptiProfilerInitialize"), stub.count("cuptiProfilerDeInitialize"));
    CHECK_EQ(stub.count("cuptiRangeProfilerEnable"), stub.count("cuptiRangeProfilerDisable"));
}

}  // namespace

TEST(without_a_driver_nothing_is_loaded) {
    setenv("GPUPROF_CUPTI_LIBRARY", STUB_CUPTI, 1);
    CHECK_EQ(open().reason, ReasonCode::cuda_not_in_use);
    CHECK(dlopen(STUB_CUPTI, RTLD_NOW | RTLD_NOLOAD) == nullptr);
    CHECK_EQ(CounterSession::instance().begin(), ReasonCode::counters_not_open);
}

TEST(each_kernel_has_its_values_and_its_operator) {
    Stub& stub = fresh_stub();
    stub.set("value dram__bytes.sum", 1000);
    const CountersOpened opened = open();
    CHECK_EQ(opened.reason, ReasonCode::none);
    CHECK_EQ(opened.chip, "STUB100");
    CHECK_EQ(opened.passes, 1u);
    CHECK_EQ(metric(opened, "dram_bytes").counter, std::string(dram));
    CHECK_EQ(metric(opened, "tensor_operations.bf16").counter, std::string(tensor));
    CHECK_EQ(CounterSession::instance().begin(), ReasonCode::none);
    launch_for(stub, 3, "_Z4gemmIfEvPT_i");
    stub.launch("outside of threads", context());
    run_in_threads(1, [&](unsigned) { launch_for(stub, 4, "copy"); });
    const CountersMeasured measured = CounterSession::instance().end();
    CHECK_EQ(measured.reason, ReasonCode::none);
    REQUIRE(measured.kernels.size() == 3);
    CHECK_EQ(measured.kernels[0].operator_number, 3);
    CHECK_EQ(measured.kernels[0].name, "void gemm<float>(float*, int)");
    CHECK_EQ(measured.kernels[0].values.at(0), 1000.0);
    CHECK_EQ(measured.kernels[1].operator_number, cupti::no_operator);
    CHECK_EQ(measured.kernels[2].operator_number, 4);
    CHECK_EQ(measured.kernels[2].values.at(0), 1002.0);
    CHECK(measured.incomplete.empty());
    is_clean(stub);
}

TEST(newer_versions_are_asked_for_counters_of_the_whole_device) {
    Stub& stub = fresh_stub();
    stub.set("version", 130200);
    CHECK_EQ(open().reason, ReasonCode::none);
    is_clean(stub);
}

TEST(ranges_are_in_the_order_of_their_names) {
    Stub& stub = fresh_stub();
    stub.set("value dram__bytes.sum", 10);
    stub.set("names reversed", 1);
    CHECK_EQ(open_and_begin(), ReasonCode::none);
    launch_for(stub, 0, "first");
    launch_for(stub, 1, "second");
    const CountersMeasured measured = CounterSession::instance().end();
    REQUIRE(measured.kernels.size() == 2);
    CHECK_EQ(measured.kernels[0].values.at(0), 11.0);
    CHECK_EQ(measured.kernels[1].values.at(0), 10.0);
}

TEST(several_measurements_after_each_other) {
    Stub& stub = fresh_stub();
    CHECK_EQ(open().reason, ReasonCode::none);
    for (int number = 0; number < 3; ++number) {
        CHECK_EQ(CounterSession::instance().begin(), ReasonCode::none);
        launch_for(stub, number, "kernel");
        const CountersMeasured measured = CounterSession::instance().end();
        REQUIRE(measured.kernels.size() == 1);
        CHECK_EQ(measured.kernels[0].operator_number, number);
    }
    is_clean(stub);
}

TEST(a_metric_without_a_value_has_none) {
    Stub& stub = fresh_stub();
    stub.set("none dram__bytes.sum", 1);
    stub.set("value gpu__time_duration.sum", 7);
    CHECK_EQ(open_and_begin(), ReasonCode::none);
    launch_for(stub, 0, "kernel");
    CountersMeasured measured = CounterSession::instance().end();
    REQUIRE(measured.kernels.size() == 1);
    CHECK(std::isnan(measured.kernels[0].values.at(0)));
    CHECK_EQ(measured.kernels[0].values.at(1), 7.0);
    CHECK_EQ(CounterSession::instance().begin(), ReasonCode::none);
    launch_for(stub, 0, "kernel");
    stub.set("cuptiProfilerHostEvaluateToGpuValues", 999);
    measured = CounterSession::instance().end();
    REQUIRE(measured.kernels.size() == 1);
    CHECK(std::isnan(measured.kernels[0].values.at(1)));
    is_clean(stub);
}

TEST(counters_that_a_chip_lacks_or_that_need_a_second_pass_are_left_out) {
    Stub& stub = fresh_stub();
    stub.set("missing dram__bytes.sum", 1);
    stub.set("passes sm__ops_path_tensor_src_bf16_dst_fp32.sum", 2);
    const CountersOpened opened = open();
    CHECK_EQ(opened.reason, ReasonCode::none);
    CHECK_EQ(opened.passes, 1u);
    CHECK(metric(opened, "dram_bytes").counter == nullptr);
    CHECK(metric(opened, "tensor_operations.bf16").counter == nullptr);
    CHECK_EQ(metric(opened, "l2_bytes").counter, std::string("lts__t_bytes.sum"));
}

TEST(without_permission_there_is_one_line) {
    for (const char* function : {"cuptiProfilerGetCounterAvailability", "cuptiRangeProfilerStart"}) {
        Stub& stub = fresh_stub();
        stub.set(function, 35);
        const Reason reason = open_and_begin();
        CHECK_EQ(reason, ReasonCode::counters_no_permission);
        CHECK_EQ(reason.number, 35);
        is_clean(stub);
    }
}

TEST(another_profiler_is_named_as_the_cause) {
    for (const long long error : {26, 36, 39}) {
        Stub& stub = fresh_stub();
        stub.set("cuptiRangeProfilerEnable", error);
        CHECK_EQ(open_and_begin(), ReasonCode::counters_taken);
        CounterSession::instance().close();
        CHECK_EQ(stub.count("subscribers"), 0);
    }
    Stub& stub = fresh_stub();
    stub.set("cuptiSubscribe", 39);
    CHECK_EQ(open_and_begin(), ReasonCode::counters_taken);
    is_clean(stub);
}

TEST(devices_without_counters_are_reported) {
    Stub& stub = fresh_stub();
    stub.set("support", cupti::abi::unsupported);
    stub.set("virtual GPU", cupti::abi::disabled);
    CHECK_EQ(open().reason, ReasonCode::counters_switched_off);
    stub.set("virtual GPU", 0);
    stub.set("architecture", cupti::abi::unsupported);
    CHECK_EQ(open().reason, ReasonCode::counters_unsupported);
    stub.set("support", 0);
    stub.set("cuptiProfilerHostInitialize", 46);
    CHECK_EQ(open().reason, ReasonCode::counters_chip_unknown);
    is_clean(stub);
}

TEST(a_failure_at_any_step_is_a_line_that_names_it) {
    for (const char* function :
         {"cuptiProfilerInitialize", "cuptiDeviceGetChipName", "cuptiProfilerGetCounterAvailability",
          "cuptiProfilerHostConfigAddMetrics", "cuptiRangeProfilerEnable",
          "cuptiRangeProfilerGetCounterDataSize", "cuptiRangeProfilerCounterDataImageInitialize",
          "cuptiRangeProfilerSetConfig", "cuptiRangeProfilerStart"}) {
        Stub& stub = fresh_stub();
        stub.set(function, 999);
        const Reason reason = open_and_begin();
        CHECK(reason);
        if (std::string(function) != "cuptiProfilerHostConfigAddMetrics") CHECK_EQ(reason.detail, function);
        CounterSession::instance().close();
        CHECK_EQ(stub.count("subscribers"), 0);
        CHECK_EQ(stub.hosts(), 0);
    }
    for (const char* function : {"cuptiRangeProfilerStop", "cuptiRangeProfilerDecodeData"}) {
        Stub& stub = fresh_stub();
        CHECK_EQ(open_and_begin(), ReasonCode::none);
        launch_for(stub, 0, "kernel");
        stub.set(function, 999);
        const CountersMeasured measured = CounterSession::instance().end();
        CHECK_EQ(measured.reason.detail, function);
        CHECK(measured.kernels.empty());
        is_clean(stub);
    }
}

TEST(kernels_that_the_image_has_no_room_for_leave_their_operators_incomplete) {
    Stub& stub = fresh_stub();
    CHECK_EQ(open_and_begin(2), ReasonCode::none);
    for (int number = 0; number < 4; ++number) launch_for(stub, number, "kernel");
    const CountersMeasured measured = CounterSession::instance().end();
    CHECK_EQ(measured.reason, ReasonCode::none);
    CHECK_EQ(measured.kernels.size(), 2u);
    CHECK(measured.incomplete == (std::vector<std::int64_t>{2, 3}));
}

TEST(an_image_that_would_be_too_large_has_fewer_ranges) {
    Stub& stub = fresh_stub();
    stub.set("bytes of a range", 1 << 20);
    CHECK_EQ(open_and_begin(1024), ReasonCode::none);
    CHECK_EQ(stub.count("cuptiRangeProfilerGetCounterDataSize"), 4);  // 1024, 512, 256, 128
    CounterSession::instance().end();
    is_clean(stub);
}

TEST(copies_are_no_ranges_and_leave_their_operators_incomplete) {
    Stub& stub = fresh_stub();
    CHECK_EQ(open_and_begin(), ReasonCode::none);
    launch_for(stub, 0, "kernel");
    LaunchLog::set_operator(1);
    stub.call(copy_call, nullptr, context(), 0);
    LaunchLog::set_operator(2);
    stub.call(fill_call, nullptr, context(), 0);
    launch_for(stub, 2, "kernel");
    const CountersMeasured measured = CounterSession::instance().end();
    CHECK_EQ(measured.reason, ReasonCode::none);
    CHECK_EQ(measured.kernels.size(), 2u);
    CHECK(measured.incomplete == std::vector<std::int64_t>{1});
}

TEST(kernels_that_failed_and_those_of_other_contexts_are_no_ranges) {
    Stub& stub = fresh_stub();
    CHECK_EQ(open_and_begin(), ReasonCode::none);
    int other = 0;
    LaunchLog::set_operator(1);
    stub.call(launch_kernel, "refused", context(), 1);
    stub.launch("elsewhere", &other);
    launch_for(stub, 2, "kernel");
    const CountersMeasured measured = CounterSession::instance().end();
    CHECK_EQ(measured.reason, ReasonCode::none);
    REQUIRE(measured.kernels.size() == 1);
    CHECK_EQ(measured.kernels[0].operator_number, 2);
}

TEST(ambiguous_kernels_are_not_matched) {
    Stub& stub = fresh_stub();
    stub.set("extra ranges", 1);
    CHECK_EQ(open_and_begin(), ReasonCode::none);
    launch_for(stub, 0, "kernel");
    CountersMeasured measured = CounterSession::instance().end();
    CHECK_EQ(measured.reason, ReasonCode::kernels_unmatched);
    CHECK(measured.kernels.empty());
    stub.set("extra ranges", 0);
    CHECK_EQ(CounterSession::instance().begin(), ReasonCode::none);
    stub.call(graph_launch, nullptr, context(), 0);
    measured = CounterSession::instance().end();
    CHECK_EQ(measured.reason, ReasonCode::graphs_unmatched);
    is_clean(stub);
}

TEST(more_launches_than_can_be_noted) {
    Stub& stub = fresh_stub();
    CHECK_EQ(open_and_begin(1), ReasonCode::none);
    for (int number = 0; number < 6; ++number) launch_for(stub, number, "kernel");
    const CountersMeasured measured = CounterSession::instance().end();
    CHECK_EQ(measured.reason, ReasonCode::too_many_launches);
    CHECK(measured.kernels.empty());
}

}  // namespace gpuprof::test
