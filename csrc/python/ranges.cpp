// SPDX-License-Identifier: Apache-2.0
#include "python/ranges.hpp"

#include "collect/nvtx.hpp"
#include "python/context.hpp"

namespace gpuprof::python {
namespace {

// The calling thread's state if it holds the interpreter lock, else null. Before 3.12 the present state is
// that of whichever thread holds the lock; equal to this thread's own it is only while this thread does.
PyThreadState* state_with_lock() noexcept {
    PyThreadState* const own = PyGILState_GetThisThreadState();
    return own == present_thread_state() ? own : nullptr;
}

// The caller that announces a range does not expect Python code to run. Until 3.11 creating an object may
// start a collection, and that may run any.
class CollectionPause {
  public:
    CollectionPause() noexcept = default;
    CollectionPause(const CollectionPause&) = delete;
    CollectionPause& operator=(const CollectionPause&) = delete;
#if PY_VERSION_HEX < 0x030C0000
    ~CollectionPause() {
        if (was_enabled_ != 0) PyGC_Enable();
    }

  private:
    int was_enabled_ = PyGC_Disable();
#else
    ~CollectionPause() {}
#endif
};

// What gpuprof.span does around an event of its own, as far as the interpreter lock lets it.
void emit_range(EventKind kind, std::uint32_t name, std::uint64_t ticks) noexcept {
    Recorder& recorder = Recorder::instance();
    ThreadLog* const log = recorder.current_log();
    if (log == nullptr) return;
    PyThreadState* const state = state_with_lock();
    if (state == nullptr)
        probe_context();
    else if (log->context_version != state->context_ver) {
        const CollectionPause pause;
        switch_context(*log, state);
    }
    Recorder::emit_to(log, kind, recorder.name_key(name), ticks);
    if (state == nullptr || !log->in_event_loop || !Recorder::active()) return;
    const CollectionPause pause;
    leave_trace(*log, ticks);
}

// attach_nvtx_tool(path) -> why it cannot be, or None. `path` is in the file system's encoding.
PyObject* attach_nvtx_tool(PyObject*, PyObject* path) noexcept {
    const char* const text = PyBytes_AsString(path);
    if (text == nullptr) return nullptr;
    const Reason& reason = nvtx::attach_tool(text);
    tool_attached = !reason;
    if (!reason) Py_RETURN_NONE;
    if (reason.detail.empty()) return Py_BuildValue("{s:s}", "code", reason.name());
    return Py_BuildValue("{s:s,s:N}", "code", reason.name(), "detail",
                         PyUnicode_DecodeFSDefault(reason.detail.c_str()));
}

PyObject* nvtx_attachments(PyObject*, PyObject*) noexcept {
    return PyLong_FromUnsignedLong(nvtx::attachments());
}

PyMethodDef range_functions[] = {
    {"attach_nvtx_tool", attach_nvtx_tool, METH_O, "attach_nvtx_tool(path, /)\n--\n\n"},
    {"nvtx_attachments", nvtx_attachments, METH_NOARGS, nullptr},
    {nullptr, nullptr, 0, nullptr},
};

}  // namespace

void push_range(PyObject* name) noexcept {
    if (const char* const text = PyUnicode_AsUTF8(name); text != nullptr) {
        nvtx::push_range(text);
        return;
    }
    PyErr_Clear();  // lone surrogates: shown escaped
    const Owned encoded(PyUnicode_AsEncodedString(name, "utf-8", "backslashreplace"));
    PyErr_Clear();
    nvtx::push_range(encoded ? PyBytes_AS_STRING(encoded.get()) : "(lost name)");
}

bool register_ranges(PyObject* module) noexcept {
    nvtx::set_range_emitter(emit_range);
    return PyModule_AddFunctions(module, range_functions) == 0;
}

}  // namespace gpuprof::python
