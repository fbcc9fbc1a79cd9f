// SPDX-License-Identifier: Apache-2.0
// gpuprof.span. A span object holds a name and nothing of a call, so one object may be entered any
// number of times at once: nested, recursive, on several threads and in several tasks.
#include <cstddef>

#include "core/recorder.hpp"
#include "python/context.hpp"
#include "python/python_api.hpp"
#include "python/ranges.hpp"

namespace gpuprof::python {
namespace {

// A `with` line looks up __enter__ and __exit__ and binds both, and a bound method of CPython is a new
// object each time, about 15 ns. Ours live inside the span: binding hands out the one that is there,
// which owns a reference to its span for as long as somebody holds it.
struct BoundMethod {
    PyObject_HEAD vectorcallfunc call;
};

struct Span {
    PyObject_HEAD PyObject* name;
    NameKey name_key;
    BoundMethod enter;
    BoundMethod exit;
};

PyTypeObject* span_type = nullptr;
PyObject* decorate_hook = nullptr;  // gpuprof.record.decorate: wraps a function of any kind

// Spans come and go with every `with` line: the last few are kept for reuse. Under the interpreter lock.
constexpr int most_spare_spans = 32;
PyObject* spare_spans[most_spare_spans];
int spare_span_count = 0;

// Literal names are the same object each time: their ids are found by address. The entry owns the name,
// so an address cannot come to mean another text.
struct CachedName {
    PyObject* name;
    NameKey key;
};
constexpr std::size_t cached_names = 256;
CachedName name_cache[cached_names];

std::uint32_t intern_text(PyObject* text) noexcept {
    Py_ssize_t size = 0;
    if (const char* bytes = PyUnicode_AsUTF8AndSize(text, &size); bytes != nullptr)
        return Recorder::instance().intern({bytes, static_cast<std::size_t>(size)});
    PyErr_Clear();  // lone surrogates: shown escaped
    const Owned encoded(PyUnicode_AsEncodedString(text, "utf-8", "backslashreplace"));
    if (!encoded) {
        PyErr_Clear();
        return 0;
    }
    return Recorder::instance().intern(
        {PyBytes_AS_STRING(encoded.get()), static_cast<std::size_t>(PyBytes_GET_SIZE(encoded.get()))});
}

NameKey look_up_key(PyObject* name, std::uint32_t generation) noexcept {
    const auto address = reinterpret_cast<std::uintptr_t>(name);
    CachedName& entry = name_cache[(address >> 4 ^ address >> 12) % cached_names];
    if (entry.name == name && generation_of(entry.key) == generation) [[likely]]
        return entry.key;
    const NameKey key = Recorder::name_key(generation, intern_text(name));
    PyObject* const former = entry.name;
    Py_INCREF(name);
    entry = {name, key};
    Py_XDECREF(former);
    return key;
}

inline NameKey name_key(Span* span) noexcept {
    const std::uint32_t generation = Recorder::instance().generation();
    if (generation_of(span->name_key) != generation) [[unlikely]]
        span->name_key = look_up_key(span->name, generation);
    return span->name_key;
}

void begin(Span* span) noexcept {
    if (tool_attached) [[unlikely]]
        push_range(span->name);
    Recorder& recorder = Recorder::instance();
    if (!recorder.active()) return;
    ThreadLog* const log = note_context();
    const NameKey key = name_key(span);
    const std::uint64_t ticks = read_ticks();
    recorder.emit_to(log, EventKind::span_begin, key, ticks);
    if (log != nullptr && log->in_event_loop) [[unlikely]]
        leave_trace(*log, ticks);
}

void end(Span* span) noexcept {
    if (tool_attached) [[unlikely]]
        nvtx::pop_range();
    Recorder& recorder = Recorder::instance();
    if (!recorder.active()) return;
    const std::uint64_t ticks = read_ticks();
    ThreadLog* const log = note_context();
    recorder.emit_to(log, EventKind::span_end, name_key(span), ticks);
    if (log != nullptr && log->in_event_loop) [[unlikely]]
        leave_trace(*log, ticks);
}

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
    Span* const span = span_of<&Span::enter>(self);
    begin(span);
    Py_INCREF(span);
    return reinterpret_cast<PyObject*>(span);
}

PyObject* call_exit(PyObject* self, PyObject* const*, std::size_t, PyObject*) noexcept {
    end(span_of<&Span::exit>(self));
    Py_RETURN_NONE;
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

// An object that was given up and is used again.
inline PyObject* revive(PyObject* object, PyTypeObject* type) noexcept {
#if defined(Py_TRACE_REFS) || defined(Py_GIL_DISABLED)
    return PyObject_Init(object, type);
#else
    // Without the call that PyObject_Init is: it stands twice in each `with` line.
    Py_SET_TYPE(object, type);
    Py_SET_REFCNT(object, 1);
    return object;
#endif
}

template <BoundMethod Span::* method>
PyObject* bind(PyObject* span, PyTypeObject* type, vectorcallfunc call) noexcept {
    BoundMethod* const bound = &(reinterpret_cast<Span*>(span)->*method);
    auto* const object = reinterpret_cast<PyObject*>(bound);
    if (bound->call != nullptr && Py_REFCNT(object) > 0) {
        Py_INCREF(object);
        return object;
    }
    bound->call = call;
    Py_INCREF(span);
    return revive(object, type);
}

// What stands in the type under __enter__ and __exit__: binds on an instance, and on the type is called
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
    return reinterpret_cast<SpanMethod*>(self)->is_enter ? bind<&Span::enter>(span, &enter_type, call_enter)
                                                         : bind<&Span::exit>(span, &exit_type, call_exit);
}

PyObject* call_unbound(PyObject* self, PyObject* const* args, std::size_t nargsf, PyObject*) noexcept {
    if (PyVectorcall_NARGS(nargsf) < 1 || Py_TYPE(args[0]) != span_type)
        return PyErr_Format(PyExc_TypeError, "the first argument must be a gpuprof.span");
    auto* const span = reinterpret_cast<Span*>(args[0]);
    if (!reinterpret_cast<SpanMethod*>(self)->is_enter) {
        end(span);
        Py_RETURN_NONE;
    }
    begin(span);
    Py_INCREF(span);
    return reinterpret_cast<PyObject*>(span);
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

PyObject* make_span(PyObject* name) noexcept {
    PyObject* self;
    if (spare_span_count > 0) {
        self = spare_spans[--spare_span_count];
        revive(self, span_type);
#if !defined(Py_TRACE_REFS) && !defined(Py_GIL_DISABLED)
        Py_INCREF(span_type);
#endif
    } else {
        self = span_type->tp_alloc(span_type, 0);
        if (self == nullptr) return nullptr;
    }
    auto* const span = reinterpret_cast<Span*>(self);
    Py_INCREF(name);
    span->name = name;
    span->name_key = NameKey{};
    span->enter.call = span->exit.call = nullptr;
    return self;
}

void free_span(PyObject* self) noexcept {
    Py_CLEAR(reinterpret_cast<Span*>(self)->name);
    PyTypeObject* const type = Py_TYPE(self);
    if (spare_span_count < most_spare_spans)
        spare_spans[spare_span_count++] = self;
    else
        type->tp_free(self);
    Py_DECREF(type);
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
    // Descriptors over functions are not callable everywhere, but are decorated all the same.
    if (PyCallable_Check(argument) || Py_IS_TYPE(argument, &PyClassMethod_Type) ||
        Py_IS_TYPE(argument, &PyStaticMethod_Type))
        return decorate(argument, Py_None);
    PyErr_Format(PyExc_TypeError, "span() takes a name (str) or a function to decorate, not %.100s",
                 Py_TYPE(argument)->tp_name);
    return nullptr;
}

PyObject* span_vectorcall(PyObject*, PyObject* const* args, std::size_t nargsf, PyObject* keywords) noexcept {
    const Py_ssize_t positional = PyVectorcall_NARGS(nargsf);
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
    "many times at once. Costs a few nanoseconds while nothing is recorded.";

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
    {"_set_decorate_hook", set_decorate_hook, METH_O, nullptr},
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
    return PyModule_AddFunctions(module, span_functions) == 0;
}

}  // namespace gpuprof::python
