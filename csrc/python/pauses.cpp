// SPDX-License-Identifier: Apache-2.0
#include "python/pauses.hpp"

#include <pthread.h>
#include <array>
#include <atomic>

#include "core/clock.hpp"
#include "python/context.hpp"
#include "python/python_api.hpp"

namespace gpuprof::python {

thread_local constinit std::uint32_t OwnWork::depth = 0;

namespace {

// How many forks lie between this process and the one that loaded this module. Written where a child has one
// thread.
std::uint32_t forks_before = 0;

}  // namespace

void PendingSpan::begin(ThreadLog* log, NameKey key) noexcept {
    log_ = nullptr;
    if (log == nullptr) return;
    event_ = Recorder::reserve(*log, key, read_ticks());
    if (event_ == nullptr) return;
    log_ = log;
    key_ = key;
    forks_ = forks_before;
}

void PendingSpan::end(EventKind begin_kind, bool kept) noexcept {
    const std::uint64_t ticks = read_ticks();
    ThreadLog* const log = log_;
    log_ = nullptr;
    if (log == nullptr || log != Recorder::existing_log() || forks_ != forks_before) return;
    if (!kept) return Recorder::withdraw(*log, event_, key_);
    if (Recorder::fulfil(*log, event_, begin_kind, key_))
        Recorder::emit_to(note_context(Recorder::instance()), end_of(begin_kind), key_, ticks);
}

namespace {

constexpr std::size_t generations = 3;
constexpr std::int64_t shortest_youngest_ns = 20'000;

// Collections of the youngest generation that are too short to be recorded. Under the interpreter lock.
struct ShortCollections {
    std::uint64_t count = 0;
    std::int64_t total_ns = 0;
};
ShortCollections short_collections;

std::array<std::uint32_t, generations> generation_names{};
std::uint32_t names_generation = Recorder::no_epoch;  // of the recording that the names belong to
PyObject* generation_key = nullptr;

thread_local constinit PendingSpan collection;
thread_local constinit std::int64_t collection_begin_ns = 0;
thread_local constinit long collected_generation = 0;
thread_local constinit PendingSpan compilation;

std::uint32_t name_of(Recorder& recorder, long generation) noexcept {
    if (names_generation != recorder.generation()) {
        constexpr const char* texts[generations] = {"generation 0", "generation 1", "generation 2"};
        for (std::size_t i = 0; i < generations; ++i) generation_names[i] = recorder.intern(texts[i]);
        names_generation = recorder.generation();
    }
    return generation_names[static_cast<std::size_t>(generation)];
}

// A process that only joins a recording is in the run if it has events of its own: its collections alone
// are none.
ThreadLog* log_of(Recorder& recorder) noexcept {
    return recorder.is_child() && Recorder::existing_log() == nullptr ? nullptr : note_context(recorder);
}

void begin_collection(PyObject* info) noexcept {
    if (!Recorder::active() || OwnWork::depth > 0) return;
    PyObject* const number = PyDict_GetItemWithError(info, generation_key);
    const long generation = number != nullptr ? PyLong_AsLong(number) : -1;
    if (generation < 0 || generation >= static_cast<long>(generations)) return PyErr_Clear();
    Recorder& recorder = Recorder::instance();
    const std::uint32_t name = name_of(recorder, generation);
    collected_generation = generation;
    collection_begin_ns = monotonic_ns();
    collection.begin(log_of(recorder), recorder.name_key(name));
}

void end_collection() noexcept {
    if (!collection.is_open()) return;
    const std::int64_t duration_ns = monotonic_ns() - collection_begin_ns;
    const bool kept = collected_generation > 0 || duration_ns >= shortest_youngest_ns;
    collection.end(EventKind::collection_begin, kept);
    if (kept) return;
    ++short_collections.count;
    short_collections.total_ns += duration_ns;
}

// note_collection(phase, info): one of `gc.callbacks`.
PyObject* note_collection(PyObject*, PyObject* const* args, Py_ssize_t count) noexcept {
    if (count != 2) return PyErr_Format(PyExc_TypeError, "note_collection() takes 2 arguments");
    if (!PyUnicode_Check(args[0]) || !PyDict_Check(args[1])) Py_RETURN_NONE;  // a call of the program's
    if (PyUnicode_CompareWithASCIIString(args[0], "start") == 0)
        begin_collection(args[1]);
    else if (PyUnicode_CompareWithASCIIString(args[0], "stop") == 0)
        end_collection();
    Py_RETURN_NONE;
}

// take_short_collections() -> (count, nanoseconds) since the last call.
PyObject* take_short_collections(PyObject*, PyObject*) noexcept {
    const ShortCollections taken = short_collections;
    short_collections = {};
    return Py_BuildValue("KL", static_cast<unsigned long long>(taken.count),
                         static_cast<long long>(taken.total_ns));
}

// begin_compilation(name)
PyObject* begin_compilation(PyObject*, PyObject* name) noexcept {
    Py_ssize_t size = 0;
    const char* const text = PyUnicode_AsUTF8AndSize(name, &size);
    if (text == nullptr) return nullptr;
    if (!Recorder::active()) Py_RETURN_NONE;
    Recorder& recorder = Recorder::instance();
    const std::uint32_t id = recorder.intern({text, static_cast<std::size_t>(size)});
    compilation.begin(note_context(recorder), recorder.name_key(id));
    Py_RETURN_NONE;
}

PyObject* end_compilation(PyObject*, PyObject*) noexcept {
    compilation.end(EventKind::compile_begin, true);
    Py_RETURN_NONE;
}

PyObject* begin_own_work(PyObject*, PyObject*) noexcept {
    ++OwnWork::depth;
    Py_RETURN_NONE;
}

PyObject* end_own_work(PyObject*, PyObject*) noexcept {
    if (OwnWork::depth > 0) --OwnWork::depth;
    Py_RETURN_NONE;
}

PyMethodDef pause_functions[] = {
    {"note_collection", reinterpret_cast<PyCFunction>(reinterpret_cast<void (*)()>(note_collection)),
     METH_FASTCALL, "note_collection(phase, info, /)\n--\n\n"},
    {"take_short_collections", take_short_collections, METH_NOARGS, nullptr},
    {"begin_compilation", begin_compilation, METH_O, "begin_compilation(name, /)\n--\n\n"},
    {"end_compilation", end_compilation, METH_NOARGS, nullptr},
    {"begin_own_work", begin_own_work, METH_NOARGS, nullptr},
    {"end_own_work", end_own_work, METH_NOARGS, nullptr},
    {nullptr, nullptr, 0, nullptr},
};

}  // namespace

bool register_pauses(PyObject* module) noexcept {
    if (pthread_atfork(nullptr, nullptr, [] { ++forks_before; }) != 0) {
        PyErr_NoMemory();
        return false;
    }
    generation_key = PyUnicode_InternFromString("generation");
    return generation_key != nullptr && PyModule_AddFunctions(module, pause_functions) == 0;
}

}  // namespace gpuprof::python
