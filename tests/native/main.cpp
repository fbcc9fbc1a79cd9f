// SPDX-License-Identifier: Apache-2.0
#include <chrono>
#include <cstring>
#include <exception>

#include "check.hpp"

namespace {

bool run(const gpuprof::test::Test& test) {
    const int before = gpuprof::test::failures;
    const auto start = std::chrono::steady_clock::now();
    try {
        test.body();
    } catch (const gpuprof::test::GivenUp&) {
        std::fprintf(stderr, "%s: given up\n", test.name);
    } catch (const std::exception& error) {
        gpuprof::test::note(false, test.name, 0, std::string("threw ") + error.what());
    }
    const bool passed = gpuprof::test::failures == before;
    const std::chrono::duration<double> elapsed = std::chrono::steady_clock::now() - start;
    std::fprintf(stderr, "%s %s (%.2f s)\n", passed ? "ok    " : "FAILED", test.name, elapsed.count());
    return passed;
}

}  // namespace

// Arguments name the tests to run; without any, all run.
int main(int argc, char** argv) {
    int failed = 0, ran = 0;
    for (const auto& test : gpuprof::test::registered_tests()) {
        bool wanted = argc < 2;
        for (int i = 1; i < argc; ++i) wanted = wanted || std::strcmp(argv[i], test.name) == 0;
        if (!wanted) continue;
        ++ran;
        failed += run(test) ? 0 : 1;
    }
    std::fprintf(stderr, "%d of %d tests failed\n", failed, ran);
    return failed != 0 || ran == 0 ? 1 : 0;
}
