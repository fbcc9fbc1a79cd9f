// SPDX-License-Identifier: Apache-2.0
// Which asynchronous task an event belongs to. Each asyncio task runs in a contextvars context of its
// own. A thread state counts how often it entered and left contexts, so one comparison shows whether the
// thread may have switched to another task.
#pragma once

#include "core/recorder.hpp"
#include "python/python_api.hpp"

namespace gpuprof::python {

// Writes a context event if the task did change. Needs the interpreter lock; keeps a set exception;
// never raises.
void switch_context(ThreadLog& log, PyThreadState* state) noexcept;

// In an event loop: remembers in the task's context that a span began or ended at `ticks`, so that a
// task which is started from here on knows which spans were open then.
void leave_trace(ThreadLog& log, std::uint64_t ticks) noexcept;

// As far as possible without the interpreter lock: writes a context event if the thread switched to
// a task that it was seen in before.
void probe_context() noexcept;

// Returns the calling thread's log, which may be null.
inline ThreadLog* note_context(Recorder& recorder) noexcept {
    PyThreadState* const state = PyThreadState_Get();
    ThreadLog* const log = recorder.current_log();
    if (log != nullptr && log->context_version != state->context_ver) [[unlikely]]
        switch_context(*log, state);
    return log;
}

}  // namespace gpuprof::python
