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

// Whether a span's event on the calling thread takes no more than its sixteen bytes.
inline bool is_plain(const ThreadLog* log) noexcept {
    return log != nullptr && present_thread_state()->context_ver == log->plain_version;
}

// What the first event of a thread, of a recording and of an asynchronous task needs. May return null.
ThreadLog* prepare_log(Span* span) noexcept {
    ThreadLog* const log = note_context(Recorder::instance());
    const std::uint32_t epoch = Recorder::epoch();
    if (generation_of(span->name_key) != epoch && epoch != Recorder::no_epoch)
        span->name_key = look_up_key(span->name, epoch);
    return log;
}

void emit_with_trace(ThreadLog* log, EventKind kind, NameKey key, std::uint64_t ticks) noexcept {
    Recorder::emit_to(log, kind, key, ticks);
    if (log != nullptr && log->in_event_loop) leave_trace(*log, ticks);
}

[[gnu::noinline]] void record_first_begin(Span* span) noexcept {
    ThreadLog* const log = prepare_log(span);
    emit_with_trace(log, EventKind::span_begin, span->name_key, read_ticks());
}

[[gnu::noinline]] void record_first_end(Span* span, std::uint64_t ticks) noexcept {
    ThreadLog* const log = prepare_log(span);
    emit_with_trace(log, EventKind::span_end, span->name_key, ticks);
}

}  // namespace

[[gnu::noinline]] PyObject* record_begin(Span* span) noexcept {
    ThreadLog* const log = Recorder::existing_log();
    if (!is_plain(log) || !Recorder::try_emit(*log, EventKind::span_begin, span->name_key, read_ticks()))
        [[unlikely]]
        record_first_begin(span);
    return entered(span);
}

[[gnu::noinline]] PyObject* record_end(Span* span) noexcept {
    const std::uint64_t ticks = read_ticks();
    ThreadLog* const log = Recorder::existing_log();
    if (!is_plain(log) || !Recorder::try_emit(*log, EventKind::span_end, span->name_key, ticks)) [[unlikely]]
        record_first_end(span, ticks);
    Py_RETURN_NONE;
}

[[gnu::noinline, gnu::cold]] PyObject* announce_begin(Span* span) noexcept {
    push_range(span->name);
    return Recorder::active() ? record_begin(span) : entered(span);
}

[[gnu::noinline, gnu::cold]] PyObject* announce_end(Span* span) noexcept {
    nvtx::pop_range();
    if (Recorder::active()) return record_end(span);
    Py_RETURN_NONE;
}

}  // namespace gpuprof::python
