// SPDX-License-Identifier: Apache-2.0
// Replaces libnvrtc.so: compiles nothing, and returns the results that the tests set.
#include <cstdlib>
#include <cstring>
#include <string>

#define EXPORT extern "C" __attribute__((visibility("default")))

namespace {

constexpr int compilation_error = 6;

bool fails() {
    return std::getenv("STUB_NVRTC_FAILS") != nullptr;
}
int program = 0;
long long programs = 0;
std::string& last_option() {
    static auto* const option = new std::string;
    return *option;
}

}  // namespace

EXPORT long long stub_nvrtc_programs() {
    return programs;
}
EXPORT const char* stub_nvrtc_option() {
    return last_option().c_str();
}

EXPORT int nvrtcVersion(int* major, int* minor) {
    *major = 13;
    *minor = 0;
    return 0;
}
EXPORT int nvrtcCreateProgram(void** made, const char*, const char*, int, const char* const*,
                              const char* const*) {
    *made = &program;
    ++programs;
    return 0;
}
EXPORT int nvrtcCompileProgram(void*, int, const char* const* options) {
    last_option() = options[0];
    return fails() ? compilation_error : 0;
}
EXPORT int nvrtcGetProgramLogSize(void*, std::size_t* bytes) {
    *bytes = 26;
    return 0;
}
EXPORT int nvrtcGetProgramLog(void*, char* log) {
    std::memcpy(log, "ceilings.cu(1): an error\n", 26);
    return 0;
}
EXPORT int nvrtcGetCUBINSize(void*, std::size_t* bytes) {
    *bytes = 4;
    return 0;
}
EXPORT int nvrtcGetCUBIN(void*, char* image) {
    std::memcpy(image, "stub", 4);
    return 0;
}
EXPORT int nvrtcDestroyProgram(void**) {
    --programs;
    return 0;
}
EXPORT const char* nvrtcGetErrorString(int) {
    return "NVRTC_ERROR_COMPILATION";
}
