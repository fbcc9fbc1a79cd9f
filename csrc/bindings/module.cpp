// SPDX-License-Identifier: Apache-2.0
#include "bindings/bindings.hpp"
#include "python/python_api.hpp"

PYBIND11_MODULE(_native, module) {
    module.doc() = "The native core of gpuprof.";
    namespace hot = gpuprof::python;
    for (auto* registrar : {&hot::register_context, &hot::register_span, &hot::register_layers,
                            &hot::register_ranges, &hot::register_quiet_call})
        if (!registrar(module.ptr())) throw pybind11::error_already_set();
    gpuprof::bindings::bind_record(module);
    gpuprof::bindings::bind_gpu(module);
    gpuprof::bindings::bind_gpu_ceilings(module);
    gpuprof::bindings::bind_counters(module);
    gpuprof::bindings::bind_autograd(module);
    gpuprof::bindings::bind_analysis(module);
    gpuprof::bindings::bind_bench(module);
    gpuprof::bindings::bind_ceilings(module);
    gpuprof::bindings::bind_traces(module);
}
