// SPDX-License-Identifier: Apache-2.0
#include <pybind11/numpy.h>

#include <cmath>

#include "bindings/bindings.hpp"
#include "core/clock.hpp"
#include "python/call_loop.hpp"

namespace py = pybind11;

namespace gpuprof::bindings {
namespace {

using Nanoseconds = py::array_t<std::int64_t, py::array::c_style>;

// Two readings of both clocks this far apart measure the length of a tick to better than 1 in 100,000.
constexpr std::int64_t calibration_ns = 10'000'000;
constexpr double yield_ns = 5e6;

// The first reading is made when the module is loaded, so that the second rarely has to wait.
const ClockPoint& first_point() noexcept {
    static const ClockPoint point = sample_clock();
    return point;
}

double ns_per_tick() {
    ClockPoint now = sample_clock();
    while (now.monotonic_ns - first_point().monotonic_ns < calibration_ns) now = sample_clock();
    return TickScale(first_point(), now).ns_per_tick();
}

void to_ns(std::int64_t* ticks, std::size_t count, double scale) noexcept {
    for (std::size_t index = 0; index < count; ++index)
        ticks[index] = std::llround(static_cast<double>(ticks[index]) * scale);
}

PyObject* or_null(const py::object& object) noexcept {
    return object.is_none() ? nullptr : object.ptr();
}

void time_calls(const py::object& run, const py::object& synchronize, const py::object& before,
                Nanoseconds wall, Nanoseconds enqueue, Nanoseconds gap) {
    if (wall.size() != enqueue.size() || wall.size() != gap.size())
        throw py::value_error("wall, enqueue and gap differ in length");
    const double scale = ns_per_tick();
    const python::TimedCall call{run.ptr(), or_null(synchronize), or_null(before)};
    const python::CallTicks ticks{wall.mutable_data(), enqueue.mutable_data(), gap.mutable_data(),
                                  static_cast<std::size_t>(wall.size())};
    const std::size_t done = python::time_calls(call, ticks, static_cast<std::uint64_t>(yield_ns / scale));
    to_ns(ticks.wall, done, scale);
    to_ns(ticks.enqueue, done, scale);
    to_ns(ticks.gap, done, scale);
    if (PyErr_Occurred() != nullptr) throw py::error_already_set();
}

}  // namespace

void bind_bench(py::module_& module) {
    first_point();
    module.def("time_calls", &time_calls, py::arg("run"), py::arg("synchronize"), py::arg("before"),
               py::arg("wall").noconvert(), py::arg("enqueue").noconvert(), py::arg("gap").noconvert());
}

}  // namespace gpuprof::bindings
