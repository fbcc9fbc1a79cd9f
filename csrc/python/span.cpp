// SPDX-License-Identifier: Apache-2.0
// gpuprof.span. A span object holds a name and nothing of a call, so one object may be entered any
// number of times at once: nested, recursive, on several threads and in several tasks.
#include <cstddef>

#include "python/context.hpp"
#include "python/python_api.hpp"
#include "python/span_events.hpp"

namespace gpuprof::python {
namespace {

// Whether a count of references is a number and no more: it may be set, and an object may rest without any.
#if defined(Py_TRACE_REFS) || defined(Py_GIL_DISABLED)
constexpr bool counts_are_plain = false;
#else
constexpr bool counts_are_plain = true;
#endif

PyTypeObject* span_type = nullptr;
PyObject* decorate_hook = nullptr;  // gpuprof.record.decorate: wraps a function of any kind

template <BoundMethod Span::* method>
Span* span_of(PyObject* bound) noexcept {
    static const Span layout{};
    const auto offset =
        reinterpret_cast<const char*>(&(layout.*method)) - reinterpret_cast<const char*>(&layout);
    return reinterpret_cast<Span*>(reinterpret_cast<char*>(bound) - offset);
}

PyObject* call_enter(PyObject* self, PyObject* const*, std::size_t nargsf, PyObject*) noexcept {
    if (PyVectorcall_NARGS(nargsf) != 0) [[unlikely]]
        return PyErr_Format(PyExc_TypeError, "__enter__() takes no arguments");
    return begin_span(span_of<&Span::enter>(self));
}

PyObject* call_exit(PyObject* self, PyObject* const*, std::size_t, PyObject*) noexcept {
    return end_span(span_of<&Span::exit>(self));
}

template <BoundMethod Span::* method>
void free_bound(PyObject* self) noexcept {
    Py_DECREF(span_of<method>(self));
}

template <BoundMethod Span::* method>
PyTypeObject bound_type(const char* name) noexcept {
    PyTypeObject type{};
    Py_SET_REFCNT(reinterpret_cast<PyObject*>(&type), 1);
    type.tp_name = name;
    type.tp_basicsize = sizeof(BoundMethod);
    type.tp_flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_VECTORCALL;
    type.tp_vectorcall_offset = offsetof(BoundMethod, call);
    type.tp_call = PyVectorcall_Call;
    type.tp_dealloc = free_bound<method>;
    return type;
}

PyTypeObject enter_type = bound_type<&Span::enter>("gpuprof._native.span_enter");
PyTypeObject exit_type = bound_type<&Span::exit>("gpuprof._native.span_exit");

// An object that was given up, and kept its type, is used again.
inline PyObject* revive(PyObject* object) noexcept {
#if defined(Py_TRACE_REFS) || defined(Py_GIL_DISABLED)
    return PyObject_Init(object, Py_TYPE(object));
#else
    // Without a call of PyObject_Init: this runs in each `with` statement.
    Py_SET_REFCNT(object, 1);
    return object;
#endif
}

template <BoundMethod Span::* method>
PyObject* bind(Span* span, bool keep) noexcept {
    BoundMethod& bound = span->*method;
    auto* const object = reinterpret_cast<PyObject*>(&bound);
    if (Py_REFCNT(object) > 0) {
        Py_INCREF(object);
        return object;
    }
    revive(object);
    bound.kept_by_span = keep;
    Py_INCREF(keep ? object : reinterpret_cast<PyObject*>(span));
    return object;
}

PyObject* bind_enter(Span* span) noexcept {
    return bind<&Span::enter>(span, counts_are_plain);
}

// The span of `with gpuprof.span("x"):` has no owner but this method until the block ends.
PyObject* bind_exit(Span* span) noexcept {
    const bool has_owner = Py_REFCNT(reinterpret_cast<PyObject*>(span)) > 1;
    return bind<&Span::exit>(span, counts_are_plain && has_owner);
}

bool is_held(const BoundMethod& bound) noexcept {
    return bound.kept_by_span && Py_REFCNT(reinterpret_cast<const PyObject*>(&bound)) > 1;
}

// From now on the method owns its span; 0 if nothing refers to it.
int become_owner(BoundMethod& bound) noexcept {
    if (!bound.kept_by_span) return 0;
    bound.kept_by_span = false;
    auto* const object = reinterpret_cast<PyObject*>(&bound);
    Py_SET_REFCNT(object, Py_REFCNT(object) - 1);
    return Py_REFCNT(object) > 0 ? 1 : 0;
}

// A span whose last reference is gone while somebody still holds a method of it: that keeps it now.
void live_on(Span* span) noexcept {
    const int owners = become_owner(span->enter) + become_owner(span->exit);
    auto* const self = reinterpret_cast<PyObject*>(span);
    revive(self);
    Py_SET_REFCNT(self, owners);
}

// The descriptors __enter__ and __exit__ of the type: they bind on an instance, and on the type are called
// with the span as its first argument, as contextlib.ExitStack does.
struct SpanMethod {
    PyObject_HEAD vectorcallfunc call;
    bool is_enter;
};

PyObject* bind_method(PyObject* self, PyObject* span, PyObject*) noexcept {
    if (span == nullptr || Py_TYPE(span) != span_type) {
        Py_INCREF(self);
        return self;
    }
    auto* const owner = reinterpret_cast<Span*>(span);
    return reinterpret_cast<SpanMethod*>(self)->is_enter ? bind_enter(owner) : bind_exit(owner);
}

PyObject* call_unbound(PyObject* self, PyObject* const* args, std::size_t nargsf, PyObject*) noexcept {
    if (PyVectorcall_NARGS(nargsf) < 1 || Py_TYPE(args[0]) != span_type)
        return PyErr_Format(PyExc_TypeError, "the first argument must be a gpuprof.span");
    auto* const span = reinterpret_cast<Span*>(args[0]);
    return reinterpret_cast<SpanMethod*>(self)->is_enter ? begin_span(span) : end_span(span);
}

PyTypeObject method_type = [] {
    PyTypeObject type{};
    Py_SET_REFCNT(reinterpret_cast<PyObject*>(&type), 1);
    type.tp_name = "gpuprof._native.span_method";
    type.tp_basicsize = sizeof(SpanMethod);
    type.tp_flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_VECTORCALL;
    type.tp_vectorcall_offset = offsetof(SpanMethod, call);
    type.tp_call = PyVectorcall_Call;
    type.tp_descr_get = bind_method;
    return type;
}();

bool add_method(const char* name, bool is_enter) noexcept {
    const Owned made(method_type.tp_alloc(&method_type, 0));
    if (!made) return false;
    auto* const method = reinterpret_cast<SpanMethod*>(made.get());
    method->call = call_unbound;
    method->is_enter = is_enter;
    return PyObject_SetAttrString(reinterpret_cast<PyObject*>(span_type), name, made.get()) == 0;
}

// Spans come and go with every `with` line. Those that went wait for the next line of the same name, which
// finds them with their name's id. Under the interpreter lock.
constexpr std::size_t resting_places = 256;
constexpr Py_ssize_t longest_resting_name = 256;
Span* resting_spans[resting_places];

// A span may keep its name for long: no large one, and none that is more than a text.
Span** find_resting_place(PyObject* name) noexcept {
    if (!counts_are_plain || !PyUnicode_CheckExact(name) || PyUnicode_GET_LENGTH(name) > longest_resting_name)
        return nullptr;
    return &resting_spans[slot_of(name, resting_places)];
}

[[gnu::noinline]] PyObject* allocate_span(PyObject* name) noexcept {
    PyObject* const self = span_type->tp_alloc(span_type, 0);
    if (self == nullptr) return nullptr;
    auto* const span = reinterpret_cast<Span*>(self);
    Py_INCREF(name);
    span->name = name;
    span->resting_place = find_resting_place(name);
    span->enter.call = call_enter;
    span->exit.call = call_exit;
    Py_SET_TYPE(reinterpret_cast<PyObject*>(&span->enter), &enter_type);
    Py_SET_TYPE(reinterpret_cast<PyObject*>(&span->exit), &exit_type);
    return self;
}

PyObject* make_span(PyObject* name) noexcept {
    Span*& place = resting_spans[slot_of(name, resting_places)];
    Span* const span = place;
    if (span == nullptr || span->name != name) return allocate_span(name);
    place = nullptr;
    return revive(reinterpret_cast<PyObject*>(span));
}

[[gnu::noinline]] void release_span(Span* span) noexcept {
    PyTypeObject* const type = Py_TYPE(reinterpret_cast<PyObject*>(span));
    PyObject* const name = span->name;
    type->tp_free(span);
    Py_DECREF(name);
    Py_DECREF(type);
}

void free_span(PyObject* self) noexcept {
    auto* const span = reinterpret_cast<Span*>(self);
    if (is_held(span->enter) || is_held(span->exit)) [[unlikely]]
        return live_on(span);
    Span** const place = span->resting_place;
    if (place == nullptr || *place != nullptr) return release_span(span);
    *place = span;
}

PyObject* decorate(PyObject* function, PyObject* span) noexcept {
    if (decorate_hook == nullptr) {
        PyErr_SetString(PyExc_RuntimeError, "gpuprof.span is not set up: import gpuprof first");
        return nullptr;
    }
    return PyObject_CallFunctionObjArgs(decorate_hook, function, span, nullptr);
}

// span("name"), or @span over a function, which is then named after it.
PyObject* make_or_decorate(PyObject* argument) noexcept {
    if (PyUnicode_Check(argument)) return make_span(argument);
    // Descriptors of functions are not callable in all versions, but are decorated too.
    if (PyCallable_Check(argument) || Py_IS_TYPE(argument, &PyClassMethod_Type) ||
        Py_IS_TYPE(argument, &PyStaticMethod_Type))
        return decorate(argument, Py_None);
    PyErr_Format(PyExc_TypeError, "span() takes a name (str) or a function to decorate, not %.100s",
                 Py_TYPE(argument)->tp_name);
    return nullptr;
}

PyObject* span_vectorcall(PyObject*, PyObject* const* args, std::size_t nargsf, PyObject* keywords) noexcept {
    const Py_ssize_t positional = PyVectorcall_NARGS(nargsf);
    if (keywords == nullptr && positional == 1) [[likely]]
        return make_or_decorate(args[0]);
    const Py_ssize_t named = keywords != nullptr ? PyTuple_GET_SIZE(keywords) : 0;
    const bool by_keyword = positional == 0 && named == 1 &&
                            PyUnicode_CompareWithASCIIString(PyTuple_GET_ITEM(keywords, 0), "name") == 0;
    if (by_keyword || (positional == 1 && named == 0)) return make_or_decorate(args[0]);
    PyErr_SetString(PyExc_TypeError, "span() takes exactly one argument: a name, or a function to decorate");
    return nullptr;
}

PyObject* call_span(PyObject* self, PyObject* args, PyObject* keywords) noexcept {
    PyObject* function = nullptr;
    if ((keywords != nullptr && PyDict_GET_SIZE(keywords) != 0) ||
        !PyArg_ParseTuple(args, "O:span", &function))
        return PyErr_Occurred() != nullptr
                   ? nullptr
                   : PyErr_Format(PyExc_TypeError, "a span used as a decorator takes one function");
    return decorate(function, self);
}

PyObject* new_span(PyTypeObject*, PyObject* args, PyObject* keywords) noexcept {
    static const char* names[] = {"name", nullptr};
    PyObject* argument = nullptr;
    if (!PyArg_ParseTupleAndKeywords(args, keywords, "O:span", const_cast<char**>(names), &argument))
        return nullptr;
    return make_or_decorate(argument);
}

PyObject* represent(PyObject* self) noexcept {
    return PyUnicode_FromFormat("gpuprof.span(%R)", reinterpret_cast<Span*>(self)->name);
}

PyObject* get_name(PyObject* self, void*) noexcept {
    PyObject* const name = reinterpret_cast<Span*>(self)->name;
    Py_INCREF(name);
    return name;
}

PyObject* reduce(PyObject* self, PyObject*) noexcept {
    return Py_BuildValue("O(O)", reinterpret_cast<PyObject*>(span_type), reinterpret_cast<Span*>(self)->name);
}

PyMethodDef span_methods[] = {
    {"__reduce__", reduce, METH_NOARGS, nullptr},
    {nullptr, nullptr, 0, nullptr},
};

PyGetSetDef span_fields[] = {
    {"name", get_name, nullptr, "The name that the span is recorded under.", nullptr},
    {nullptr, nullptr, nullptr, nullptr, nullptr},
};

constexpr const char* span_doc =
    "span(name)\n--\n\n"
    "Records what runs inside it under `name`: `with span(\"load\"):`, or `@span(\"load\")` over a plain,\n"
    "async or generator function, or `@span` to take the function's own name. One object may be entered\n"
    "many times at once. Costs some tens of nanoseconds, recorded or not.";

PyType_Slot span_slots[] = {
    {Py_tp_doc, const_cast<char*>(span_doc)},
    {Py_tp_dealloc, reinterpret_cast<void*>(free_span)},
    {Py_tp_new, reinterpret_cast<void*>(new_span)},
    {Py_tp_call, reinterpret_cast<void*>(call_span)},
    {Py_tp_repr, reinterpret_cast<void*>(represent)},
    {Py_tp_methods, span_methods},
    {Py_tp_getset, span_fields},
    {0, nullptr},
};
PyType_Spec span_spec = {"gpuprof.span", sizeof(Span), 0, Py_TPFLAGS_DEFAULT, span_slots};

PyObject* set_decorate_hook(PyObject*, PyObject* hook) noexcept {
    Py_INCREF(hook);
    Py_XDECREF(decorate_hook);
    decorate_hook = hook;
    Py_RETURN_NONE;
}

PyMethodDef span_functions[] = {
    {"_set_decorate_hook", set_decorate_hook, METH_O, "_set_decorate_hook(hook, /)\n--\n\n"},
    {nullptr, nullptr, 0, nullptr},
};

}  // namespace

bool register_span(PyObject* module) noexcept {
    span_type = add_type(module, &span_spec, "span");
    if (span_type == nullptr) return false;
    span_type->tp_vectorcall = span_vectorcall;
    for (PyTypeObject* type : {&enter_type, &exit_type, &method_type})
        if (PyType_Ready(type) != 0) return false;
    if (!add_method("__enter__", true) || !add_method("__exit__", false)) return false;
    span_type->tp_flags |= Py_TPFLAGS_IMMUTABLETYPE;
    PyType_Modified(span_type);
    return PyModule_AddFunctions(module, span_functions) == 0;
}

}  // namespace gpuprof::python
