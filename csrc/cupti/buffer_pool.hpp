// SPDX-License-Identifier: Apache-2.0
// The memory that CUPTI writes records into. Buffers go round: free, held by CUPTI, ready, read, free.
#pragma once

#include <chrono>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <mutex>
#include <span>

namespace gpuprof::cupti {

constexpr std::size_t buffer_bytes = std::size_t{1} << 20;
// Address space: pages that were never written to cost no memory, and the last buffer read is the next one
// given out. About a second of the shortest kernels, one after the other.
constexpr std::size_t buffer_count = 64;

// Made once and never freed, since CUPTI may hold and return buffers at any time, even after it was told
// to stop.
//
// The lock is taken by CUPTI's callbacks on its own threads, in which CUPTI may hold locks of its own:
// whoever has it must call nothing of CUPTI. Nothing is allocated after the pool was made.
class BufferPool {
  public:
    // Throws std::bad_alloc.
    BufferPool();
    BufferPool(const BufferPool&) = delete;
    BufferPool& operator=(const BufferPool&) = delete;
    ~BufferPool() = default;

    // For CUPTI: null when all are in use, and then CUPTI counts what it drops.
    std::uint8_t* request() noexcept;
    // From CUPTI. Harmless for a buffer that is not ours or not held.
    void complete(std::uint8_t* buffer, std::size_t valid_bytes) noexcept;

    // For the thread that reads: the buffer completed first, empty after `timeout` without one or after
    // `interrupt`. Given back with `recycle`.
    std::span<std::uint8_t> wait_for_ready(std::chrono::milliseconds timeout) noexcept;
    void recycle(std::span<std::uint8_t> buffer) noexcept;
    // Ends the next, or the present, wait early.
    void interrupt() noexcept;
    // Buffers that CUPTI has and may still write to.
    std::size_t held() const noexcept;
    // Lets go of what was completed and never read; returns how many buffers had records.
    std::size_t discard_ready() noexcept;

  private:
    enum class State : std::uint8_t { free, held, ready, read };
    std::size_t index_of(const std::uint8_t* buffer) const noexcept;
    std::size_t take_ready() noexcept;

    std::uint8_t* memory_ = nullptr;
    mutable std::mutex mutex_;
    std::condition_variable changed_;
    bool interrupted_ = false;
    std::size_t held_ = 0;
    State states_[buffer_count] = {};
    std::size_t valid_bytes_[buffer_count] = {};
    // A stack and a ring of indices.
    std::size_t free_[buffer_count] = {};
    std::size_t free_count_ = 0;
    std::size_t ready_[buffer_count] = {};
    std::size_t first_ready_ = 0;
    std::size_t ready_count_ = 0;
};

}  // namespace gpuprof::cupti
