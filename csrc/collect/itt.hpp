// SPDX-License-Identifier: Apache-2.0
#pragma once

namespace gpuprof::itt {

// Whether a program's ITT loader has handed its table of functions to this library.
bool is_attached() noexcept;

// Called before each recorded operator, on its thread, perhaps without the interpreter lock: lets the
// language binding notice that the thread has gone on in another asynchronous task.
using ContextProbe = void (*)() noexcept;
void set_context_probe(ContextProbe probe) noexcept;

}  // namespace gpuprof::itt
