// SPDX-License-Identifier: Apache-2.0
#include <pybind11/stl.h>

#include <system_error>

#include "bindings/bindings.hpp"
#include "collect/itt.hpp"
#include "core/clock.hpp"
#include "core/recorder.hpp"

namespace py = pybind11;

namespace gpuprof::bindings {
namespace {

const char* clock_name() noexcept {
    switch (clock_kind) {
        case ClockKind::tsc:
            return "tsc";
        case ClockKind::arm_counter:
            return "cntvct";
        default:
            return "monotonic";
    }
}

py::dict clock_info() {
    const ClockPoint point = sample_clock();
    py::dict info;
    info["clock"] = clock_name();
    info["monotonic_ns"] = point.monotonic_ns;
    info["realtime_ns"] = realtime_ns();
    return info;
}

py::dict build_info() {
    py::dict info;
    info["version"] = GPUPROF_VERSION;
    info["compiler"] = GPUPROF_COMPILER;
    info["build_type"] = GPUPROF_BUILD_TYPE;
    info["cuda"] = false;
    return info;
}

void start_recording(const std::string& folder) {
    try {
        Recorder::instance().start(folder);
    } catch (const std::system_error& error) {
        PyErr_SetObject(PyExc_OSError,
                        py::make_tuple(error.code().value(), error.code().message(), folder).ptr());
        throw py::error_already_set();
    }
}

py::dict stop_recording() {
    RecorderTotals totals;
    {
        // Writers may wait for the interpreter lock between two events, never while they write one.
        py::gil_scoped_release unlocked;
        totals = Recorder::instance().stop();
    }
    py::dict result;
    result["dropped_events"] = totals.dropped_events;
    result["storage_failed"] = totals.storage_failed;
    result["storage_error"] = totals.storage_error;
    return result;
}

}  // namespace

void bind_record(py::module_& module) {
    module.def("clock_info", &clock_info);
    module.def("build_info", &build_info);
    module.def("start_recording", &start_recording, py::arg("folder"));
    module.def("stop_recording", &stop_recording);
    module.def("is_recording", [] { return Recorder::instance().active(); });
    module.def("itt_attached", [] { return itt::is_attached(); });
}

}  // namespace gpuprof::bindings
