// SPDX-License-Identifier: Apache-2.0
// CUPTI with buffers that are kept as they come back, for programs that ask what it does on a GPU.
#pragma once

#include <algorithm>
#include <cstdint>
#include <mutex>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "core/dynamic_library.hpp"
#include "cupti/abi.hpp"
#include "cupti/decoder.hpp"
#include "cupti/loader.hpp"

namespace gpuprof::golden {

namespace abi = gpuprof::cupti::abi;

constexpr std::uint32_t all_kinds[] = {abi::concurrent_kernel, abi::memory_copy, abi::memory_set,
                                       abi::synchronization};

// What CUPTI's callbacks, on threads of its own, share with the program.
struct Buffers {
    static constexpr std::size_t bytes = std::size_t{1} << 16;

    std::mutex mutex;
    std::vector<std::vector<std::uint8_t>> completed;
    std::size_t left = SIZE_MAX;  // that may still be given out
    std::size_t requested = 0;
    std::size_t returned = 0;
    std::size_t returned_empty = 0;
};

inline Buffers& buffers() {
    static auto* const shared = new Buffers;
    return *shared;
}

inline void request_buffer(std::uint8_t** buffer, std::size_t* size, std::size_t* limit) {
    const std::lock_guard lock(buffers().mutex);
    const bool gives = buffers().left > 0;
    if (gives) --buffers().left;
    if (gives) ++buffers().requested;
    *buffer = gives ? new std::uint8_t[Buffers::bytes] : nullptr;
    *size = gives ? Buffers::bytes : 0;
    *limit = 0;
}

inline void complete_buffer(void*, std::uint32_t, std::uint8_t* buffer, std::size_t,
                            std::size_t valid_bytes) {
    const std::lock_guard lock(buffers().mutex);
    ++buffers().returned;
    if (valid_bytes == 0) ++buffers().returned_empty;
    buffers().completed.emplace_back(buffer, buffer + valid_bytes);
    delete[] buffer;
}

inline void check(std::uint32_t result) {
    if (result != abi::success) throw std::runtime_error(cupti::explain_error(result).name());
}

class Session {
  public:
    explicit Session(const std::vector<std::string>& folders) : library_(cupti::load_library(folders)) {
        if (!library_.available()) throw std::runtime_error(library_.reason.name());
        check(library_.api.register_callbacks(request_buffer, complete_buffer));
    }
    const cupti::Api& api() const noexcept { return library_.api; }
    std::uint32_t version() const noexcept { return library_.version; }

    template <typename Kinds>
    void enable(const Kinds& kinds) {
        for (const std::uint32_t kind : kinds) check(api().enable(kind));
    }
    template <typename Kinds>
    void disable(const Kinds& kinds) {
        for (const std::uint32_t kind : kinds) check(api().disable(kind));
    }
    void flush(std::uint32_t flag = 0) { check(api().flush_all(flag)); }
    // What the recorder never does: one registration takes the place of another tool's.
    void register_timestamp(std::uint64_t (*timestamp)()) {
        using Register = std::uint32_t (*)(std::uint64_t (*)());
        check(find_function<Register>(library_.handle, "cuptiActivityRegisterTimestampCallback")(timestamp));
    }
    std::size_t dropped() {
        std::size_t count = 0;
        check(api().get_dropped(nullptr, 0, &count));
        return count;
    }

    static std::vector<std::vector<std::uint8_t>> take() {
        const std::lock_guard lock(buffers().mutex);
        return std::exchange(buffers().completed, {});
    }
    // In order of their beginnings.
    std::vector<GpuRecord> take_records(GpuRecordKind kind) {
        std::vector<GpuRecord> records;
        const auto nameless = [](const char*) { return 0u; };
        for (auto& buffer : take())
            cupti::decode_buffer(buffer, cupti::Stride(api().get_next_record, version()), nameless, records);
        std::erase_if(records, [kind](const GpuRecord& record) {
            return record.kind != static_cast<std::uint32_t>(kind);
        });
        std::sort(records.begin(), records.end(),
                  [](const GpuRecord& a, const GpuRecord& b) { return a.start_ns < b.start_ns; });
        return records;
    }

  private:
    cupti::Library library_;
};

}  // namespace gpuprof::golden
