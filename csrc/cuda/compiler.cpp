// SPDX-License-Identifier: Apache-2.0
#include "cuda/compiler.hpp"

#include <dlfcn.h>

#include <array>
#include <filesystem>

#include "core/dynamic_library.hpp"
#include "cuda/launch_driver.hpp"

namespace gpuprof::cuda {
namespace {

constexpr std::array library_names{"libnvrtc.so.13", "libnvrtc.so.12", "libnvrtc.so"};

// The name of a function that is missing, or null.
const char* fill(void* library, CompilerFunctions& functions) noexcept {
    FunctionFinder find(library);
    find.need("nvrtcVersion", functions.get_version);
    find.need("nvrtcCreateProgram", functions.create);
    find.need("nvrtcCompileProgram", functions.compile);
    find.need("nvrtcGetProgramLogSize", functions.get_log_size);
    find.need("nvrtcGetProgramLog", functions.get_log);
    find.need("nvrtcGetCUBINSize", functions.get_image_size);
    find.need("nvrtcGetCUBIN", functions.get_image);
    find.need("nvrtcDestroyProgram", functions.destroy);
    find.need("nvrtcGetErrorString", functions.explain);
    return find.missing();
}

// NVRTC opens its second library by name alone, which is found only if NVRTC's folder is searched.
void load_second_half(const Compiler& compiler) {
    const std::filesystem::path folder = std::filesystem::path(compiler.path).parent_path();
    const std::string name =
        "libnvrtc-builtins.so." + std::to_string(compiler.major) + "." + std::to_string(compiler.minor);
    dlopen((folder / name).c_str(), RTLD_NOW | RTLD_LOCAL);
}

Compiler examine(void* library, const std::string& name) {
    Compiler found;
    found.path = path_of_library(library, "nvrtcVersion", name);
    if (const char* const missing = fill(library, found.functions); missing != nullptr)
        found.reason = {ReasonCode::nvrtc_lacks_function, found.path, missing};
    else if (found.functions.get_version(&found.major, &found.minor) != success)
        found.reason = {ReasonCode::nvrtc_without_version, found.path};
    else
        load_second_half(found);
    return found;
}

class Program {
  public:
    Program(const CompilerFunctions& functions, const char* source, const char* name)
        : functions_(functions) {
        check(functions_.create(&program_, source, name, 0, nullptr, nullptr));
    }
    Program(const Program&) = delete;
    Program& operator=(const Program&) = delete;
    ~Program() { functions_.destroy(&program_); }

    void compile(const std::vector<const char*>& options) {
        const int result = functions_.compile(program_, static_cast<int>(options.size()), options.data());
        if (result != success)
            throw GpuError("NVRTC: " + std::string(functions_.explain(result)) + ": " + first_line(log()));
    }
    std::vector<char> image() {
        std::size_t bytes = 0;
        check(functions_.get_image_size(program_, &bytes));
        std::vector<char> image(bytes);
        check(functions_.get_image(program_, image.data()));
        return image;
    }

  private:
    void check(int result) const {
        if (result != success) throw GpuError("NVRTC: " + std::string(functions_.explain(result)));
    }
    std::string log() const {
        std::size_t bytes = 0;
        if (functions_.get_log_size(program_, &bytes) != success || bytes == 0) return "no message";
        std::string text(bytes, '\0');
        if (functions_.get_log(program_, text.data()) != success) return "no message";
        return text;
    }
    static std::string first_line(const std::string& text) {
        return text.substr(0, text.find_first_of(std::string("\n\0", 2)));
    }

    const CompilerFunctions& functions_;
    CompilerFunctions::Program program_ = nullptr;
};

}  // namespace

Compiler load_compiler(const std::vector<std::string>& folders) {
    Compiler last;
    if (const NamedLibrary named = load_named_library("GPUPROF_NVRTC_LIBRARY"); !named.name.empty()) {
        if (named.handle != nullptr) return examine(named.handle, named.name);
        last.reason = named.reason;
        return last;
    }
    last.reason = {ReasonCode::nvrtc_not_found};
    offer_libraries(library_names, folders, [&last](void* library, const std::string& path) {
        if (library != nullptr) last = examine(library, path);
        return library != nullptr && last.available();
    });
    return last;
}

std::vector<char> compile(const Compiler& compiler, const char* source, const char* name, int capability) {
    if (!compiler.available()) throw GpuError(std::string("NVRTC cannot be used: ") + compiler.reason.name());
    const std::string architecture = "--gpu-architecture=sm_" + std::to_string(capability);
    Program program(compiler.functions, source, name);
    program.compile({architecture.c_str(), "--std=c++17"});
    return program.image();
}

}  // namespace gpuprof::cuda
