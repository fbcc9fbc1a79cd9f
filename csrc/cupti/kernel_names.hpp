// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <unordered_map>

namespace gpuprof::cupti {

constexpr std::size_t longest_kernel_name = 4096;

// As people write it: demangled, and cut on a character at 4 KiB. What is no mangled name stays as it is.
std::string readable_kernel_name(const char* name);

// Ids of kernels' names within one recording. For one thread.
class KernelNames {
  public:
    // 0 for null, or when memory ran out.
    std::uint32_t id(const char* name) noexcept;
    void clear() noexcept { entries_.clear(); }

  private:
    struct Entry {
        std::string text;  // a pointer may be used again for another name
        std::uint32_t id;
    };
    std::unordered_map<const char*, Entry> entries_;
};

}  // namespace gpuprof::cupti
