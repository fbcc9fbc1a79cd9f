// SPDX-License-Identifier: Apache-2.0
#include "python/context.hpp"

#include "collect/itt.hpp"

namespace gpuprof::python {
namespace {

// The value of the context variable: which context it was set in, and when. A context that was copied
// from another carries the other's mark until it gets its own, and so names its parent.
struct ContextMark {
    PyObject_HEAD const void* context;
    std::uint64_t ticks;
    std::uint32_t id;
    std::uint32_t parent;
    std::uint32_t generation;
};

struct TaskId {
    std::uint32_t id;
    std::uint32_t parent;  // 0: none
    std::uint32_t generation;
};

constexpr std::uint64_t any_time = ~std::uint64_t{0};

PyTypeObject* mark_type = nullptr;
PyObject* mark_variable = nullptr;

void free_mark(PyObject* self) {
    PyTypeObject* const type = Py_TYPE(self);
    type->tp_free(self);
    Py_DECREF(type);
}

PyType_Slot mark_slots[] = {
    {Py_tp_dealloc, reinterpret_cast<void*>(free_mark)},
    {0, nullptr},
};
PyType_Spec mark_spec = {"gpuprof._native.ContextMark", sizeof(ContextMark), 0,
                         Py_TPFLAGS_DEFAULT | Py_TPFLAGS_DISALLOW_INSTANTIATION, mark_slots};

// The mark that this context sees, its own or inherited, of the recording `generation`.
Owned find_mark(std::uint32_t generation) noexcept {
    PyObject* value = nullptr;
    if (PyContextVar_Get(mark_variable, nullptr, &value) != 0) PyErr_Clear();
    Owned found(value);
    if (!found || Py_TYPE(found.get()) != mark_type) return Owned();
    const auto* mark = reinterpret_cast<ContextMark*>(found.get());
    return mark->generation == generation ? Owned(found.release()) : Owned();
}

// Sets a new mark in the present context; false when memory ran out. Where the thread had no context yet,
// setting the variable makes it, which is why the address is taken afterwards.
bool set_mark(PyThreadState* state, TaskId task, std::uint64_t ticks) noexcept {
    const Owned made(mark_type->tp_alloc(mark_type, 0));
    if (!made) {
        PyErr_Clear();
        return false;
    }
    auto* mark = reinterpret_cast<ContextMark*>(made.get());
    mark->id = task.id;
    mark->parent = task.parent;
    mark->generation = task.generation;
    mark->ticks = ticks;
    const Owned token(PyContextVar_Set(mark_variable, made.get()));
    if (!token) PyErr_Clear();
    mark->context = state->context;
    return static_cast<bool>(token);
}

// asyncio's own result, after the program has imported asyncio.
bool is_in_event_loop() noexcept {
    static PyObject* running_loop = nullptr;
    if (running_loop == nullptr) {
        const Owned name(PyUnicode_FromString("asyncio.events"));
        const Owned events(name ? PyImport_GetModule(name.get()) : nullptr);
        if (events) running_loop = PyObject_GetAttrString(events.get(), "_get_running_loop");
    }
    const Owned loop(running_loop != nullptr ? PyObject_CallNoArgs(running_loop) : nullptr);
    PyErr_Clear();
    return loop && loop.get() != Py_None;
}

// The contexts that this thread was seen in, for readers that do not hold the interpreter lock.
struct SeenContext {
    const void* context;
    TaskId task;
};
constexpr std::size_t seen_entries = 64;
thread_local constinit SeenContext seen_contexts[seen_entries] = {};

SeenContext& seen_entry(const void* context) noexcept {
    const auto address = reinterpret_cast<std::uintptr_t>(context);
    return seen_contexts[(address >> 4 ^ address >> 10) % seen_entries];
}

// The parent is written each time, because the reader forgets tasks after a while.
void enter_task(ThreadLog& log, TaskId task) noexcept {
    if (task.id == log.context_id) return;
    log.context_id = task.id;
    log.context_parent = task.parent;
    Recorder::emit_to(&log, EventKind::context, Recorder::name_key(task.generation, task.parent), task.id);
}

}  // namespace

// Operators run with the interpreter lock released, but on a thread that keeps its state, and only the
// thread itself changes its context: looking at it is safe. A context that no span or layer has been seen
// in yet stays unnoticed here, since asking for its mark needs the lock.
void probe_context() noexcept {
    PyThreadState* const state = PyGILState_GetThisThreadState();
    ThreadLog* const log = Recorder::instance().current_log();
    if (state == nullptr || log == nullptr || log->context_version == state->context_ver) return;
    const SeenContext& seen = seen_entry(state->context);
    if (seen.context != state->context || seen.task.generation != Recorder::instance().generation()) return;
    enter_task(*log, seen.task);
}

void switch_context(ThreadLog& log, PyThreadState* state) noexcept {
    Recorder& recorder = Recorder::instance();
    if (!Recorder::active()) return;
    ErrorKeeper keep_error;
    const std::uint32_t generation = recorder.generation();
    const Owned seen = find_mark(generation);
    const auto* mark = reinterpret_cast<ContextMark*>(seen.get());
    TaskId task{0, 0, generation};
    if (mark != nullptr) task = {mark->id, mark->parent, generation};
    log.in_event_loop = is_in_event_loop();
    if (mark == nullptr || mark->context != state->context) {
        task = {recorder.new_context(), task.id, generation};
        // Outside an event loop no traces are left, and the mark would grow old: any time is as good.
        if (!set_mark(state, task, log.in_event_loop ? read_ticks() : any_time)) return;
        if (task.parent != 0)
            Recorder::emit_to(&log, EventKind::task_start, Recorder::name_key(generation, 0), mark->ticks);
    }
    seen_entry(state->context) = {state->context, task};
    log.context_version = state->context_ver;
    log.plain_version = log.in_event_loop ? 0 : log.context_version;
    enter_task(log, task);
}

void leave_trace(ThreadLog& log, std::uint64_t ticks) noexcept {
    ErrorKeeper keep_error;
    PyThreadState* const state = PyThreadState_Get();
    set_mark(state, {log.context_id, log.context_parent, Recorder::instance().generation()}, ticks);
    log.context_version = state->context_ver;
}

PyTypeObject* add_type(PyObject* module, PyType_Spec* spec, const char* name) noexcept {
    PyObject* const type = PyType_FromSpec(spec);
    if (type == nullptr) return nullptr;
    if (PyModule_AddObject(module, name, type) != 0) {
        Py_DECREF(type);
        return nullptr;
    }
    return reinterpret_cast<PyTypeObject*>(type);
}

bool register_context(PyObject* module) noexcept {
    mark_type = add_type(module, &mark_spec, "ContextMark");
    mark_variable = PyContextVar_New("gpuprof_context", nullptr);
    if (mark_type == nullptr || mark_variable == nullptr) return false;
    itt::set_context_probe(probe_context);
    return true;
}

}  // namespace gpuprof::python
