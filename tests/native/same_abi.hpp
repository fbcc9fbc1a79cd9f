// SPDX-License-Identifier: Apache-2.0
// What holding our declarations against NVIDIA's headers takes. All of it fails while it is compiled.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "cupti/abi.hpp"
#include "cupti_headers.hpp"

#define SAME_VALUE(ours, theirs) static_assert(static_cast<long>(ours) == static_cast<long>(theirs), #theirs)
#define SAME_OFFSET(ours, member, theirs, their_member) \
    static_assert(offsetof(abi::ours, member) == offsetof(theirs, their_member), #their_member)
// Whether the calls of a driver's function are in one of our lists.
#define LISTED(list, name) \
    static_assert(is_listed(abi::list##_callbacks, CUPTI_DRIVER_TRACE_CBID_##name), #name)
#define NOT_LISTED(list, name) \
    static_assert(!is_listed(abi::list##_callbacks, CUPTI_DRIVER_TRACE_CBID_##name), #name)
#define RUNTIME_LISTED(name) \
    static_assert(is_listed(abi::runtime_calls, CUPTI_RUNTIME_TRACE_CBID_##name), #name)
#define RUNTIME_NOT_LISTED(name) \
    static_assert(!is_listed(abi::runtime_calls, CUPTI_RUNTIME_TRACE_CBID_##name), #name)

namespace gpuprof::test {

namespace abi = cupti::abi;

constexpr bool is_listed(std::span<const abi::CallbackRange> list, std::uint32_t id) {
    for (const abi::CallbackRange& range : list)
        if (id >= range.first && id <= range.last) return true;
    return false;
}

constexpr bool is_listed(std::span<const std::uint32_t> list, std::uint32_t id) {
    for (const std::uint32_t each : list)
        if (each == id) return true;
    return false;
}

}  // namespace gpuprof::test
