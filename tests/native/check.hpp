// SPDX-License-Identifier: Apache-2.0
// TEST registers a function, CHECK and CHECK_EQ record a failure and continue, from any thread; REQUIRE gives
// the test up. `main.cpp` runs what is registered.
#pragma once

#include <atomic>
#include <cstdio>
#include <sstream>
#include <string>
#include <vector>

#include "core/reason.hpp"

namespace gpuprof {

inline std::ostream& operator<<(std::ostream& stream, ReasonCode code) {
    return stream << reason_names[static_cast<std::size_t>(code)];
}
inline std::ostream& operator<<(std::ostream& stream, const Reason& reason) {
    return stream << reason.name() << " " << reason.file << " " << reason.detail << " " << reason.number;
}

}  // namespace gpuprof

namespace gpuprof::test {

struct Test {
    const char* name;
    void (*body)();
};
struct GivenUp {};

inline std::vector<Test>& registered_tests() {
    static std::vector<Test> tests;
    return tests;
}
inline std::atomic<int> failures{0};

inline bool note(bool passed, const char* file, int line, const std::string& text) {
    if (!passed && failures.fetch_add(1) < 50) std::fprintf(stderr, "%s:%d: %s\n", file, line, text.c_str());
    return passed;
}

template <typename A, typename B>
bool note_equal(const A& a, const B& b, const char* file, int line, const char* text) {
    if (a == b) return true;
    std::ostringstream message;
    message << text << ": " << a << " is not " << b;
    return note(false, file, line, message.str());
}

}  // namespace gpuprof::test

#define TEST(name)                                                          \
    static void name();                                                     \
    [[maybe_unused]] static const bool name##_is_registered =               \
        (gpuprof::test::registered_tests().push_back({#name, name}), true); \
    static void name()
#define CHECK(condition) gpuprof::test::note(static_cast<bool>(condition), __FILE__, __LINE__, #condition)
#define CHECK_EQ(a, b) gpuprof::test::note_equal((a), (b), __FILE__, __LINE__, #a " == " #b)
#define REQUIRE(condition)                                \
    if (!CHECK(condition)) throw gpuprof::test::GivenUp { \
        }
