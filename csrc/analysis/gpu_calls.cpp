// SPDX-License-Identifier: Apache-2.0
#include "analysis/gpu_calls.hpp"

#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <tuple>

#include "analysis/mapped_file.hpp"
#include "cupti/gpu_records.hpp"

namespace gpuprof {
namespace {

bool is_whole(const MappedFile& file) noexcept {
    GpuFileHead head{};
    if (file.size() < sizeof(head)) return false;
    std::memcpy(&head, file.data(), sizeof(head));
    return std::memcmp(head.magic, gpu_magic, sizeof(gpu_magic)) == 0 && head.version == gpu_file_version &&
           head.record_bytes == sizeof(GpuRecord);
}

void merge_nested(std::vector<RecordedCall>& calls) {
    std::size_t kept = 0;
    for (std::size_t i = 0; i < calls.size(); ++i) {
        RecordedCall* const last = kept > 0 ? &calls[kept - 1] : nullptr;
        const bool is_inside = last != nullptr && last->thread_id == calls[i].thread_id &&
                               last->correlation_id == calls[i].correlation_id;
        if (is_inside)
            last->end_ns = std::max(last->end_ns, calls[i].end_ns);
        else
            calls[kept++] = calls[i];
    }
    calls.resize(kept);
}

}  // namespace

std::vector<RecordedCall> read_calls(const std::string& path) {
    std::vector<RecordedCall> calls;
    if (::access(path.c_str(), F_OK) != 0) return calls;
    const MappedFile file(path);
    if (!is_whole(file)) return calls;
    for (std::size_t at = sizeof(GpuFileHead); at + sizeof(GpuRecord) <= file.size();
         at += sizeof(GpuRecord)) {
        GpuRecord record;
        std::memcpy(&record, file.data() + at, sizeof(record));
        if (record.kind == static_cast<std::uint32_t>(GpuRecordKind::call))
            calls.push_back({record.thread, record.correlation_id, record.start_ns, record.end_ns});
    }
    std::ranges::sort(calls, {}, [](const RecordedCall& call) {
        return std::tuple(call.thread_id, call.start_ns, -call.end_ns);
    });
    merge_nested(calls);
    return calls;
}

}  // namespace gpuprof
