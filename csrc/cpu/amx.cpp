// SPDX-License-Identifier: Apache-2.0
// Products of tiles: 16 rows of 64 bytes each. Four accumulating tiles cover the latency of a product.
#include "cpu/lanes.hpp"

#if defined(__AMX_TILE__) && defined(__AMX_BF16__) && defined(__AMX_INT8__)
#include <immintrin.h>

namespace gpuprof::cpu {
namespace {

constexpr unsigned rows = 16, row_bytes = 64, tiles = 8, accumulators = 4;
constexpr unsigned lanes = accumulators * rows * row_bytes / 4;

struct alignas(64) Configuration {
    std::uint8_t palette = 1;
    std::uint8_t start_row = 0;
    std::uint8_t reserved[14] = {};
    std::uint16_t bytes_per_row[16] = {};
    std::uint8_t tile_rows[16] = {};
};
static_assert(sizeof(Configuration) == 64);

struct alignas(64) Tile {
    std::uint8_t bytes[rows * row_bytes];
};

// Tiles 0 to 3 are the accumulators, 4 and 5 the left factors, 6 and 7 the right ones.
void load_tiles(const Tile& left, const Tile& right) noexcept {
    Configuration configuration;
    for (unsigned i = 0; i < tiles; ++i) {
        configuration.bytes_per_row[i] = row_bytes;
        configuration.tile_rows[i] = rows;
    }
    // Some compilers do not see that the instructions for tiles read and write memory.
    touch_memory();
    _tile_loadconfig(&configuration);
    _tile_zero(0);
    _tile_zero(1);
    _tile_zero(2);
    _tile_zero(3);
    _tile_loadd(4, left.bytes, row_bytes);
    _tile_loadd(5, left.bytes, row_bytes);
    _tile_loadd(6, right.bytes, row_bytes);
    _tile_loadd(7, right.bytes, row_bytes);
}

template <typename T>
double release_tiles() noexcept {
    Tile results[accumulators] = {};
    touch_memory();
    _tile_stored(0, results[0].bytes, row_bytes);
    _tile_stored(1, results[1].bytes, row_bytes);
    _tile_stored(2, results[2].bytes, row_bytes);
    _tile_stored(3, results[3].bytes, row_bytes);
    _tile_release();
    touch_memory();
    double sum = 0;
    for (const Tile& result : results)
        for (unsigned at = 0; at < rows * row_bytes; at += sizeof(T)) {
            T value;
            __builtin_memcpy(&value, result.bytes + at, sizeof(value));
            sum += static_cast<double>(value);
        }
    return sum;
}

void fill_bf16(Tile& tile, double value) noexcept {
    // The upper half of an fp32 is the bf16; what the callers pass has no lower half.
    const auto wide = static_cast<float>(value);
    std::uint32_t bits = 0;
    __builtin_memcpy(&bits, &wide, sizeof(bits));
    const auto half = static_cast<std::uint16_t>(bits >> 16);
    for (unsigned at = 0; at < rows * row_bytes; at += sizeof(half))
        __builtin_memcpy(tile.bytes + at, &half, sizeof(half));
}

void fill_int8(Tile& tile, double value) noexcept {
    for (std::uint8_t& each : tile.bytes) each = static_cast<std::uint8_t>(static_cast<int>(value));
}

double run_bf16(std::uint64_t rounds, double factor, double term) noexcept {
    Tile left{}, right{};
    fill_bf16(left, factor);
    fill_bf16(right, term);
    load_tiles(left, right);
    for (std::uint64_t round = 0; round < rounds; ++round) {
        _tile_dpbf16ps(0, 4, 6);
        _tile_dpbf16ps(1, 4, 7);
        _tile_dpbf16ps(2, 5, 6);
        _tile_dpbf16ps(3, 5, 7);
    }
    return release_tiles<float>();
}

double run_int8(std::uint64_t rounds, double factor, double term) noexcept {
    Tile left{}, right{};
    fill_int8(left, factor);
    fill_int8(right, term);
    load_tiles(left, right);
    for (std::uint64_t round = 0; round < rounds; ++round) {
        _tile_dpbusd(0, 4, 6);
        _tile_dpbusd(1, 4, 7);
        _tile_dpbusd(2, 5, 6);
        _tile_dpbusd(3, 5, 7);
    }
    return release_tiles<std::int32_t>();
}

constexpr ComputeKernel compute[] = {
    {InstructionSet::amx_bf16, NumberType::bf16, lanes, row_bytes / 2, "tile product, 4 accumulators",
     &run_bf16},
    {InstructionSet::amx_int8, NumberType::int8, lanes, row_bytes, "tile product, 4 accumulators", &run_int8},
};

}  // namespace

constinit const KernelTable amx_kernels = {compute, sizeof(compute) / sizeof(compute[0]), nullptr};

}  // namespace gpuprof::cpu

#else

constinit const gpuprof::cpu::KernelTable gpuprof::cpu::amx_kernels = {nullptr, 0, nullptr};

#endif
