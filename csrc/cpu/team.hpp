// SPDX-License-Identifier: Apache-2.0
// Threads of our own that work at the same time, each on a processor of its own.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <limits>
#include <mutex>
#include <thread>
#include <vector>

namespace gpuprof::cpu {

class Team {
  public:
    using Job = std::function<void(std::size_t member)>;

    // One member for each of `processors`, numbered as the system does. Throws std::system_error where a
    // thread cannot be started. A member that cannot be pinned works wherever the system puts it.
    explicit Team(const std::vector<int>& processors);
    Team(const Team&) = delete;
    Team& operator=(const Team&) = delete;
    ~Team();

    std::size_t size() const noexcept { return members_.size(); }
    // Number of members pinned to their processor; known after the first run().
    std::size_t pinned() const noexcept { return pinned_; }

    // Lets every member do `job`, which must not throw, and returns the time from the first one's start to
    // the last one's end.
    std::int64_t run(const Job& job);

  private:
    void work(std::size_t member, int processor) noexcept;
    bool wait_for_job(std::uint64_t& seen) noexcept;
    void dismiss() noexcept;

    std::mutex mutex_;
    std::condition_variable changed_;
    // Under the mutex.
    const Job* job_ = nullptr;
    std::uint64_t jobs_ = 0;
    std::size_t finished_ = 0;
    std::int64_t first_start_ns_ = 0, last_end_ns_ = 0;
    bool dismissed_ = false;

    // All arrivals so far: members start a job together.
    std::atomic<std::uint64_t> arrivals_{0};
    std::atomic<std::size_t> pinned_{0};
    std::size_t wanted_;
    std::vector<std::thread> members_;
};

}  // namespace gpuprof::cpu
