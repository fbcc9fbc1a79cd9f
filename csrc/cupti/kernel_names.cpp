// SPDX-License-Identifier: Apache-2.0
#include "cupti/kernel_names.hpp"

#include <cxxabi.h>

#include <cstdlib>
#include <cstring>
#include <memory>
#include <new>

#include "core/recorder.hpp"

namespace gpuprof::cupti {
namespace {

// Substitutions can make a short mangled name very long.
constexpr std::size_t longest_mangled_name = std::size_t{16} * 1024;

std::string cut(const char* text) {
    std::size_t size = strnlen(text, longest_kernel_name + 1);
    if (size > longest_kernel_name) {
        size = longest_kernel_name;
        while (size > 0 && (static_cast<unsigned char>(text[size]) & 0xC0u) == 0x80u) --size;
    }
    return {text, size};
}

}  // namespace

std::string readable_kernel_name(const char* name) {
    const bool is_mangled = std::strncmp(name, "_Z", 2) == 0;
    if (!is_mangled || strnlen(name, longest_mangled_name) == longest_mangled_name) return cut(name);
    int status = 0;
    const std::unique_ptr<char, decltype(&std::free)> demangled(
        abi::__cxa_demangle(name, nullptr, nullptr, &status), &std::free);
    return cut(demangled && status == 0 ? demangled.get() : name);
}

std::uint32_t KernelNames::id(const char* name) noexcept try {
    if (name == nullptr) return 0;
    const auto found = entries_.find(name);
    if (found != entries_.end() && found->second.text == name) return found->second.id;
    const std::uint32_t id = Recorder::instance().intern(readable_kernel_name(name));
    entries_.insert_or_assign(name, Entry{name, id});
    return id;
} catch (const std::bad_alloc&) {
    return 0;
}

}  // namespace gpuprof::cupti
