// SPDX-License-Identifier: Apache-2.0
// Which instruction sets this processor and its operating system let a program use.
#pragma once

#include <cstdint>
#include <optional>
#include <string_view>

namespace gpuprof::cpu {

enum class InstructionSet : std::uint8_t {
    generic,
    neon,
    avx2,
    avx_vnni,
    avx512,
    avx512_vnni,
    avx512_bf16,
    avx512_fp16,
    amx_bf16,
    amx_int8,
};
inline constexpr std::size_t instruction_set_count = 10;

std::string_view name_of(InstructionSet set) noexcept;
std::optional<InstructionSet> instruction_set_named(std::string_view name) noexcept;

class InstructionSets {
  public:
    constexpr InstructionSets() noexcept = default;
    constexpr void add(InstructionSet set) noexcept { bits_ |= bit(set); }
    constexpr bool has(InstructionSet set) const noexcept { return (bits_ & bit(set)) != 0; }
    constexpr bool operator==(const InstructionSets&) const noexcept = default;

  private:
    static constexpr std::uint32_t bit(InstructionSet set) noexcept {
        return std::uint32_t{1} << static_cast<unsigned>(set);
    }
    std::uint32_t bits_ = 0;
};

// Results of CPUID and XGETBV on an x86 processor; zero without such a leaf.
struct X86Facts {
    std::uint32_t leaf1_ecx = 0;
    std::uint32_t leaf7_ebx = 0;
    std::uint32_t leaf7_ecx = 0;
    std::uint32_t leaf7_edx = 0;
    std::uint32_t leaf7_1_eax = 0;
    // The register state that the operating system saves: an instruction set that it does not save is
    // illegal, even if CPUID reports it.
    std::uint64_t saved_state = 0;
};

InstructionSets sets_of(const X86Facts& facts) noexcept;

// Those of this machine. Asks nothing of the operating system.
InstructionSets available_sets() noexcept;

// Asks for what a set needs before its first use: the system's permission for AMX, per process. False where
// it is refused; the set's instructions are then illegal.
bool obtain(InstructionSet set) noexcept;

}  // namespace gpuprof::cpu
