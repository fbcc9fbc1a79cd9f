// SPDX-License-Identifier: Apache-2.0
#include <pybind11/numpy.h>

#include "analysis/replay.hpp"
#include "bindings/bindings.hpp"
#include "bindings/columns.hpp"

namespace py = pybind11;

namespace gpuprof::bindings {

namespace {

template <typename T>
std::vector<T> column(const py::dict& columns, const char* name) {
    const auto values = py::cast<py::array_t<T, py::array::c_style | py::array::forcecast>>(columns[name]);
    return {values.data(), values.data() + values.size()};
}

std::vector<WaitsFor> wait_kinds(const py::dict& columns) {
    std::vector<WaitsFor> kinds;
    for (const std::uint8_t kind : column<std::uint8_t>(columns, "wait_kind"))
        kinds.push_back(static_cast<WaitsFor>(kind));
    return kinds;
}

py::dict replay_columns(const py::dict& columns) {
    const auto integers = [&](const char* name) { return column<std::int64_t>(columns, name); };
    const ReplayItems items{integers("lane_begin"), integers("gap_ns"),     integers("least_ns"),
                            integers("delay_ns"),   integers("wait_begin"), integers("wait_item"),
                            wait_kinds(columns),    integers("wait_lag_ns")};
    ReplayTimes times;
    {
        py::gil_scoped_release released;
        times = replay(items);
    }
    py::dict found;
    found["start_ns"] = to_array(times.start_ns);
    found["end_ns"] = to_array(times.end_ns);
    found["circular"] = times.circular;
    return found;
}

}  // namespace

void bind_replay(py::module_& module) {
    module.def("replay", &replay_columns, py::arg("columns"));
}

}  // namespace gpuprof::bindings
