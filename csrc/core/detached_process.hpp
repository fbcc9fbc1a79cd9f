// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <vector>

namespace gpuprof {

// Starts a program that is not a child of this process: this process gets no SIGCHLD for it, and wait() never
// sees it. It is in a session of its own, keeps no file of ours but `standard_input`, writes nowhere, ignores
// what a terminal or a job scheduler sends to everybody, and begins in "/". `arguments[0]` is the program's
// path. Returns its process id. Throws std::system_error, for a program that cannot be executed too.
int start_detached(const std::vector<std::string>& arguments, const std::vector<std::string>& environment,
                   int standard_input);

// Whether processes that lose their parent become children of this one: it is process 1 of its container,
// or asked for it. Then nothing can be detached from it.
bool adopts_orphans() noexcept;

}  // namespace gpuprof
