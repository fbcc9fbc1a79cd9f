// SPDX-License-Identifier: Apache-2.0
// What the hot-path types need of CPython, where its versions differ.
#pragma once

#include <Python.h>

namespace gpuprof::python {

// The state of the thread that holds the interpreter lock, which may be another one before 3.12.
inline PyThreadState* present_thread_state() noexcept {
#if PY_VERSION_HEX >= 0x030D0000
    return PyThreadState_GetUnchecked();
#else
    return _PyThreadState_UncheckedGet();
#endif
}

// A reference that is given back at the end of the scope.
class Owned {
  public:
    explicit Owned(PyObject* object = nullptr) noexcept : object_(object) {}
    Owned(const Owned&) = delete;
    Owned& operator=(const Owned&) = delete;
    Owned(Owned&& other) noexcept : object_(other.release()) {}
    ~Owned() { Py_XDECREF(object_); }
    PyObject* get() const noexcept { return object_; }
    PyObject* release() noexcept {
        PyObject* object = object_;
        object_ = nullptr;
        return object;
    }
    explicit operator bool() const noexcept { return object_ != nullptr; }

  private:
    PyObject* object_;
};

// Keeps the exception that may be set while other Python code runs.
class ErrorKeeper {
  public:
    ErrorKeeper() noexcept { PyErr_Fetch(&type_, &value_, &traceback_); }
    ErrorKeeper(const ErrorKeeper&) = delete;
    ErrorKeeper& operator=(const ErrorKeeper&) = delete;
    ~ErrorKeeper() { PyErr_Restore(type_, value_, traceback_); }

  private:
    PyObject *type_ = nullptr, *value_ = nullptr, *traceback_ = nullptr;
};

// Python code of ours that runs in between is not for the program's own profilers and tracers.
class TracingPaused {
  public:
    TracingPaused() noexcept {
#if PY_VERSION_HEX >= 0x030B0000  // CPython 3.10 has no way to
        PyThreadState_EnterTracing(PyThreadState_Get());
#endif
    }
    ~TracingPaused() {
#if PY_VERSION_HEX >= 0x030B0000
        PyThreadState_LeaveTracing(PyThreadState_Get());
#endif
    }
    TracingPaused(const TracingPaused&) = delete;
    TracingPaused& operator=(const TracingPaused&) = delete;
};

inline void set_function_vectorcall(PyObject* function, vectorcallfunc call) noexcept {
#if PY_VERSION_HEX >= 0x030C0000
    PyFunction_SetVectorcall(reinterpret_cast<PyFunctionObject*>(function), call);
#else
    // Before 3.12 the field is the interface; the version tag prevents specialized call sites from
    // bypassing it.
    auto* const object = reinterpret_cast<PyFunctionObject*>(function);
#if PY_VERSION_HEX >= 0x030B0000
    object->func_version = 0;
#endif
    object->vectorcall = call;
#endif
}

// Adds `type` made from `spec` to `module` under `name`; returns a borrowed reference or null.
PyTypeObject* add_type(PyObject* module, PyType_Spec* spec, const char* name) noexcept;

// Registers the hot-path types and functions. Each returns false with a Python error set.
bool register_context(PyObject* module) noexcept;
bool register_span(PyObject* module) noexcept;
bool register_layers(PyObject* module) noexcept;
bool register_ranges(PyObject* module) noexcept;
bool register_quiet_call(PyObject* module) noexcept;
bool register_pauses(PyObject* module) noexcept;
bool register_watched_calls(PyObject* module) noexcept;
bool register_outermost_calls(PyObject* module) noexcept;

}  // namespace gpuprof::python
