// SPDX-License-Identifier: Apache-2.0
#include <pybind11/stl.h>

#include <cmath>

#include "bindings/bindings.hpp"
#include "cupti/counters_session.hpp"

namespace py = pybind11;

namespace gpuprof::bindings {
namespace {

using cupti::CounterSession;
using cupti::CountersMeasured;
using cupti::CountersOpened;

// A kernel's name is what somebody called it, cut off where it is long.
py::object name_text(const std::string& name) {
    return py::reinterpret_steal<py::object>(
        PyUnicode_DecodeUTF8(name.data(), static_cast<Py_ssize_t>(name.size()), "replace"));
}

py::dict counters_open(const std::vector<std::string>& folders, const std::vector<std::string>& types,
                       std::size_t most_kernels) {
    CountersOpened opened;
    {
        const py::gil_scoped_release unlocked;
        opened = CounterSession::instance().open(folders, types, most_kernels);
    }
    py::dict result;
    result["reason"] = reason_or_none(opened.reason);
    result["path"] = path_text(opened.path);
    result["version"] = cupti::version_text(opened.version);
    result["chip"] = opened.chip;
    result["passes"] = opened.passes;
    py::list metrics;
    for (const cupti::ChosenMetric& metric : opened.metrics) {
        py::dict entry;
        entry["name"] = metric.name;
        entry["unit"] = metric.unit;
        entry["counter"] = metric.counter != nullptr ? py::object(py::str(metric.counter)) : py::none();
        metrics.append(entry);
    }
    result["metrics"] = metrics;
    return result;
}

py::object counters_begin() {
    Reason reason;
    {
        const py::gil_scoped_release unlocked;
        reason = CounterSession::instance().begin();
    }
    return reason_or_none(reason);
}

py::list values_or_none(const std::vector<double>& values) {
    py::list result;
    for (const double value : values)
        result.append(std::isnan(value) ? py::object(py::none()) : py::object(py::float_(value)));
    return result;
}

py::dict counters_end() {
    CountersMeasured measured;
    {
        // It waits for the GPU.
        const py::gil_scoped_release unlocked;
        measured = CounterSession::instance().end();
    }
    py::list kernels;
    for (const cupti::MeasuredKernel& kernel : measured.kernels)
        kernels.append(
            py::make_tuple(kernel.operator_number, name_text(kernel.name), values_or_none(kernel.values)));
    py::dict result;
    result["reason"] = reason_or_none(measured.reason);
    result["kernels"] = kernels;
    result["incomplete"] = measured.incomplete;
    return result;
}

void counters_close() {
    const py::gil_scoped_release unlocked;
    CounterSession::instance().close();
}

// Why this CUPTI has no counters, or nothing.
py::object counters_probe(const std::vector<std::string>& folders) {
    const cupti::Library library = cupti::load_library(folders);
    if (!library.available()) return reason_or_none(library.reason);
    cupti::CounterApi api;
    return reason_or_none(cupti::why_no_counters(library, api));
}

}  // namespace

void bind_counters(py::module_& module) {
    module.def("counters_open", &counters_open, py::arg("folders"), py::arg("types"),
               py::arg("most_kernels"));
    module.def("counters_begin", &counters_begin);
    module.def("counters_enter", &cupti::LaunchLog::set_operator, py::arg("operator_number"));
    module.def("counters_end", &counters_end);
    module.def("counters_close", &counters_close);
    module.def("counters_probe", &counters_probe, py::arg("folders"));
}

}  // namespace gpuprof::bindings
