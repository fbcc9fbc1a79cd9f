// SPDX-License-Identifier: Apache-2.0
#include <pybind11/functional.h>
#include <pybind11/stl.h>

#include <algorithm>
#include <array>
#include <system_error>

#include "bindings/bindings.hpp"
#include "cpu/dispatch.hpp"
#include "cpu/measure.hpp"

namespace py = pybind11;

namespace gpuprof::bindings {
namespace {

std::vector<std::string> cpu_instruction_sets() {
    const cpu::InstructionSets sets = cpu::available_sets();
    std::vector<std::string> names;
    for (std::size_t i = 0; i < cpu::instruction_set_count; ++i)
        if (const auto set = static_cast<cpu::InstructionSet>(i); sets.has(set))
            names.emplace_back(cpu::name_of(set));
    return names;
}

py::list cpu_kernels() {
    py::list kernels;
    for (const cpu::ComputeKernel* kernel : cpu::compute_kernels(cpu::available_sets())) {
        py::dict entry;
        entry["instruction_set"] = py::str(std::string(cpu::name_of(kernel->set)));
        entry["dtype"] = py::str(std::string(cpu::name_of(kernel->type)));
        entry["method"] = kernel->method;
        kernels.append(entry);
    }
    return kernels;
}

cpu::Plan plan_of(const std::vector<int>& processors, double seconds, int repeats) {
    if (processors.empty()) throw py::value_error("processors: at least one is needed");
    // False for a NaN too.
    if (!(seconds > 0 && seconds <= 60)) throw py::value_error("seconds: above 0, at most 60");
    if (repeats < 1) throw py::value_error("repeats: at least 1");
    // A signal's handler runs here; what it raises stays set until the measurement has returned.
    return {processors, seconds, repeats, [] {
                const py::gil_scoped_acquire locked;
                return PyErr_CheckSignals() == 0;
            }};
}

// Calls `measure` without the interpreter lock.
template <typename Measure>
auto measured(Measure measure) {
    auto run = [&] {
        const py::gil_scoped_release unlocked;
        return measure();
    };
    try {
        auto result = run();
        if (PyErr_Occurred() != nullptr) throw py::error_already_set();
        return result;
    } catch (const std::system_error& error) {
        throw_os_error(error, "measuring ceilings");
    }
}

py::dict to_dict(const cpu::Rates& rates) {
    py::dict result;
    result["per_second"] = rates.per_second;
    result["pinned_threads"] = rates.pinned_threads;
    return result;
}

py::object measure_compute(const std::string& instruction_set, const std::string& dtype,
                           const std::vector<int>& processors, double seconds, int repeats) {
    const cpu::Plan plan = plan_of(processors, seconds, repeats);
    for (const cpu::ComputeKernel* kernel : cpu::compute_kernels(cpu::available_sets())) {
        if (cpu::name_of(kernel->set) != instruction_set || cpu::name_of(kernel->type) != dtype) continue;
        if (!cpu::obtain(kernel->set)) return py::none();
        return to_dict(measured([&] { return cpu::measure_compute(*kernel, plan); }));
    }
    return py::none();
}

cpu::Stream stream_named(const std::string& name) {
    for (std::size_t i = 0; i < cpu::stream_count; ++i)
        if (const auto stream = static_cast<cpu::Stream>(i); cpu::name_of(stream) == name) return stream;
    throw py::value_error("no stream is called " + name);
}

py::dict measure_streams(const std::vector<std::string>& streams, std::size_t array_bytes,
                         const std::vector<int>& processors, double seconds, int repeats) {
    const cpu::Plan plan = plan_of(processors, seconds, repeats);
    const cpu::StreamKernels& kernels = cpu::stream_kernels(cpu::available_sets());
    std::vector<cpu::Stream> wanted;
    for (const std::string& name : streams)
        if (const cpu::Stream stream = stream_named(name);
            kernels.run[static_cast<std::size_t>(stream)] != nullptr)
            wanted.push_back(stream);
    const std::vector<cpu::Rates> rates =
        measured([&] { return cpu::measure_streams(kernels, wanted, array_bytes, plan); });
    py::dict result;
    for (std::size_t i = 0; i < wanted.size(); ++i) {
        py::dict entry = to_dict(rates[i]);
        entry["instruction_set"] = py::str(std::string(cpu::name_of(kernels.set)));
        result[py::str(std::string(cpu::name_of(wanted[i])))] = entry;
    }
    return result;
}

py::object measure_clock(const std::vector<int>& processors, double seconds, int repeats) {
    const cpu::Plan plan = plan_of(processors, seconds, repeats);
    const cpu::Rates rates = measured([&] { return cpu::measure_clock(plan); });
    if (rates.per_second.empty()) return py::none();
    return to_dict(rates);
}

}  // namespace

void bind_ceilings(py::module_& module) {
    module.def("cpu_instruction_sets", &cpu_instruction_sets);
    module.def("cpu_kernels", &cpu_kernels);
    module.def("measure_compute", &measure_compute, py::arg("instruction_set"), py::arg("dtype"),
               py::arg("processors"), py::arg("seconds"), py::arg("repeats"));
    module.def("measure_streams", &measure_streams, py::arg("streams"), py::arg("array_bytes"),
               py::arg("processors"), py::arg("seconds"), py::arg("repeats"));
    module.def("measure_clock", &measure_clock, py::arg("processors"), py::arg("seconds"),
               py::arg("repeats"));
}

}  // namespace gpuprof::bindings
