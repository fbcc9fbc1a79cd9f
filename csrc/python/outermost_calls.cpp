// SPDX-License-Identifier: Apache-2.0
// The outermost calls of one function of Python, each with its begin and end: the steps of a program that
// calls a model again and again. Calls inside another one cost a comparison.
#include "core/clock.hpp"
#include "python/pauses.hpp"
#include "python/python_api.hpp"

namespace gpuprof::python {
namespace {

// Under the interpreter lock. `original` stays after a release: what intercepted the function meanwhile
// may still call through us.
struct OutermostWatch {
    PyObject* function = nullptr;
    vectorcallfunc original = nullptr;
    PyObject* callback = nullptr;
};

OutermostWatch watch;
thread_local constinit bool is_inside = false;

bool report_call(PyObject* argument, std::int64_t begin_ns, std::int64_t end_ns) noexcept {
    const TracingPaused unseen;
    const OwnWork own;
    const Owned kept(Py_NewRef(watch.callback));
    const Owned result(PyObject_CallFunction(kept.get(), "OLL", argument, static_cast<long long>(begin_ns),
                                             static_cast<long long>(end_ns)));
    return static_cast<bool>(result);
}

PyObject* call_outermost(PyObject* callable, PyObject* const* args, std::size_t nargsf,
                         PyObject* keywords) noexcept {
    const vectorcallfunc original = watch.original;
    if (is_inside || watch.callback == nullptr || PyVectorcall_NARGS(nargsf) == 0)
        return original(callable, args, nargsf, keywords);
    const Owned first(Py_NewRef(args[0]));
    const std::int64_t begin_ns = monotonic_ns();
    is_inside = true;
    PyObject* const result = original(callable, args, nargsf, keywords);
    is_inside = false;
    if (result == nullptr || watch.callback == nullptr) return result;
    if (report_call(first.get(), begin_ns, monotonic_ns())) return result;
    Py_DECREF(result);
    return nullptr;
}

// watch_outermost(function, callback): `callback(first argument, begin_ns, end_ns)` catches its own errors.
PyObject* watch_outermost(PyObject*, PyObject* args) noexcept {
    PyObject *function = nullptr, *callback = nullptr;
    if (!PyArg_ParseTuple(args, "O!O", &PyFunction_Type, &function, &callback)) return nullptr;
    if (watch.function != nullptr && (watch.function != function || watch.callback != nullptr)) {
        PyErr_SetString(PyExc_RuntimeError, "outermost calls are watched already");
        return nullptr;
    }
    watch.callback = Py_NewRef(callback);
    if (watch.function != nullptr) Py_RETURN_NONE;  // released before, and still in the chain of calls
    watch.function = Py_NewRef(function);
    watch.original = reinterpret_cast<PyFunctionObject*>(function)->vectorcall;
    set_function_vectorcall(function, call_outermost);
    Py_RETURN_NONE;
}

// release_outermost(): harmless where nothing is watched.
PyObject* release_outermost(PyObject*, PyObject*) noexcept {
    Py_CLEAR(watch.callback);
    if (watch.function != nullptr &&
        reinterpret_cast<PyFunctionObject*>(watch.function)->vectorcall == call_outermost) {
        set_function_vectorcall(watch.function, watch.original);
        Py_CLEAR(watch.function);
    }
    Py_RETURN_NONE;
}

PyMethodDef outermost_functions[] = {
    {"watch_outermost", watch_outermost, METH_VARARGS, nullptr},
    {"release_outermost", release_outermost, METH_NOARGS, nullptr},
    {nullptr, nullptr, 0, nullptr},
};

}  // namespace

bool register_outermost_calls(PyObject* module) noexcept {
    return PyModule_AddFunctions(module, outermost_functions) == 0;
}

}  // namespace gpuprof::python
