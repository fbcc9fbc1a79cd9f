// SPDX-License-Identifier: Apache-2.0
// What the tests against stub libraries share: their functions, and what a recording left.
#pragma once

#include <dlfcn.h>

#include <fstream>
#include <stdexcept>
#include <string>
#include <vector>

#include "cupti/gpu_records.hpp"
#include "support.hpp"

namespace gpuprof::test {

template <typename Function>
Function function_of(const char* library, const char* name) {
    void* const handle = dlopen(library, RTLD_NOW | RTLD_LOCAL);
    if (handle == nullptr) throw std::runtime_error(dlerror());
    auto function = reinterpret_cast<Function>(dlsym(handle, name));
    if (function == nullptr) throw std::runtime_error(name);
    return function;
}

inline bool mentions(const std::string& text, const char* part) {
    return text.find(part) != std::string::npos;
}

struct GpuFileContent {
    GpuFileHead head{};
    std::vector<GpuRecord> records;
};

inline GpuFileContent read_gpu_file(const TemporaryFolder& folder) {
    const auto files = folder.files(".gpu");
    GpuFileContent content;
    if (!CHECK_EQ(files.size(), 1u)) return content;
    std::ifstream file(files.front(), std::ios::binary);
    file.read(reinterpret_cast<char*>(&content.head), sizeof(content.head));
    GpuRecord record{};
    while (file.read(reinterpret_cast<char*>(&record), sizeof(record))) content.records.push_back(record);
    CHECK_EQ(file.gcount(), 0);
    return content;
}

// One row of the decoder's links.
struct Link {
    LinkColumns::Kind kind;
    std::uint64_t id;
    std::int64_t span_id, launch_ns, launch_end_ns;
};

inline std::vector<Link> links_of(const TemporaryFolder& folder, std::size_t batch_rows = 1 << 16) {
    std::vector<Link> found;
    decode_run(read_folder(folder()), batch_rows, [&](const Batch& batch) {
        const LinkColumns& links = batch.links;
        for (std::size_t i = 0; i < links.size(); ++i)
            found.push_back(
                {links.kind[i], links.id[i], links.span_id[i], links.launch_ns[i], links.launch_end_ns[i]});
    });
    return found;
}

// Waits for the thread that reads; a test that waits in vain is ended by its limit.
template <typename Condition>
void wait_until(Condition condition) {
    while (!condition()) std::this_thread::yield();
}

inline std::vector<Event> gpu_events(const TemporaryFolder& folder) {
    std::vector<Event> events;
    const RecordedFolder recorded = read_folder(folder());
    for (const RecordedProcess& process : recorded.processes)
        for (const ThreadPiece& piece : process.pieces)
            for (const Event& event : piece.events)
                if (event.kind >= 20 && event.kind <= 24) events.push_back(event);
    return events;
}

}  // namespace gpuprof::test
