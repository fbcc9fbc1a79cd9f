// SPDX-License-Identifier: Apache-2.0
// Asks CUPTI on a GPU what its documentation leaves open. Each question runs in a process of its own and
// prints figures as one line of JSON; benchmarks/gpu/_conclusions.py draws conclusions from them.
//
//     cupti_probe QUESTION [CUPTI's folder...]
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <iterator>
#include <map>
#include <set>
#include <thread>

#include "core/clock.hpp"
#include "cupti_session.hpp"
#include "gpu_work.hpp"

namespace {

using namespace gpuprof::golden;
using gpuprof::GpuRecord;
using gpuprof::GpuRecordKind;
using gpuprof::monotonic_ns;

constexpr std::uint32_t kernels_only[] = {abi::concurrent_kernel};

class Figures {
  public:
    void add(const std::string& name, double value) { text(name, number(value)); }
    void add(const std::string& name, const std::vector<double>& values) {
        std::string list;
        for (const double value : values) list += (list.empty() ? "" : ", ") + number(value);
        text(name, "[" + list + "]");
    }
    void print() const { std::printf("{%s}\n", text_.c_str()); }

  private:
    static std::string number(double value) {
        char digits[32];
        std::snprintf(digits, sizeof(digits), "%.17g", value);
        return digits;
    }
    void text(const std::string& name, const std::string& value) {
        text_ += (text_.empty() ? "\"" : ", \"") + name + "\": " + value;
    }
    std::string text_;
};

// A function of CUPTI that the product does not use.
template <typename Function>
Function extra(const Session& session, const char* name) {
    Dl_info info{};
    dladdr(reinterpret_cast<void*>(session.api().get_version), &info);
    void* const library = dlopen(info.dli_fname, RTLD_NOW | RTLD_NOLOAD);
    const auto function = reinterpret_cast<Function>(dlsym(library, name));
    if (function == nullptr) throw std::runtime_error(std::string("this CUPTI has no ") + name);
    return function;
}

// --- what a launch costs the thread that launches -------------------------------------------------

using OneLaunch = std::function<void()>;
// Fewer than a stream takes before the launching thread has to wait for the GPU.
constexpr int batch_launches = 500;

std::vector<double> launch_costs_ns(Gpu& gpu, int batches, const OneLaunch& launch) {
    std::vector<double> costs;
    for (int batch = -1; batch < batches; ++batch) {
        gpu.synchronize();
        const std::int64_t begin = monotonic_ns();
        for (int number = 0; number < batch_launches; ++number) launch();
        const auto elapsed = static_cast<double>(monotonic_ns() - begin);
        if (batch >= 0) costs.push_back(elapsed / batch_launches);  // the first one warms up
    }
    gpu.synchronize();
    return costs;
}

thread_local std::uint32_t last_correlations[1024];

void note_correlation(void*, std::uint32_t, std::uint32_t, const void* data) {
    const auto& call = *static_cast<const abi::CallbackData*>(data);
    if (call.site == abi::api_enter) last_correlations[call.correlation_id % 1024] = call.correlation_id;
}

constexpr std::uint32_t driver_calls = 4;           // CUPTI_ACTIVITY_KIND_DRIVER
constexpr std::uint32_t external_correlation = 39;  // CUPTI_ACTIVITY_KIND_EXTERNAL_CORRELATION
constexpr std::uint32_t custom = 5;                 // CUPTI_EXTERNAL_CORRELATION_KIND_CUSTOM2
using PushExternal = std::uint32_t (*)(std::uint32_t kind, std::uint64_t id);
using PopExternal = std::uint32_t (*)(std::uint32_t kind, std::uint64_t* id);

class CorrelationCost {
  public:
    CorrelationCost(Gpu& gpu, Session& session) : gpu_(gpu), session_(session) {
        push_ = extra<PushExternal>(session, "cuptiActivityPushExternalCorrelationId");
        pop_ = extra<PopExternal>(session, "cuptiActivityPopExternalCorrelationId");
    }
    void run(Figures& figures) {
        std::map<std::string, std::vector<double>> costs;
        for (int round = 0; round < 9; ++round) {
            add(costs["nothing"], plain_);
            with(kernels_only, [&] { add(costs["kernel_records"], plain_); });
            with(kernels_only, [&] { with_callback(costs["launch_callback"]); });
            with(external_kinds, [&] { add(costs["external_ids"], with_external_id_); });
        }
        for (const auto& [name, values] : costs) figures.add(name + "_ns", values);
    }

  private:
    static constexpr std::uint32_t external_kinds[] = {abi::concurrent_kernel, driver_calls,
                                                       external_correlation};

    void add(std::vector<double>& all, const OneLaunch& launch) {
        const std::vector<double> costs = launch_costs_ns(gpu_, 10, launch);
        all.insert(all.end(), costs.begin(), costs.end());
    }
    template <typename Kinds, typename Body>
    void with(const Kinds& kinds, Body body) {
        session_.enable(kinds);
        body();
        session_.disable(kinds);
        session_.flush();
        Session::take();
    }
    void with_callback(std::vector<double>& costs) {
        abi::Subscriber subscriber = nullptr;
        check(session_.api().subscribe(&subscriber, note_correlation, nullptr));
        check(session_.api().enable_callback(1, subscriber, abi::driver_domain, abi::launch_kernel));
        add(costs, plain_);
        check(session_.api().unsubscribe(subscriber));
    }

    Gpu& gpu_;
    Session& session_;
    PushExternal push_ = nullptr;
    PopExternal pop_ = nullptr;
    OneLaunch plain_ = [this] { gpu_.fill(1); };
    OneLaunch with_external_id_ = [this] {
        std::uint64_t id = 0;
        push_(custom, 4711);
        gpu_.fill(1);
        pop_(custom, &id);
    };
};

void correlation_cost(Gpu& gpu, Session& session, Figures& figures) {
    CorrelationCost(gpu, session).run(figures);
}

// --- what stays after a stop ----------------------------------------------------------------------

void residual_cost(Gpu& gpu, Session& session, Figures& figures) {
    constexpr int batches = 60;
    const OneLaunch launch = [&] { gpu.fill(1); };
    figures.add("before_ns", launch_costs_ns(gpu, batches, launch));
    abi::Subscriber subscriber = nullptr;
    check(session.api().subscribe(&subscriber, note_correlation, nullptr));
    check(session.api().enable_callback(1, subscriber, abi::driver_domain, abi::launch_kernel));
    session.enable(all_kinds);
    figures.add("recording_ns", launch_costs_ns(gpu, batches, launch));
    session.disable(all_kinds);
    session.flush(abi::flush_forced);
    check(session.api().unsubscribe(subscriber));
    figures.add("stopped_ns", launch_costs_ns(gpu, batches, launch));
    const std::int64_t begin = monotonic_ns();
    check(extra<std::uint32_t (*)()>(session, "cuptiFinalize")());
    figures.add("finalize_took_ns", static_cast<double>(monotonic_ns() - begin));
    figures.add("finalized_ns", launch_costs_ns(gpu, batches, launch));
}

// --- clocks ---------------------------------------------------------------------------------------

std::uint64_t monotonic_timestamp() {
    return static_cast<std::uint64_t>(monotonic_ns());
}
constexpr std::uint64_t shift_ns = 1'000'000'000'000'000;
std::uint64_t shifted_timestamp() {
    return monotonic_timestamp() + shift_ns;
}

// By how much CUPTI's clock is ahead of ours. The reading that took least time is the best of several.
double ahead_of_monotonic_ns(const Session& session) {
    std::int64_t shortest = INT64_MAX, ahead = 0;
    for (int attempt = 0; attempt < 9; ++attempt) {
        std::uint64_t reading = 0;
        const std::int64_t before = monotonic_ns();
        check(session.api().get_timestamp(&reading));
        const std::int64_t after = monotonic_ns();
        if (after - before >= shortest) continue;
        shortest = after - before;
        ahead = static_cast<std::int64_t>(reading) - (before + shortest / 2);
    }
    return static_cast<double>(ahead);
}

// A kernel cannot begin before its launch is called nor end after its synchronization has returned. So a
// GPU clock that is ahead by `d` has, over all kernels, max(end - returned) <= d <= min(start - called).
// Records are on CUPTI's clock; its difference from ours is taken at the begin of each window.
void clock_error(Gpu& gpu, Session& session, Figures& figures) {
    constexpr std::size_t windows = 10, kernels = 200;
    session.enable(kernels_only);
    std::vector<std::pair<std::int64_t, std::int64_t>> calls;
    std::vector<double> differences;
    for (std::size_t window = 0; window < windows; ++window) {
        differences.push_back(ahead_of_monotonic_ns(session));
        for (std::size_t number = 0; number < kernels; ++number) {
            const std::int64_t called = monotonic_ns();
            gpu.fill(1);
            gpu.synchronize();
            calls.emplace_back(called, monotonic_ns());
        }
        std::this_thread::sleep_for(std::chrono::milliseconds(500));
    }
    session.flush();
    const std::vector<GpuRecord> records = session.take_records(GpuRecordKind::kernel);
    if (records.size() != calls.size()) throw std::runtime_error("kernels and records differ in number");
    std::vector<double> at_least, at_most;
    for (std::size_t window = 0; window < windows; ++window) {
        const auto difference = static_cast<std::int64_t>(differences[window]);
        std::int64_t low = INT64_MIN, high = INT64_MAX;
        for (std::size_t place = window * kernels; place < (window + 1) * kernels; ++place) {
            low = std::max(low, records[place].end_ns - difference - calls[place].second);
            high = std::min(high, records[place].start_ns - difference - calls[place].first);
        }
        at_least.push_back(static_cast<double>(low));
        at_most.push_back(static_cast<double>(high));
    }
    figures.add("ahead_at_least_ns", at_least);
    figures.add("ahead_at_most_ns", at_most);
    figures.add("clock_difference_ns", differences);
}

void timestamp_clock(Gpu& gpu, Session& session, Figures& figures) {
    figures.add("shift_ns", static_cast<double>(shift_ns));
    figures.add("realtime_ahead_ns", static_cast<double>(gpuprof::realtime_ns() - monotonic_ns()));
    figures.add("ahead_before_ns", ahead_of_monotonic_ns(session));
    const auto register_timestamp =
        extra<std::uint32_t (*)(std::uint64_t (*)())>(session, "cuptiActivityRegisterTimestampCallback");
    check(register_timestamp(shifted_timestamp));
    figures.add("ahead_after_ns", ahead_of_monotonic_ns(session));
    session.enable(kernels_only);
    gpu.fill(1);
    gpu.synchronize();
    const std::int64_t now = monotonic_ns();
    session.flush();
    const std::vector<GpuRecord> records = session.take_records(GpuRecordKind::kernel);
    if (records.empty()) throw std::runtime_error("the kernel has no record");
    figures.add("record_ahead_ns", static_cast<double>(records[0].end_ns - now));
}

// --- buffers --------------------------------------------------------------------------------------

void note_buffers(const std::string& when, Figures& figures) {
    const std::lock_guard lock(buffers().mutex);
    figures.add(when + "_requested", static_cast<double>(buffers().requested));
    figures.add(when + "_returned", static_cast<double>(buffers().returned));
    figures.add(when + "_returned_empty", static_cast<double>(buffers().returned_empty));
}

void empty_buffers(Gpu& gpu, Session& session, Figures& figures) {
    session.enable(kernels_only);
    session.flush();
    note_buffers("before_work", figures);
    gpu.fill(1);
    gpu.synchronize();
    session.flush();
    note_buffers("after_work", figures);
    for (int again = 0; again < 3; ++again) session.flush();
    note_buffers("idle_flushes", figures);
    session.disable(kernels_only);
    session.flush();
    note_buffers("disabled", figures);
    session.flush(abi::flush_forced);
    note_buffers("forced", figures);
}

void dropped_records(Gpu& gpu, Session& session, Figures& figures) {
    constexpr int count = 20'000;
    {
        const std::lock_guard lock(buffers().mutex);
        buffers().left = 2;
    }
    session.enable(kernels_only);
    for (int number = 0; number < count; ++number) gpu.fill(1);
    gpu.synchronize();
    session.flush();
    figures.add("launched", count);
    figures.add("dropped", static_cast<double>(session.dropped()));
    figures.add("recorded", static_cast<double>(session.take_records(GpuRecordKind::kernel).size()));
}

// A flush in the middle of a long kernel, without force and with it.
void flush_while_running(Gpu& gpu, Session& session, Figures& figures) {
    session.enable(kernels_only);
    gpu.fill(1);
    gpu.synchronize();
    gpu.spin(500'000'000);
    for (const std::uint32_t flag : {std::uint32_t{0}, abi::flush_forced}) {
        const std::int64_t begin = monotonic_ns();
        session.flush(flag);
        const std::string name = flag == 0 ? "plain" : "forced";
        figures.add(name + "_flush_took_ns", static_cast<double>(monotonic_ns() - begin));
        figures.add(name + "_flush_kernels",
                    static_cast<double>(session.take_records(GpuRecordKind::kernel).size()));
    }
    gpu.synchronize();
    session.flush();
    figures.add("afterwards_kernels",
                static_cast<double>(session.take_records(GpuRecordKind::kernel).size()));
}

// --- graphs ---------------------------------------------------------------------------------------

struct NodeEvents {
    abi::GetGraphNodeId get_id = nullptr;
    std::string phase;
    std::map<std::string, double> counts;
    std::set<std::uint64_t> created, cloned;
};
NodeEvents node_events;

void note_node(void*, std::uint32_t domain, std::uint32_t id, const void* data) {
    if (domain != abi::resource_domain) return;
    const auto* graph =
        static_cast<const abi::GraphData*>(static_cast<const abi::ResourceData*>(data)->descriptor);
    std::uint64_t number = 0;
    const bool known = node_events.get_id(graph->node, &number) == abi::success;
    const bool is_clone = id == abi::graph_node_cloned;
    node_events.counts[node_events.phase + (is_clone ? "_cloned" : "_created")] += 1;
    if (known) (is_clone ? node_events.cloned : node_events.created).insert(number);
}

void graph_clones(Gpu& gpu, Session& session, Figures& figures) {
    node_events.get_id = session.api().get_graph_node_id;
    if (node_events.get_id == nullptr) throw std::runtime_error("this CUPTI has no cuptiGetGraphNodeId");
    abi::Subscriber subscriber = nullptr;
    check(session.api().subscribe(&subscriber, note_node, nullptr));
    for (const std::uint32_t id : {abi::graph_node_created, abi::graph_node_cloned})
        check(session.api().enable_callback(1, subscriber, abi::resource_domain, id));
    session.enable(kernels_only);
    node_events.phase = "capture";
    const Stream stream = gpu.make_stream();
    Graph graph(gpu, stream);
    for (unsigned blocks = 1; blocks <= 4; ++blocks) gpu.fill(blocks, stream);
    graph.end_capture();
    node_events.phase = "instantiate";
    graph.instantiate();
    node_events.phase = "clone";
    void* copy = nullptr;
    gpu.driver.call("cuGraphClone", &copy, graph.graph());
    node_events.phase = "launch";
    for (int replay = 0; replay < 3; ++replay) graph.launch();
    gpu.synchronize();
    session.flush();
    check(session.api().unsubscribe(subscriber));
    double created = 0, cloned = 0, all = 0;
    for (const GpuRecord& record : session.take_records(GpuRecordKind::kernel)) {
        all += 1;
        created += node_events.created.contains(record.graph_node_id) ? 1 : 0;
        cloned += node_events.cloned.contains(record.graph_node_id) ? 1 : 0;
    }
    for (const char* phase : {"capture", "instantiate", "clone", "launch"})
        for (const char* what : {"_created", "_cloned"})
            figures.add(std::string(phase) + what, node_events.counts[std::string(phase) + what]);
    figures.add("kernels", all);
    figures.add("kernels_of_created_nodes", created);
    figures.add("kernels_of_cloned_nodes", cloned);
}

// --------------------------------------------------------------------------------------------------

struct Question {
    const char* name;
    void (*ask)(Gpu& gpu, Session& session, Figures& figures);
};
constexpr Question questions[] = {{"correlation_cost", correlation_cost},
                                  {"residual_cost", residual_cost},
                                  {"clock_error", clock_error},
                                  {"timestamp_clock", timestamp_clock},
                                  {"empty_buffers", empty_buffers},
                                  {"dropped_records", dropped_records},
                                  {"flush_while_running", flush_while_running},
                                  {"graph_clones", graph_clones}};

}  // namespace

int main(int argc, char** argv) {
    for (const Question& question : questions) {
        if (argc < 2 || std::string(question.name) != argv[1]) continue;
        try {
            Gpu gpu;
            Figures figures;
            figures.add("without_cupti_ns", launch_costs_ns(gpu, 20, [&] { gpu.fill(1); }));
            Session session({argv + 2, argv + argc});
            question.ask(gpu, session, figures);
            figures.print();
            return 0;
        } catch (const std::exception& error) {
            std::fprintf(stderr, "cupti_probe: %s\n", error.what());
            return 1;
        }
    }
    std::fprintf(stderr, "usage: cupti_probe QUESTION [CUPTI's folder...], where QUESTION is one of:");
    for (const Question& question : questions) std::fprintf(stderr, " %s", question.name);
    std::fprintf(stderr, "\n");
    return 2;
}
