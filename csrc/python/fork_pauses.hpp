// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>
#include <vector>

#include "python/stack_sampler.hpp"

namespace gpuprof::python {

// The samplers that are paused while a thread forks. A forked process would have what its parent's sampling
// thread held, and Python warns of forks in programs with several threads. All of it is done with the
// interpreter lock held: a forked process finds no other lock held, and a thread that gave the lock away
// would get it back only after the switch interval of each thread that computes.
class ForkPauses {
  public:
    void add(const std::shared_ptr<StackSampler>& sampler);
    void remove(const std::shared_ptr<StackSampler>& sampler) noexcept;
    // What this thread pauses is what it resumes, whatever was added or removed meanwhile. These are Python's
    // hooks of `os.fork`: no Python code runs in them, in which the program's signal handlers could raise.
    void pause();
    void resume();

  private:
    std::vector<std::shared_ptr<StackSampler>> active_;
};

}  // namespace gpuprof::python
