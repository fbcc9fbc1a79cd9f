// SPDX-License-Identifier: Apache-2.0
// Announcing to another tool, which `tests/support/fake_nvtx_tool.c` plays. A process attaches once, so each
// test does it in a child.
#include <fstream>

#include "collect/nvtx_tool.hpp"
#include "support.hpp"

using namespace gpuprof;
using namespace gpuprof::test;

namespace {

// What the tool wrote while a child, in which it was to behave in this way, ran `body`.
template <typename Body>
std::vector<std::string> told(const char* mode, Body body) {
    const TemporaryFolder folder;
    const std::string log = folder / "log";
    CHECK_EQ(wait_for(start_child([&] {
                 setenv("FAKE_NVTX_LOG", log.c_str(), 1);
                 setenv("FAKE_NVTX_MODE", mode, 1);
                 body();
             })),
             0);
    std::vector<std::string> lines;
    std::ifstream file(log);
    for (std::string line; std::getline(file, line);) lines.push_back(line);
    return lines;
}

void check_failure(const char* path, ReasonCode code) {
    CHECK_EQ(nvtx::attach_tool(path), code);
    CHECK_EQ(nvtx::attach_tool(FAKE_NVTX_TOOL), code);
}

}  // namespace

TEST(a_tool_gets_ranges_in_a_domain) {
    const std::vector<std::string> lines = told("", [] {
        CHECK(!nvtx::attach_tool(FAKE_NVTX_TOOL));
        CHECK(!nvtx::attach_tool("/nowhere/else.so"));
        nvtx::push_range("outer");
        nvtx::push_range("w\xc3\xa4hrend");
        nvtx::pop_range();
        nvtx::pop_range();
    });
    const std::vector<std::string> expected = {"tables - 0:0 1:16 2:9 3:15 4:7 5:16 6:7 7:0 version 3",
                                               "push gpuprof outer", "push gpuprof w\xc3\xa4hrend",
                                               "pop gpuprof ", "pop gpuprof "};
    CHECK(lines == expected);
}

TEST(a_tool_without_domains) {
    const std::vector<std::string> lines = told("no domains", [] {
        CHECK(!nvtx::attach_tool(FAKE_NVTX_TOOL));
        nvtx::push_range("x");
        nvtx::pop_range();
    });
    REQUIRE(lines.size() == 3);
    CHECK_EQ(lines[1], "push - x");
}

TEST(tools_that_fail) {
    CHECK(told("refuse", [] { check_failure(FAKE_NVTX_TOOL, ReasonCode::tool_refused); }).empty());
    CHECK_EQ(told("deaf", [] { check_failure(FAKE_NVTX_TOOL, ReasonCode::tool_without_ranges); }).size(), 1u);
    told("", [] { check_failure("/nowhere/tool.so", ReasonCode::tool_not_loaded); });
    told("", [] { check_failure("libpthread.so.0", ReasonCode::tool_lacks_function); });
}
