// SPDX-License-Identifier: Apache-2.0
#include <pybind11/numpy.h>
#include <pybind11/stl.h>

#include <cerrno>
#include <map>
#include <system_error>

#include "bindings/bindings.hpp"
#include "collect/itt.hpp"
#include "core/clock.hpp"
#include "core/detached_process.hpp"
#include "core/intervals.hpp"
#include "core/recorder.hpp"
#include "python/profiler_state.hpp"

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

void start_recording(const std::string& folder, bool joins, std::size_t limit_bytes) {
    try {
        Recorder::instance().start(folder, joins, limit_bytes);
    } catch (const std::system_error& error) {
        throw_os_error(error, folder);
    }
}

// Calls that another tool recorded, one element a call: `thread_ids` as the system numbers threads, `names`
// indexed by `name_index`, times on the monotonic clock. `sequence` and `forward_thread` are those of the
// autograd node that a call evaluates, the latter 0 for calls that evaluate none.
void add_operators(const py::array_t<std::uint32_t>& thread_ids, const std::vector<std::string>& names,
                   const py::array_t<std::int32_t>& name_index, const py::array_t<std::int64_t>& start_ns,
                   const py::array_t<std::int64_t>& duration_ns, const py::array_t<std::uint64_t>& sequence,
                   const py::array_t<std::uint64_t>& forward_thread) {
    Recorder& recorder = Recorder::instance();
    const auto threads = thread_ids.unchecked<1>();
    const auto indices = name_index.unchecked<1>();
    const auto starts = start_ns.unchecked<1>();
    const auto durations = duration_ns.unchecked<1>();
    const auto sequences = sequence.unchecked<1>();
    const auto forward = forward_thread.unchecked<1>();
    for (const py::ssize_t size :
         {indices.size(), starts.size(), durations.size(), sequences.size(), forward.size()})
        if (size != threads.size()) throw py::value_error("the columns differ in length");
    std::vector<std::uint32_t> ids;
    for (const std::string& name : names) ids.push_back(recorder.intern(name));
    // Two points for all, so that calls keep their order and nesting through the conversion.
    const std::int64_t origin_ns = starts.size() > 0 ? starts(0) : 0;
    constexpr std::int64_t second_ns = 1'000'000'000;
    const std::uint64_t origin = recorder.ticks_at(origin_ns);
    const auto ticks_per_second = static_cast<double>(recorder.ticks_at(origin_ns + second_ns) - origin);
    auto to_ticks = [&](std::int64_t ns) {
        return origin + static_cast<std::uint64_t>(static_cast<std::int64_t>(
                            static_cast<double>(ns - origin_ns) / second_ns * ticks_per_second));
    };
    std::map<std::uint32_t, std::vector<Interval>> by_thread;
    for (py::ssize_t i = 0; i < threads.size(); ++i)
        by_thread[threads(i)].push_back({to_ticks(starts(i)), to_ticks(starts(i) + durations(i)),
                                         ids.at(static_cast<std::size_t>(indices(i))),
                                         forward(i) == 0 ? 0 : node_mark(forward(i), sequences(i))});
    for (auto& [thread_id, intervals] : by_thread)
        recorder.add_thread(thread_id, operator_events(std::move(intervals)));
}

// What the GPU's collector writes natively, for sources that are written in Python: ties GPU work to what
// this thread has open. Of a launch and its end, `id` is its correlation id, else a graph node's.
void link_gpu_work(const std::string& kind, std::uint64_t id, std::uint64_t copy) {
    Recorder& recorder = Recorder::instance();
    const NameKey none = recorder.name_key(0);
    if (kind == "launch")
        recorder.emit(EventKind::launch, recorder.name_key(static_cast<std::uint32_t>(id)));
    else if (kind == "launch_end")
        recorder.emit(EventKind::launch_end, recorder.name_key(static_cast<std::uint32_t>(id)));
    else if (kind == "graph_node")
        Recorder::emit_to(recorder.current_log(), EventKind::graph_node, none, id);
    else if (kind == "graph_clone") {
        Recorder::emit_to(recorder.current_log(), EventKind::graph_clone, none, id);
        Recorder::emit_to(recorder.current_log(), EventKind::graph_clone_of, none, copy);
    } else
        throw py::value_error("kind is launch, launch_end, graph_node or graph_clone");
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
    result["limit_reached"] = totals.limit_reached;
    result["storage_failed"] = totals.storage_failed;
    result["storage_error"] = totals.storage_error;
    return result;
}

int start_detached_program(const std::vector<std::string>& arguments,
                           const std::vector<std::string>& environment, int standard_input) {
    try {
        const py::gil_scoped_release unlocked;
        return start_detached(arguments, environment, standard_input);
    } catch (const std::system_error& error) {
        throw_os_error(error, arguments.empty() ? "" : arguments.front());
    }
}

}  // namespace

py::object path_text(const std::string& path) {
    return py::reinterpret_steal<py::object>(PyUnicode_DecodeFSDefault(path.c_str()));
}

py::object reason_or_none(const Reason& reason) {
    if (!reason) return py::none();
    py::dict result;
    result["code"] = reason.name();
    if (!reason.file.empty()) result["file"] = path_text(reason.file);
    if (!reason.detail.empty()) result["detail"] = path_text(reason.detail);
    if (reason.number != 0) result["number"] = reason.number;
    if (reason.other != 0) result["other"] = reason.other;
    return result;
}

void throw_os_error(const std::system_error& error, const std::string& path) {
    const py::object name = path_text(path);
    errno = error.code().value();
    PyErr_SetFromErrnoWithFilenameObject(PyExc_OSError, name.ptr());
    throw py::error_already_set();
}

void bind_record(py::module_& module) {
    module.def("reason_codes",
               [] { return std::vector<std::string>(std::begin(reason_names), std::end(reason_names)); });
    module.def("clock_info", &clock_info);
    module.def("build_info", &build_info);
    module.def("start_recording", &start_recording, py::arg("folder"), py::arg("joins") = false,
               py::arg("limit_bytes") = 0);
    module.def("limit_reached", [] { return Recorder::instance().limit_reached(); });
    module.def("make_recording_files", [] { Recorder::instance().make_files(); });
    module.def("stop_recording", &stop_recording);
    module.def("add_operators", &add_operators, py::arg("thread_ids"), py::arg("names"),
               py::arg("name_index"), py::arg("start_ns"), py::arg("duration_ns"), py::arg("sequence"),
               py::arg("forward_thread"));
    module.def("link_gpu_work", &link_gpu_work, py::arg("kind"), py::arg("number"), py::arg("copy") = 0);
    module.def(
        "intern", [](const std::string& text) { return Recorder::instance().intern(text); }, py::arg("text"));
    module.def("is_recording", [] { return Recorder::active(); });
    module.def("start_detached", &start_detached_program, py::arg("arguments"), py::arg("environment"),
               py::arg("standard_input"));
    module.def("adopts_orphans", &adopts_orphans);
    module.def("itt_attached", [] { return itt::is_attached(); });
    py::class_<python::HeldProfilerState>(module, "HeldProfilerState", py::is_final())
        .def(py::init<const char*>(), py::arg("library"))
        .def("release", &python::HeldProfilerState::release);
}

}  // namespace gpuprof::bindings
