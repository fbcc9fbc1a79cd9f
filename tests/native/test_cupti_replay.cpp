// SPDX-License-Identifier: Apache-2.0
// Decodes buffers that were written with NVIDIA's own structures, where their headers are at hand, and
// buffers that were captured on a GPU, where there are any.
#include <dlfcn.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>

#include "capture_file.hpp"
#include "cupti/decoder.hpp"
#include "support.hpp"

#if defined(WITH_CUPTI_HEADERS)
#include "cupti_headers.hpp"
#endif

namespace gpuprof::test {
namespace {

namespace abi = cupti::abi;
using cupti::DecodeCounts;
using cupti::Stride;

struct Decoded {
    DecodeCounts counts;
    std::vector<GpuRecord> records;
};

Decoded decode(std::vector<std::uint8_t>& bytes, const Stride& stride, const cupti::NameResolver& name) {
    Decoded decoded;
    decoded.counts = cupti::decode_buffer(bytes, stride, name, decoded.records);
    return decoded;
}

bool same(const Decoded& a, const Decoded& b) {
    return a.records.size() == b.records.size() && std::memcmp(&a.counts, &b.counts, sizeof(a.counts)) == 0 &&
           (a.records.empty() ||
            std::memcmp(a.records.data(), b.records.data(), a.records.size() * sizeof(GpuRecord)) == 0);
}

#if defined(WITH_CUPTI_HEADERS)

template <typename T>
void add(std::vector<std::uint8_t>& bytes, const T& record) {
    const auto* first = reinterpret_cast<const std::uint8_t*>(&record);
    bytes.insert(bytes.end(), first, first + sizeof(T));
}

nvidia::Kernel example_kernel() {
    nvidia::Kernel kernel;
    std::memset(&kernel, 0, sizeof(kernel));
    kernel.kind = CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL;
    kernel.registersPerThread = 96;
    kernel.start = 1000;
    kernel.end = 3500;
    kernel.deviceId = 1;
    kernel.contextId = 2;
    kernel.streamId = 13;
    kernel.gridX = 108;
    kernel.gridY = 2;
    kernel.gridZ = 3;
    kernel.blockX = 256;
    kernel.blockY = 4;
    kernel.blockZ = 5;
    kernel.staticSharedMemory = 1024;
    kernel.dynamicSharedMemory = 49152;
    kernel.correlationId = 4711;
    kernel.name = "gemm";
    kernel.graphNodeId = 0x100000002ull;
    kernel.graphId = 6;
    return kernel;
}

nvidia::Copy example_copy() {
    nvidia::Copy copy;
    std::memset(&copy, 0, sizeof(copy));
    copy.kind = CUPTI_ACTIVITY_KIND_MEMCPY;
    copy.copyKind = CUPTI_ACTIVITY_MEMCPY_KIND_HTOD;
    copy.srcKind = CUPTI_ACTIVITY_MEMORY_KIND_PINNED;
    copy.dstKind = CUPTI_ACTIVITY_MEMORY_KIND_DEVICE;
    copy.bytes = 1ull << 33;
    copy.start = 10;
    copy.end = 20;
    copy.deviceId = 3;
    copy.contextId = 4;
    copy.streamId = 5;
    copy.correlationId = 6;
    copy.runtimeCorrelationId = 7;
    copy.graphNodeId = 8;
    copy.graphId = 9;
    return copy;
}

nvidia::PeerCopy example_peer_copy() {
    nvidia::PeerCopy copy;
    std::memset(&copy, 0, sizeof(copy));
    copy.kind = CUPTI_ACTIVITY_KIND_MEMCPY2;
    copy.copyKind = CUPTI_ACTIVITY_MEMCPY_KIND_PTOP;
    copy.bytes = 77;
    copy.start = 30;
    copy.end = 40;
    copy.deviceId = 1;
    copy.correlationId = 61;
    copy.graphNodeId = 62;
    copy.graphId = 63;
    return copy;
}

nvidia::Set example_set() {
    nvidia::Set set;
    std::memset(&set, 0, sizeof(set));
    set.kind = CUPTI_ACTIVITY_KIND_MEMSET;
    set.bytes = 512;
    set.start = 50;
    set.end = 60;
    set.memoryKind = CUPTI_ACTIVITY_MEMORY_KIND_DEVICE;
    set.correlationId = 71;
    return set;
}

nvidia::Synchronization example_synchronization() {
    nvidia::Synchronization synchronization;
    std::memset(&synchronization, 0, sizeof(synchronization));
    synchronization.kind = CUPTI_ACTIVITY_KIND_SYNCHRONIZATION;
    synchronization.type = CUPTI_ACTIVITY_SYNCHRONIZATION_TYPE_STREAM_SYNCHRONIZE;
    synchronization.start = 70;
    synchronization.end = 90;
    synchronization.correlationId = 81;
    synchronization.contextId = 1;
    synchronization.streamId = CUPTI_SYNCHRONIZATION_INVALID_VALUE;
    synchronization.cudaEventId = 5;
#if CUPTI_API_VERSION >= 26
    synchronization.cudaEventSyncId = 0x200000003ull;
#endif
    return synchronization;
}

nvidia::CudaEvent example_event() {
    nvidia::CudaEvent event;
    std::memset(&event, 0, sizeof(event));
    event.kind = CUPTI_ACTIVITY_KIND_CUDA_EVENT;
    event.correlationId = 91;
    event.contextId = 1;
    event.streamId = 7;
    event.eventId = 5;
#if CUPTI_API_VERSION >= 26
    event.deviceId = 2;
    event.cudaEventSyncId = 0x200000003ull;
#endif
    return event;
}

nvidia::GraphTrace example_graph() {
    nvidia::GraphTrace graph;
    std::memset(&graph, 0, sizeof(graph));
    graph.kind = CUPTI_ACTIVITY_KIND_GRAPH_TRACE;
    graph.correlationId = 101;
    graph.start = 1000;
    graph.end = 9000;
    graph.deviceId = 1;
    graph.graphId = 12;
    graph.contextId = 3;
    graph.streamId = 4;
    return graph;
}

nvidia::Call example_call(CUpti_ActivityKind kind) {
    nvidia::Call call;
    std::memset(&call, 0, sizeof(call));
    call.kind = kind;
    call.cbid = 211;
    call.start = 500;
    call.end = 700;
    call.processId = 1;
    call.threadId = 4242;
    call.correlationId = 4711;
    return call;
}

std::vector<std::uint8_t> example_buffer() {
    std::vector<std::uint8_t> bytes;
    add(bytes, example_kernel());
    add(bytes, example_copy());
    add(bytes, example_peer_copy());
    add(bytes, example_set());
    add(bytes, example_synchronization());
    nvidia::Kernel without_times = example_kernel();
    without_times.start = without_times.end = 0;
    add(bytes, without_times);
    nvidia::Kernel serial = example_kernel();
    serial.kind = CUPTI_ACTIVITY_KIND_KERNEL;
    add(bytes, serial);
    add(bytes, example_event());
    add(bytes, example_graph());
    add(bytes, example_call(CUPTI_ACTIVITY_KIND_RUNTIME));
    add(bytes, example_call(CUPTI_ACTIVITY_KIND_DRIVER));
    return bytes;
}

std::uint32_t name_length(const char* name) {
    return static_cast<std::uint32_t>(std::strlen(name));
}

#endif

// Replays what the file holds by the table of lengths, and holds it against what the library itself found
// when the file was made.
void replay(const fs::path& path) {
    golden::Capture capture = golden::CaptureReader(path).read();
    DecodeCounts counts;
    for (auto& buffer : capture.buffers) {
        const Decoded decoded = decode(buffer, Stride(capture.version), [&](const char* name) {
            return CHECK(capture.names.contains(reinterpret_cast<std::uint64_t>(name))) ? 1u : 0u;
        });
        counts += decoded.counts;
        for (const GpuRecord& record : decoded.records) CHECK(record.end_ns >= record.start_ns);
    }
    auto& facts = capture.facts;
    CHECK_EQ(counts.unknown + counts.truncated, 0u);
    CHECK_EQ(counts.kernels, facts["decoded_kernels"]);
    CHECK_EQ(counts.transfers, facts["decoded_transfers"]);
    CHECK_EQ(counts.synchronizations, facts["decoded_synchronizations"]);
    CHECK_EQ(counts.unfinished, facts["decoded_unfinished"]);
    // A forced flush may hand out a kernel twice: as it runs, and when it has ended.
    CHECK(counts.kernels + counts.unfinished + facts["dropped"] >= facts["launched_kernels"]);
    CHECK(counts.kernels <= facts["launched_kernels"]);
}

std::vector<fs::path> captures_in(const fs::path& folder) {
    std::vector<fs::path> found;
    if (!fs::is_directory(folder)) return found;
    for (const auto& entry : fs::directory_iterator(folder))
        if (entry.path().extension() == ".cupti") found.push_back(entry.path());
    return found;
}

}  // namespace

#if defined(WITH_CUPTI_HEADERS)

TEST(records_of_the_headers_own_structures) {
    if (cupti::record_bytes(CUPTI_API_VERSION, CUPTI_ACTIVITY_KIND_KERNEL) == 0) {
        std::fprintf(stderr, "skipped: the table leaves version %d to the library\n", CUPTI_API_VERSION);
        return;
    }
    std::vector<std::uint8_t> bytes = example_buffer();
    const Decoded decoded = decode(bytes, Stride(CUPTI_API_VERSION), name_length);
    CHECK_EQ(decoded.counts.kernels, 2u);
    CHECK_EQ(decoded.counts.transfers, 3u);
    CHECK_EQ(decoded.counts.synchronizations, 1u);
    CHECK_EQ(decoded.counts.unfinished, 1u);
    CHECK_EQ(decoded.counts.unknown + decoded.counts.truncated, 0u);
    CHECK_EQ(decoded.counts.event_records + decoded.counts.graph_replays, 2u);
    CHECK_EQ(decoded.counts.calls, 2u);
    REQUIRE(decoded.records.size() == 10);
    const GpuRecord& kernel = decoded.records[0];
    CHECK_EQ(kernel.kind, 1u);
    CHECK_EQ(kernel.start_ns, 1000);
    CHECK_EQ(kernel.end_ns, 3500);
    CHECK_EQ(kernel.graph_node_id, 0x100000002u);
    CHECK_EQ(kernel.bytes, unknown_u64);
    CHECK_EQ(kernel.correlation_id, 4711u);
    CHECK_EQ(kernel.name, 4u);
    CHECK_EQ(kernel.device * 10000 + kernel.context * 1000 + kernel.stream, 12013u);
    CHECK_EQ(kernel.grid[0] * 100 + kernel.grid[1] * 10 + kernel.grid[2], 10823u);
    CHECK_EQ(kernel.block[0] * 100 + kernel.block[1] * 10 + kernel.block[2], 25645u);
    CHECK_EQ(kernel.registers, 96u);
    CHECK_EQ(kernel.static_shared_bytes, 1024u);
    CHECK_EQ(kernel.dynamic_shared_bytes, 49152u);
    CHECK_EQ(kernel.graph_id, 6u);
    CHECK_EQ(kernel.source_kind, unknown_u32);
    const GpuRecord& copy = decoded.records[1];
    CHECK_EQ(copy.kind, 2u);
    CHECK_EQ(copy.bytes, 1ull << 33);
    CHECK_EQ(copy.detail * 100 + copy.source_kind * 10 + copy.destination_kind, 123u);
    CHECK_EQ(copy.correlation_id, 6u);
    CHECK_EQ(copy.graph_node_id * 10 + copy.graph_id, 89u);
    CHECK_EQ(copy.registers, unknown_u32);
    const GpuRecord& peer = decoded.records[2];
    CHECK_EQ(peer.detail, 10u);
    CHECK_EQ(peer.correlation_id, 61u);
    CHECK_EQ(peer.graph_node_id * 100 + peer.graph_id, 6263u);
    const GpuRecord& set = decoded.records[3];
    CHECK_EQ(set.kind, 3u);
    CHECK_EQ(set.bytes, 512u);
    CHECK_EQ(set.destination_kind, 3u);
    CHECK_EQ(set.source_kind, unknown_u32);
    CHECK_EQ(set.correlation_id, 71u);
    const GpuRecord& synchronization = decoded.records[4];
    CHECK_EQ(synchronization.kind, 4u);
    CHECK_EQ(synchronization.end_ns - synchronization.start_ns, 20);
    CHECK_EQ(synchronization.detail, 3u);
    CHECK_EQ(synchronization.stream, unknown_u32);
    CHECK_EQ(synchronization.device, unknown_u32);
    CHECK_EQ(synchronization.graph_node_id, unknown_u64);
    CHECK_EQ(synchronization.event_id, 5u);
    const bool has_ids = CUPTI_API_VERSION >= abi::first_version_with_event_ids;
    const GpuRecord& event = decoded.records[6];
    CHECK_EQ(event.kind, 7u);
    CHECK_EQ(event.correlation_id * 100 + event.stream * 10 + event.event_id, 9175u);
    CHECK_EQ(event.start_ns + event.end_ns, 0);
    CHECK_EQ(event.event_sync_id, has_ids ? 0x200000003ull : 0);
    CHECK_EQ(synchronization.event_sync_id, event.event_sync_id);
    const GpuRecord& graph = decoded.records[7];
    CHECK_EQ(graph.kind, 6u);
    CHECK_EQ(graph.end_ns - graph.start_ns, 8000);
    CHECK_EQ(graph.correlation_id, 101u);
    CHECK_EQ(graph.device * 1000 + graph.graph_id * 10 + graph.context, 1123u);
    CHECK_EQ(graph.stream, 4u);
    for (const GpuRecord& call : {decoded.records[8], decoded.records[9]}) {
        CHECK_EQ(call.kind, 8u);
        CHECK_EQ(call.end_ns - call.start_ns, 200);
        CHECK_EQ(call.correlation_id, 4711u);
        CHECK_EQ(call.thread, 4242u);
        CHECK_EQ(call.detail, 211u);
    }
}

// In a child: some versions of the library crash where there is no driver.
TEST(the_library_itself_walks_the_same_way) {
#if defined(REAL_CUPTI)
    const SharedMemory<int> compared;
    const pid_t child = start_child([&] {
        void* const library = dlopen(REAL_CUPTI, RTLD_NOW | RTLD_LOCAL);
        if (library == nullptr) return;
        std::uint32_t version = 0;
        const auto get_version = reinterpret_cast<cupti::abi::GetVersion>(dlsym(library, "cuptiGetVersion"));
        get_version(&version);
        std::vector<std::uint8_t> bytes = example_buffer();
        const auto next =
            reinterpret_cast<cupti::abi::ActivityGetNextRecord>(dlsym(library, "cuptiActivityGetNextRecord"));
        void* record = nullptr;
        const bool walks = next(bytes.data(), bytes.size(), &record) == cupti::abi::success;
        if (!walks || (version != 0 && version != CUPTI_API_VERSION)) return;
        for (std::size_t size = 0; size <= bytes.size(); size += 8) {
            std::vector<std::uint8_t> part(bytes.begin(), bytes.begin() + static_cast<std::ptrdiff_t>(size));
            const Decoded by_library = decode(part, Stride(next, version), name_length);
            const Decoded by_table = decode(part, Stride(CUPTI_API_VERSION), name_length);
            if (size == bytes.size()) CHECK(same(by_library, by_table));
            CHECK(by_library.records.size() <= by_table.records.size());
        }
        *compared = 1;
    });
    const int code = wait_for(child);
    if (code >= 1000)
        std::fprintf(stderr, "skipped: %s does not run without a driver\n", REAL_CUPTI);
    else if (CHECK_EQ(code, 0) && *compared == 0)
        std::fprintf(stderr, "skipped: %s is of another version than the headers\n", REAL_CUPTI);
#else
    std::fprintf(stderr, "skipped: no libcupti next to the headers\n");
#endif
}

#else

TEST(skipped_without_the_headers) {
    std::fprintf(
        stderr,
        "skipped: no CUPTI headers; pip install nvidia-cuda-cupti nvidia-cuda-runtime nvidia-cuda-crt\n");
}

#endif

#if defined(WITH_CUPTI_HEADERS)

TEST(a_capture_is_read_as_it_was_written) {
    const TemporaryFolder folder;
    golden::Capture written;
    written.version = CUPTI_API_VERSION;
    written.buffers = {example_buffer(), {}};
    written.names = {{reinterpret_cast<std::uint64_t>(example_kernel().name), "gemm"}};
    written.facts = {{"decoded_kernels", 2},    {"decoded_transfers", 3}, {"decoded_synchronizations", 1},
                     {"decoded_unfinished", 1}, {"launched_kernels", 3},  {"launched_transfers", 3}};
    const fs::path path = folder / "example.cupti";
    golden::CaptureWriter(path).write(written);
    const golden::Capture read = golden::CaptureReader(path).read();
    CHECK_EQ(read.version, written.version);
    CHECK(read.buffers == written.buffers && read.names == written.names && read.facts == written.facts);
    CHECK_EQ(captures_in(folder()).size(), 1u);
    if (cupti::record_bytes(CUPTI_API_VERSION, CUPTI_ACTIVITY_KIND_KERNEL) != 0) replay(path);
}

TEST(a_capture_that_is_cut_off_is_refused) {
    const TemporaryFolder folder;
    const fs::path path = folder / "example.cupti";
    golden::CaptureWriter(path).write({CUPTI_API_VERSION, {example_buffer()}, {{1, "name"}}, {{"fact", 1}}});
    const auto whole = fs::file_size(path);
    for (std::uintmax_t size = 0; size < whole; size += 7) {
        golden::CaptureWriter(path).write(
            {CUPTI_API_VERSION, {example_buffer()}, {{1, "name"}}, {{"fact", 1}}});
        fs::resize_file(path, size);
        bool refused = false;
        try {
            golden::CaptureReader(path).read();
        } catch (const std::runtime_error&) {
            refused = true;
        }
        CHECK(refused);
    }
}

#endif

TEST(captures_of_a_gpu) {
    const char* const named = std::getenv("GPUPROF_GOLDEN_FOLDER");  // captures that were just made
    const std::vector<fs::path> found = captures_in(named != nullptr ? named : GOLDEN_FOLDER);
    for (const fs::path& path : found) {
        std::fprintf(stderr, "replays %s\n", path.filename().c_str());
        replay(path);
    }
    if (found.empty())
        std::fprintf(stderr, "skipped: no captures in tests/golden; make them on a GPU with cupti_capture\n");
}

}  // namespace gpuprof::test
