// SPDX-License-Identifier: Apache-2.0
#include <pybind11/numpy.h>

#include <algorithm>
#include <memory>
#include <string_view>

#include "bindings/bindings.hpp"
#include "bindings/columns.hpp"
#include "core/clock.hpp"
#include "load/pacer.hpp"
#include "load/request_log.hpp"
#include "load/steady_connections.hpp"

namespace py = pybind11;

namespace gpuprof::bindings {
namespace {

using Nanoseconds = py::array_t<std::int64_t, py::array::c_style>;

// How long a signal may wait for its Python handler.
constexpr std::int64_t signal_check_ns = 100'000'000;

std::unique_ptr<Pacer> make_pacer(const Nanoseconds& offsets_ns, std::int64_t spin_ns) {
    const std::int64_t* const begin = offsets_ns.data();
    std::vector<std::int64_t> offsets(begin, begin + offsets_ns.size());
    if (!std::is_sorted(offsets.begin(), offsets.end()) || (!offsets.empty() && offsets.front() < 0))
        throw py::value_error("offsets are negative, or not in order");
    return std::make_unique<Pacer>(std::move(offsets), std::max<std::int64_t>(spin_ns, 0));
}

// Waits without the interpreter lock; an index, or None when the plan is over.
py::object take(Pacer& pacer) {
    std::int64_t index = pacer.try_take();
    while (index == Pacer::timed_out) {
        {
            const py::gil_scoped_release released;
            index = pacer.take(monotonic_ns() + signal_check_ns);
        }
        if (PyErr_CheckSignals() != 0) throw py::error_already_set();
    }
    if (index == Pacer::finished) return py::none();
    return py::int_(index);
}

Nanoseconds take_batch(Pacer& pacer, std::size_t most, std::int64_t delay_ns) {
    const py::object first = take(pacer);
    if (first.is_none() || most == 0) return Nanoseconds(0);
    std::vector<std::int64_t> indexes(most);
    indexes[0] = py::cast<std::int64_t>(first);
    {
        const py::gil_scoped_release released;
        indexes.resize(pacer.fill_batch(indexes.data(), most, delay_ns));
    }
    return to_array(indexes);
}

Nanoseconds take_ready(Pacer& pacer) {
    const Pacer::Range range = pacer.take_ready();
    Nanoseconds indexes(static_cast<py::ssize_t>(range.end - range.begin));
    std::int64_t index = static_cast<std::int64_t>(range.begin);
    for (py::ssize_t place = 0; place < indexes.size(); ++place) indexes.mutable_at(place) = index++;
    return indexes;
}

int begin_notifying(Pacer& pacer) {
    try {
        return pacer.begin_notifying();
    } catch (const std::system_error& error) {
        throw_os_error(error, {});
    }
}

std::unique_ptr<RequestLog> make_log(std::size_t count, const std::string& path) {
    try {
        return std::make_unique<RequestLog>(count, path);
    } catch (const std::system_error& error) {
        throw_os_error(error, path);
    }
}

std::size_t row_index(const RequestLog& log, std::int64_t index) {
    if (index < 0 || static_cast<std::size_t>(index) >= log.size())
        throw py::index_error("the log has no such request");
    return static_cast<std::size_t>(index);
}

py::buffer_info rows_of(RequestLog& log) {
    return {log.rows(), 1, "B", 1, {static_cast<py::ssize_t>(log.size() * sizeof(RequestRow))}, {1}};
}

void bind_pacer(py::module_& module) {
    py::class_<Pacer>(module, "Pacer", py::is_final())
        .def(py::init(&make_pacer), py::arg("offsets_ns").noconvert(),
             py::arg("spin_ns") = Pacer::default_spin_ns)
        .def("__len__", &Pacer::size)
        .def("start", &Pacer::start, py::arg("start_ns"))
        .def("take", &take)
        .def("take_batch", &take_batch, py::arg("most"), py::arg("delay_ns"))
        .def("fileno", &begin_notifying)
        .def("take_ready", &take_ready)
        .def("stop", &Pacer::stop)
        .def("released_ns", [](const Pacer& pacer) { return to_array(pacer.released_ns()); })
        .def_property_readonly("is_finished", &Pacer::is_finished);
}

void bind_request_log(py::module_& module) {
    py::class_<RequestLog>(module, "RequestLog", py::is_final(), py::buffer_protocol())
        .def(py::init(&make_log), py::arg("count"), py::arg("path") = "")
        .def_buffer(&rows_of)
        .def("__len__", &RequestLog::size)
        .def("begin", [](RequestLog& log, std::int64_t index) { log.begin(row_index(log, index)); })
        .def("send",
             [](RequestLog& log, std::int64_t index, int socket, const py::bytes& request) {
                 const std::string_view bytes = request;
                 return log.send(row_index(log, index), socket, bytes.data(), bytes.size());
             })
        .def("plan_next",
             [](RequestLog& log, std::int64_t index, std::int64_t former) {
                 if (former != RequestLog::no_former) row_index(log, former);
                 log.plan_next(row_index(log, index), former);
             })
        .def("begin_next",
             [](RequestLog& log, std::int64_t index, std::int64_t former) {
                 if (former != RequestLog::no_former) row_index(log, former);
                 log.begin_next(row_index(log, index), former);
             })
        .def("first", [](RequestLog& log, std::int64_t index) { log.first(row_index(log, index)); })
        .def("end", [](RequestLog& log, std::int64_t index, std::int32_t status,
                       std::uint32_t units) { return log.end(row_index(log, index), status, units); })
        .def("close", &RequestLog::close)
        .def_property_readonly("ended", &RequestLog::ended)
        .def_property_readonly("duplicates", &RequestLog::duplicates);
}

// --- steady connections ---------------------------------------------------------------------------

std::unique_ptr<SteadyConnections> make_connections(RequestLog& log) {
    try {
        return std::make_unique<SteadyConnections>(log);
    } catch (const std::system_error& error) {
        throw_os_error(error, {});
    }
}

void expect(SteadyConnections& connections, const py::bytes& head, std::size_t size) {
    if (size > SteadyConnections::largest_response) throw py::value_error("the response is too large");
    connections.expect(head, size);
}

void add_connection(SteadyConnections& connections, int socket) {
    try {
        connections.add(socket);
    } catch (const std::system_error& error) {
        throw_os_error(error, {});
    }
}

// None when all of the request was sent.
py::object send_steady(SteadyConnections& connections, std::int64_t index, const py::bytes& request) {
    if (!connections.has_idle()) throw py::value_error("no connection is idle");
    const std::string_view bytes = request;
    const SteadyConnections::Sent sent =
        connections.send(row_index(connections.log(), index), bytes.data(), bytes.size());
    if (sent.size == bytes.size()) return py::none();
    return py::make_tuple(sent.socket, sent.size);
}

py::list as_tuples(const std::vector<SteadyConnections::Returned>& returned) {
    py::list tuples;
    for (const auto& each : returned)
        tuples.append(py::make_tuple(each.socket, each.index, each.sent_ns, py::bytes(each.received)));
    return tuples;
}

// Ends at the first connection that is returned, so that the caller handles it before the rest is read:
// `on_end` may start requests, and may raise.
py::list receive(SteadyConnections& connections, const py::function& on_end, const py::object& status) {
    connections.poll();
    for (std::int64_t index = connections.take_end(); index != SteadyConnections::no_request;
         index = connections.take_end())
        on_end(index, status);
    return as_tuples(connections.take_returned());
}

void bind_steady_connections(py::module_& module) {
    py::class_<SteadyConnections>(module, "SteadyConnections", py::is_final())
        .def(py::init(&make_connections), py::arg("log"), py::keep_alive<1, 2>())
        .def("fileno", &SteadyConnections::file)
        .def("expect", &expect)
        .def("add", &add_connection)
        .def("send", &send_steady)
        .def("receive", &receive)
        .def("take_sent_before",
             [](SteadyConnections& connections, std::int64_t time_ns) {
                 return as_tuples(connections.take_sent_before(time_ns));
             })
        .def_property_readonly("ended", &SteadyConnections::ended)
        .def_property_readonly("has_idle", &SteadyConnections::has_idle)
        .def_property_readonly("oldest_sent_ns", &SteadyConnections::oldest_sent_ns)
        .def_property_readonly("largest_response",
                               [](const SteadyConnections&) { return SteadyConnections::largest_response; });
}

}  // namespace

void bind_load(py::module_& module) {
    bind_pacer(module);
    bind_request_log(module);
    bind_steady_connections(module);
}

}  // namespace gpuprof::bindings
