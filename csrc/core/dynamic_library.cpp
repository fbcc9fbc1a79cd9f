// SPDX-License-Identifier: Apache-2.0
#include "core/dynamic_library.hpp"

#include <dlfcn.h>

#include <cstdlib>
#include <filesystem>
#include <system_error>

namespace gpuprof {

void* find_symbol(void* library, const char* name) noexcept {
    return library != nullptr ? dlsym(library, name) : nullptr;
}

LoadedLibrary::LoadedLibrary(const char* name) noexcept : handle_(dlopen(name, RTLD_NOW | RTLD_NOLOAD)) {}

LoadedLibrary::~LoadedLibrary() {
    if (handle_ != nullptr) dlclose(handle_);
}

std::string path_of_library(void* library, const char* function, const std::string& otherwise) {
    Dl_info info{};
    void* const found = find_symbol(library, function);
    const bool told = found != nullptr && dladdr(found, &info) != 0 && info.dli_fname != nullptr;
    return told ? info.dli_fname : otherwise;
}

std::string last_library_error() {
    const char* const error = dlerror();  // NOLINT(concurrency-mt-unsafe): of this thread
    return error != nullptr ? error : "";
}

NamedLibrary load_named_library(const char* variable) {
    // NOLINTNEXTLINE(concurrency-mt-unsafe): as every reader of the environment
    const char* const name = std::getenv(variable);
    if (name == nullptr || *name == '\0') return {};
    // NOLINTNEXTLINE(clang-analyzer-optin.taint.GenericTaint): the user names the library
    NamedLibrary named{name, dlopen(name, RTLD_NOW | RTLD_LOCAL), {}};
    if (named.handle == nullptr)
        named.reason = {ReasonCode::named_library_not_loaded, variable, last_library_error()};
    return named;
}

void offer_libraries(std::span<const char* const> names, const std::vector<std::string>& folders,
                     const AcceptLibrary& accept) {
    for (const char* const name : names) {
        void* const loaded = dlopen(name, RTLD_NOW | RTLD_NOLOAD);
        if (loaded != nullptr && accept(loaded, name)) return;
    }
    for (const std::string& folder : folders)
        for (const char* const name : names) {
            const std::string path = folder + "/" + name;
            std::error_code ignored;
            if (!std::filesystem::exists(path, ignored)) continue;
            if (accept(dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL), path)) return;
        }
}

}  // namespace gpuprof
