// SPDX-License-Identifier: Apache-2.0
// The span object, and what is recorded where one begins and ends.
#pragma once

#include <cstddef>
#include <cstdint>

#include "core/recorder.hpp"
#include "python/python_api.hpp"
#include "python/ranges.hpp"

namespace gpuprof::python {

// A `with` line looks up __enter__ and __exit__ and binds both, and a bound method of CPython is a new
// object each time, about 15 ns. Ours live inside the span: binding hands out the one that is there. Either
// the span keeps a reference to it, and then it is never freed before the span is, or it owns a reference to
// its span for as long as somebody holds it.
struct BoundMethod {
    PyObject_HEAD vectorcallfunc call;
    bool kept_by_span;
};

struct Span {
    PyObject_HEAD PyObject* name;
    NameKey name_key;
    BoundMethod enter;
    BoundMethod exit;
    Span** resting_place;  // null where it may not rest
};

// The slot of an object that is found by the address of its name.
inline std::size_t slot_of(const PyObject* name, std::size_t slots) noexcept {
    const auto address = reinterpret_cast<std::uintptr_t>(name);
    return (address >> 4 ^ address >> 12) % slots;
}

inline PyObject* entered(Span* span) noexcept {
    auto* const self = reinterpret_cast<PyObject*>(span);
    Py_INCREF(self);
    return self;
}

// Return what the method of the `with` line returns. They are separate, and are called last, so that a span
// without a recording or a tool saves no registers.
PyObject* record_begin(Span* span) noexcept;
PyObject* record_end(Span* span) noexcept;
PyObject* announce_begin(Span* span) noexcept;
PyObject* announce_end(Span* span) noexcept;

inline PyObject* begin_span(Span* span) noexcept {
    if (tool_attached) [[unlikely]]
        return announce_begin(span);
    return Recorder::active() ? record_begin(span) : entered(span);
}

inline PyObject* end_span(Span* span) noexcept {
    if (tool_attached) [[unlikely]]
        return announce_end(span);
    if (Recorder::active()) return record_end(span);
    Py_RETURN_NONE;
}

}  // namespace gpuprof::python
