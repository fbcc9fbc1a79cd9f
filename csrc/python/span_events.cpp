// SPDX-License-Identifier: Apache-2.0
#include "python/span_events.hpp"

#include "python/context.hpp"

namespace gpuprof::python {
namespace {

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
    CachedName& entry = name_cache[slot_of(name, cached_names)];
    if (entry.name == name && generation_of(entry.key) == generation) [[likely]]
        return entry.key;
    const NameKey key = Recorder::name_key(generation, intern_text(name));
    PyObject* const former = entry.name;
    Py_INCREF(name);
    entry = {name, key};
    Py_XDECREF(former);
    return key;
}

// The span's key of the recording that is active.
inline NameKey current_key(Span* span, const Recorder& recorder) noexcept {
    const std::uint32_t epoch = recorder.epoch();
    if (generation_of(span->name_key) != epoch && epoch != Recorder::no_epoch) [[unlikely]]
        span->name_key = look_up_key(span->name, epoch);
    return span->name_key;
}

[[gnu::noinline]] void emit_in_event_loop(ThreadLog& log, EventKind kind, NameKey key,
                                          std::uint64_t ticks) noexcept {
    Recorder::instance().emit_to(&log, kind, key, ticks);
    leave_trace(log, ticks);
}

inline void emit(Recorder& recorder, ThreadLog* log, EventKind kind, NameKey key,
                 std::uint64_t ticks) noexcept {
    if (log == nullptr) [[unlikely]]
        return;
    if (log->in_event_loop) [[unlikely]]
        return emit_in_event_loop(*log, kind, key, ticks);
    recorder.emit_to(log, kind, key, ticks);
}

}  // namespace

[[gnu::noinline]] PyObject* record_begin(Span* span, Recorder& recorder) noexcept {
    ThreadLog* const log = note_context(recorder);
    const NameKey key = current_key(span, recorder);
    emit(recorder, log, EventKind::span_begin, key, read_ticks());
    return entered(span);
}

[[gnu::noinline]] PyObject* record_end(Span* span, Recorder& recorder) noexcept {
    const std::uint64_t ticks = read_ticks();
    ThreadLog* const log = note_context(recorder);
    emit(recorder, log, EventKind::span_end, current_key(span, recorder), ticks);
    Py_RETURN_NONE;
}

}  // namespace gpuprof::python
