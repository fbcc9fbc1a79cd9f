// SPDX-License-Identifier: Apache-2.0
#include "cupti/counters_launches.hpp"

#include <algorithm>
#include <cstring>

#include "cupti/counters_abi.hpp"

namespace gpuprof::cupti {
namespace {

constexpr std::size_t usual_name_bytes = 128;  // of copies there is none, and templates have long ones
constexpr std::size_t most_name_bytes = 4095;
// Calls that run several kernels, or kernels on several devices: their number of ranges is unknown.
constexpr std::uint32_t several_kernels[] = {480, 514, 515};

thread_local std::int64_t current_operator = no_operator;

bool is_fill(std::uint32_t id) noexcept {
    return std::ranges::any_of(abi::fill_callbacks, [id](const abi::CallbackRange& range) {
        return id >= range.first && id <= range.last;
    });
}

LaunchKind kind_of(std::uint32_t id) noexcept {
    if (std::ranges::find(abi::kernel_callbacks, id) != std::end(abi::kernel_callbacks))
        return LaunchKind::kernel;
    const bool is_several = std::ranges::find(several_kernels, id) != std::end(several_kernels);
    return is_several ? LaunchKind::several : LaunchKind::copy;
}

bool succeeded(const abi::CallbackData& call) noexcept {
    return call.return_value == nullptr || *static_cast<const int*>(call.return_value) == abi::driver_success;
}

}  // namespace

LaunchLog& LaunchLog::instance() {
    static auto* const log = new LaunchLog;
    return *log;
}

std::uint32_t LaunchLog::begin(const Api& api, void* context, std::size_t most_launches) {
    make_room(most_launches);
    next_ = 0;
    next_name_ = 0;
    api_ = &api;
    context_ = context;
    const std::uint32_t result = api.subscribe(&subscriber_, on_callback, this);
    if (result != abi::success) {
        subscriber_ = nullptr;
        return result;
    }
    listening_.store(true, std::memory_order_release);
    switch_callbacks(true);
    return abi::success;
}

// What was there before is used again where it is enough: a callback may be late.
void LaunchLog::make_room(std::size_t most_launches) {
    if (slots_.size() < most_launches) {
        names_bytes_ = 0;
        names_.reset(new char[most_launches * usual_name_bytes]);
        names_bytes_ = most_launches * usual_name_bytes;
        slots_ = std::vector<Slot>(most_launches);
    }
    for (Slot& slot : slots_) slot.written.store(false, std::memory_order_relaxed);
    most_ = most_launches;
}

void LaunchLog::end() noexcept {
    listening_.store(false, std::memory_order_release);
    if (subscriber_ == nullptr) return;
    switch_callbacks(false);
    api_->unsubscribe(subscriber_);
    subscriber_ = nullptr;
}

// A library refuses the functions that are newer than it is; they cannot be called there either.
void LaunchLog::switch_callbacks(bool on) const noexcept {
    for (const abi::CallbackRange& range : abi::launching_callbacks)
        for (std::uint32_t id = range.first; id <= range.last; ++id)
            api_->enable_callback(on ? 1 : 0, subscriber_, abi::driver_domain, id);
}

void LaunchLog::set_operator(std::int64_t number) noexcept {
    current_operator = number;
}

void LaunchLog::on_callback(void* user, std::uint32_t domain, std::uint32_t id, const void* data) noexcept {
    auto* const log = static_cast<LaunchLog*>(user);
    if (log == nullptr || data == nullptr || domain != abi::driver_domain) return;
    if (log->listening_.load(std::memory_order_acquire))
        log->note(id, *static_cast<const abi::CallbackData*>(data));
}

// At the end of the launch: what the driver refused is no range. Fills are left out: next to kernels they are
// small, most of them the zeros that a reduction begins with.
void LaunchLog::note(std::uint32_t id, const abi::CallbackData& call) noexcept {
    if (call.site != abi::api_exit || call.context != context_ || !succeeded(call) || is_fill(id)) return;
    const std::size_t at = next_.fetch_add(1, std::memory_order_relaxed);
    if (at >= most_) return;
    Slot& slot = slots_[at];
    slot.launch = {current_operator, kind_of(id), 0, 0};
    if (slot.launch.kind == LaunchKind::kernel) keep_name(call.symbol_name, slot.launch);
    slot.written.store(true, std::memory_order_release);
}

void LaunchLog::keep_name(const char* name, Launch& launch) noexcept {
    if (name == nullptr) return;
    const std::size_t bytes = strnlen(name, most_name_bytes);
    const std::size_t at = next_name_.fetch_add(bytes, std::memory_order_relaxed);
    if (at + bytes > names_bytes_) return;
    std::memcpy(names_.get() + at, name, bytes);
    launch.name_offset = static_cast<std::uint32_t>(at);
    launch.name_bytes = static_cast<std::uint32_t>(bytes);
}

std::vector<Launch> LaunchLog::launches() const {
    std::vector<Launch> found;
    const std::size_t count = std::min(next_.load(std::memory_order_acquire), most_);
    found.reserve(count);
    for (std::size_t at = 0; at < count; ++at)
        if (slots_[at].written.load(std::memory_order_acquire)) found.push_back(slots_[at].launch);
    return found;
}

std::string_view LaunchLog::name_of(const Launch& launch) const noexcept {
    return {names_.get() + launch.name_offset, launch.name_bytes};
}

std::size_t LaunchLog::lost() const noexcept {
    const std::size_t count = next_.load(std::memory_order_acquire);
    return count > most_ ? count - most_ : 0;
}

}  // namespace gpuprof::cupti
