// SPDX-License-Identifier: Apache-2.0
// The few things that each system spells in its own way.
#pragma once

#include <cstddef>
#include <cstdint>

namespace gpuprof {

std::uint32_t system_thread_id() noexcept;

// The calling thread's name as the system knows it, at most 15 bytes and a zero.
void system_thread_name(char (&text)[16]) noexcept;

// Whether a thread that this one starts can run in parallel with it, and with the same priority: threads
// inherit the processors, policy and priority of the one that begins them.
bool may_begin_helper() noexcept;

// Once per process, before the first process_barrier().
void prepare_process_barrier() noexcept;

// Orders everything before it, in this thread, against everything that any thread of the process does
// after it was interrupted: the expensive half of a fence whose cheap half is a compiler barrier.
void process_barrier() noexcept;

// Makes a new file `size` bytes long with room on the disk for all of them; returns an error number, or 0.
int reserve_blocks(int file, std::size_t size) noexcept;

// Fetches the cache line of an address that need not exist, to be written to. The compilers' own prefetch
// falls back to one for reading where it knows no processor but the oldest of x86-64.
inline void prefetch_for_writing(const void* address) noexcept {
#if defined(__x86_64__)
    asm volatile("prefetchw %0" : : "m"(*static_cast<const char*>(address)));
#else
    __builtin_prefetch(address, 1);
#endif
}

}  // namespace gpuprof
