// SPDX-License-Identifier: Apache-2.0
#include <pybind11/numpy.h>

#include "bindings/bindings.hpp"
#include "bindings/columns.hpp"
#include "load/queue_simulation.hpp"

namespace py = pybind11;

namespace gpuprof::bindings {

namespace {

py::array_t<double> simulated_latencies(const Column<double>& arrivals_s,
                                        const Column<std::int64_t>& in_service,
                                        const Column<std::int64_t>& begin, const Column<double>& seconds,
                                        std::int64_t machines, std::int64_t slots, std::int64_t largest_batch,
                                        bool least_loaded, std::uint64_t seed) {
    const auto arrivals = values_of(arrivals_s);
    const ServiceTimes times{values_of(in_service), values_of(begin), values_of(seconds)};
    const Farm farm{machines, slots, largest_batch, least_loaded ? Router::least_loaded : Router::random,
                    seed};
    std::vector<double> latencies;
    {
        const py::gil_scoped_release released;
        latencies = simulate_farm(arrivals, times, farm);
    }
    return to_array(latencies);
}

}  // namespace

void bind_queue(py::module_& module) {
    module.def("simulate_farm", &simulated_latencies, py::arg("arrivals_s"), py::arg("in_service"),
               py::arg("begin"), py::arg("seconds"), py::kw_only(), py::arg("machines"), py::arg("slots"),
               py::arg("largest_batch"), py::arg("least_loaded"), py::arg("seed"));
}

}  // namespace gpuprof::bindings
