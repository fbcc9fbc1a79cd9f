// SPDX-License-Identifier: Apache-2.0
#include "cuda/compiler.hpp"

#include <dlfcn.h>

#include <array>
#include <cstdlib>
#include <filesystem>

#include "cuda/launch_driver.hpp"

namespace gpuprof::cuda {
namespace {

constexpr std::array library_names{"libnvrtc.so.13", "libnvrtc.so.12", "libnvrtc.so"};

template <typename Function>
bool find(void* library, const char* name, Function& function) noexcept {
    function = reinterpret_cast<Function>(dlsym(library, name));
    return function != nullptr;
}

// The name of a function that is missing, or null.
const char* fill(void* library, CompilerFunctions& functions) noexcept {
    if (!find(library, "nvrtcVersion", functions.get_version)) return "nvrtcVersion";
    if (!find(library, "nvrtcCreateProgram", functions.create)) return "nvrtcCreateProgram";
    if (!find(library, "nvrtcCompileProgram", functions.compile)) return "nvrtcCompileProgram";
    if (!find(library, "nvrtcGetProgramLogSize", functions.get_log_size)) return "nvrtcGetProgramLogSize";
    if (!find(library, "nvrtcGetProgramLog", functions.get_log)) return "nvrtcGetProgramLog";
    if (!find(library, "nvrtcGetCUBINSize", functions.get_image_size)) return "nvrtcGetCUBINSize";
    if (!find(library, "nvrtcGetCUBIN", functions.get_image)) return "nvrtcGetCUBIN";
    if (!find(library, "nvrtcDestroyProgram", functions.destroy)) return "nvrtcDestroyProgram";
    if (!find(library, "nvrtcGetErrorString", functions.explain)) return "nvrtcGetErrorString";
    return nullptr;
}

// NVRTC opens its second half by name alone, which finds it beside NVRTC only where that is searched.
void load_second_half(const Compiler& compiler) {
    const std::filesystem::path folder = std::filesystem::path(compiler.path).parent_path();
    const std::string name =
        "libnvrtc-builtins.so." + std::to_string(compiler.major) + "." + std::to_string(compiler.minor);
    dlopen((folder / name).c_str(), RTLD_NOW | RTLD_LOCAL);
}

Compiler examine(void* library, const std::string& name) {
    Compiler found;
    Dl_info info{};
    void* const function = dlsym(library, "nvrtcVersion");
    const bool told = function != nullptr && dladdr(function, &info) != 0 && info.dli_fname != nullptr;
    found.path = told ? info.dli_fname : name;
    if (const char* const missing = fill(library, found.functions); missing != nullptr)
        found.reason = found.path + " has no " + missing + ": name another NVRTC in GPUPROF_NVRTC_LIBRARY";
    else if (found.functions.get_version(&found.major, &found.minor) != success)
        found.reason = found.path + " does not tell its version: name another NVRTC in GPUPROF_NVRTC_LIBRARY";
    else
        load_second_half(found);
    return found;
}

Compiler load_named(const char* name) {
    // NOLINTNEXTLINE(clang-analyzer-optin.taint.GenericTaint): the user names the library
    void* const library = dlopen(name, RTLD_NOW | RTLD_LOCAL);
    if (library != nullptr) return examine(library, name);
    const char* const error = dlerror();  // NOLINT(concurrency-mt-unsafe): of this thread
    Compiler none;
    none.reason = "GPUPROF_NVRTC_LIBRARY cannot be loaded: " + std::string(error != nullptr ? error : name) +
                  "; name a libnvrtc.so, or unset it";
    return none;
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
    // NOLINTNEXTLINE(concurrency-mt-unsafe): as every reader of the environment
    if (const char* named = std::getenv("GPUPROF_NVRTC_LIBRARY"); named != nullptr && *named != '\0')
        return load_named(named);
    Compiler last;
    last.reason =
        "no libnvrtc.so was found: pip install nvidia-cuda-nvrtc, or name one in GPUPROF_NVRTC_LIBRARY";
    auto accept = [&](void* library, const std::string& name) {
        if (library != nullptr) last = examine(library, name);
        return library != nullptr && last.available();
    };
    for (const char* name : library_names)
        if (accept(dlopen(name, RTLD_NOW | RTLD_NOLOAD), name)) return last;
    for (const std::string& folder : folders)
        for (const char* name : library_names) {
            const std::string path = folder + "/" + name;
            std::error_code ignored;
            if (!std::filesystem::exists(path, ignored)) continue;
            if (accept(dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL), path)) return last;
        }
    return last;
}

std::vector<char> compile(const Compiler& compiler, const char* source, const char* name, int capability) {
    if (!compiler.available()) throw GpuError(compiler.reason);
    const std::string architecture = "--gpu-architecture=sm_" + std::to_string(capability);
    Program program(compiler.functions, source, name);
    program.compile({architecture.c_str(), "--std=c++17"});
    return program.image();
}

}  // namespace gpuprof::cuda
