// SPDX-License-Identifier: Apache-2.0
#include "cupti/buffer_pool.hpp"

#include <sys/mman.h>

#include <algorithm>
#include <new>

namespace gpuprof::cupti {

BufferPool::BufferPool() {
    void* const memory = mmap(nullptr, buffer_bytes * buffer_count, PROT_READ | PROT_WRITE,
                              MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (memory == MAP_FAILED) throw std::bad_alloc();
    memory_ = static_cast<std::uint8_t*>(memory);
    for (std::size_t i = 0; i < buffer_count; ++i) free_[free_count_++] = buffer_count - 1 - i;
}

std::size_t BufferPool::index_of(const std::uint8_t* buffer) const noexcept {
    const auto distance =
        reinterpret_cast<std::uintptr_t>(buffer) - reinterpret_cast<std::uintptr_t>(memory_);
    return distance % buffer_bytes == 0 ? distance / buffer_bytes : buffer_count;
}

std::uint8_t* BufferPool::request() noexcept {
    std::lock_guard lock(mutex_);
    if (free_count_ == 0) return nullptr;
    const std::size_t index = free_[--free_count_];
    states_[index] = State::held;
    ++held_;
    return memory_ + index * buffer_bytes;
}

void BufferPool::complete(std::uint8_t* buffer, std::size_t valid_bytes) noexcept {
    const std::size_t index = index_of(buffer);
    if (index >= buffer_count) return;
    {
        std::lock_guard lock(mutex_);
        if (states_[index] != State::held) return;
        --held_;
        states_[index] = State::ready;
        valid_bytes_[index] = std::min(valid_bytes, buffer_bytes);
        ready_[(first_ready_ + ready_count_++) % buffer_count] = index;
    }
    changed_.notify_one();
}

// Requires the lock and that one is ready.
std::size_t BufferPool::take_ready() noexcept {
    const std::size_t index = ready_[first_ready_];
    first_ready_ = (first_ready_ + 1) % buffer_count;
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
    return {memory_ + index * buffer_bytes, valid_bytes_[index]};
}

void BufferPool::recycle(std::span<std::uint8_t> buffer) noexcept {
    const std::size_t index = index_of(buffer.data());
    if (index >= buffer_count) return;
    std::lock_guard lock(mutex_);
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

std::size_t BufferPool::discard_ready() noexcept {
    std::lock_guard lock(mutex_);
    std::size_t with_records = 0;
    while (ready_count_ > 0) {
        const std::size_t index = take_ready();
        if (valid_bytes_[index] > 0) ++with_records;
        states_[index] = State::free;
        free_[free_count_++] = index;
    }
    return with_records;
}

}  // namespace gpuprof::cupti
