// SPDX-License-Identifier: Apache-2.0
// Layer calls. PyTorch runs every module through one Python function, `torch.nn.Module.__call__`. While
// layers are recorded that function's vectorcall entry points here; nothing that Python can see of the
// function, of a class or of a module changes, so copying, pickling, compiling and wrapping modules
// work as before.
#include <algorithm>
#include <unordered_map>
#include <vector>

#include "collect/autograd.hpp"
#include "core/recorder.hpp"
#include "python/context.hpp"
#include "python/layer_timing.hpp"
#include "python/pauses.hpp"
#include "python/python_api.hpp"
#include "python/ranges.hpp"

namespace gpuprof::python {
namespace {

// Modules by address, each with the id of its name: open addressing, read at every layer call.
// Under the interpreter lock.
class ModuleTable {
  public:
    static constexpr std::uint32_t unknown = 0;
    static constexpr std::uint32_t left_out = 0xFFFFFFFFu;
    // In a name: what the module calls is part of it, as in a compiled one.
    static constexpr std::uint32_t whole_bit = 0x80000000u;
    // In a name: the arguments of its next call outside of other layers are asked for, once.
    static constexpr std::uint32_t handed_over_bit = 0x40000000u;
    static constexpr std::uint32_t flag_bits = whole_bit | handed_over_bit;

    std::uint32_t find(const PyObject* module) const noexcept {
        for (std::size_t slot = slot_of(module);; slot = (slot + 1) & mask_) {
            if (entries_[slot].module == module) [[likely]]
                return entries_[slot].name;
            if (entries_[slot].module == nullptr) return unknown;
        }
    }

    void set(const PyObject* module, std::uint32_t name) {
        if ((used_ + 1) * 2 > entries_.size()) rebuild();
        Entry& entry = place(module);
        if (entry.module == nullptr) {
            entry.module = module;
            ++used_;
        }
        entry.name = name;
    }

    // A module that is gone keeps its slot, as unknown, until the table is rebuilt or cleared.
    void forget(const PyObject* module) noexcept {
        Entry& entry = place(module);
        if (entry.module != nullptr) entry.name = unknown;
    }

    void clear() { *this = ModuleTable(); }

  private:
    struct Entry {
        const PyObject* module = nullptr;
        std::uint32_t name = unknown;
    };

    std::size_t slot_of(const PyObject* module) const noexcept {
        return (reinterpret_cast<std::uintptr_t>(module) >> 4) * 0x9E3779B97F4A7C15ull >> 20 & mask_;
    }
    Entry& place(const PyObject* module) noexcept {
        std::size_t slot = slot_of(module);
        while (entries_[slot].module != nullptr && entries_[slot].module != module) slot = (slot + 1) & mask_;
        return entries_[slot];
    }
    // Drops the modules that are gone, and grows only if it was the living that filled the table.
    void rebuild() {
        std::vector<Entry> former;
        former.swap(entries_);
        const auto living = static_cast<std::size_t>(
            std::count_if(former.begin(), former.end(), [](const Entry& e) { return e.name != unknown; }));
        entries_.resize(living * 4 > former.size() ? former.size() * 2 : former.size());
        mask_ = entries_.size() - 1;
        used_ = living;
        for (const Entry& entry : former)
            if (entry.name != unknown) place(entry.module) = entry;
    }

    std::vector<Entry> entries_ = std::vector<Entry>(1024);
    std::size_t mask_ = 1023;
    std::size_t used_ = 0;
};

struct LayerState {
    PyObject* function = nullptr;  // torch.nn.Module.__call__ while it is intercepted
    vectorcallfunc original = nullptr;
    PyObject* discover = nullptr;   // called with each module that is not known yet, or null
    PyObject* take_call = nullptr;  // called with a module and the arguments of its call, or null
    ModuleTable modules;
    std::unordered_map<PyObject*, const PyObject*> weak_references;  // owned weakref -> its module
};

LayerState& state() noexcept {
    static LayerState* const shared = new LayerState;
    return *shared;
}

// Whether this thread is inside a module that is recorded as a whole.
thread_local constinit bool inside_whole = false;
// Layer calls that this thread is inside of.
thread_local constinit std::uint32_t layer_depth = 0;

// Asks Python to name a module that was never seen. Whatever goes wrong there stays out of the measured
// program: the module is then left out for good.
// Only an interrupt, which was meant for the program, is left set.
std::uint32_t discover_module(PyObject* module) noexcept {
    LayerState& layers = state();
    const TracingPaused unseen;
    const OwnWork own;
    const Owned result(PyObject_CallFunctionObjArgs(layers.discover, module, nullptr));
    if (!result && PyErr_ExceptionMatches(PyExc_KeyboardInterrupt) != 0) return ModuleTable::unknown;
    PyErr_Clear();
    const std::uint32_t name = layers.modules.find(module);
    return name == ModuleTable::unknown ? ModuleTable::left_out : name;
}

// Hands over the arguments of a call. The next one is, too, if the result is True. `take_call` catches its
// own errors; anything that it raises came from a signal handler and belongs to the program: then this
// returns false with the error set.
bool hand_over_call(PyObject* const* args, std::size_t nargsf, PyObject* keywords,
                    std::uint32_t name) noexcept {
    LayerState& layers = state();
    if (layers.take_call == nullptr) return true;
    const TracingPaused unseen;
    const OwnWork own;
    const Py_ssize_t count = PyVectorcall_NARGS(nargsf) - 1;
    const Owned positional(PyTuple_New(count));
    const Owned named(PyDict_New());
    bool complete = positional && named;
    for (Py_ssize_t i = 0; complete && i < count; ++i) {
        Py_INCREF(args[i + 1]);
        PyTuple_SET_ITEM(positional.get(), i, args[i + 1]);
    }
    const Py_ssize_t names = keywords == nullptr ? 0 : PyTuple_GET_SIZE(keywords);
    for (Py_ssize_t i = 0; complete && i < names; ++i)
        complete = PyDict_SetItem(named.get(), PyTuple_GET_ITEM(keywords, i), args[count + 1 + i]) == 0;
    const Owned wants_more(complete ? PyObject_CallFunctionObjArgs(layers.take_call, args[0],
                                                                   positional.get(), named.get(), nullptr)
                                    : nullptr);
    // The modules may have been released meanwhile.
    if (wants_more.get() != Py_True && layers.modules.find(args[0]) == name)
        layers.modules.set(args[0], name & ~ModuleTable::handed_over_bit);
    return PyErr_Occurred() == nullptr;
}

PyObject* training_key = nullptr;

// Whether the module's attribute `training` is set; unknown counts as set. Only the module's own dictionary
// is looked at: a class may define attributes that run its own code.
bool is_in_training(PyObject* module) noexcept {
    const Owned attributes(PyObject_GenericGetDict(module, nullptr));
    PyObject* const found = attributes ? PyDict_GetItemWithError(attributes.get(), training_key) : nullptr;
    if (!attributes) PyErr_Clear();
    return found != Py_False;
}

LayerMode mode_of_call(bool is_training, bool counts_nodes, bool made_nodes) noexcept {
    if (!is_training) return LayerMode::evaluation;
    return counts_nodes && !made_nodes ? LayerMode::no_gradient : LayerMode::training;
}

// Of an outermost call that is about to end.
void note_mode(ThreadLog* log, NameKey key, LayerMode mode, std::uint64_t ticks) noexcept {
    if (log == nullptr || log->layer_mode == mode) return;
    const NameKey value = Recorder::name_key(generation_of(key), static_cast<std::uint32_t>(mode));
    if (Recorder::try_emit(*log, EventKind::layer_mode, value, ticks)) log->layer_mode = mode;
}

PyObject* call_module(PyObject* callable, PyObject* const* args, std::size_t nargsf,
                      PyObject* keywords) noexcept {
    LayerState& layers = state();
    Recorder& recorder = Recorder::instance();
    const vectorcallfunc original = layers.original;
    if (!Recorder::active() || PyVectorcall_NARGS(nargsf) == 0)
        return original(callable, args, nargsf, keywords);
    std::uint32_t name = layers.modules.find(args[0]);
    if (inside_whole) return original(callable, args, nargsf, keywords);
    if (name == ModuleTable::unknown && layers.discover != nullptr) [[unlikely]] {
        name = discover_module(args[0]);
        if (name == ModuleTable::unknown) return nullptr;
    }
    if (name == ModuleTable::unknown || name == ModuleTable::left_out)
        return original(callable, args, nargsf, keywords);
    if ((name & ModuleTable::handed_over_bit) != 0 && layer_depth == 0 &&
        !hand_over_call(args, nargsf, keywords, name)) [[unlikely]]
        return nullptr;
    const bool whole = (name & ModuleTable::whole_bit) != 0;
    name &= ~ModuleTable::flag_bits;
    const NameKey key = recorder.name_key(name);
    Recorder::emit_to(note_context(recorder), EventKind::layer_begin, key, read_ticks());
    const bool announced = tool_attached;
    if (announced) [[unlikely]]
        nvtx::push_range(recorder.name_text(name).c_str());
    const autograd::SequenceFunction next_sequence = autograd::next_sequence.load(std::memory_order_acquire);
    const std::uint64_t first_node = next_sequence != nullptr ? next_sequence() : 0;
    // Before the call, which may change it.
    const bool is_training = layer_depth > 0 || is_in_training(args[0]);
    inside_whole = whole;
    ++layer_depth;
    PyObject* const result = call_timed(original, callable, args, nargsf, keywords);
    --layer_depth;
    inside_whole = false;
    const std::uint64_t end_node = next_sequence != nullptr ? next_sequence() : 0;
    if (announced) [[unlikely]]
        nvtx::pop_range();
    const std::uint64_t ticks = read_ticks();
    ThreadLog* const log = note_context(recorder);
    if (end_node != first_node) [[unlikely]]
        autograd::note_layer_nodes(log, key, first_node, end_node);
    if (layer_depth == 0)
        note_mode(log, key, mode_of_call(is_training, next_sequence != nullptr, end_node != first_node),
                  ticks);
    Recorder::emit_to(log, EventKind::layer_end, key, ticks);
    return result;
}

PyObject* module_died(PyObject*, PyObject* reference) noexcept {
    auto& references = state().weak_references;
    if (const auto found = references.find(reference); found != references.end()) {
        state().modules.forget(found->second);
        references.erase(found);
        Py_DECREF(reference);
    }
    Py_RETURN_NONE;
}

PyMethodDef module_died_definition = {"module_died", module_died, METH_O, nullptr};
PyObject* module_died_callback = nullptr;

// add_layer(module, name, whole=False, hand_over=False): an empty name leaves the module out. With
// `hand_over` the arguments of its next call outside of other layers are handed over.
PyObject* add_layer(PyObject*, PyObject* args) noexcept {
    PyObject* module = nullptr;
    PyObject* name = nullptr;
    int whole = 0, hand_over = 0;
    if (!PyArg_ParseTuple(args, "OU|pp", &module, &name, &whole, &hand_over)) return nullptr;
    // Not "s#", which works only where PY_SSIZE_T_CLEAN is defined before the first file that includes
    // Python.h.
    Py_ssize_t size = 0;
    const char* const text = PyUnicode_AsUTF8AndSize(name, &size);
    if (text == nullptr) return nullptr;
    const std::uint32_t id = size == 0 ? ModuleTable::left_out
                                       : Recorder::instance().intern({text, static_cast<std::size_t>(size)});
    if (id == 0) return PyErr_NoMemory();
    LayerState& layers = state();
    const bool is_new = layers.modules.find(module) == ModuleTable::unknown;
    if (is_new) {
        PyObject* const reference = PyWeakref_NewRef(module, module_died_callback);
        if (reference == nullptr) return nullptr;
        layers.weak_references.emplace(reference, module);
    }
    const std::uint32_t flags =
        (whole != 0 ? ModuleTable::whole_bit : 0u) | (hand_over != 0 ? ModuleTable::handed_over_bit : 0u);
    layers.modules.set(module, id | flags);
    Py_RETURN_NONE;
}

PyObject* is_layer(PyObject*, PyObject* module) noexcept {
    return PyBool_FromLong(state().modules.find(module) != ModuleTable::unknown);
}

// instances_of(type) -> list of the living objects of a type. Only their types are looked at: to ask an
// object, as `isinstance` does, could run code of the program.
PyObject* instances_of(PyObject*, PyObject* type) noexcept {
    if (!PyType_Check(type)) {
        PyErr_SetString(PyExc_TypeError, "not a type");
        return nullptr;
    }
    const Owned collector(PyImport_ImportModule("gc"));
    const Owned objects(collector ? PyObject_CallMethod(collector.get(), "get_objects", nullptr) : nullptr);
    if (!objects) return nullptr;
    Owned found(PyList_New(0));
    for (Py_ssize_t i = 0; found && i < PyList_GET_SIZE(objects.get()); ++i) {
        PyObject* const each = PyList_GET_ITEM(objects.get(), i);
        if (PyType_IsSubtype(Py_TYPE(each), reinterpret_cast<PyTypeObject*>(type)) != 0 &&
            PyList_Append(found.get(), each) != 0)
            return nullptr;
    }
    return found.release();
}

// intercept_layers(function, discover, take_call=None): `function` is torch.nn.Module.__call__.
PyObject* intercept_layers(PyObject*, PyObject* args) noexcept {
    PyObject *function = nullptr, *discover = nullptr, *take_call = Py_None;
    if (!PyArg_ParseTuple(args, "O!O|O", &PyFunction_Type, &function, &discover, &take_call)) return nullptr;
    LayerState& layers = state();
    if (layers.function != nullptr) {
        PyErr_SetString(PyExc_RuntimeError, "layer calls are intercepted already");
        return nullptr;
    }
    Py_INCREF(function);
    layers.function = function;
    layers.original = reinterpret_cast<PyFunctionObject*>(function)->vectorcall;
    if (discover != Py_None) {
        Py_INCREF(discover);
        layers.discover = discover;
    }
    if (take_call != Py_None) {
        Py_INCREF(take_call);
        layers.take_call = take_call;
    }
    set_function_vectorcall(function, call_module);
    Py_RETURN_NONE;
}

// Puts everything back. Calls that are under way end as they began.
PyObject* release_layers(PyObject*, PyObject*) noexcept {
    LayerState& layers = state();
    if (layers.function != nullptr) set_function_vectorcall(layers.function, layers.original);
    Py_CLEAR(layers.function);
    Py_CLEAR(layers.discover);
    Py_CLEAR(layers.take_call);
    layers.modules.clear();
    std::unordered_map<PyObject*, const PyObject*> references;
    references.swap(layers.weak_references);
    for (const auto& [reference, module] : references) Py_DECREF(reference);
    Py_RETURN_NONE;
}

PyMethodDef layer_functions[] = {
    {"add_layer", add_layer, METH_VARARGS, nullptr},
    {"is_layer", is_layer, METH_O, "is_layer(module, /)\n--\n\n"},
    {"instances_of", instances_of, METH_O, "instances_of(kind, /)\n--\n\n"},
    {"intercept_layers", intercept_layers, METH_VARARGS, nullptr},
    {"release_layers", release_layers, METH_NOARGS, nullptr},
    {nullptr, nullptr, 0, nullptr},
};

}  // namespace

bool register_layers(PyObject* module) noexcept {
    module_died_callback = PyCFunction_New(&module_died_definition, nullptr);
    training_key = PyUnicode_InternFromString("training");
    return module_died_callback != nullptr && training_key != nullptr &&
           PyModule_AddFunctions(module, layer_functions) == 0;
}

}  // namespace gpuprof::python
