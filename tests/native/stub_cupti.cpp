// SPDX-License-Identifier: Apache-2.0
// Stands in for libcupti.so: the life cycle of buffers and callbacks, with kernels that the tests script.
// Buffers are asked for and returned on threads that the tests never see, as CUPTI's are. No number that
// it gives says anything about a GPU.
#include <condition_variable>
#include <cstring>
#include <map>
#include <mutex>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "core/clock.hpp"
#include "cupti/abi.hpp"
#include "cupti/decoder.hpp"
#include "stub_cupti.hpp"

namespace {

namespace abi = gpuprof::cupti::abi;

struct Buffer {
    std::uint8_t* data = nullptr;
    std::size_t size = 0;
    std::size_t used = 0;
    std::vector<std::size_t> unfinished;  // where kernels stand whose end is not known yet
};

struct Stub {
    std::recursive_mutex mutex;
    std::map<std::string, long long> settings{{"version", 130001}};
    std::map<std::string, long long> counts;
    abi::Callback callback = nullptr;
    void* user = nullptr;
    std::map<std::pair<std::uint32_t, std::uint32_t>, bool> callbacks;
    std::map<std::uint32_t, bool> kinds;
    abi::RequestBuffer request = nullptr;
    abi::CompleteBuffer complete = nullptr;
    abi::Timestamp timestamp = nullptr;
    Buffer current;
    std::size_t dropped = 0;
    std::condition_variable_any changed;
};

Stub& stub() {
    static auto* const shared = new Stub;
    return *shared;
}

}  // namespace

std::uint32_t answer(const char* function) {
    Stub& shared = stub();
    std::lock_guard lock(shared.mutex);
    ++shared.counts[function];
    return static_cast<std::uint32_t>(shared.settings[function]);
}

long long setting(const std::string& key) {
    std::lock_guard lock(stub().mutex);
    return stub().settings[key];
}

namespace {

template <typename Body>
void on_another_thread(Body body) {
    std::thread(body).join();
}

std::size_t stride_of(std::uint32_t kind) {
    const std::size_t known =
        gpuprof::cupti::record_bytes(static_cast<std::uint32_t>(setting("version")), kind);
    return known != 0 ? known : 304;  // of a version that is not there yet
}

bool ensure_buffer(std::size_t room) {
    Stub& shared = stub();
    if (shared.current.data != nullptr && shared.current.size - shared.current.used >= room) return true;
    if (shared.current.data != nullptr || shared.request == nullptr) return false;
    std::size_t limit = 0;
    shared.request(&shared.current.data, &shared.current.size, &limit);
    shared.current.used = 0;
    return shared.current.data != nullptr;
}

void return_buffer() {
    Buffer buffer = std::exchange(stub().current, Buffer{});
    if (buffer.data != nullptr) stub().complete(nullptr, 0, buffer.data, buffer.size, buffer.used);
}

void append(std::uint32_t kind, const std::vector<std::uint8_t>& record) {
    Stub& shared = stub();
    std::lock_guard lock(shared.mutex);
    if (!shared.kinds[kind]) return;
    if (shared.current.data != nullptr && shared.current.size - shared.current.used < record.size())
        return_buffer();
    if (!ensure_buffer(record.size())) {
        ++shared.dropped;
        return;
    }
    std::memcpy(shared.current.data + shared.current.used, record.data(), record.size());
    shared.current.used += record.size();
}

template <typename T>
void put(std::vector<std::uint8_t>& record, std::size_t offset, T value) {
    std::memcpy(record.data() + offset, &value, sizeof(value));
}

constexpr std::uint32_t default_stream = 7;

void append_kernel(std::uint32_t correlation, const char* name, long long start_ns, long long end_ns,
                   std::uint64_t node, std::uint32_t stream) {
    namespace at = abi::kernel_offset;
    std::vector<std::uint8_t> record(stride_of(abi::concurrent_kernel));
    put(record, 0, std::uint32_t{abi::concurrent_kernel});
    put(record, at::start, start_ns);
    put(record, at::end, end_ns);
    put(record, at::correlation, correlation);
    put(record, at::name, name);
    put(record, at::stream, stream);
    put(record, at::graph_node, node);
    put(record, at::graph, std::uint32_t{node != 0 ? 1u : 0u});
    append(abi::concurrent_kernel, record);
}

}  // namespace

// --- what the tests call --------------------------------------------------------------------------

EXPORT void stub_reset() {
    Stub& shared = stub();
    std::lock_guard lock(shared.mutex);
    shared.settings.clear();
    shared.settings["version"] = 130001;
    shared.counts.clear();
    shared.dropped = 0;
}

// A function's name sets the error that it answers with.
EXPORT void stub_set(const char* key, long long value) {
    Stub& shared = stub();
    {
        std::lock_guard lock(shared.mutex);
        shared.settings[key] = value;
    }
    shared.changed.notify_all();
}

EXPORT long long stub_count(const char* key) {
    Stub& shared = stub();
    std::lock_guard lock(shared.mutex);
    if (std::strcmp(key, "callbacks") == 0) {
        long long on = 0;
        for (const auto& [id, enabled] : shared.callbacks) on += enabled ? 1 : 0;
        return on;
    }
    if (std::strcmp(key, "kinds") == 0) {
        long long on = 0;
        for (const auto& [id, enabled] : shared.kinds) on += enabled ? 1 : 0;
        return on;
    }
    if (std::strcmp(key, "subscribers") == 0) return shared.callback != nullptr ? 1 : 0;
    return shared.counts[key];
}

EXPORT void stub_call(std::uint32_t id, std::uint32_t correlation, std::uint32_t site) {
    abi::Callback callback = nullptr;
    {
        std::lock_guard lock(stub().mutex);
        if (stub().callbacks[{abi::driver_domain, id}]) callback = stub().callback;
    }
    abi::CallbackData data{};
    data.site = site;
    data.correlation_id = correlation;
    if (callback != nullptr) callback(nullptr, abi::driver_domain, id, &data);
}

// Both ends of a call of the driver, as the thread that makes it sees them. `result` is the driver's answer.
EXPORT void stub_driver_call(std::uint32_t id, const char* kernel, void* context, int result) {
    abi::Callback callback = nullptr;
    void* user = nullptr;
    {
        std::lock_guard lock(stub().mutex);
        if (stub().callbacks[{abi::driver_domain, id}]) callback = stub().callback;
        user = stub().user;
    }
    abi::CallbackData data{};
    data.symbol_name = kernel;
    data.context = context;
    data.return_value = &result;
    for (const std::uint32_t site : {abi::api_enter, abi::api_exit}) {
        data.site = site;
        if (callback != nullptr) callback(user, abi::driver_domain, id, &data);
    }
}

// One kernel. `end_ns` 0: it is still running until as many flushes as `running_flushes` says.
EXPORT void stub_launch(std::uint32_t correlation, const char* name, long long start_ns, long long end_ns) {
    stub_call(abi::launch_kernel, correlation, 0);
    stub_call(abi::launch_kernel, correlation, 1);
    on_another_thread([=] { append_kernel(correlation, name, start_ns, end_ns, 0, default_stream); });
}

// One kernel, of a graph's replay where `node` is not 0; its launch is told by `stub_call`.
EXPORT void stub_kernel(std::uint32_t correlation, const char* name, long long start_ns, long long end_ns,
                        std::uint64_t node, std::uint64_t stream) {
    const auto id = stream != 0 ? static_cast<std::uint32_t>(stream) : default_stream;
    on_another_thread([=] { append_kernel(correlation, name, start_ns, end_ns, node, id); });
}

EXPORT void stub_copy(std::uint32_t correlation, unsigned long long bytes, long long start_ns,
                      long long end_ns) {
    stub_call(277, correlation, 0);
    on_another_thread([=] {
        std::vector<std::uint8_t> record(stride_of(abi::memory_copy));
        put(record, 0, std::uint32_t{abi::memory_copy});
        put(record, abi::transfer_offset::copy_kind, std::uint8_t{1});
        put(record, abi::transfer_offset::source_kind, std::uint8_t{2});
        put(record, abi::transfer_offset::destination_kind, std::uint8_t{3});
        put(record, abi::transfer_offset::bytes, std::uint64_t{bytes});
        put(record, abi::transfer_offset::start, start_ns);
        put(record, abi::transfer_offset::end, end_ns);
        put(record, abi::copy_offset::correlation, correlation);
        append(abi::memory_copy, record);
    });
}

// A wait of the calling thread for the context.
EXPORT void stub_wait(std::uint32_t correlation, long long start_ns, long long end_ns) {
    stub_call(17, correlation, 0);
    stub_call(17, correlation, 1);
    on_another_thread([=] {
        namespace at = abi::synchronization_offset;
        std::vector<std::uint8_t> record(stride_of(abi::synchronization));
        put(record, 0, std::uint32_t{abi::synchronization});
        put(record, at::type, std::uint32_t{4});
        put(record, at::start, start_ns);
        put(record, at::end, end_ns);
        put(record, at::correlation, correlation);
        append(abi::synchronization, record);
    });
}

// Nodes are their ids.
EXPORT void stub_graph_node(std::uint64_t node, std::uint64_t original) {
    abi::Callback callback = nullptr;
    const std::uint32_t id = original != 0 ? abi::graph_node_cloned : abi::graph_node_created;
    {
        std::lock_guard lock(stub().mutex);
        if (stub().callbacks[{abi::resource_domain, id}]) callback = stub().callback;
    }
    abi::GraphData graph{};
    graph.node = reinterpret_cast<void*>(node);
    graph.original_node = reinterpret_cast<void*>(original);
    const abi::ResourceData resource{nullptr, nullptr, &graph};
    if (callback != nullptr) callback(nullptr, abi::resource_domain, id, &resource);
}

EXPORT std::uint8_t* stub_request() {
    std::uint8_t* buffer = nullptr;
    std::size_t size = 0, limit = 0;
    on_another_thread([&] { stub().request(&buffer, &size, &limit); });
    return buffer;
}

EXPORT void stub_complete(std::uint8_t* buffer, std::size_t valid_bytes) {
    on_another_thread([=] { stub().complete(nullptr, 0, buffer, 0, valid_bytes); });
}

// --- the interface --------------------------------------------------------------------------------

EXPORT std::uint32_t cuptiGetVersion(std::uint32_t* version) {
    *version = static_cast<std::uint32_t>(setting("version"));
    return answer("cuptiGetVersion");
}

EXPORT std::uint32_t cuptiGetTimestamp(std::uint64_t* timestamp) {
    const abi::Timestamp registered = stub().timestamp;
    const auto now =
        registered != nullptr ? registered() : static_cast<std::uint64_t>(gpuprof::realtime_ns());
    *timestamp = now + static_cast<std::uint64_t>(setting("clock_ahead_ns"));
    return answer("cuptiGetTimestamp");
}

EXPORT std::uint32_t cuptiSubscribe(void** subscriber, abi::Callback callback, void* user) {
    if (const std::uint32_t error = answer("cuptiSubscribe"); error != 0) return error;
    std::lock_guard lock(stub().mutex);
    if (stub().callback != nullptr) return abi::multiple_subscribers;
    stub().callback = callback;
    stub().user = user;
    *subscriber = &stub();
    return 0;
}

EXPORT std::uint32_t cuptiUnsubscribe(void*) {
    std::lock_guard lock(stub().mutex);
    stub().callback = nullptr;
    stub().callbacks.clear();
    return answer("cuptiUnsubscribe");
}

EXPORT std::uint32_t cuptiEnableCallback(std::uint32_t enable, void*, std::uint32_t domain,
                                         std::uint32_t id) {
    std::lock_guard lock(stub().mutex);
    stub().callbacks[{domain, id}] = enable != 0;
    return answer("cuptiEnableCallback");
}

EXPORT std::uint32_t cuptiActivityEnable(std::uint32_t kind) {
    if (const std::uint32_t error = answer("cuptiActivityEnable"); error != 0) return error;
    std::lock_guard lock(stub().mutex);
    stub().kinds[kind] = true;
    return 0;
}

EXPORT std::uint32_t cuptiActivityDisable(std::uint32_t kind) {
    std::lock_guard lock(stub().mutex);
    stub().kinds[kind] = false;
    return answer("cuptiActivityDisable");
}

EXPORT std::uint32_t cuptiActivityRegisterCallbacks(abi::RequestBuffer request,
                                                    abi::CompleteBuffer complete) {
    std::lock_guard lock(stub().mutex);
    stub().request = request;
    stub().complete = complete;
    return answer("cuptiActivityRegisterCallbacks");
}

EXPORT std::uint32_t cuptiActivityRegisterTimestampCallback(abi::Timestamp timestamp) {
    stub().timestamp = timestamp;
    return answer("cuptiActivityRegisterTimestampCallback");
}

EXPORT std::uint32_t cuptiActivityEnableAllSyncRecords(std::uint8_t) {
    return answer("cuptiActivityEnableAllSyncRecords");
}

EXPORT std::uint32_t cuptiActivityFlushAll(std::uint32_t flag) {
    const std::uint32_t error = answer(flag != 0 ? "forced flush" : "flush");
    Stub& shared = stub();
    {
        std::unique_lock lock(shared.mutex);
        shared.changed.wait(lock, [&] { return shared.settings["hang"] == 0; });
        if (flag == 0 && shared.settings["running_flushes"] > 0) {
            --shared.settings["running_flushes"];
            return error;
        }
    }
    // CUPTI calls back with locks of its own held.
    on_another_thread([&] {
        std::lock_guard lock(shared.mutex);
        return_buffer();
    });
    return error;
}

EXPORT std::uint32_t cuptiActivityGetNumDroppedRecords(void*, std::uint32_t, std::size_t* dropped) {
    std::lock_guard lock(stub().mutex);
    *dropped = std::exchange(stub().dropped, 0) + static_cast<std::size_t>(stub().settings["dropped"]);
    stub().settings["dropped"] = 0;
    return 0;
}

EXPORT std::uint32_t cuptiGetGraphNodeId(void* node, std::uint64_t* id) {
    *id = reinterpret_cast<std::uint64_t>(node);
    return 0;
}

EXPORT std::uint32_t cuptiActivityPushExternalCorrelationId(std::uint32_t, std::uint64_t) {
    return answer("cuptiActivityPushExternalCorrelationId");
}

EXPORT std::uint32_t cuptiActivityPopExternalCorrelationId(std::uint32_t, std::uint64_t*) {
    return answer("cuptiActivityPopExternalCorrelationId");
}

EXPORT std::uint32_t cuptiFinalize() {
    return answer("cuptiFinalize");
}

#if !defined(STUB_WITHOUT_ITERATOR)
EXPORT std::uint32_t cuptiActivityGetNextRecord(std::uint8_t* buffer, std::size_t valid_bytes,
                                                void** record) {
    std::size_t offset = 0;
    if (*record != nullptr) {
        const auto* const previous = static_cast<std::uint8_t*>(*record);
        std::uint32_t kind = 0;
        std::memcpy(&kind, previous, sizeof(kind));
        offset = static_cast<std::size_t>(previous - buffer) + stride_of(kind);
    }
    if (offset >= valid_bytes) return abi::max_limit_reached;
    *record = buffer + offset;
    return 0;
}
#endif
