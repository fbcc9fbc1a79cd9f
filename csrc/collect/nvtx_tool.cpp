// SPDX-License-Identifier: Apache-2.0
#include "collect/nvtx_tool.hpp"

#include <dlfcn.h>

#include "collect/nvtx_interface.hpp"
#include "core/dynamic_library.hpp"

namespace gpuprof::nvtx {
namespace {

// A group of functions: what the tool puts in the slots, and the list of slots that it is shown.
struct Group {
    Module module;
    unsigned size;  // with the empty place 0
    void* functions[16];
    void** slots[17];  // ends with a null
};

// Only two are called. The others are there for tools that take it as a failure when one is missing.
constinit Group groups[] = {
    {Module::core2, 16, {}, {}},  {Module::core, 16, {}, {}},        {Module::cuda, 9, {}, {}},
    {Module::opencl, 15, {}, {}}, {Module::cuda_runtime, 7, {}, {}}, {Module::sync, 7, {}, {}},
};

Group* group_of(Module module) noexcept {
    for (Group& group : groups)
        if (group.module == module) return &group;
    return nullptr;
}

int function_table(Module module, SlotTable* table, unsigned* size) noexcept {
    Group* const group = group_of(module);
    if (group == nullptr) return 0;
    for (unsigned place = 1; place < group->size; ++place) group->slots[place] = &group->functions[place];
    if (table != nullptr) *table = group->slots;
    if (size != nullptr) *size = group->size;
    return 1;
}

void set_tool_version(std::uint32_t) noexcept {}

constexpr Callbacks callbacks{sizeof(Callbacks), function_table};
constexpr VersionInfo version_info{sizeof(VersionInfo), interface_version, 0, set_tool_version};

const void* get_table(std::uint32_t table) noexcept {
    if (table == callbacks_table) return &callbacks;
    return table == version_table ? static_cast<const void*>(&version_info) : nullptr;
}

using PushFunction = int (*)(void* domain, const Attributes* attributes);
using PopFunction = int (*)(void* domain);
using CreateFunction = void* (*)(const char* name);

// Set before the binding announces anything, never changed afterwards.
PushFunction push_function = nullptr;
PopFunction pop_function = nullptr;
void* domain = nullptr;

template <typename Function>
Function function_at(core2::Place place) noexcept {
    return reinterpret_cast<Function>(groups[0].functions[place]);
}

Reason load_tool(const char* path) noexcept try {
    void* const library = dlopen(path, RTLD_LAZY | RTLD_LOCAL);
    if (library == nullptr) return {ReasonCode::tool_not_loaded, {}, last_library_error()};
    void* const found = dlsym(library, initialize_name);
    if (found == nullptr) {
        dlclose(library);
        return {ReasonCode::tool_lacks_function, {}, initialize_name};
    }
    // One that failed stays loaded: it may have begun threads.
    if (reinterpret_cast<Initialize>(found)(get_table) == 0) return {ReasonCode::tool_refused};
    push_function = function_at<PushFunction>(core2::push);
    pop_function = function_at<PopFunction>(core2::pop);
    if (push_function == nullptr || pop_function == nullptr) return {ReasonCode::tool_without_ranges};
    if (const auto create = function_at<CreateFunction>(core2::create_narrow); create != nullptr)
        domain = create("gpuprof");
    return {};
} catch (const std::bad_alloc& error) {
    return reason_of(error);
}

}  // namespace

const Reason& attach_tool(const char* path) noexcept {
    static const Reason result = load_tool(path);
    return result;
}

void push_range(const char* utf8) noexcept {
    Attributes attributes{};
    attributes.version = interface_version;
    attributes.size = sizeof(Attributes);
    attributes.message_type = MessageType::narrow;
    attributes.message = utf8;
    push_function(domain, &attributes);
}

void pop_range() noexcept {
    pop_function(domain);
}

}  // namespace gpuprof::nvtx
