// SPDX-License-Identifier: Apache-2.0
#include "bindings/bindings.hpp"
#include "python/python_api.hpp"

// Python finds `PyInit__native` below, which calls the one that is made here.
PYBIND11_MODULE(_native_of_main_interpreter, module) {
    module.doc() = "The native core of gpuprof.";
    namespace hot = gpuprof::python;
    for (auto* registrar : {&hot::register_context, &hot::register_span, &hot::register_layers,
                            &hot::register_ranges, &hot::register_quiet_call, &hot::register_pauses,
                            &hot::register_watched_calls, &hot::register_outermost_calls})
        if (!registrar(module.ptr())) throw pybind11::error_already_set();
    gpuprof::bindings::bind_record(module);
    gpuprof::bindings::bind_gpu(module);
    gpuprof::bindings::bind_gpu_ceilings(module);
    gpuprof::bindings::bind_counters(module);
    gpuprof::bindings::bind_autograd(module);
    gpuprof::bindings::bind_analysis(module);
    gpuprof::bindings::bind_bench(module);
    gpuprof::bindings::bind_ceilings(module);
    gpuprof::bindings::bind_load(module);
    gpuprof::bindings::bind_queue(module);
    gpuprof::bindings::bind_replay(module);
    gpuprof::bindings::bind_span_nodes(module);
    gpuprof::bindings::bind_stacks(module);
    gpuprof::bindings::bind_traces(module);
}

// From 3.12 on Python refuses such a module by itself. Before, the first lines of pybind11 would wait there
// for the interpreter lock, which their own thread holds.
extern "C" PYBIND11_EXPORT PyObject* PyInit__native() {
    if (PyInterpreterState_Get() != PyInterpreterState_Main()) {
        PyErr_SetString(PyExc_ImportError,
                        "module gpuprof._native does not support loading in subinterpreters");
        return nullptr;
    }
    return PyInit__native_of_main_interpreter();
}
