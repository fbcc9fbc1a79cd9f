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
// The pool grows by slabs of address space: pages that were never written to cost no memory, and the last
// buffer read is the next one given out. A CUPTI that keeps a buffer for each thread may hold thousands.
constexpr std::size_t slab_buffers = 64;
constexpr std::size_t most_slabs = 64;
constexpr std::size_t most_buffers = slab_buffers * most_slabs;
// Buffers that wait to be read, which bounds the memory where records come faster than they are written:
// about a second of the shortest kernels, one after the other. CUPTI gets no buffer until some are read.
constexpr std::size_t most_ready_buffers = 64;

// Made once and never freed, since CUPTI may hold and return buffers at any time, even after it was stopped.
//
// The lock is taken by CUPTI's callbacks on its own threads, in which CUPTI may hold locks of its own:
// a thread with the lock must call nothing of CUPTI. After the start only address space is allocated.
//
// All buffers are given out zeroed, and zeroed again by the thread that reads: CUPTI would do it on a thread
// that launches.
class BufferPool {
  public:
    // Throws std::bad_alloc.
    BufferPool();
    BufferPool(const BufferPool&) = delete;
    BufferPool& operator=(const BufferPool&) = delete;
    ~BufferPool() = default;

    // For CUPTI: null when there is none, and then CUPTI counts what it drops.
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
    // Those of them in which a record begins: its kind is never 0.
    std::size_t held_with_records() const noexcept;
    // Recycles what was completed and never read; returns how many buffers had records.
    std::size_t discard_ready() noexcept;

  private:
    enum class State : std::uint8_t { free, held, ready, read };
    bool add_slab() noexcept;
    std::uint8_t* at(std::size_t index) const noexcept;
    std::size_t index_of(const std::uint8_t* buffer) const noexcept;
    std::size_t take_ready() noexcept;

    mutable std::mutex mutex_;
    std::condition_variable changed_;
    bool interrupted_ = false;
    std::uint8_t* slabs_[most_slabs] = {};
    std::size_t slab_count_ = 0;
    std::size_t held_ = 0;
    State states_[most_buffers] = {};
    std::size_t valid_bytes_[most_buffers] = {};
    // A stack and a ring of indices.
    std::size_t free_[most_buffers] = {};
    std::size_t free_count_ = 0;
    std::size_t ready_[most_buffers] = {};
    std::size_t first_ready_ = 0;
    std::size_t ready_count_ = 0;
};

}  // namespace gpuprof::cupti
