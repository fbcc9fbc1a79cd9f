// SPDX-License-Identifier: Apache-2.0
#include <pybind11/stl.h>

#include "bindings/bindings.hpp"
#include "cuda/device_bench.hpp"

namespace py = pybind11;

namespace gpuprof::bindings {
namespace {

using cuda::DeviceBench;
using cuda::DeviceFacts;
using cuda::GpuEffort;

GpuEffort effort_of(double seconds, int repeats) {
    // False for a NaN too.
    if (!(seconds > 0 && seconds <= 60)) throw py::value_error("seconds: above 0, at most 60");
    if (repeats < 1) throw py::value_error("repeats: at least 1");
    GpuEffort effort;
    effort.seconds = seconds;
    effort.repeats = repeats;
    // A signal's handler runs here; what it raises stays set until the measurement has returned.
    effort.go_on = [] {
        const py::gil_scoped_acquire locked;
        return PyErr_CheckSignals() == 0;
    };
    return effort;
}

template <typename Measure>
auto measured_on_gpu(Measure measure) {
    auto run = [&] {
        const py::gil_scoped_release unlocked;
        return measure();
    };
    auto result = run();
    if (PyErr_Occurred() != nullptr) throw py::error_already_set();
    return result;
}

py::dict to_dict(const DeviceFacts& facts) {
    py::dict result;
    result["name"] = facts.name;
    result["uuid"] = facts.uuid;
    result["capability"] = facts.capability;
    result["multiprocessors"] = facts.multiprocessors;
    result["clock_khz"] = facts.clock_khz;
    result["memory_clock_khz"] = facts.memory_clock_khz;
    result["memory_bus_bits"] = facts.memory_bus_bits;
    result["l2_cache_bytes"] = facts.l2_cache_bytes;
    result["memory_bytes"] = facts.memory_bytes;
    return result;
}

py::list cuda_devices() {
    py::list devices;
    for (const DeviceFacts& facts : cuda::describe_devices(cuda::load_launch_driver()))
        devices.append(to_dict(facts));
    return devices;
}

py::dict nvrtc_probe(const std::vector<std::string>& folders) {
    const cuda::Compiler compiler = cuda::load_compiler(folders);
    py::dict result;
    result["reason"] = reason_or_none(compiler.reason);
    result["path"] = path_text(compiler.path);
    result["version"] = std::to_string(compiler.major) + "." + std::to_string(compiler.minor);
    return result;
}

py::bytes compile_gpu_kernels(const std::vector<std::string>& folders, int capability) {
    const std::vector<char> image = measured_on_gpu([&] {
        return cuda::compile(cuda::load_compiler(folders), cuda::ceilings_source, "ceilings.cu", capability);
    });
    return {image.data(), image.size()};
}

void bind_bench_class(py::module_& module) {
    py::class_<DeviceBench>(module, "GpuBench", py::is_final())
        .def(py::init([](int ordinal, const std::vector<std::string>& folders) {
                 return measured_on_gpu([&] {
                     return std::make_unique<DeviceBench>(cuda::load_launch_driver(), ordinal,
                                                          cuda::load_compiler(folders));
                 });
             }),
             py::arg("ordinal"), py::arg("folders"))
        .def("free_bytes", &DeviceBench::free_bytes)
        .def(
            "measure_compute",
            [](DeviceBench& bench, const std::string& dtype, double seconds, int repeats) {
                const GpuEffort effort = effort_of(seconds, repeats);
                return measured_on_gpu([&] { return bench.measure_compute(dtype, effort); });
            },
            py::arg("dtype"), py::arg("seconds"), py::arg("repeats"))
        .def(
            "measure_stream",
            [](DeviceBench& bench, const std::string& stream, std::size_t array_bytes, double seconds,
               int repeats) {
                const GpuEffort effort = effort_of(seconds, repeats);
                return measured_on_gpu([&] { return bench.measure_stream(stream, array_bytes, effort); });
            },
            py::arg("stream"), py::arg("array_bytes"), py::arg("seconds"), py::arg("repeats"))
        .def(
            "measure_launch",
            [](DeviceBench& bench, int repeats) {
                const GpuEffort effort = effort_of(1, repeats);
                const cuda::LaunchTimes times = measured_on_gpu([&] { return bench.measure_launch(effort); });
                py::dict result;
                result["floor_ns"] = times.floor_ns;
                result["period_ns"] = times.period_ns;
                return result;
            },
            py::arg("repeats"));
}

}  // namespace

// What fails of the driver, the compiler or the GPU is a RuntimeError with one line.
void bind_gpu_ceilings(py::module_& module) {
    module.def("cuda_devices", &cuda_devices);
    module.def("nvrtc_probe", &nvrtc_probe, py::arg("folders"));
    module.def("compile_gpu_kernels", &compile_gpu_kernels, py::arg("folders"), py::arg("capability"));
    bind_bench_class(module);
}

}  // namespace gpuprof::bindings
