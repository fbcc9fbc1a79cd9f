// SPDX-License-Identifier: Apache-2.0
#include <pybind11/numpy.h>
#include <pybind11/stl.h>

#include "analysis/span_nodes.hpp"
#include "bindings/bindings.hpp"
#include "bindings/columns.hpp"

namespace py = pybind11;

namespace gpuprof::bindings {
namespace {

template <typename T>
std::span<const T> span_of(const Column<T>& column) {
    return {column.data(), static_cast<std::size_t>(column.size())};
}

void check_length(py::ssize_t one, py::ssize_t other) {
    if (one != other) throw py::value_error("the columns differ in length");
}

// Calls Python from a loop without the interpreter lock. Its numbers must not be negative.
auto asking(const py::function& function) {
    return [&function](std::int32_t first, std::int32_t second, std::int32_t third) {
        const py::gil_scoped_acquire held;
        const auto number = function(first, second, third).cast<std::int32_t>();
        if (number < 0) throw py::value_error("a number is negative");
        return number;
    };
}

class NodesOfSpans {
  public:
    NodesOfSpans(const Column<std::int32_t>& families, py::function node, py::function group)
        : node_(std::move(node)),
          group_(std::move(group)),
          nodes_(values_of(families), {asking(node_), asking(group_)}) {}
    // The callbacks refer to this object.
    NodesOfSpans(const NodesOfSpans&) = delete;
    NodesOfSpans& operator=(const NodesOfSpans&) = delete;

    void add_thread(std::int32_t root, const std::optional<Column<std::int64_t>>& moments,
                    const std::optional<Column<std::int32_t>>& outer) {
        std::optional<SpanNodes::Samples> samples;
        if (moments && outer) {
            check_length(moments->size(), outer->size());
            samples.emplace(SpanNodes::Samples{values_of(*moments), values_of(*outer)});
        }
        nodes_.add_thread(root, std::move(samples));
    }

    void add_met(const Column<std::int64_t>& ids, const Column<std::int32_t>& groups) {
        check_length(ids.size(), groups.size());
        nodes_.add_met(values_of(ids), values_of(groups));
    }

    py::array_t<std::int32_t> make(const py::dict& columns) {
        const auto rows = static_cast<py::ssize_t>(py::len(columns["span_id"]));
        const auto id = column_of<std::int64_t>(columns, "span_id", rows);
        const auto parent_id = column_of<std::int64_t>(columns, "parent_id", rows);
        const auto start_ns = column_of<std::int64_t>(columns, "start_ns", rows);
        const auto duration_ns = column_of<std::int64_t>(columns, "duration_ns", rows);
        const auto own_ns = column_of<std::int64_t>(columns, "own_ns", rows);
        const auto thread = column_of<std::uint32_t>(columns, "thread", rows);
        const auto row = column_of<std::int32_t>(columns, "row", rows);
        const SpanNodes::Spans spans{span_of(id),          span_of(parent_id), span_of(start_ns),
                                     span_of(duration_ns), span_of(own_ns),    span_of(thread),
                                     span_of(row)};
        for (const std::uint32_t each : spans.thread)
            if (each >= nodes_.thread_count()) throw py::value_error("no such thread");
        for (const std::int32_t each : spans.row)
            if (each < 0 || static_cast<std::size_t>(each) >= nodes_.row_count())
                throw py::value_error("no such row");
        py::array_t<std::int32_t> made(rows);
        const std::span<std::int32_t> target{made.mutable_data(), static_cast<std::size_t>(rows)};
        const py::gil_scoped_release released;
        nodes_.make(spans, target);
        return made;
    }

    py::dict sums() const {
        const auto& sums = nodes_.sums();
        const auto column = [&](auto value) {
            py::array_t<std::int64_t> array(static_cast<py::ssize_t>(sums.size()));
            for (std::size_t i = 0; i < sums.size(); ++i) array.mutable_data()[i] = value(sums[i]);
            return array;
        };
        py::dict columns;
        columns["calls"] = column([](const SpanNodes::Sums& each) { return each.calls; });
        columns["total_ns"] = column([](const SpanNodes::Sums& each) { return each.total_ns; });
        columns["own_ns"] = column([](const SpanNodes::Sums& each) { return each.own_ns; });
        return columns;
    }

    py::list threads() const {
        py::list pairs;
        for (const auto& [node, thread] : nodes_.threads()) pairs.append(py::make_tuple(node, thread));
        return pairs;
    }

  private:
    py::function node_, group_;
    SpanNodes nodes_;
};

}  // namespace

void bind_span_nodes(py::module_& module) {
    py::class_<NodesOfSpans>(module, "SpanNodes", py::is_final())
        .def(py::init<const Column<std::int32_t>&, py::function, py::function>(), py::arg("families"),
             py::arg("node"), py::arg("group"))
        .def("add_thread", &NodesOfSpans::add_thread, py::arg("root"), py::arg("moments") = py::none(),
             py::arg("outer") = py::none())
        .def("add_met", &NodesOfSpans::add_met, py::arg("ids"), py::arg("groups"))
        .def("make", &NodesOfSpans::make, py::arg("columns"))
        .def("sums", &NodesOfSpans::sums)
        .def("threads", &NodesOfSpans::threads);
}

}  // namespace gpuprof::bindings
