// SPDX-License-Identifier: Apache-2.0
// The few things that each system spells in its own way.
#pragma once

#include <cstdint>

namespace gpuprof {

std::uint32_t system_thread_id() noexcept;

// The calling thread's name as the system knows it, at most 15 bytes and a zero.
void system_thread_name(char (&text)[16]) noexcept;

// Once per process, before the first process_barrier().
void prepare_process_barrier() noexcept;

// Orders everything before it, in this thread, against everything that any thread of the process does
// after it was interrupted: the expensive half of a fence whose cheap half is a compiler barrier.
void process_barrier() noexcept;

}  // namespace gpuprof
