// SPDX-License-Identifier: Apache-2.0
#include <pybind11/stl.h>

#include "bindings/bindings.hpp"
#include "cuda/event_timer.hpp"
#include "cupti/collector.hpp"
#include "cupti/loader.hpp"
#include "python/layer_timing.hpp"

namespace py = pybind11;

namespace gpuprof::bindings {
namespace {

using cupti::Collector;
using cupti::CollectorOptions;
using cupti::GpuTotals;
using cupti::Library;
using cupti::Started;

py::dict describe(const Reason& reason, const std::string& path, std::uint32_t version) {
    py::dict result;
    result["reason"] = reason_or_none(reason);
    result["path"] = path_text(path);
    result["version"] = cupti::version_text(version);
    return result;
}

const char* code_of(cupti::ClockState state) noexcept {
    switch (state) {
        case cupti::ClockState::steady:
            return "steady";
        case cupti::ClockState::stopped:
            return "stopped";
        case cupti::ClockState::changed:
            return "changed";
        default:
            return "unreadable";
    }
}

py::dict gpu_start(const std::vector<std::string>& folders, bool callbacks, bool whole_graphs) {
    CollectorOptions options;
    options.folders = folders;
    options.session = {callbacks, whole_graphs};
    Started started;
    {
        py::gil_scoped_release unlocked;
        started = Collector::instance().start(options);
    }
    py::dict result = describe(started.reason, started.path, started.version);
    result["version_is_unknown"] = started.version_is_unknown;
    result["whole_graphs"] = started.session.whole_graphs;
    result["event_records"] = started.session.event_records;
    result["chosen_calls"] = started.session.chosen_calls;
    return result;
}

py::dict gpu_stop() {
    GpuTotals totals;
    {
        // It waits for the GPU, for a while.
        py::gil_scoped_release unlocked;
        totals = Collector::instance().stop();
    }
    py::dict result;
    result["kernels"] = totals.counts.kernels;
    result["transfers"] = totals.counts.transfers;
    result["synchronizations"] = totals.counts.synchronizations;
    result["graphs"] = totals.counts.graph_replays;
    result["event_records"] = totals.counts.event_records;
    result["calls"] = totals.counts.calls;
    result["dropped"] = totals.dropped;
    result["unfinished"] = totals.counts.unfinished;
    result["unknown"] = totals.counts.unknown;
    result["truncated"] = totals.counts.truncated;
    result["stale"] = totals.stale;
    result["outside"] = totals.outside;
    result["lost_records"] = totals.lost_records;
    result["clock"] = code_of(totals.clock);
    result["clock_error_ns"] = totals.clock_error_ns;
    result["problem"] = reason_or_none(totals.problem);
    return result;
}

// Returns why layers cannot be timed, or nothing.
py::object event_timer_start(const py::object& get_device, const py::object& get_stream) {
    python::set_stream_functions(get_device.ptr(), get_stream.ptr());
    Reason reason;
    {
        py::gil_scoped_release unlocked;
        reason = cuda::EventTimer::instance().start({});
    }
    if (reason) python::set_stream_functions(nullptr, nullptr);
    return reason_or_none(reason);
}

py::dict event_timer_stop() {
    cuda::TimerTotals totals;
    {
        py::gil_scoped_release unlocked;
        totals = cuda::EventTimer::instance().stop();
    }
    python::set_stream_functions(nullptr, nullptr);
    py::dict result;
    result["layers"] = totals.layers;
    result["untimed"] = totals.untimed;
    result["captured"] = totals.captured;
    result["unfinished"] = totals.unfinished;
    result["lost_records"] = totals.lost_records;
    result["clock_error_ns"] = totals.clock_error_ns;
    result["problem"] = reason_or_none(totals.problem);
    return result;
}

py::dict cupti_probe(const std::vector<std::string>& folders) {
    const Library library = cupti::load_library(folders);
    return describe(library.reason, library.path, library.version);
}

}  // namespace

void bind_gpu(py::module_& module) {
    module.def("gpu_start", &gpu_start, py::arg("folders"), py::arg("callbacks") = true,
               py::arg("whole_graphs") = false);
    module.def("gpu_stop", &gpu_stop);
    module.def("event_timer_start", &event_timer_start, py::arg("get_device"), py::arg("get_stream"));
    module.def("event_timer_stop", &event_timer_stop);
    module.def("cupti_probe", &cupti_probe, py::arg("folders"));
}

}  // namespace gpuprof::bindings
