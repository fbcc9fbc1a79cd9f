// SPDX-License-Identifier: Apache-2.0
#include "python/profiler_state.hpp"

#include "core/dynamic_library.hpp"

namespace gpuprof::python {
namespace {

// std::shared_ptr<c10::ThreadLocalDebugInfo> c10::ThreadLocalDebugInfo::current(): a pointer of any type is
// returned in the same way.
constexpr const char* current_state = "_ZN3c1020ThreadLocalDebugInfo7currentEv";
using CurrentState = std::shared_ptr<void> (*)();

}  // namespace

HeldProfilerState::HeldProfilerState(const char* library) {
    const LoadedLibrary c10(library);
    const auto current = find_function<CurrentState>(c10.handle(), current_state);
    if (current != nullptr) state_ = std::make_unique<std::shared_ptr<void>>(current());
}

HeldProfilerState::~HeldProfilerState() {
    static_cast<void>(state_.release());  // NOLINT(bugprone-unused-return-value): never freed, as promised
}

}  // namespace gpuprof::python
