// SPDX-License-Identifier: Apache-2.0
// Buffers that no library should hand out. The decoder must stay inside them, end, and count each record
// once. All seeds are fixed.
#include <algorithm>
#include <cstring>
#include <random>

#include "cupti/decoder.hpp"
#include "support.hpp"

namespace gpuprof::test {
namespace {

namespace abi = cupti::abi;
using cupti::DecodeCounts;
using cupti::Stride;

constexpr std::uint32_t versions[] = {20, 24, 26, 28, 130001, 130202, 130401};
constexpr std::uint32_t kinds[] = {abi::kernel,     abi::concurrent_kernel, abi::memory_copy,
                                   abi::memory_set, abi::memory_copy_peer,  abi::synchronization,
                                   abi::cuda_event, abi::driver_call,       abi::runtime_call};

using Bytes = std::vector<std::uint8_t>;
using Random = std::mt19937_64;

std::size_t below(Random& random, std::size_t limit) {
    return static_cast<std::size_t>(random() % limit);
}

template <typename T>
void put(Bytes& bytes, std::size_t offset, T value) {
    std::memcpy(bytes.data() + offset, &value, sizeof(value));
}

// A record with anything in it but a kind and, mostly, times.
Bytes random_record(Random& random, std::uint32_t version, std::uint32_t kind) {
    Bytes record(cupti::record_bytes(version, kind));
    for (std::uint8_t& byte : record) byte = static_cast<std::uint8_t>(random());
    put(record, 0, kind);
    if (kind == abi::cuda_event) return record;
    const bool early = kind != abi::kernel && kind != abi::concurrent_kernel && kind != abi::memory_copy &&
                       kind != abi::memory_copy_peer && kind != abi::memory_set;
    const std::int64_t start =
        below(random, 5) == 0 ? 0 : 1'000 + static_cast<std::int64_t>(below(random, 1'000));
    const std::int64_t end = start == 0 ? 0 : start + static_cast<std::int64_t>(below(random, 1'000));
    put(record, early ? abi::synchronization_offset::start : abi::kernel_offset::start, start);
    put(record, early ? abi::synchronization_offset::end : abi::kernel_offset::end, end);
    return record;
}

bool is_event(const GpuRecord& record) {
    return record.kind == static_cast<std::uint32_t>(GpuRecordKind::event_record);
}

std::uint32_t any_name(const char*) {
    return 1;
}

DecodeCounts decode(Bytes& bytes, std::uint32_t version, std::vector<GpuRecord>& records) {
    return cupti::decode_buffer(bytes, Stride(version), any_name, records);
}

std::uint64_t decoded(const DecodeCounts& counts) {
    return counts.kernels + counts.transfers + counts.synchronizations + counts.graph_replays +
           counts.event_records + counts.calls;
}

Bytes random_buffer(Random& random, std::uint32_t version, std::size_t count) {
    Bytes bytes;
    for (std::size_t i = 0; i < count; ++i) {
        const Bytes record = random_record(random, version, kinds[below(random, std::size(kinds))]);
        bytes.insert(bytes.end(), record.begin(), record.end());
    }
    return bytes;
}

// The tightest memory, so that a sanitizer detects a read beyond it.
Bytes exactly(const Bytes& bytes, std::size_t size) {
    Bytes part(bytes.begin(), bytes.begin() + static_cast<std::ptrdiff_t>(size));
    part.shrink_to_fit();
    return part;
}

}  // namespace

TEST(every_record_counts_once) {
    Random random(1);
    for (int round = 0; round < 300; ++round) {
        const std::uint32_t version = versions[below(random, std::size(versions))];
        Bytes bytes = random_buffer(random, version, 50);
        std::vector<GpuRecord> records;
        const DecodeCounts counts = decode(bytes, version, records);
        CHECK_EQ(decoded(counts) + counts.unfinished, 50u);
        CHECK_EQ(decoded(counts), records.size());
        CHECK_EQ(counts.unknown + counts.truncated, 0u);
    }
}

TEST(buffers_that_are_cut_off) {
    Random random(2);
    for (const std::uint32_t version : versions) {
        const Bytes bytes = random_buffer(random, version, 8);
        std::uint64_t most = 0;
        for (std::size_t size = 0; size <= bytes.size(); ++size) {
            Bytes part = exactly(bytes, size);
            std::vector<GpuRecord> records;
            const DecodeCounts counts = decode(part, version, records);
            const std::uint64_t found = decoded(counts) + counts.unfinished;
            CHECK(found >= most && found <= 8);
            CHECK(counts.truncated <= 1);
            most = std::max(most, found);
        }
        CHECK_EQ(most, 8u);
    }
}

TEST(kinds_that_are_not_known_end_a_walk_by_the_table) {
    Random random(3);
    for (const std::uint32_t version : versions) {
        Bytes bytes = random_buffer(random, version, 3);
        const std::size_t place = bytes.size();
        const Bytes more = random_buffer(random, version, 3);
        bytes.insert(bytes.end(), more.begin(), more.end());
        put(bytes, place, std::uint32_t{52});
        std::vector<GpuRecord> records;
        const DecodeCounts counts = decode(bytes, version, records);
        CHECK_EQ(decoded(counts) + counts.unfinished, 3u);
        CHECK_EQ(counts.unknown, 1u);
        CHECK_EQ(counts.truncated, 1u);
    }
}

namespace {
// A library that reports 64 bytes for each record, whatever its kind.
std::uint32_t short_steps(std::uint8_t* buffer, std::size_t size, void** record) {
    auto* const next = *record == nullptr ? buffer : static_cast<std::uint8_t*>(*record) + 64;
    if (next >= buffer + size) return abi::max_limit_reached;
    *record = next;
    return abi::success;
}
std::uint32_t no_progress(std::uint8_t* buffer, std::size_t, void** record) {
    *record = buffer;
    return abi::success;
}
std::uint32_t far_away(std::uint8_t* buffer, std::size_t size, void** record) {
    *record = buffer + size + 4096;
    return abi::success;
}
std::uint32_t nothing_but_errors(std::uint8_t*, std::size_t, void**) {
    return abi::invalid_kind;
}
}  // namespace

TEST(libraries_that_walk_badly) {
    Random random(4);
    for (int round = 0; round < 100; ++round) {
        const Bytes bytes = random_buffer(random, 130001, 1 + below(random, 20));
        for (const auto walk : {short_steps, no_progress, far_away, nothing_but_errors}) {
            Bytes part = exactly(bytes, 1 + below(random, bytes.size()));
            std::vector<GpuRecord> records;
            const DecodeCounts counts = cupti::decode_buffer(part, Stride(walk, 130001), any_name, records);
            CHECK_EQ(decoded(counts), records.size());
            CHECK(records.size() <= part.size() / 64 + 1);
            if (walk == nothing_but_errors) CHECK_EQ(counts.truncated, 1u);
        }
    }
}

TEST(any_bytes_at_all) {
    Random random(5);
    for (int round = 0; round < 20'000; ++round) {
        Bytes bytes = exactly(Bytes(2048), below(random, 2049));
        for (std::uint8_t& byte : bytes) byte = static_cast<std::uint8_t>(random());
        // Often a kind that is known, so that there is something to decode.
        if (bytes.size() >= 4 && below(random, 4) != 0) put(bytes, 0, kinds[below(random, std::size(kinds))]);
        std::vector<GpuRecord> records;
        const std::uint32_t version = versions[below(random, std::size(versions))];
        const DecodeCounts counts = decode(bytes, version, records);
        CHECK_EQ(decoded(counts), records.size());
        for (const GpuRecord& record : records)
            CHECK(is_event(record) || (record.start_ns > 0 && record.end_ns >= record.start_ns));
    }
}

TEST(records_in_any_order_and_twice_give_the_same_counts) {
    Random random(6);
    for (int round = 0; round < 100; ++round) {
        std::vector<Bytes> parts;
        for (std::size_t i = 0; i < 30; ++i)
            parts.push_back(random_record(random, 130401, kinds[below(random, std::size(kinds))]));
        parts.push_back(parts.front());
        auto counts_of = [&] {
            Bytes bytes;
            for (const Bytes& part : parts) bytes.insert(bytes.end(), part.begin(), part.end());
            std::vector<GpuRecord> records;
            return decode(bytes, 130401, records);
        };
        const DecodeCounts before = counts_of();
        std::ranges::shuffle(parts, random);
        const DecodeCounts after = counts_of();
        CHECK(std::memcmp(&before, &after, sizeof(before)) == 0);
        CHECK_EQ(decoded(before) + before.unfinished, 31u);
    }
}

TEST(which_versions_can_be_read) {
    for (const std::uint32_t version : versions)
        CHECK_EQ(cupti::why_not_decodable(version, false), ReasonCode::none);
    for (const std::uint32_t version : {18u, 130301u, 130500u, 140000u}) {
        CHECK_EQ(cupti::why_not_decodable(version, true), ReasonCode::none);
        CHECK(cupti::why_not_decodable(version, false));
    }
    CHECK(cupti::why_not_decodable(17, true));
    CHECK(cupti::is_unknown_version(130500) && !cupti::is_unknown_version(130301));
}

}  // namespace gpuprof::test
