// SPDX-License-Identifier: Apache-2.0
// What a library that announces ranges with NVTX and a tool that takes them agree upon, by offset and size;
// only what is used is named. The announcing side hands out a table of slots for each group of functions,
// each a pointer to the function's address. A function that the tool does not set does nothing.
#pragma once

#include <cstddef>
#include <cstdint>

namespace gpuprof::nvtx {

enum class Module : std::uint32_t { core = 1, cuda = 2, opencl = 3, cuda_runtime = 4, core2 = 5, sync = 6 };

// Places in the tables. Place 0 is empty.
namespace core {
enum Place : unsigned {
    mark_ex = 1,
    mark_narrow,
    mark_wide,
    start_ex,
    start_narrow,
    start_wide,
    stop,
    push_ex,
    push_narrow,
    push_wide,
    pop,
};
}  // namespace core
namespace core2 {
enum Place : unsigned {
    mark = 1,
    start,
    stop,
    push,
    pop,
    register_narrow = 10,
    register_wide,
    create_narrow,
    create_wide,
};
}  // namespace core2

using SlotTable = void***;  // a list of pointers to slots

constexpr std::uint32_t callbacks_table = 1;
constexpr std::uint32_t version_table = 3;
constexpr std::uint16_t interface_version = 3;

struct Callbacks {
    std::size_t struct_size;
    int (*function_table)(Module module, SlotTable* table, unsigned* size);
};

struct VersionInfo {
    std::size_t struct_size;
    std::uint32_t version;
    std::uint32_t reserved;
    void (*set_tool_version)(std::uint32_t version);
};

using GetTable = const void* (*)(std::uint32_t table);
using Initialize = int (*)(GetTable get_table);
constexpr const char* initialize_name = "InitializeInjectionNvtx2";

enum class MessageType : std::int32_t { none = 0, narrow = 1, wide = 2, registered = 3 };

struct Attributes {
    std::uint16_t version;
    std::uint16_t size;
    std::uint32_t category;
    std::int32_t color_type;
    std::uint32_t color;
    std::int32_t payload_type;
    std::int32_t reserved;
    std::uint64_t payload;
    MessageType message_type;
    const void* message;
};
static_assert(sizeof(void*) != 8 || (offsetof(Attributes, message) == 40 && sizeof(Attributes) == 48));

// What push and pop return where the tool does not count levels.
constexpr int level_unknown = -2;

}  // namespace gpuprof::nvtx
