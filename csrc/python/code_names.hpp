// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

#include "python/frame_reader.hpp"
#include "python/stack_file.hpp"

namespace gpuprof::python {

// How functions are named in a run; see src/gpuprof/record/frame_text.py, which makes it.
struct FrameNaming {
    std::vector<std::string> hidden;                            // beginnings of paths
    std::vector<std::string> marks;                             // what follows one of these is the short path
    std::vector<std::pair<std::string, std::string>> prefixes;  // beginnings and their replacements
    std::string module_file;                                    // the end of the path of PyTorch's Module
    std::string module_call;                                    // the name of its function that calls it
    std::string module_call_text;
    std::string cut_off;
};

// Gives the frames, stacks and sites of a file their numbers, and writes each at its first use.
class CodeNames {
  public:
    CodeNames(FrameNaming naming, StackFile& file);

    struct Named {
        std::uint32_t stack;
        std::uint32_t site;
    };
    // Nothing where a frame is not one of a function: the stack was torn.
    std::optional<Named> name(const std::vector<RawFrame>& frames);

  private:
    // What a code object held when it was named. Its address may be another one's later.
    struct Known {
        Address path, name;
        int first_line;
        std::uint32_t number;
    };
    struct SiteKey {
        Address code;
        std::int32_t instruction;
        std::uint32_t frame;
        bool operator==(const SiteKey&) const = default;
    };
    struct SiteHash {
        std::size_t operator()(const SiteKey& key) const noexcept;
    };
    struct StackHash {
        std::size_t operator()(const std::vector<std::uint32_t>& frames) const noexcept;
    };

    const Known* known(Address code, const std::byte* copy, std::int32_t instruction);
    std::string text_of(const std::string& path, const std::string& name, int first_line) const;
    std::string short_path(const std::string& path) const;
    std::uint32_t frame_number(const std::string& text);
    std::uint32_t stack_number();
    std::uint32_t site_number(const RawFrame& frame, const std::byte* copy, const Known& of);

    FrameNaming naming_;
    StackFile& file_;
    std::unordered_map<Address, Known> codes_;
    std::unordered_map<std::string, std::uint32_t> frames_;
    std::unordered_map<std::vector<std::uint32_t>, std::uint32_t, StackHash> stacks_;
    std::unordered_map<SiteKey, std::uint32_t, SiteHash> sites_;
    std::uint32_t next_stack_ = 0, next_site_ = 0;
    std::vector<Address> addresses_;
    std::vector<std::byte> copies_;
    std::vector<std::uint32_t> numbers_;
};

}  // namespace gpuprof::python
