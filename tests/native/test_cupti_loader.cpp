// SPDX-License-Identifier: Apache-2.0
// Where CUPTI is looked for, against stub libraries. Nothing of it needs a GPU.
#include <dlfcn.h>

#include <cstdlib>
#include <filesystem>

#include "cupti/loader.hpp"
#include "gpu_support.hpp"

namespace gpuprof::test {
namespace {

using cupti::Library;
using cupti::load_library;

void use_driver() {
    function_of<void (*)(int, int, int)>(STUB_CUDA, "stub_cuda_set")(1, 13000, 1);
    unsetenv("GPUPROF_CUPTI_LIBRARY");
}

std::string put(const char* library, const TemporaryFolder& folder, const char* name) {
    std::filesystem::copy_file(library, folder / name);
    return folder / name;
}

}  // namespace

TEST(folders_are_searched_in_their_order_and_the_newer_library_first) {
    use_driver();
    const TemporaryFolder empty, both, later;
    put(STUB_CUPTI, both, "libcupti.so.12");
    const std::string newer = put(STUB_CUPTI, both, "libcupti.so.13");
    put(STUB_CUPTI, later, "libcupti.so.13");
    const Library found = load_library({"/nowhere", empty(), both(), later()});
    CHECK_EQ(found.reason, ReasonCode::none);
    CHECK_EQ(found.path, newer);
    CHECK_EQ(found.version, 130001u);
}

TEST(what_cannot_be_used_is_passed_over) {
    use_driver();
    const TemporaryFolder text, other, good;
    std::ofstream(text / "libcupti.so.13") << "no library";
    put(STUB_CUDA, other, "libcupti.so.13");
    CHECK_EQ(load_library({text()}).reason, ReasonCode::library_not_loaded);
    CHECK_EQ(load_library({other()}).reason, ReasonCode::cupti_lacks_function);
    const std::string usable = put(STUB_CUPTI, good, "libcupti.so.12");
    const Library found = load_library({text(), other(), good()});
    CHECK_EQ(found.reason, ReasonCode::none);
    CHECK_EQ(found.path, usable);
}

TEST(a_missing_library_has_a_hint) {
    use_driver();
    const TemporaryFolder empty;
    const Library found = load_library({empty()});
    CHECK_EQ(found.reason, ReasonCode::cupti_not_found);
    CHECK_EQ(found.path, "");
}

TEST(a_library_of_an_unknown_version_that_cannot_be_walked_is_refused_for_the_next) {
    use_driver();
    const TemporaryFolder unknown, good;
    const std::string refused = put(STUB_CUPTI_PLAIN, unknown, "libcupti.so.13");
    function_of<void (*)(const char*, long long)>(refused.c_str(), "stub_set")("version", 990000);
    CHECK_EQ(load_library({unknown()}).reason, ReasonCode::cupti_unknown_version);
    const std::string usable = put(STUB_CUPTI, good, "libcupti.so.12");
    CHECK_EQ(load_library({unknown(), good()}).path, usable);
}

// Last: it stays in the process.
TEST(what_the_process_has_loaded_comes_first) {
    use_driver();
    const TemporaryFolder wheel, folder;
    const std::string loaded = put(STUB_CUPTI_13, wheel, "libcupti.so.13");
    REQUIRE(dlopen(loaded.c_str(), RTLD_NOW | RTLD_LOCAL) != nullptr);
    put(STUB_CUPTI, folder, "libcupti.so.13");
    CHECK_EQ(load_library({folder()}).path, loaded);
    // But not before the one that the user names.
    setenv("GPUPROF_CUPTI_LIBRARY", STUB_CUPTI, 1);
    CHECK_EQ(load_library({folder()}).path, STUB_CUPTI);
}

}  // namespace gpuprof::test
