// SPDX-License-Identifier: Apache-2.0
// Spans of what interrupts a program: collections of Python's garbage collector, compilations of PyTorch.
#pragma once

#include <cstdint>

#include "core/recorder.hpp"

namespace gpuprof::python {

// A span of the calling thread that exists only once it ends, since its end may never be announced. Until
// then its begin is an event without a meaning. Under the interpreter lock.
class PendingSpan {
  public:
    void begin(ThreadLog* log, NameKey key) noexcept;
    // Makes it a span of the kind that begins with `begin_kind`; with `kept` false, leaves nothing of it.
    void end(EventKind begin_kind, bool kept) noexcept;
    bool is_open() const noexcept { return log_ != nullptr; }

  private:
    ThreadLog* log_ = nullptr;
    Event* event_ = nullptr;
    NameKey key_{};
    std::uint32_t forks_ = 0;  // a child that is forked meanwhile has none of its parent's events
};

// While it lives, collections that the calling thread runs are gpuprof's own, and are not recorded.
class OwnWork {
  public:
    OwnWork() noexcept { ++depth; }
    ~OwnWork() { --depth; }
    OwnWork(const OwnWork&) = delete;
    OwnWork& operator=(const OwnWork&) = delete;

    static thread_local constinit std::uint32_t depth;
};

}  // namespace gpuprof::python
