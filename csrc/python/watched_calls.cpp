// SPDX-License-Identifier: Apache-2.0
// Functions of Python whose calls are looked at, as those of layers are: through the function's vectorcall
// entry, so that nothing that Python can see of the function changes.
#include <algorithm>
#include <vector>

#include "core/recorder.hpp"
#include "python/pauses.hpp"
#include "python/python_api.hpp"

namespace gpuprof::python {
namespace {

struct WatchedFunction {
    PyObject* function;
    vectorcallfunc original;
    PyObject* callback;
    Py_ssize_t place;  // of the argument that the callback is given
};

// Under the interpreter lock.
std::vector<WatchedFunction>& watched_functions() noexcept {
    static auto* const shared = new std::vector<WatchedFunction>;
    return *shared;
}

// Calls the callback with an argument. Only what the program's signal handlers raise is left set.
bool look_at(PyObject* callback, PyObject* argument) noexcept {
    const TracingPaused unseen;
    const OwnWork own;
    const Owned kept(Py_NewRef(callback));
    const Owned result(PyObject_CallFunctionObjArgs(callback, argument, nullptr));
    return static_cast<bool>(result);
}

PyObject* call_watched(PyObject* callable, PyObject* const* args, std::size_t nargsf,
                       PyObject* keywords) noexcept {
    const auto& watched = watched_functions();
    const auto found = std::ranges::find(watched, callable, &WatchedFunction::function);
    // Where it was released meanwhile, the entry is the original again.
    if (found == watched.end()) return PyVectorcall_Function(callable)(callable, args, nargsf, keywords);
    const vectorcallfunc original = found->original;
    if (Recorder::active() && PyVectorcall_NARGS(nargsf) > found->place &&
        !look_at(found->callback, args[found->place]))
        return nullptr;
    return original(callable, args, nargsf, keywords);
}

// watch_calls(function, callback, place): `callback` catches its own errors.
PyObject* watch_calls(PyObject*, PyObject* args) noexcept {
    PyObject *function = nullptr, *callback = nullptr;
    Py_ssize_t place = 0;
    if (!PyArg_ParseTuple(args, "O!On", &PyFunction_Type, &function, &callback, &place)) return nullptr;
    auto& watched = watched_functions();
    if (std::ranges::find(watched, function, &WatchedFunction::function) != watched.end()) {
        PyErr_SetString(PyExc_RuntimeError, "the function is watched already");
        return nullptr;
    }
    watched.push_back({Py_NewRef(function), reinterpret_cast<PyFunctionObject*>(function)->vectorcall,
                       Py_NewRef(callback), place});
    set_function_vectorcall(function, call_watched);
    Py_RETURN_NONE;
}

// release_calls(function): harmless where it is not watched.
PyObject* release_calls(PyObject*, PyObject* function) noexcept {
    auto& watched = watched_functions();
    const auto found = std::ranges::find(watched, function, &WatchedFunction::function);
    if (found == watched.end()) Py_RETURN_NONE;
    const WatchedFunction released = *found;
    watched.erase(found);
    set_function_vectorcall(function, released.original);
    Py_DECREF(released.callback);
    Py_DECREF(released.function);
    Py_RETURN_NONE;
}

PyMethodDef watching_functions[] = {
    {"watch_calls", watch_calls, METH_VARARGS, nullptr},
    {"release_calls", release_calls, METH_O, "release_calls(function, /)\n--\n\n"},
    {nullptr, nullptr, 0, nullptr},
};

}  // namespace

bool register_watched_calls(PyObject* module) noexcept {
    return PyModule_AddFunctions(module, watching_functions) == 0;
}

}  // namespace gpuprof::python
