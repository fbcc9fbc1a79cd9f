// SPDX-License-Identifier: Apache-2.0
#include <pybind11/stl.h>

#include <string_view>

#include "bindings/bindings.hpp"
#include "python/code_positions.hpp"
#include "python/fork_pauses.hpp"
#include "python/interpreter_layout.h"
#include "python/own_memory.hpp"
#include "python/stack_sampler.hpp"

namespace py = pybind11;

namespace gpuprof::bindings {
namespace {

using python::ForkPauses;
using python::FrameNaming;
using python::StackSampler;

FrameNaming make_naming(std::vector<std::string> hidden, std::vector<std::string> marks,
                        std::vector<std::pair<std::string, std::string>> prefixes,
                        const std::array<std::string, 3>& module_call, std::string cut_off) {
    return {std::move(hidden), std::move(marks), std::move(prefixes), module_call[0],
            module_call[1],    module_call[2],   std::move(cut_off)};
}

py::tuple position_in(const py::bytes& table, int first_line, int offset) {
    const std::string_view bytes = table;
    const auto* data = reinterpret_cast<const unsigned char*>(bytes.data());
    const python::CodePosition at = python::code_position({data, bytes.size()}, first_line, offset);
    return py::make_tuple(at.line, at.end_line, at.column, at.end_column);
}

py::dict counts_of(const StackSampler& sampler) {
    const StackSampler::Counts counts = sampler.counts();
    py::dict result;
    result["samples"] = counts.samples;
    result["torn"] = counts.torn;
    result["cpu_ns"] = counts.cpu_ns;
    return result;
}

}  // namespace

void bind_stacks(py::module_& module) {
    module.def("knows_interpreter", [] { return gpuprof_layout.is_known != 0; });
    module.def("stack_memory_error", &python::memory_error);
    module.def("own_stack_codes", &StackSampler::own_stack);
    module.def("code_position", &position_in, py::arg("table"), py::arg("first_line"), py::arg("offset"));
    py::class_<FrameNaming>(module, "FrameNaming", py::is_final())
        .def(py::init(&make_naming), py::kw_only(), py::arg("hidden"), py::arg("marks"), py::arg("prefixes"),
             py::arg("module_call"), py::arg("cut_off"));
    py::class_<StackSampler, std::shared_ptr<StackSampler>>(module, "StackSampler", py::is_final())
        .def(py::init<std::string, std::int64_t, FrameNaming>(), py::arg("path"), py::arg("interval_ns"),
             py::arg("naming"))
        .def("start", &StackSampler::start)
        .def("stop", &StackSampler::stop, py::call_guard<py::gil_scoped_release>())
        .def("pause", &StackSampler::pause, py::call_guard<py::gil_scoped_release>())
        .def("resume", &StackSampler::resume, py::call_guard<py::gil_scoped_release>())
        .def_property_readonly("error", &StackSampler::error)
        .def_property_readonly("counts", &counts_of);
    py::class_<ForkPauses>(module, "ForkPauses", py::is_final())
        .def(py::init<>())
        .def("add", &ForkPauses::add, py::arg("sampler"))
        .def("remove", &ForkPauses::remove, py::arg("sampler"))
        .def("pause", &ForkPauses::pause)
        .def("resume", &ForkPauses::resume);
}

}  // namespace gpuprof::bindings
