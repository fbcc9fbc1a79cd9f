// SPDX-License-Identifier: Apache-2.0
#include "core/platform.hpp"

#include <fcntl.h>
#include <pthread.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <chrono>
#include <thread>

#include "core/signals_blocked.hpp"

#if defined(__linux__)
#include <linux/membarrier.h>
#include <sched.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#endif

namespace gpuprof {
namespace {

// Far longer than any processor keeps a store in its buffer.
void wait_out_store_buffers() noexcept {
    std::atomic_thread_fence(std::memory_order_seq_cst);
    std::this_thread::sleep_for(std::chrono::milliseconds(2));
}

}  // namespace

#if defined(__linux__)

std::uint32_t system_thread_id() noexcept {
    return static_cast<std::uint32_t>(syscall(SYS_gettid));
}

bool may_begin_helper() noexcept {
    if (sched_getscheduler(0) != SCHED_OTHER) return false;
    // On Linux each thread has a nice value of its own: 0 is this thread, the process's id its main thread.
    if (getpriority(PRIO_PROCESS, 0) > getpriority(PRIO_PROCESS, static_cast<id_t>(getpid()))) return false;
    cpu_set_t allowed;
    // Fails where there are more processors than the set has room for.
    return sched_getaffinity(0, sizeof(allowed), &allowed) != 0 || CPU_COUNT(&allowed) > 1;
}

void prepare_process_barrier() noexcept {
    syscall(SYS_membarrier, MEMBARRIER_CMD_REGISTER_PRIVATE_EXPEDITED, 0, 0);
}

void process_barrier() noexcept {
    if (syscall(SYS_membarrier, MEMBARRIER_CMD_PRIVATE_EXPEDITED, 0, 0) == 0) return;
    wait_out_store_buffers();
}

#else

std::uint32_t system_thread_id() noexcept {
    std::uint64_t id = 0;
    pthread_threadid_np(nullptr, &id);
    return static_cast<std::uint32_t>(id);
}

bool may_begin_helper() noexcept {
    return std::thread::hardware_concurrency() > 1;
}

void prepare_process_barrier() noexcept {}

void process_barrier() noexcept {
    wait_out_store_buffers();
}

#endif

int reserve_blocks(int file, std::size_t size) noexcept {
#if defined(__APPLE__)
    fstore_t store{F_ALLOCATEALL, F_PEOFPOSMODE, 0, static_cast<off_t>(size), 0};
    if (fcntl(file, F_PREALLOCATE, &store) == -1) return errno;
    return ftruncate(file, static_cast<off_t>(size)) == 0 ? 0 : errno;
#else
    // On tmpfs of older kernels a signal ends it at once, and would each time for a program with a timer.
    const SignalsBlocked blocked;
    return posix_fallocate(file, 0, static_cast<off_t>(size));
#endif
}

void system_thread_name(char (&text)[16]) noexcept {
    if (pthread_getname_np(pthread_self(), text, sizeof(text)) != 0) text[0] = '\0';
}

}  // namespace gpuprof
