// SPDX-License-Identifier: Apache-2.0
#include "cupti/buffer_pool.hpp"

#include <sys/mman.h>

#include <algorithm>
#include <cstring>
#include <new>

namespace gpuprof::cupti {
namespace {

constexpr std::size_t slab_bytes = buffer_bytes * slab_buffers;

// CUPTI may be writing it at this moment, on a thread and without a lock of which we know nothing. What is
// seen is the kind or still 0, and 0 only means that a record is not waited for.
[[gnu::no_sanitize("thread")]] std::uint32_t first_kind(const std::uint8_t* buffer) noexcept {
    return *reinterpret_cast<const volatile std::uint32_t*>(buffer);
}

}  // namespace

BufferPool::BufferPool() {
    if (!add_slab()) throw std::bad_alloc();
}

// Requires the lock, and that there is no free buffer.
bool BufferPool::add_slab() noexcept {
    if (slab_count_ == most_slabs) return false;
    void* const memory =
        mmap(nullptr, slab_bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (memory == MAP_FAILED) return false;
    slabs_[slab_count_] = static_cast<std::uint8_t*>(memory);
    const std::size_t first = slab_count_++ * slab_buffers;
    for (std::size_t i = slab_buffers; i-- > 0;) free_[free_count_++] = first + i;
    return true;
}

std::uint8_t* BufferPool::at(std::size_t index) const noexcept {
    return slabs_[index / slab_buffers] + index % slab_buffers * buffer_bytes;
}

// Requires the lock. `most_buffers` where the address is none of ours.
std::size_t BufferPool::index_of(const std::uint8_t* buffer) const noexcept {
    for (std::size_t slab = 0; slab < slab_count_; ++slab) {
        const auto distance =
            reinterpret_cast<std::uintptr_t>(buffer) - reinterpret_cast<std::uintptr_t>(slabs_[slab]);
        if (distance < slab_bytes && distance % buffer_bytes == 0)
            return slab * slab_buffers + distance / buffer_bytes;
    }
    return most_buffers;
}

std::uint8_t* BufferPool::request() noexcept {
    std::lock_guard lock(mutex_);
    if (ready_count_ >= most_ready_buffers) return nullptr;
    if (free_count_ == 0 && !add_slab()) return nullptr;
    const std::size_t index = free_[--free_count_];
    states_[index] = State::held;
    ++held_;
    return at(index);
}

void BufferPool::complete(std::uint8_t* buffer, std::size_t valid_bytes) noexcept {
    {
        std::lock_guard lock(mutex_);
        const std::size_t index = index_of(buffer);
        if (index == most_buffers || states_[index] != State::held) return;
        --held_;
        states_[index] = State::ready;
        valid_bytes_[index] = std::min(valid_bytes, buffer_bytes);
        ready_[(first_ready_ + ready_count_++) % most_buffers] = index;
    }
    changed_.notify_one();
}

// Requires the lock and that one is ready.
std::size_t BufferPool::take_ready() noexcept {
    const std::size_t index = ready_[first_ready_];
    first_ready_ = (first_ready_ + 1) % most_buffers;
    --ready_count_;
    return index;
}

std::span<std::uint8_t> BufferPool::wait_for_ready(std::chrono::milliseconds timeout) noexcept {
    std::unique_lock lock(mutex_);
    changed_.wait_for(lock, timeout, [&] { return ready_count_ > 0 || interrupted_; });
    if (ready_count_ == 0) {
        interrupted_ = false;
        return {};
    }
    const std::size_t index = take_ready();
    states_[index] = State::read;
    return {at(index), valid_bytes_[index]};
}

// CUPTI may have written after the valid part, but not into a buffer without records.
void BufferPool::recycle(std::span<std::uint8_t> buffer) noexcept {
    if (buffer.data() == nullptr) return;
    if (!buffer.empty() || first_kind(buffer.data()) != 0) std::memset(buffer.data(), 0, buffer_bytes);
    std::lock_guard lock(mutex_);
    const std::size_t index = index_of(buffer.data());
    if (index == most_buffers) return;
    states_[index] = State::free;
    free_[free_count_++] = index;
}

void BufferPool::interrupt() noexcept {
    {
        std::lock_guard lock(mutex_);
        interrupted_ = true;
    }
    changed_.notify_one();
}

std::size_t BufferPool::held() const noexcept {
    std::lock_guard lock(mutex_);
    return held_;
}

std::size_t BufferPool::held_with_records() const noexcept {
    std::lock_guard lock(mutex_);
    std::size_t found = 0;
    for (std::size_t index = 0; index < slab_count_ * slab_buffers; ++index)
        if (states_[index] == State::held && first_kind(at(index)) != 0) ++found;
    return found;
}

std::size_t BufferPool::discard_ready() noexcept {
    std::size_t with_records = 0;
    for (;;) {
        const auto buffer = wait_for_ready(std::chrono::milliseconds(0));
        if (buffer.data() == nullptr) return with_records;
        if (!buffer.empty()) ++with_records;
        recycle(buffer);
    }
}

}  // namespace gpuprof::cupti
