// SPDX-License-Identifier: Apache-2.0
#include "python/fork_pauses.hpp"

namespace gpuprof::python {
namespace {

thread_local std::vector<std::shared_ptr<StackSampler>> paused_by_this_thread;

}  // namespace

void ForkPauses::add(const std::shared_ptr<StackSampler>& sampler) {
    active_.push_back(sampler);
}

void ForkPauses::remove(const std::shared_ptr<StackSampler>& sampler) noexcept {
    std::erase(active_, sampler);
}

void ForkPauses::pause() {
    paused_by_this_thread = active_;
    for (const auto& each : paused_by_this_thread) each->pause();
}

void ForkPauses::resume() {
    for (const auto& each : paused_by_this_thread) each->resume();
    paused_by_this_thread.clear();
}

}  // namespace gpuprof::python
