// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <pthread.h>

namespace gpuprof {

// A forked child must not find `registry().mutex` held by a thread that did not come along. Nothing else may
// be locked while it is held.
template <auto registry>
void hold_over_forks() noexcept {
    auto lock = [] { registry().mutex.lock(); };
    auto unlock = [] { registry().mutex.unlock(); };
    pthread_atfork(lock, unlock, unlock);
}

}  // namespace gpuprof
