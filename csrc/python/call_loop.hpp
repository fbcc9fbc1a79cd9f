// SPDX-License-Identifier: Apache-2.0
// Clock readings around calls of a Python object, and nothing else between them.
#pragma once

#include <cstddef>
#include <cstdint>

#include "python/python_api.hpp"

namespace gpuprof::python {

// What is called, borrowed. `synchronize` and `before` may be null.
struct TimedCall {
    PyObject* run;
    PyObject* synchronize;
    PyObject* before;
};

// Where the ticks of each call go: until it was done, until it had returned, and from the end of the call
// before, or of the loop's first reading, until its start.
struct CallTicks {
    std::int64_t* wall;
    std::int64_t* enqueue;
    std::int64_t* gap;
    std::size_t size;
};

// Makes `ticks.size` calls; returns how many were finished. Where they are fewer, a Python error is set.
// Other threads get the interpreter lock every `yield_ticks`, between two calls.
std::size_t time_calls(const TimedCall& call, const CallTicks& ticks, std::uint64_t yield_ticks) noexcept;

}  // namespace gpuprof::python
