// SPDX-License-Identifier: Apache-2.0
#include "cpu/team.hpp"

#include <pthread.h>

#include <algorithm>

#if defined(__linux__)
#include <sched.h>
#endif

#include "core/clock.hpp"
#include "core/signals_blocked.hpp"

namespace gpuprof::cpu {
namespace {

bool pin_to(int processor) noexcept {
#if defined(__linux__)
    // Room for more processors than cpu_set_t knows.
    constexpr int most = 8192;
    alignas(unsigned long) unsigned char bytes[CPU_ALLOC_SIZE(most)] = {};
    auto* const set = reinterpret_cast<cpu_set_t*>(bytes);
    if (processor < 0 || processor >= most) return false;
    CPU_SET_S(static_cast<std::size_t>(processor), sizeof(bytes), set);
    return pthread_setaffinity_np(pthread_self(), sizeof(bytes), set) == 0;
#else
    static_cast<void>(processor);
    return false;
#endif
}

}  // namespace

Team::Team(const std::vector<int>& processors) : wanted_(processors.size()) {
    const SignalsBlocked held;
    members_.reserve(processors.size());
    try {
        for (std::size_t member = 0; member < processors.size(); ++member)
            members_.emplace_back(&Team::work, this, member, processors[member]);
    } catch (...) {
        dismiss();
        throw;
    }
}

Team::~Team() {
    dismiss();
}

void Team::dismiss() noexcept {
    {
        const std::lock_guard lock(mutex_);
        dismissed_ = true;
    }
    changed_.notify_all();
    for (std::thread& member : members_) member.join();
}

std::int64_t Team::run(const Job& job) {
    std::unique_lock lock(mutex_);
    job_ = &job;
    ++jobs_;
    finished_ = 0;
    first_start_ns_ = std::numeric_limits<std::int64_t>::max();
    last_end_ns_ = std::numeric_limits<std::int64_t>::min();
    changed_.notify_all();
    changed_.wait(lock, [&] { return finished_ == members_.size(); });
    job_ = nullptr;
    return last_end_ns_ - first_start_ns_;
}

bool Team::wait_for_job(std::uint64_t& seen) noexcept {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return dismissed_ || jobs_ != seen; });
    seen = jobs_;
    return !dismissed_;
}

void Team::work(std::size_t member, int processor) noexcept {
    if (pin_to(processor)) ++pinned_;
    std::uint64_t seen = 0;
    while (wait_for_job(seen)) {
        ++arrivals_;
        while (arrivals_.load(std::memory_order_acquire) < seen * wanted_) std::this_thread::yield();
        const std::int64_t start_ns = monotonic_ns();
        (*job_)(member);
        const std::int64_t end_ns = monotonic_ns();
        const std::lock_guard lock(mutex_);
        first_start_ns_ = std::min(first_start_ns_, start_ns);
        last_end_ns_ = std::max(last_end_ns_, end_ns);
        if (++finished_ == wanted_) changed_.notify_all();
    }
}

}  // namespace gpuprof::cpu
