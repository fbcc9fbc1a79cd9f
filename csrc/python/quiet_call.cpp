// SPDX-License-Identifier: Apache-2.0
// A callable that keeps the failures of our own Python code from the program that it runs in.
//
// It is native since a function of Python cannot even be entered where the program is at its limit of
// recursion, and so cannot catch that.
#include "python/python_api.hpp"

#include <structmember.h>

#include <cstddef>

namespace gpuprof::python {
namespace {

struct QuietCall {
    PyObject_HEAD PyObject* target;
    PyObject* folder;    // of our own source files
    PyObject* failures;  // a set of types
    vectorcallfunc vectorcall;
};

bool is_in_folder(PyFrameObject* frame, PyObject* folder) noexcept {
    const Owned code(reinterpret_cast<PyObject*>(PyFrame_GetCode(frame)));
    PyObject* const file = reinterpret_cast<PyCodeObject*>(code.get())->co_filename;
    return PyUnicode_Tailmatch(file, folder, 0, PY_SSIZE_T_MAX, -1) == 1;
}

// What a signal handler of the program raises passes through the handler's own function. What is raised in a
// thread from outside, to end it, is of a class of the program's or no Exception.
bool is_ours(PyObject* type, PyObject* traceback, PyObject* folder) noexcept {
    if (PyErr_GivenExceptionMatches(type, PyExc_Exception) == 0) return false;
    if (PyType_HasFeature(reinterpret_cast<PyTypeObject*>(type), Py_TPFLAGS_HEAPTYPE) != 0) return false;
    for (auto* at = reinterpret_cast<PyTracebackObject*>(traceback); at != nullptr; at = at->tb_next)
        if (!is_in_folder(at->tb_frame, folder)) return false;
    return true;
}

PyObject* call_quietly(PyObject* callable, PyObject* const* arguments, std::size_t count,
                       PyObject* names) noexcept {
    const auto* const self = reinterpret_cast<QuietCall*>(callable);
    PyObject* const result = PyObject_Vectorcall(self->target, arguments, count, names);
    if (result != nullptr) return result;
    PyObject *type = nullptr, *value = nullptr, *traceback = nullptr;
    PyErr_Fetch(&type, &value, &traceback);
    if (!is_ours(type, traceback, self->folder)) {
        PyErr_Restore(type, value, traceback);
        return nullptr;
    }
    // Where memory is short the type may not be kept; the failure is no more the program's for that.
    if (PySet_Add(self->failures, type) != 0) PyErr_Clear();
    Py_XDECREF(type);
    Py_XDECREF(value);
    Py_XDECREF(traceback);
    Py_RETURN_NONE;
}

PyObject* make_quiet_call(PyTypeObject* type, PyObject* arguments, PyObject* names) noexcept {
    static const char* keywords[] = {"target", "folder", "failures", nullptr};
    PyObject *target = nullptr, *folder = nullptr, *failures = nullptr;
    if (PyArg_ParseTupleAndKeywords(arguments, names, "OUO!", const_cast<char**>(keywords), &target, &folder,
                                    &PySet_Type, &failures) == 0)
        return nullptr;
    PyObject* const made = type->tp_alloc(type, 0);
    if (made == nullptr) return nullptr;
    auto* const self = reinterpret_cast<QuietCall*>(made);
    self->target = Py_NewRef(target);
    self->folder = Py_NewRef(folder);
    self->failures = Py_NewRef(failures);
    self->vectorcall = call_quietly;
    return made;
}

void free_quiet_call(PyObject* object) {
    auto* const self = reinterpret_cast<QuietCall*>(object);
    PyTypeObject* const type = Py_TYPE(object);
    Py_XDECREF(self->target);
    Py_XDECREF(self->folder);
    Py_XDECREF(self->failures);
    type->tp_free(object);
    Py_DECREF(type);
}

PyMemberDef quiet_call_members[] = {
    {"__vectorcalloffset__", T_PYSSIZET, offsetof(QuietCall, vectorcall), READONLY, nullptr},
    {nullptr, 0, 0, 0, nullptr},
};
PyType_Slot quiet_call_slots[] = {
    {Py_tp_new, reinterpret_cast<void*>(make_quiet_call)},
    {Py_tp_dealloc, reinterpret_cast<void*>(free_quiet_call)},
    {Py_tp_call, reinterpret_cast<void*>(PyVectorcall_Call)},
    {Py_tp_members, quiet_call_members},
    {0, nullptr},
};
PyType_Spec quiet_call_spec = {"gpuprof._native.QuietCall", sizeof(QuietCall), 0,
                               Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_VECTORCALL, quiet_call_slots};

}  // namespace

bool register_quiet_call(PyObject* module) noexcept {
    return add_type(module, &quiet_call_spec, "QuietCall") != nullptr;
}

}  // namespace gpuprof::python
