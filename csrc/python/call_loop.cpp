// SPDX-License-Identifier: Apache-2.0
#include "python/call_loop.hpp"

#include "core/clock.hpp"

namespace gpuprof::python {
namespace {

// What the call returns is dropped at once, as a program that does not keep it would.
inline bool call_once(PyObject* callable) noexcept {
    PyObject* const result = PyObject_Vectorcall(callable, nullptr, 0, nullptr);
    if (result == nullptr) return false;
    Py_DECREF(result);
    return true;
}

inline bool call_if_any(PyObject* callable) noexcept {
    return callable == nullptr || call_once(callable);
}

// Between two calls: Ctrl-C, and the turn of the other threads. A callable in C looks after neither.
bool look_around(std::uint64_t now, std::uint64_t yield_ticks, std::uint64_t& yielded) noexcept {
    if (now - yielded > yield_ticks) {
        PyEval_RestoreThread(PyEval_SaveThread());
        yielded = now;
    }
    return PyErr_CheckSignals() == 0;
}

}  // namespace

std::size_t time_calls(const TimedCall& call, const CallTicks& ticks, std::uint64_t yield_ticks) noexcept {
    std::uint64_t yielded = read_ticks();
    std::uint64_t last_end = yielded;
    for (std::size_t index = 0; index < ticks.size; ++index) {
        if (call.before != nullptr && !(call_once(call.before) && call_if_any(call.synchronize)))
            return index;
        const std::uint64_t begin = read_ticks();
        if (!call_once(call.run)) return index;
        const std::uint64_t returned = read_ticks();
        std::uint64_t end = returned;
        if (call.synchronize != nullptr) {
            if (!call_once(call.synchronize)) return index;
            end = read_ticks();
        }
        ticks.enqueue[index] = static_cast<std::int64_t>(returned - begin);
        ticks.wall[index] = static_cast<std::int64_t>(end - begin);
        ticks.gap[index] = static_cast<std::int64_t>(begin - last_end);
        last_end = end;
        if (!look_around(end, yield_ticks, yielded)) return index + 1;
    }
    return ticks.size;
}

}  // namespace gpuprof::python
