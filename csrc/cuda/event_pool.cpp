// SPDX-License-Identifier: Apache-2.0
#include "cuda/event_pool.hpp"

#include <algorithm>
#include <utility>

#include "core/clock.hpp"

namespace gpuprof::cuda {
namespace {

constexpr std::uint64_t one_taken = std::uint64_t{1} << 32;
constexpr int base_attempts = 5;
constexpr std::int64_t longest_base_wait_ns = 1'000'000;

}  // namespace

EventPair* EventPool::take() noexcept {
    std::uint64_t head = free_.load(std::memory_order_acquire);
    while (static_cast<std::uint32_t>(head) != 0) {
        EventPair& first = pair(static_cast<std::uint32_t>(head) - 1);
        const std::uint64_t taken = (head / one_taken + 1) * one_taken;
        const std::uint64_t rest = taken | first.next.load(std::memory_order_relaxed);
        if (!free_.compare_exchange_weak(head, rest, std::memory_order_acq_rel, std::memory_order_acquire))
            continue;
        used_.fetch_add(1, std::memory_order_relaxed);
        return &first;
    }
    return nullptr;
}

void EventPool::give_back(EventPair& pair) noexcept {
    used_.fetch_sub(1, std::memory_order_relaxed);
    std::uint64_t head = free_.load(std::memory_order_relaxed);
    std::uint64_t longer = 0;
    do {
        pair.next.store(static_cast<std::uint32_t>(head), std::memory_order_relaxed);
        longer = head / one_taken * one_taken | (pair.number + 1);
    } while (
        !free_.compare_exchange_weak(head, longer, std::memory_order_acq_rel, std::memory_order_relaxed));
}

void EventPool::finish(EventPair& pair) noexcept {
    std::uint32_t head = finished_.load(std::memory_order_relaxed);
    do {
        pair.next.store(head, std::memory_order_relaxed);
    } while (!finished_.compare_exchange_weak(head, pair.number + 1, std::memory_order_acq_rel,
                                              std::memory_order_relaxed));
}

void EventPool::collect(std::vector<EventPair*>& finished) {
    if (finished_.load(std::memory_order_relaxed) == 0) return;
    // First the room for all: a pair that was taken off the list must not be forgotten.
    finished.reserve(block_count_ * block_pairs);
    const auto first = static_cast<std::ptrdiff_t>(finished.size());
    std::uint32_t next = finished_.exchange(0, std::memory_order_acq_rel);
    while (next != 0) {
        EventPair& each = pair(next - 1);
        finished.push_back(&each);
        next = each.next.load(std::memory_order_relaxed);
    }
    std::reverse(finished.begin() + first, finished.end());
}

bool EventPool::is_scarce() const noexcept {
    return block_count_ < most_blocks && used() * std::uint64_t{2} >= block_count_ * block_pairs;
}

int EventPool::grow() {
    if (block_count_ == most_blocks) return success;
    auto block = std::make_unique<EventPair[]>(block_pairs);
    EventPair* const pairs = block.get();
    blocks_[block_count_] = std::move(block);
    const auto first = static_cast<std::uint32_t>(block_count_++ * block_pairs);
    for (std::uint32_t i = 0; i < block_pairs; ++i) {
        pairs[i].number = first + i;
        int result = driver_.create_event(&pairs[i].begin, default_event);
        if (result == success) result = driver_.create_event(&pairs[i].end, default_event);
        if (result != success) return result;
    }
    used_.fetch_add(block_pairs, std::memory_order_relaxed);
    for (std::uint32_t i = block_pairs; i > 0; --i) give_back(pairs[i - 1]);
    return success;
}

// The event lies between the last moment at which it was known to be outstanding and the first at which it
// was known to be done. Polled in a loop of bounded length, because a synchronization may never return.
int EventPool::measure(BaseEvent& base) const noexcept {
    const std::int64_t begun = monotonic_ns();
    std::int64_t before = begun;
    int result = driver_.record_event(base.event, base_stream_);
    while (result == success) {
        const std::int64_t asked = monotonic_ns();
        result = driver_.query_event(base.event);
        if (result == success) {
            const std::int64_t after = monotonic_ns();
            base.error_ns = (after - before + 1) / 2;
            base.monotonic_ns = before + base.error_ns;
            return success;
        }
        if (result != not_ready || asked - begun > longest_base_wait_ns) return result;
        before = asked;
        result = success;
    }
    return result;
}

// On a stream of its own, so that it waits for none of the program's work.
int EventPool::take_base() {
    bases_.reserve(bases_.size() + 1);
    int result =
        base_stream_ != nullptr ? success : driver_.create_stream(&base_stream_, non_blocking_stream);
    BaseEvent best;
    for (int attempt = 0; result == success && attempt < base_attempts; ++attempt) {
        BaseEvent tried;
        tried.event = std::exchange(spare_base_, nullptr);
        if (tried.event == nullptr) result = driver_.create_event(&tried.event, default_event);
        if (result == success) result = measure(tried);
        if (result == success && (best.event == nullptr || tried.error_ns < best.error_ns))
            std::swap(best, tried);
        if (tried.event != nullptr) spare_base_ = tried.event;
    }
    if (best.event == nullptr) return result;
    bases_.push_back(best);
    latest_base_.store(static_cast<std::uint32_t>(bases_.size() - 1), std::memory_order_release);
    return success;
}

void EventPool::destroy() noexcept {
    for (std::size_t block = 0; block < block_count_; ++block)
        for (std::uint32_t i = 0; i < block_pairs; ++i)
            for (EventHandle* event : {&blocks_[block][i].begin, &blocks_[block][i].end})
                if (auto* const one = std::exchange(*event, nullptr)) driver_.destroy_event(one);
    for (BaseEvent& base : bases_) driver_.destroy_event(base.event);
    if (spare_base_ != nullptr) driver_.destroy_event(spare_base_);
    if (base_stream_ != nullptr) driver_.destroy_stream(base_stream_);
}

}  // namespace gpuprof::cuda
