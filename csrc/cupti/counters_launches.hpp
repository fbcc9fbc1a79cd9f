// SPDX-License-Identifier: Apache-2.0
// Which operator each kernel was launched for: CUPTI calls back at each launch, on the launching thread, and
// what is written down there has its room from before. Kernels of other contexts are left out.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string_view>
#include <vector>

#include "cupti/loader.hpp"

namespace gpuprof::cupti {

constexpr std::int64_t no_operator = -1;

enum class LaunchKind : std::uint8_t { kernel, several, copy };

struct Launch {
    std::int64_t operator_number;
    LaunchKind kind;
    std::uint32_t name_offset;
    std::uint32_t name_bytes;
};

// One at a time in a process.
class LaunchLog {
  public:
    static LaunchLog& instance();
    LaunchLog(const LaunchLog&) = delete;
    LaunchLog& operator=(const LaunchLog&) = delete;

    // Returns CUPTI's error number, 0 if launches are recorded. Throws std::bad_alloc.
    std::uint32_t begin(const Api& api, void* context, std::size_t most_launches);
    // Callbacks that are under way may still write; what is read afterwards is what had been written.
    void end() noexcept;

    // What this thread launches from now on belongs to that operator, whose numbers only grow.
    static void set_operator(std::int64_t number) noexcept;

    std::vector<Launch> launches() const;
    std::string_view name_of(const Launch& launch) const noexcept;
    // Launches that there was no room for.
    std::size_t lost() const noexcept;

  private:
    struct Slot {
        Launch launch;
        std::atomic<bool> written{false};
    };

    LaunchLog() = default;
    ~LaunchLog() = default;

    static void on_callback(void* user, std::uint32_t domain, std::uint32_t id, const void* data) noexcept;
    void note(std::uint32_t id, const abi::CallbackData& call) noexcept;
    void keep_name(const char* name, Launch& launch) noexcept;
    void make_room(std::size_t most_launches);
    void switch_callbacks(bool on) const noexcept;

    const Api* api_ = nullptr;
    abi::Subscriber subscriber_ = nullptr;
    void* context_ = nullptr;
    std::atomic<bool> listening_{false};
    std::atomic<std::size_t> next_{0};
    std::atomic<std::size_t> next_name_{0};
    std::vector<Slot> slots_;
    std::size_t most_ = 0;
    std::unique_ptr<char[]> names_;  // untouched until it is used
    std::size_t names_bytes_ = 0;
};

}  // namespace gpuprof::cupti
