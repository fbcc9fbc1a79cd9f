// SPDX-License-Identifier: Apache-2.0
// PyTorch's profiler on one thread. A daemon thread ends in the middle of whatever it does when the process
// ends, with its profiler still on; PyTorch would write a warning about that to the program's standard error.
#pragma once

#include <memory>

namespace gpuprof::python {

// Keeps what PyTorch's profiler has on the thread that makes this, after the thread's end, too. Nothing of it
// goes before `release`, which is for a profiler that ended in order.
class HeldProfilerState {
  public:
    // `library`: the path of PyTorch's libc10. Holds nothing where that is not loaded or lacks the function.
    explicit HeldProfilerState(const char* library);
    HeldProfilerState(const HeldProfilerState&) = delete;
    HeldProfilerState& operator=(const HeldProfilerState&) = delete;
    ~HeldProfilerState();

    void release() noexcept { state_.reset(); }

  private:
    std::unique_ptr<std::shared_ptr<void>> state_;
};

}  // namespace gpuprof::python
