// SPDX-License-Identifier: Apache-2.0
// Domains, registered strings and messages of NVTX, and the names that they are recorded under: the message,
// in a domain of its own `domain: message`. Nothing here asks whether there is a recording.
#pragma once

#include <atomic>
#include <cstdint>
#include <string_view>

#include "collect/nvtx_interface.hpp"

namespace gpuprof::nvtx {

// Recording generation << 32 | name id, so that a new recording asks for a new id.
using CachedKey = std::atomic<std::uint64_t>;

// Domains and strings live as long as the process: libraries keep them in static variables.
struct Domain {
    std::string_view name;
    std::uint32_t number = 0;
    CachedKey key{0};
};

extern constinit Domain default_domain;

inline Domain& domain_of(void* handle) noexcept {
    return handle != nullptr ? *static_cast<Domain*>(handle) : default_domain;
}

// Functions of the interface. Null where memory ran out.
void* create_narrow(const char* name) noexcept;
void* create_wide(const wchar_t* name) noexcept;
void* register_narrow(void* handle, const char* text) noexcept;
void* register_wide(void* handle, const wchar_t* text) noexcept;

// Ids of the present recording. The domain is the scope of its ranges' names: so a pop, which names the
// domain alone, finds its push.
std::uint32_t domain_id(Domain& domain) noexcept;
std::uint32_t narrow_id(Domain& domain, const char* message) noexcept;
std::uint32_t wide_id(Domain& domain, const wchar_t* message) noexcept;
std::uint32_t attributes_id(Domain& domain, const Attributes* attributes) noexcept;

}  // namespace gpuprof::nvtx
