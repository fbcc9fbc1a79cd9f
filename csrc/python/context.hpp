// SPDX-License-Identifier: Apache-2.0
// Which asynchronous task an event belongs to. Each asyncio task runs in a contextvars context of its
// own, so a change of the thread's context object, one pointer to compare, tells that the task changed.
#pragma once

#include "core/recorder.hpp"
#include "python/python_api.hpp"

namespace gpuprof::python {

// Writes a context event. Needs the interpreter lock; keeps a set exception; never raises.
void switch_context(ThreadLog& log, PyThreadState* state) noexcept;

inline void note_context() noexcept {
    PyThreadState* const state = PyThreadState_Get();
    ThreadLog* const log = Recorder::instance().current_log();
    if (log != nullptr && log->context != state->context) [[unlikely]]
        switch_context(*log, state);
}

}  // namespace gpuprof::python
