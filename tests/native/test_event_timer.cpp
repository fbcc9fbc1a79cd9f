// SPDX-License-Identifier: Apache-2.0
// Layers timed by CUDA events, against a stub of the driver whose clock the tests move. A pass here is
// no evidence about a real GPU.
#include <sys/resource.h>

#include <csignal>
#include <cstdlib>

#include "cuda/event_timer.hpp"
#include "gpu_support.hpp"

namespace gpuprof::test {
namespace {

using cuda::EventTimer;
using cuda::OpenLayer;
using cuda::TimerOptions;
using cuda::TimerTotals;
using std::chrono::milliseconds;

struct Stub {
    void (*set)(int, int, int) = function_of<void (*)(int, int, int)>(STUB_CUDA, "stub_cuda_set");
    void (*reset)() = function_of<void (*)()>(STUB_CUDA, "stub_cuda_reset");
    void (*setting)(const char*,
                    long long) = function_of<void (*)(const char*, long long)>(STUB_CUDA,
                                                                               "stub_cuda_setting");
    long long (*count)(const char*) = function_of<long long (*)(const char*)>(STUB_CUDA, "stub_cuda_count");
    void (*work)(void*, long long) = function_of<void (*)(void*, long long)>(STUB_CUDA, "stub_cuda_work");
    void (*advance)(long long) = function_of<void (*)(long long)>(STUB_CUDA, "stub_cuda_advance");
    void (*capture)(void*, int) = function_of<void (*)(void*, int)>(STUB_CUDA, "stub_cuda_capture");
    void (*context)(void*, long long) = function_of<void (*)(void*, long long)>(STUB_CUDA,
                                                                                "stub_cuda_context");
};

Stub& fresh_stub() {
    static Stub stub;
    stub.set(1, 13000, 1);
    stub.reset();
    return stub;
}

void* const main_stream = nullptr;
void* const side_stream = reinterpret_cast<void*>(0x51);

// The thread that reads comes round only at a stop.
TimerOptions patient() {
    TimerOptions options;
    options.period = options.longest_start = options.longest_wait = milliseconds(60'000);
    return options;
}

TimerOptions eager() {
    TimerOptions options = patient();
    options.period = milliseconds(1);
    return options;
}

TimerOptions impatient() {
    TimerOptions options = patient();
    options.longest_wait = milliseconds(20);
    return options;
}

void start_timer(const TimerOptions& options) {
    CHECK_EQ(EventTimer::instance().start(options), ReasonCode::none);
}

class Layer {
  public:
    explicit Layer(void* stream = main_stream) : stream_(stream) {
        EventTimer::instance().begin(open_, stream, 0);
    }
    Layer(const Layer&) = delete;
    Layer& operator=(const Layer&) = delete;
    ~Layer() { EventTimer::instance().end(open_, stream_); }
    bool is_timed() const { return open_.pair != nullptr; }

  private:
    void* stream_;
    OpenLayer open_;
};

long long duration(const GpuRecord& record) {
    return record.end_ns - record.start_ns;
}

}  // namespace

TEST(without_a_driver_in_use_nothing_is_timed) {
    const TemporaryFolder folder;
    start(folder);
    CHECK_EQ(EventTimer::instance().start(patient()), ReasonCode::cuda_not_in_use);
    const Stub& stub = fresh_stub();
    stub.set(0, 13000, 1);
    CHECK_EQ(EventTimer::instance().start(patient()), ReasonCode::cuda_not_initialized);
    CHECK(!EventTimer::is_on());
    CHECK_EQ(EventTimer::instance().stop().layers, 0u);
    Recorder::instance().stop();
    CHECK_EQ(folder.files(".gpu").size(), 0u);
}

TEST(a_driver_that_makes_no_events_is_the_reason) {
    const Stub& stub = fresh_stub();
    const TemporaryFolder folder;
    start(folder);
    stub.setting("cuEventCreate", 2);
    CHECK_EQ(EventTimer::instance().start(patient()), ReasonCode::driver_error_ended_timing);
    CHECK(!EventTimer::is_on());
    CHECK_EQ(folder.files(".gpu").size(), 0u);
    stub.setting("cuEventCreate", 0);
    start_timer(patient());
    CHECK_EQ(EventTimer::instance().start(patient()), ReasonCode::already_on);
    EventTimer::instance().stop();
    Recorder::instance().stop();
}

TEST(nested_layers_have_their_times_and_the_layer_around_them) {
    const Stub& stub = fresh_stub();
    const TemporaryFolder folder;
    start(folder);
    start_timer(patient());
    {
        const Layer outer;
        stub.work(main_stream, 1'000'000);
        {
            const Layer inner;
            stub.work(main_stream, 2'000'000);
        }
        {
            const Layer inner;
            stub.work(main_stream, 4'000'000);
        }
    }
    const TimerTotals totals = EventTimer::instance().stop();
    Recorder::instance().stop();
    CHECK_EQ(totals.layers, 3u);
    CHECK_EQ(totals.untimed + totals.captured + totals.unfinished + totals.lost_records, 0u);
    CHECK_EQ(totals.problem, ReasonCode::none);
    CHECK(totals.clock_error_ns.has_value() && *totals.clock_error_ns >= 0);
    const std::vector<GpuRecord> records = read_gpu_file(folder).records;
    REQUIRE(records.size() == 3);
    const GpuRecord& outer = records[2];
    CHECK_EQ(duration(records[0]), 2'000'000);
    CHECK_EQ(duration(records[1]), 4'000'000);
    CHECK_EQ(duration(outer), 7'000'000);
    CHECK_EQ(records[0].start_ns - outer.start_ns, 1'000'000);
    CHECK_EQ(records[1].start_ns - outer.start_ns, 3'000'000);
    CHECK_EQ(records[0].detail, outer.correlation_id);
    CHECK_EQ(records[1].detail, outer.correlation_id);
    CHECK_EQ(outer.detail, unknown_u32);
    for (const GpuRecord& record : records) {
        CHECK_EQ(record.kind, 5u);
        CHECK(record.correlation_id >> 31 == 1);
        CHECK_EQ(record.device, 0u);
        CHECK_EQ(record.stream, 0u);
        CHECK_EQ(record.graph_id, unknown_u32);
    }
    const std::vector<Event> launches = gpu_events(folder);
    REQUIRE(launches.size() == 3);
    CHECK_EQ(launches[0].name, outer.correlation_id);
    CHECK_EQ(launches[1].name, records[0].correlation_id);
    CHECK_EQ(stub.count("events"), 0);
    CHECK_EQ(stub.count("streams"), 0);
    CHECK_EQ(decode_folder(folder()).run.totals.damaged_events, 0u);
}

TEST(a_layer_is_inside_those_of_its_own_stream_only) {
    const Stub& stub = fresh_stub();
    const TemporaryFolder folder;
    start(folder);
    start_timer(patient());
    {
        const Layer outer(main_stream);
        const Layer beside(side_stream);
        const Layer inner(main_stream);
        stub.work(main_stream, 5'000'000);
        stub.work(side_stream, 3'000'000);
    }
    CHECK_EQ(EventTimer::instance().stop().layers, 3u);
    Recorder::instance().stop();
    const std::vector<GpuRecord> records = read_gpu_file(folder).records;
    REQUIRE(records.size() == 3);
    CHECK_EQ(records[0].detail, records[2].correlation_id);
    CHECK_EQ(records[1].detail, unknown_u32);
    CHECK_EQ(duration(records[1]), 3'000'000);
    CHECK(records[1].stream != records[0].stream);
}

TEST(what_ends_early_on_one_stream_does_not_wait_for_another) {
    const Stub& stub = fresh_stub();
    const TemporaryFolder folder;
    start(folder);
    stub.setting("running", 1);
    start_timer(impatient());
    {
        const Layer slow(main_stream);
        stub.work(main_stream, 1'000'000'000);
    }
    {
        const Layer fast(side_stream);
    }
    const TimerTotals totals = EventTimer::instance().stop();
    Recorder::instance().stop();
    CHECK_EQ(totals.layers, 1u);
    CHECK_EQ(totals.unfinished, 1u);
    CHECK_EQ(stub.count("events"), 0);
}

TEST(an_empty_pool_times_nothing_and_grows) {
    const Stub& stub = fresh_stub();
    const TemporaryFolder folder;
    start(folder);
    stub.setting("running", 1);
    stub.work(main_stream, 1'000'000);
    start_timer(patient());
    for (unsigned i = 0; i < cuda::block_pairs + 3; ++i) const Layer layer;
    stub.advance(2'000'000);
    const TimerTotals totals = EventTimer::instance().stop();
    CHECK_EQ(totals.layers, cuda::block_pairs);
    CHECK_EQ(totals.untimed, 3u);

    stub.work(main_stream, 1'000'000);
    start_timer(eager());
    for (unsigned i = 0; i < cuda::block_pairs; ++i) const Layer layer;
    wait_until([&] { return stub.count("events") > 4 * cuda::block_pairs; });
    wait_until([] { return Layer().is_timed(); });
    stub.advance(2'000'000);
    CHECK(EventTimer::instance().stop().layers > cuda::block_pairs);
    Recorder::instance().stop();
}

TEST(pairs_are_used_again) {
    const Stub& stub = fresh_stub();
    const TemporaryFolder folder;
    start(folder);
    start_timer(eager());
    const unsigned count = 5 * cuda::block_pairs;
    for (unsigned i = 0; i < count; ++i) wait_until([] { return Layer().is_timed(); });
    const TimerTotals totals = EventTimer::instance().stop();
    Recorder::instance().stop();
    CHECK_EQ(totals.layers, count);
    CHECK_EQ(read_gpu_file(folder).records.size(), count);
    CHECK_EQ(stub.count("events"), 0);
}

TEST(nothing_is_recorded_on_a_stream_under_capture) {
    const Stub& stub = fresh_stub();
    const TemporaryFolder folder;
    start(folder);
    start_timer(eager());
    {
        const Layer around(main_stream);
        stub.capture(side_stream, 1);
        {
            const Layer captured(side_stream);
            CHECK(!captured.is_timed());
            const Layer on_main(main_stream);  // the driver does not report this stream meanwhile
            CHECK(!on_main.is_timed());
        }
        const long long rounds = stub.count("cuCtxSetCurrent");
        wait_until([&] { return stub.count("cuCtxSetCurrent") > rounds + 2; });
        stub.capture(side_stream, 0);
    }
    {
        const Layer layer(side_stream);
        stub.capture(side_stream, 1);
    }
    stub.capture(side_stream, 0);
    const TimerTotals totals = EventTimer::instance().stop();
    Recorder::instance().stop();
    CHECK_EQ(totals.layers, 1u);
    CHECK_EQ(totals.captured, 3u);
    CHECK_EQ(totals.unfinished + totals.untimed, 0u);
    CHECK_EQ(totals.problem, ReasonCode::none);
    CHECK_EQ(stub.count("captured events"), 0);
    CHECK_EQ(stub.count("spoilt captures"), 0);
}

TEST(a_layer_that_ends_on_another_stream_is_not_timed) {
    fresh_stub();
    const TemporaryFolder folder;
    start(folder);
    start_timer(patient());
    OpenLayer layer;
    EventTimer::instance().begin(layer, main_stream, 0);
    EventTimer::instance().end(layer, side_stream);
    EventTimer::instance().begin(layer, main_stream, 0);
    EventTimer::instance().abandon(layer);
    EventTimer::instance().leave_out();
    const TimerTotals totals = EventTimer::instance().stop();
    Recorder::instance().stop();
    CHECK_EQ(totals.layers + totals.unfinished, 0u);
    CHECK_EQ(totals.untimed, 3u);
}

TEST(an_error_that_stays_ends_the_timing_and_the_calls) {
    const Stub& stub = fresh_stub();
    const TemporaryFolder folder;
    start(folder);
    start_timer(patient());
    {
        const Layer layer;
        stub.setting("error", 700);
    }
    const long long calls = stub.count("calls");
    for (int i = 0; i < 3; ++i) CHECK(!Layer().is_timed());
    CHECK(!EventTimer::is_on());
    const TimerTotals totals = EventTimer::instance().stop();
    CHECK_EQ(stub.count("calls"), calls);
    CHECK_EQ(totals.problem, ReasonCode::driver_error_ended_timing);
    CHECK_EQ(totals.layers, 0u);
    Recorder::instance().stop();
}

TEST(an_error_that_the_reading_thread_meets_ends_the_timing) {
    const Stub& stub = fresh_stub();
    const TemporaryFolder folder;
    start(folder);
    start_timer(eager());
    stub.setting("cuEventQuery", 709);
    wait_until([] { return !Layer().is_timed(); });
    const TimerTotals totals = EventTimer::instance().stop();
    CHECK_EQ(totals.problem, ReasonCode::driver_error_ended_timing);
    CHECK(totals.unfinished > 0);
    Recorder::instance().stop();
}

TEST(a_stop_in_the_middle_of_a_layer) {
    const Stub& stub = fresh_stub();
    const TemporaryFolder folder;
    start(folder);
    start_timer(patient());
    {
        const Layer outer;
        {
            const Layer inner;
        }
        const TimerTotals totals = EventTimer::instance().stop();
        CHECK_EQ(totals.layers, 1u);
        CHECK_EQ(totals.unfinished, 1u);
        CHECK_EQ(stub.count("events"), 0);
        start_timer(patient());
        const Layer later;
        CHECK(later.is_timed());
    }
    CHECK_EQ(EventTimer::instance().stop().layers, 1u);
    Recorder::instance().stop();
    const std::vector<GpuRecord> records = read_gpu_file(folder).records;
    REQUIRE(records.size() == 2);
    CHECK_EQ(records[1].detail, unknown_u32);
    CHECK(records[0].correlation_id != records[1].correlation_id);
}

TEST(each_context_has_its_pool) {
    const Stub& stub = fresh_stub();
    const TemporaryFolder folder;
    start(folder);
    stub.context(side_stream, 2);
    start_timer(eager());
    wait_until([] { return Layer(side_stream).is_timed(); });
    {
        const Layer layer(main_stream);
        CHECK(layer.is_timed());
    }
    for (std::uintptr_t i = 0; i < 20; ++i) {
        void* const stream = reinterpret_cast<void*>(0x1000 + i);
        stub.context(stream, static_cast<long long>(10 + i));
        const Layer layer(stream);
    }
    const TimerTotals totals = EventTimer::instance().stop();
    Recorder::instance().stop();
    CHECK(totals.layers >= 2);
    CHECK(totals.untimed >= 20 - 14);
    CHECK_EQ(totals.problem, ReasonCode::none);
    CHECK_EQ(stub.count("events"), 0);
}

TEST(fresh_bases_keep_the_order) {
    const Stub& stub = fresh_stub();
    const TemporaryFolder folder;
    start(folder);
    TimerOptions options = eager();
    options.base_period = milliseconds(0);
    start_timer(options);
    for (int i = 0; i < 20; ++i) {
        const Layer layer;
        stub.work(main_stream, 1'000);
        wait_until(
            [&, first = stub.count("cuEventRecord")] { return stub.count("cuEventRecord") > first + 10; });
    }
    CHECK_EQ(EventTimer::instance().stop().layers, 20u);
    Recorder::instance().stop();
    const std::vector<GpuRecord> records = read_gpu_file(folder).records;
    for (const GpuRecord& record : records) CHECK_EQ(duration(record), 1'000);
    CHECK_EQ(stub.count("events"), 0);
}

TEST(threads_time_layers_while_recordings_come_and_go) {
    const Stub& stub = fresh_stub();
    const TemporaryFolder folder;
    start(folder);
    std::atomic<bool> done{false};
    std::uint64_t layers = 0;
    std::thread timing([&] {
        run_in_threads(3, [&](unsigned i) {
            void* const stream = reinterpret_cast<void*>(std::uintptr_t{0x100} + i);
            stub.context(stream, 1);
            while (!done) {
                const Layer outer(stream);
                const Layer inner(stream);
            }
        });
    });
    for (int round = 0; round < 10; ++round) {
        start_timer(eager());
        wait_until(
            [&, first = stub.count("cuEventRecord")] { return stub.count("cuEventRecord") > first + 100; });
        layers += EventTimer::instance().stop().layers;
    }
    done = true;
    timing.join();
    Recorder::instance().stop();
    CHECK(layers > 0);
    CHECK_EQ(read_gpu_file(folder).records.size(), layers);
    CHECK_EQ(stub.count("events"), 0);
}

TEST(a_forked_child_never_calls_the_driver) {
    const Stub& stub = fresh_stub();
    const TemporaryFolder folder;
    start(folder);
    start_timer(patient());
    {
        const Layer layer;
        const pid_t child = start_child([&] {
            const long long calls = stub.count("calls");
            CHECK(!EventTimer::is_on());
            const Layer inner;
            CHECK(!inner.is_timed());
            CHECK_EQ(EventTimer::instance().start(patient()), ReasonCode::forked);
            EventTimer::instance().stop();
            CHECK_EQ(stub.count("calls"), calls);
            Recorder::instance().stop();
        });
        CHECK_EQ(wait_for(child), 0);
    }
    CHECK_EQ(EventTimer::instance().stop().layers, 1u);
    Recorder::instance().stop();
}

TEST(a_disk_that_is_full) {
    fresh_stub();
    const TemporaryFolder folder;
    start(folder);
    start_timer(patient());
    for (int i = 0; i < 3; ++i) const Layer layer;
    struct rlimit before{};
    getrlimit(RLIMIT_FSIZE, &before);
    std::signal(SIGXFSZ, SIG_IGN);
    const struct rlimit small{sizeof(GpuFileHead) + sizeof(GpuRecord), before.rlim_max};
    setrlimit(RLIMIT_FSIZE, &small);
    const TimerTotals totals = EventTimer::instance().stop();
    setrlimit(RLIMIT_FSIZE, &before);
    Recorder::instance().stop();
    CHECK_EQ(totals.lost_records, 3u);
    CHECK_EQ(totals.problem, ReasonCode::disk_failed);
}

}  // namespace gpuprof::test
