// SPDX-License-Identifier: Apache-2.0
// CUDA events around the calls of layers, on the stream that PyTorch has current.
#pragma once

#include "cuda/event_timer.hpp"
#include "python/python_api.hpp"

namespace gpuprof::python {

// PyTorch's functions that return the current device's number and, for it, the current stream's address.
// Null for none. Needs the interpreter lock.
void set_stream_functions(PyObject* get_device, PyObject* get_stream) noexcept;

// The call with an event before and one after it. Needs the interpreter lock.
PyObject* call_between_events(vectorcallfunc function, PyObject* callable, PyObject* const* args,
                              std::size_t nargsf, PyObject* keywords) noexcept;

inline PyObject* call_timed(vectorcallfunc function, PyObject* callable, PyObject* const* args,
                            std::size_t nargsf, PyObject* keywords) noexcept {
    if (cuda::EventTimer::is_on()) [[unlikely]]
        return call_between_events(function, callable, args, nargsf, keywords);
    return function(callable, args, nargsf, keywords);
}

}  // namespace gpuprof::python
