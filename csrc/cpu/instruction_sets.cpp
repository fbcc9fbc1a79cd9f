// SPDX-License-Identifier: Apache-2.0
#include "cpu/instruction_sets.hpp"

#include <array>

#if defined(__x86_64__)
#include <cpuid.h>
#endif
#if defined(__linux__)
#include <sys/syscall.h>
#include <unistd.h>
#endif

namespace gpuprof::cpu {
namespace {

constexpr std::array<std::string_view, instruction_set_count> names = {
    "generic",     "neon",        "avx2",        "avx_vnni", "avx512",
    "avx512_vnni", "avx512_bf16", "avx512_fp16", "amx_bf16", "amx_int8",
};

constexpr bool all(std::uint64_t value, std::uint64_t wanted) noexcept {
    return (value & wanted) == wanted;
}

constexpr std::uint32_t bit(unsigned number) noexcept {
    return std::uint32_t{1} << number;
}

// Leaf 1, ECX.
constexpr std::uint32_t fma = bit(12), os_saves_state = bit(27), avx = bit(28);
// Leaf 7, EBX.
constexpr std::uint32_t avx2 = bit(5), avx512f = bit(16), avx512dq = bit(17), avx512bw = bit(30),
                        avx512vl = bit(31);
// Leaf 7, ECX and EDX; leaf 7.1, EAX.
constexpr std::uint32_t avx512_vnni = bit(11);
constexpr std::uint32_t amx_bf16 = bit(22), avx512_fp16 = bit(23), amx_tile = bit(24), amx_int8 = bit(25);
constexpr std::uint32_t avx_vnni = bit(4), avx512_bf16 = bit(5);
// XCR0: which registers are saved.
constexpr std::uint64_t ymm_state = 0x6, zmm_state = 0xe6, tile_state = 0x60000;

void add_avx512(InstructionSets& sets, const X86Facts& facts) noexcept {
    if (!all(facts.saved_state, zmm_state) || !all(facts.leaf7_ebx, avx512f)) return;
    sets.add(InstructionSet::avx512);
    // Compilers take the later sets to include these.
    if (!all(facts.leaf7_ebx, avx512bw | avx512dq | avx512vl)) return;
    if (all(facts.leaf7_ecx, avx512_vnni)) sets.add(InstructionSet::avx512_vnni);
    if (all(facts.leaf7_1_eax, avx512_bf16)) sets.add(InstructionSet::avx512_bf16);
    if (all(facts.leaf7_edx, avx512_fp16)) sets.add(InstructionSet::avx512_fp16);
}

#if defined(__x86_64__)

std::uint64_t saved_state() noexcept {
    std::uint32_t low = 0, high = 0;
    __asm__ volatile("xgetbv" : "=a"(low), "=d"(high) : "c"(0));
    return (std::uint64_t{high} << 32) | low;
}

X86Facts ask_processor() noexcept {
    X86Facts facts;
    std::uint32_t eax = 0, ebx = 0, ecx = 0, edx = 0;
    if (__get_cpuid(1, &eax, &ebx, &ecx, &edx) == 0) return facts;
    facts.leaf1_ecx = ecx;
    if (all(ecx, os_saves_state)) facts.saved_state = saved_state();
    if (__get_cpuid_count(7, 0, &eax, &ebx, &ecx, &edx) == 0) return facts;
    const std::uint32_t last_subleaf = eax;
    facts.leaf7_ebx = ebx;
    facts.leaf7_ecx = ecx;
    facts.leaf7_edx = edx;
    if (last_subleaf >= 1 && __get_cpuid_count(7, 1, &eax, &ebx, &ecx, &edx) != 0) facts.leaf7_1_eax = eax;
    return facts;
}

#endif

bool obtain_tiles() noexcept {
#if defined(__linux__) && defined(__x86_64__)
    constexpr long request_permission = 0x1023, tile_data = 18;
    static const bool obtained = syscall(SYS_arch_prctl, request_permission, tile_data) == 0;
    return obtained;
#else
    return false;
#endif
}

}  // namespace

std::string_view name_of(InstructionSet set) noexcept {
    return names[static_cast<std::size_t>(set)];
}

std::optional<InstructionSet> instruction_set_named(std::string_view name) noexcept {
    for (std::size_t i = 0; i < names.size(); ++i)
        if (names[i] == name) return static_cast<InstructionSet>(i);
    return std::nullopt;
}

InstructionSets sets_of(const X86Facts& facts) noexcept {
    InstructionSets sets;
    sets.add(InstructionSet::generic);
    if (!all(facts.leaf1_ecx, os_saves_state)) return sets;
    if (!all(facts.saved_state, ymm_state) || !all(facts.leaf1_ecx, avx | fma)) return sets;
    if (!all(facts.leaf7_ebx, avx2)) return sets;
    sets.add(InstructionSet::avx2);
    if (all(facts.leaf7_1_eax, avx_vnni)) sets.add(InstructionSet::avx_vnni);
    add_avx512(sets, facts);
    if (all(facts.saved_state, tile_state) && all(facts.leaf7_edx, amx_tile)) {
        if (all(facts.leaf7_edx, amx_bf16)) sets.add(InstructionSet::amx_bf16);
        if (all(facts.leaf7_edx, amx_int8)) sets.add(InstructionSet::amx_int8);
    }
    return sets;
}

InstructionSets available_sets() noexcept {
#if defined(__x86_64__)
    return sets_of(ask_processor());
#else
    InstructionSets sets;
    sets.add(InstructionSet::generic);
#if defined(__aarch64__)
    // Part of every 64-bit Arm processor.
    sets.add(InstructionSet::neon);
#endif
    return sets;
#endif
}

bool obtain(InstructionSet set) noexcept {
    const bool needs_tiles = set == InstructionSet::amx_bf16 || set == InstructionSet::amx_int8;
    return !needs_tiles || obtain_tiles();
}

}  // namespace gpuprof::cpu
