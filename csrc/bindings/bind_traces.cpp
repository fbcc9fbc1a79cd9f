// SPDX-License-Identifier: Apache-2.0
#include <pybind11/numpy.h>
#include <pybind11/stl.h>

#include <algorithm>
#include <map>

#include "analysis/chrome_reader.hpp"
#include "analysis/lanes.hpp"
#include "analysis/nester.hpp"
#include "analysis/perfetto.hpp"
#include "analysis/wall_times.hpp"
#include "bindings/bindings.hpp"
#include "bindings/columns.hpp"

namespace py = pybind11;

namespace gpuprof::bindings {
namespace {

// The lanes of the last track continue in the next batch.
struct Lanes {
    SliceLanes lanes;
    std::int64_t track = -1;

    py::tuple place(const Column<std::int64_t>& tracks, const Column<std::int64_t>& ids,
                    const Column<std::int64_t>& parents, const Column<std::int64_t>& starts,
                    const Column<std::int64_t>& durations, bool nests) {
        const py::ssize_t rows = tracks.size();
        for (const auto* each : {&ids, &parents, &starts, &durations})
            if (each->size() != rows) throw py::value_error("the columns differ in length");
        py::array_t<std::int32_t> lane(rows), level(rows);
        for (py::ssize_t i = 0; i < rows; ++i) {
            if (tracks.at(i) != track) lanes.begin_track();
            track = tracks.at(i);
            const auto place = lanes.place({ids.at(i), parents.at(i), starts.at(i), durations.at(i)}, nests);
            lane.mutable_data()[i] = place.lane;
            level.mutable_data()[i] = place.level;
        }
        return py::make_tuple(lane, level);
    }
};

// `order` has the places of the calls in the order of their begin. Returns total and self times of the nodes.
py::tuple wall_times(const Column<std::int32_t>& parents, const Column<std::int64_t>& nodes,
                     const Column<std::int64_t>& begins, const Column<std::int64_t>& ends,
                     const Column<std::int64_t>& order) {
    for (const auto* each : {&nodes, &begins, &ends})
        if (each->size() != order.size()) throw py::value_error("the columns differ in length");
    WallTimes times(std::vector<std::int32_t>(parents.data(), parents.data() + parents.size()));
    for (py::ssize_t i = 0; i < parents.size(); ++i)
        if (parents.data()[i] >= parents.size()) throw py::value_error("no such parent");
    for (py::ssize_t i = 0; i < order.size(); ++i) {
        const std::int64_t at = order.data()[i];
        if (at < 0 || at >= nodes.size()) throw py::value_error("no such call");
        const std::int64_t node = nodes.data()[at];
        if (node < 0 || node >= parents.size()) throw py::value_error("no such node");
        times.add(static_cast<std::size_t>(node), begins.data()[at], ends.data()[at]);
    }
    py::array_t<std::int64_t> total(parents.size()), self(parents.size());
    for (std::size_t node = 0; node < times.nodes(); ++node) {
        total.mutable_data()[node] = times.total_ns(node);
        self.mutable_data()[node] = times.self_ns(node);
    }
    return py::make_tuple(total, self);
}

py::dict add_intervals(Nester& nester, const py::dict& columns) {
    const auto rows = static_cast<py::ssize_t>(py::len(columns["start_ns"]));
    const auto threads = column_of<std::int64_t>(columns, "thread_id", rows);
    const auto kinds = column_of<std::uint8_t>(columns, "kind", rows);
    const auto roles = column_of<std::uint8_t>(columns, "role", rows);
    const auto names = column_of<std::uint32_t>(columns, "name_id", rows);
    const auto starts = column_of<std::int64_t>(columns, "start_ns", rows);
    const auto durations = column_of<std::int64_t>(columns, "duration_ns", rows);
    py::array_t<std::int64_t> span_id(rows), parent_id(rows), owner_id(rows);
    py::array_t<std::int32_t> depth(rows);
    py::array_t<std::uint32_t> path_id(rows), owner_node(rows);
    for (py::ssize_t i = 0; i < rows; ++i) {
        const auto placed =
            nester.add({threads.at(i), static_cast<SpanKind>(kinds.at(i)),
                        static_cast<Nester::Role>(roles.at(i)), names.at(i), starts.at(i), durations.at(i)});
        span_id.mutable_data()[i] = placed.span_id;
        parent_id.mutable_data()[i] = placed.parent_id;
        depth.mutable_data()[i] = placed.depth;
        path_id.mutable_data()[i] = placed.node;
        owner_id.mutable_data()[i] = placed.owner_id;
        owner_node.mutable_data()[i] = placed.owner_node;
    }
    py::dict result;
    result["span_id"] = span_id;
    result["parent_id"] = parent_id;
    result["depth"] = depth;
    result["path_id"] = path_id;
    result["owner_id"] = owner_id;
    result["owner_node"] = owner_node;
    return result;
}

py::dict finish_nesting(Nester& nester) {
    nester.finish();
    return tree_columns(nester.tree());
}

std::uint32_t add_track(PerfettoEncoder& encoder, const std::string& kind, const std::string& name,
                        std::uint32_t parent, std::int64_t process_id, std::int64_t thread_id) {
    using Kind = PerfettoEncoder::TrackKind;
    const std::map<std::string, Kind> kinds{{"group", Kind::group},
                                            {"process", Kind::process},
                                            {"thread", Kind::thread},
                                            {"lane", Kind::lane},
                                            {"counter", Kind::counter}};
    const auto found = kinds.find(kind);
    if (found == kinds.end()) throw py::value_error("no such kind of track");
    return encoder.add_track({found->second, parent, name, process_id, thread_id});
}

// `flow_end` is for each slice where its flows end in `flows`; they begin where those of the slice before
// end.
void add_slices(PerfettoEncoder& encoder, const py::dict& columns) {
    const auto rows = static_cast<py::ssize_t>(py::len(columns["start_ns"]));
    const auto tracks = column_of<std::uint32_t>(columns, "track", rows);
    const auto names = column_of<std::uint32_t>(columns, "name_id", rows);
    const auto categories = column_of<std::uint32_t>(columns, "category", rows);
    const auto levels = column_of<std::int32_t>(columns, "level", rows);
    const auto starts = column_of<std::int64_t>(columns, "start_ns", rows);
    const auto durations = column_of<std::int64_t>(columns, "duration_ns", rows);
    const auto ending_flows = column_of<std::uint64_t>(columns, "ending_flow", rows);
    const auto flow_ends = column_of<std::uint64_t>(columns, "flow_end", rows);
    const auto flows = columns["flows"].cast<Column<std::uint64_t>>();
    const auto flow_count = static_cast<std::uint64_t>(flows.size());
    std::uint64_t first = 0;
    for (py::ssize_t i = 0; i < rows; ++i) {
        const std::uint64_t end = std::min(std::max(flow_ends.at(i), first), flow_count);
        encoder.add_slice(tracks.at(i),
                          {names.at(i), categories.at(i), levels.at(i), starts.at(i), durations.at(i),
                           flows.data() + first, static_cast<std::size_t>(end - first), ending_flows.at(i)});
        first = end;
    }
}

void add_readings(PerfettoEncoder& encoder, std::uint32_t track, const Column<std::int64_t>& times,
                  const Column<double>& values) {
    if (times.size() != values.size()) throw py::value_error("the columns differ in length");
    for (py::ssize_t i = 0; i < times.size(); ++i) encoder.add_reading(track, times.at(i), values.at(i));
}

py::tuple take_events(ChromeReader& reader) {
    const ChromeReader::Columns rows = reader.take();
    py::dict columns;
    columns["process_id"] = to_array(rows.process_id);
    columns["thread_id"] = to_array(rows.thread_id);
    columns["start_ns"] = to_array(rows.start_ns);
    columns["duration_ns"] = to_array(rows.duration_ns);
    columns["category"] = to_array(rows.category);
    columns["text"] = to_array(rows.name);
    columns["correlation_id"] = to_array(rows.correlation_id);
    columns["external_id"] = to_array(rows.external_id);
    columns["device"] = to_array(rows.device);
    columns["context"] = to_array(rows.context);
    columns["stream"] = to_array(rows.stream);
    columns["registers"] = to_array(rows.registers);
    columns["dynamic_shared_bytes"] = to_array(rows.shared_bytes);
    columns["graph_id"] = to_array(rows.graph_id);
    columns["graph_node_id"] = to_array(rows.graph_node_id);
    columns["bytes"] = to_array(rows.bytes);
    columns["grid_x"] = to_array(rows.grid_x);
    columns["grid_y"] = to_array(rows.grid_y);
    columns["grid_z"] = to_array(rows.grid_z);
    columns["block_x"] = to_array(rows.block_x);
    columns["block_y"] = to_array(rows.block_y);
    columns["block_z"] = to_array(rows.block_z);
    py::list texts;
    for (const std::string& text : reader.take_texts()) texts.append(to_text(text));
    return py::make_tuple(columns, texts);
}

py::dict reader_facts(const ChromeReader& reader) {
    const ChromeReader::Counts& counts = reader.counts();
    py::dict result, outer, not_taken;
    py::list tracks;
    for (const auto& [key, value] : reader.facts()) outer[to_text(key)] = to_text(value);
    for (const auto& [track, name] : reader.track_names())
        tracks.append(py::make_tuple(track.first, track.second, to_text(name)));
    result["events"] = counts.events;
    result["damaged"] = counts.damaged;
    result["negative"] = counts.negative;
    result["unmatched_ends"] = counts.unmatched_ends;
    result["unfinished"] = counts.unfinished;
    for (const auto& [phase, events] : counts.not_taken) not_taken[to_text(std::string(1, phase))] = events;
    result["not_taken"] = not_taken;
    result["problem"] = reader.problem();
    result["has_events"] = reader.has_events();
    result["is_whole"] = reader.is_whole();
    result["is_empty"] = reader.state() == ChromeReader::State::before;
    result["outer"] = outer;
    result["tracks"] = tracks;
    return result;
}

void bind_writers(py::module_& module) {
    module.def("wall_times", &wall_times, py::arg("parent"), py::arg("node"), py::arg("begin_ns"),
               py::arg("end_ns"), py::arg("order"));
    py::class_<Lanes>(module, "SliceLanes", py::is_final())
        .def(py::init<>())
        .def("place", &Lanes::place, py::arg("track"), py::arg("id"), py::arg("parent"), py::arg("start_ns"),
             py::arg("duration_ns"), py::arg("nests"));
    py::class_<PerfettoEncoder>(module, "PerfettoEncoder", py::is_final())
        .def(py::init<std::int64_t, std::vector<std::string>>(), py::arg("origin_unix_ns"),
             py::arg("categories"))
        .def("add_names", &PerfettoEncoder::add_names, py::arg("names"))
        .def("add_track", &add_track, py::arg("kind"), py::arg("name"), py::arg("parent") = 0,
             py::arg("process_id") = 0, py::arg("thread_id") = 0)
        .def("add_slices", &add_slices, py::arg("columns"))
        .def("add_readings", &add_readings, py::arg("track"), py::arg("time_ns"), py::arg("value"))
        .def("finish", &PerfettoEncoder::finish)
        .def("take", [](PerfettoEncoder& encoder) { return py::bytes(encoder.take()); });
}

void bind_readers(py::module_& module) {
    py::class_<Nester>(module, "Nester", py::is_final())
        .def(py::init<>())
        .def("begin_process", &Nester::begin_process, py::arg("process_id"), py::arg("name"))
        .def("add", &add_intervals, py::arg("columns"))
        .def("finish", &finish_nesting)
        .def("crossings", &Nester::crossings)
        .def("forwarded", [](const Nester& nester) { return to_array(nester.forwarded()); });
    py::class_<ChromeReader>(module, "ChromeReader", py::is_final())
        .def(py::init<>())
        .def(
            "feed",
            [](ChromeReader& reader, const py::bytes& piece) { reader.feed(std::string_view(piece)); },
            py::arg("piece"))
        .def("finish", &ChromeReader::finish)
        .def("rows", &ChromeReader::rows)
        .def("take", &take_events)
        .def("facts", &reader_facts);
}

}  // namespace

void bind_traces(py::module_& module) {
    bind_writers(module);
    bind_readers(module);
}

}  // namespace gpuprof::bindings
