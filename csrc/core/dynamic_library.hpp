// SPDX-License-Identifier: Apache-2.0
// Libraries that are looked for at run time, because nothing of theirs is linked. A handle is dlopen's.
#pragma once

#include <functional>
#include <span>
#include <string>
#include <vector>

#include "core/reason.hpp"

namespace gpuprof {

// Null where the library has none of this name, or is null itself.
void* find_symbol(void* library, const char* name) noexcept;

template <typename Function>
Function find_function(void* library, const char* name) noexcept {
    return reinterpret_cast<Function>(find_symbol(library, name));
}

// Fills a table of functions, and remembers the first one that is needed and missing.
class FunctionFinder {
  public:
    explicit FunctionFinder(void* library) noexcept : library_(library) {}

    template <typename Function>
    void need(const char* name, Function& function) noexcept {
        take(name, function);
        if (function == nullptr && missing_ == nullptr) missing_ = name;
    }
    template <typename Function>
    void take(const char* name, Function& function) noexcept {
        function = find_function<Function>(library_, name);
    }

    const char* missing() const noexcept { return missing_; }

  private:
    void* library_;
    const char* missing_ = nullptr;
};

// A library that the process has loaded already, held for as long as this lives; null where it has not.
class LoadedLibrary {
  public:
    explicit LoadedLibrary(const char* name) noexcept;
    LoadedLibrary(const LoadedLibrary&) = delete;
    LoadedLibrary& operator=(const LoadedLibrary&) = delete;
    ~LoadedLibrary();

    void* handle() const noexcept { return handle_; }

  private:
    void* handle_;
};

// The file that a function of the library is in, or `otherwise` if that is unknown.
std::string path_of_library(void* library, const char* function, const std::string& otherwise);

// What the last call for a library on this thread failed of, or nothing.
std::string last_library_error();

struct NamedLibrary {
    std::string name;  // empty: the user names none
    void* handle = nullptr;
    Reason reason;  // why the named one is unavailable
};

// Loads what `variable` of the environment names.
NamedLibrary load_named_library(const char* variable);

// Takes a library, whose `handle` is null if its file cannot be loaded, and returns whether it is usable.
using AcceptLibrary = std::function<bool(void* handle, const std::string& path)>;

// Offers libraries of these names until one is good: first those that the process has loaded, then those in
// the folders. They stay in the process.
void offer_libraries(std::span<const char* const> names, const std::vector<std::string>& folders,
                     const AcceptLibrary& accept);

}  // namespace gpuprof
