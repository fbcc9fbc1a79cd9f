// SPDX-License-Identifier: Apache-2.0
#include <pybind11/numpy.h>
#include <pybind11/stl.h>

#include <system_error>

#include "analysis/decode.hpp"
#include "analysis/segment_follower.hpp"
#include "bindings/bindings.hpp"
#include "bindings/columns.hpp"

namespace py = pybind11;

namespace gpuprof::bindings {

py::str to_text(const std::string& bytes) {
    PyObject* const text =
        PyUnicode_DecodeUTF8(bytes.data(), static_cast<Py_ssize_t>(bytes.size()), "backslashreplace");
    if (text == nullptr) throw py::error_already_set();
    return py::reinterpret_steal<py::str>(text);
}

namespace {

// Makes columns of NumPy's, whose import takes longer than a short program.
struct AsArray {
    template <typename Value>
    py::object operator()(std::size_t size, Value&& value) const {
        using T = decltype(value(std::size_t{0}));
        py::array_t<T> array(static_cast<py::ssize_t>(size));
        for (std::size_t i = 0; i < size; ++i) array.mutable_data()[i] = value(i);
        return array;
    }
};

struct AsList {
    template <typename Value>
    py::object operator()(std::size_t size, Value&& value) const {
        py::list list;
        for (std::size_t i = 0; i < size; ++i) list.append(value(i));
        return list;
    }
};

template <typename Make>
py::dict columns_of(const CallTree& tree, const Make& make) {
    const std::vector<std::uint32_t> order = tree.preorder();
    std::vector<std::int32_t> place(tree.nodes().size());
    for (std::size_t i = 0; i < order.size(); ++i) place[order[i]] = static_cast<std::int32_t>(i);
    using Node = CallTree::Node;
    auto column = [&](auto value) {
        return make(order.size(), [&](std::size_t i) { return value(tree.nodes()[order[i]]); });
    };
    py::dict columns;
    columns["number"] = make(order.size(), [&](std::size_t i) { return order[i]; });
    columns["parent"] = column([&](const Node& node) {
        return node.parent == CallTree::no_parent ? std::int32_t{-1} : place[node.parent];
    });
    columns["kind"] = column([](const Node& node) { return static_cast<std::uint8_t>(node.kind); });
    columns["name"] = column([](const Node& node) { return static_cast<std::int32_t>(node.name - 1); });
    columns["calls"] = column([](const Node& node) { return node.calls; });
    columns["total_ns"] = column([](const Node& node) { return node.total_ns; });
    columns["own_ns"] = column([](const Node& node) { return node.own_ns; });
    columns["threads"] = column([](const Node& node) { return node.threads; });
    columns["process_id"] =
        column([](const Node& node) { return static_cast<std::int64_t>(node.process_id); });
    return columns;
}

}  // namespace

py::dict tree_columns(const CallTree& tree) {
    return columns_of(tree, AsArray{});
}

namespace {

py::dict to_columns(const SpanColumns& rows) {
    py::dict columns;
    columns["span_id"] = to_array(rows.span_id);
    columns["parent_id"] = to_array(rows.parent_id);
    columns["thread_id"] = to_array(rows.thread_id);
    columns["kind"] = to_array(rows.kind);
    columns["name_id"] = to_array(rows.name);
    columns["start_ns"] = to_array(rows.start_ns);
    columns["duration_ns"] = to_array(rows.duration_ns);
    columns["depth"] = to_array(rows.depth);
    columns["path_id"] = to_array(rows.node);
    columns["own_ns"] = to_array(rows.own_ns);
    return columns;
}

py::dict to_columns(const LinkColumns& links) {
    py::array_t<std::uint8_t> kinds(static_cast<py::ssize_t>(links.size()));
    for (std::size_t i = 0; i < links.size(); ++i)
        kinds.mutable_data()[i] = static_cast<std::uint8_t>(links.kind[i]);
    py::dict columns;
    columns["kind"] = kinds;
    columns["id"] = to_array(links.id);
    columns["span_id"] = to_array(links.span_id);
    columns["node"] = to_array(links.node);
    columns["launch_ns"] = to_array(links.launch_ns);
    columns["launch_end_ns"] = to_array(links.launch_end_ns);
    return columns;
}

py::dict to_dict(const DecodedProcess& process) {
    py::dict result;
    result["process_id"] = process.process_id;
    result["parent_process_id"] = process.parent_process_id;
    result["closed"] = process.closed;
    result["start_ns"] = process.start_ns;
    result["end_ns"] = process.end_ns;
    result["process_key"] = process.process_key;
    return result;
}

py::dict to_dict(const DecodeTotals& totals) {
    py::dict result;
    result["events"] = totals.events;
    result["spans"] = totals.spans;
    result["damaged_events"] = totals.damaged_events;
    result["dropped_events"] = totals.dropped_events;
    result["unmatched_ends"] = totals.unmatched_ends;
    result["unfinished_spans"] = totals.unfinished_spans;
    return result;
}

// The values of gpuprof.record.facts.DamageCode.
const char* code_of(DamageKind kind) {
    switch (kind) {
        case DamageKind::clock_point:
            return "clock_point";
        case DamageKind::segment_cut_short:
            return "segment_cut_short";
        case DamageKind::segment_header:
            return "segment_header";
        case DamageKind::segment_copy:
            return "segment_copy";
        case DamageKind::segments_missing:
            return "segments_missing";
        case DamageKind::names_no_file:
            return "names_no_file";
        case DamageKind::names_cut:
            return "names_cut";
        case DamageKind::losses_header:
            return "losses_header";
        case DamageKind::no_room:
            return "no_room";
        case DamageKind::unreadable:
            break;
    }
    return "unreadable";
}

py::dict to_dict(const Damage& damage) {
    py::dict result;
    result["code"] = code_of(damage.kind);
    result["file"] = to_text(damage.file);
    result["count"] = damage.count;
    result["process_id"] = damage.process_id;
    result["error"] = to_text(damage.error);
    return result;
}

template <typename Make>
py::dict to_dict(const DecodedRun& run, const Make& make) {
    py::dict result;
    result["totals"] = to_dict(run.totals);
    result["tree"] = columns_of(run.tree, make);
    py::list names, processes, threads, damage;
    for (const RecordedName& name : run.names) names.append(to_text(name.text));
    py::list name_ids;
    for (const DecodedProcess& process : run.processes) {
        processes.append(to_dict(process));
        name_ids.append(make(process.name_ids.size(), [&](std::size_t i) { return process.name_ids[i]; }));
    }
    for (const DecodedThread& thread : run.threads) {
        py::dict entry;
        entry["process_id"] = thread.process_id;
        entry["thread_id"] = thread.thread_id;
        entry["name"] = to_text(thread.name);
        threads.append(entry);
    }
    const auto mode_column = [&](auto value) {
        return make(run.modes.size(), [&](std::size_t i) { return value(run.modes[i]); });
    };
    py::dict modes;
    modes["process_id"] = mode_column([](const DecodedMode& each) { return std::int64_t{each.process_id}; });
    modes["thread_id"] = mode_column([](const DecodedMode& each) { return std::int64_t{each.thread_id}; });
    modes["begin_ns"] = mode_column([](const DecodedMode& each) { return each.begin_ns; });
    modes["mode"] = mode_column([](const DecodedMode& each) { return std::int64_t{each.mode}; });
    for (const Damage& each : run.damage) damage.append(to_dict(each));
    result["names"] = names;
    result["processes"] = processes;
    result["name_ids"] = name_ids;
    result["threads"] = threads;
    result["layer_modes"] = modes;
    result["damage"] = damage;
    result["origin_monotonic_ns"] = run.origin_monotonic_ns;
    result["ns_per_tick"] = run.ns_per_tick;
    return result;
}

py::dict decode(const std::string& folder, std::size_t batch_rows, const py::function& sink) {
    std::size_t names_sent = 0;
    auto send = [&](const Batch& batch) {
        const py::gil_scoped_acquire held;
        if (PyErr_CheckSignals() != 0) throw py::error_already_set();
        py::list fresh;
        for (; names_sent < batch.names.size(); ++names_sent)
            fresh.append(to_text(batch.names[names_sent].text));
        sink(to_dict(batch.process), to_columns(batch.rows), to_columns(batch.links), fresh);
    };
    try {
        const DecodedRun run = [&] {
            // Writers and the program's threads continue during the decoding.
            const py::gil_scoped_release released;
            return decode_run(read_folder(folder), batch_rows, send);
        }();
        return to_dict(run, AsArray{});
    } catch (const std::system_error& error) {
        throw_os_error(error, folder);
    }
}

struct HasSpans {};

// What `decode` returns, with lists for columns; None of a recording that has any span or launch.
py::object decode_spanless(const std::string& folder) {
    constexpr std::size_t batch_rows = 1;  // ends at the first
    try {
        const DecodedRun run = [&] {
            const py::gil_scoped_release released;
            return decode_run(read_folder(folder), batch_rows, [](const Batch&) { throw HasSpans{}; });
        }();
        return to_dict(run, AsList{});
    } catch (const HasSpans&) {
        return py::none();
    } catch (const std::system_error& error) {
        throw_os_error(error, folder);
    }
}

py::dict to_dict(const FollowedProcessState& state) {
    py::dict result;
    result["process_id"] = state.process_id;
    result["parent_process_id"] = state.parent_process_id;
    result["process_key"] = state.process_key;
    result["closed"] = state.closed;
    result["finished"] = state.finished;
    result["start_ns"] = state.start_ns;
    result["last_ns"] = state.last_ns;
    result["waiting_ns"] = state.waiting_ns;
    result["events"] = state.events;
    result["spans"] = state.spans;
    result["dropped_events"] = state.dropped_events;
    result["added_events"] = state.added_events;
    return result;
}

bool poll(SegmentFollower& follower, const std::vector<std::uint32_t>& ended, std::size_t most_events,
          const py::function& sink) {
    return follower.poll(ended, most_events,
                         [&](const FollowedProcessState& process, const SpanColumns& rows) {
                             sink(process.process_id, to_columns(rows));
                         });
}

// The nodes of the call tree from number `first` on: parent (-1: none), kind and name of each.
py::dict new_nodes(const SegmentFollower& follower, std::size_t first) {
    const auto& nodes = follower.tree().nodes();
    const std::size_t count = nodes.size() - std::min(first, nodes.size());
    const auto column = [&](auto value) {
        return AsArray{}(count, [&](std::size_t i) { return value(nodes[first + i]); });
    };
    py::dict columns;
    columns["parent"] = column([](const CallTree::Node& node) {
        return node.parent == CallTree::no_parent ? std::int64_t{-1} : std::int64_t{node.parent};
    });
    columns["kind"] = column([](const CallTree::Node& node) { return static_cast<std::uint8_t>(node.kind); });
    columns["name"] = column([](const CallTree::Node& node) { return std::int64_t{node.name} - 1; });
    return columns;
}

py::list new_names(const SegmentFollower& follower, std::size_t first) {
    py::list names;
    for (std::size_t i = first; i < follower.names().size(); ++i)
        names.append(to_text(follower.names()[i].text));
    return names;
}

py::dict take_modes(SegmentFollower& follower) {
    const std::vector<DecodedMode> modes = follower.take_modes();
    const auto column = [&](auto value) {
        return AsArray{}(modes.size(), [&](std::size_t i) { return std::int64_t{value(modes[i])}; });
    };
    py::dict columns;
    columns["process_id"] = column([](const DecodedMode& each) { return each.process_id; });
    columns["thread_id"] = column([](const DecodedMode& each) { return each.thread_id; });
    columns["begin_ns"] = column([](const DecodedMode& each) { return each.begin_ns; });
    columns["mode"] = column([](const DecodedMode& each) { return each.mode; });
    return columns;
}

py::list processes_of(const SegmentFollower& follower) {
    py::list processes;
    for (const FollowedProcessState& state : follower.processes()) processes.append(to_dict(state));
    return processes;
}

}  // namespace

void bind_analysis(py::module_& module) {
    py::class_<SegmentFollower>(module, "SegmentFollower", py::is_final())
        .def(py::init<std::string>(), py::arg("folder"))
        .def("poll", &poll, py::arg("ended"), py::arg("most_events"), py::arg("sink"))
        .def("new_nodes", &new_nodes, py::arg("first"))
        .def("new_names", &new_names, py::arg("first"))
        .def("take_modes", &take_modes)
        .def("processes", &processes_of);
    module.def("decode", &decode, py::arg("folder"), py::arg("batch_rows"), py::arg("sink"));
    module.def("decode_spanless", &decode_spanless, py::arg("folder"));
}

}  // namespace gpuprof::bindings
