// SPDX-License-Identifier: Apache-2.0
// Pairs of CUDA events of one context, made ahead: taking one costs the thread that times a layer no
// allocation, no lock and no call of the driver.
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "cuda/driver.hpp"

namespace gpuprof::cuda {

constexpr std::uint32_t block_pairs = 1024;
constexpr std::size_t most_blocks = 32;

struct EventPair {
    EventHandle begin = nullptr;
    EventHandle end = nullptr;
    std::uint32_t number = 0;            // in its pool
    std::atomic<std::uint32_t> next{0};  // of a list: number + 1, or 0
    // Of the layer that is timed with it.
    StreamHandle stream = nullptr;
    std::uint32_t base = 0;
    std::uint32_t correlation_id = 0;
    std::uint32_t enclosing_id = 0;
    std::uint32_t device = 0;
};

// An event whose instant is known on the monotonic clock, at most `error_ns` off as far as the CPU sees it.
struct BaseEvent {
    EventHandle event = nullptr;
    std::int64_t monotonic_ns = 0;
    std::int64_t error_ns = 0;
};

// Any thread takes, gives back and finishes; the one thread that reads does the rest, in the context. The
// driver's result is returned. Events are destroyed by `destroy` alone: after an error, calling the driver
// for them may crash.
class EventPool {
  public:
    EventPool(const Driver& driver, ContextHandle context) noexcept : driver_(driver), context_(context) {}
    EventPool(const EventPool&) = delete;
    EventPool& operator=(const EventPool&) = delete;
    ~EventPool() = default;

    // Null when all are in use.
    EventPair* take() noexcept;
    void give_back(EventPair& pair) noexcept;
    // Both events of the pair are recorded.
    void finish(EventPair& pair) noexcept;
    std::uint32_t latest_base() const noexcept { return latest_base_.load(std::memory_order_acquire); }

    // Makes the context the reading thread's; without that no other call here.
    int enter() const noexcept { return driver_.set_context(context_); }
    // Makes a block of pairs, unless there are as many as there may be. Throws std::bad_alloc.
    int grow();
    bool is_scarce() const noexcept;
    // Adds a base, for layers that begin from now on. `not_ready` where the GPU does not get to it at once.
    // Throws std::bad_alloc.
    int take_base();
    const std::vector<BaseEvent>& bases() const noexcept { return bases_; }
    // Appends what was finished since the last time, in order, to what this pool had finished before. Throws
    // std::bad_alloc, and then nothing is taken.
    void collect(std::vector<EventPair*>& finished);
    std::uint32_t used() const noexcept { return used_.load(std::memory_order_relaxed); }
    void destroy() noexcept;

  private:
    EventPair& pair(std::uint32_t number) const noexcept {
        return blocks_[number / block_pairs][number % block_pairs];
    }
    int measure(BaseEvent& base) const noexcept;

    const Driver& driver_;
    const ContextHandle context_;
    std::array<std::unique_ptr<EventPair[]>, most_blocks> blocks_;
    std::size_t block_count_ = 0;
    // Below, the first pair's number + 1; above, how often one was taken, so that a head that came back is
    // not mistaken for one that stayed.
    std::atomic<std::uint64_t> free_{0};
    std::atomic<std::uint32_t> finished_{0};
    std::atomic<std::uint32_t> used_{0};
    StreamHandle base_stream_ = nullptr;
    EventHandle spare_base_ = nullptr;
    std::vector<BaseEvent> bases_;
    std::atomic<std::uint32_t> latest_base_{0};
};

}  // namespace gpuprof::cuda
