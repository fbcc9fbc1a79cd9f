// SPDX-License-Identifier: Apache-2.0
// Replaces libcupti.so: the life cycle of buffers and callbacks, with kernels that the tests script.
// Buffers are asked for and returned on threads that the tests never see, as CUPTI's are. Its
// numbers are not those of any GPU.
#include <pthread.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <condition_variable>
#include <cstdlib>
#include <cstring>
#include <map>
#include <mutex>
#include <new>
#include <set>
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
};

using Attributes = std::map<std::uint32_t, std::uint8_t>;
const Attributes default_attributes{{abi::buffers_come_zeroed, 0}, {abi::buffers_per_thread, 1}};

struct Stub {
    std::recursive_mutex mutex;
    std::map<std::string, long long> settings{{"version", 130001}};
    Attributes attributes = default_attributes;
    std::uint32_t thread_id_type = 0;
    std::set<std::pair<std::uint32_t, std::uint32_t>> left_out_calls;  // by kind of record and function
    std::map<std::uint32_t, std::int64_t> call_starts;                 // by correlation id
    // Between the two clocks of the system, which stays as it is.
    std::int64_t clock_offset_ns = gpuprof::realtime_ns() - gpuprof::monotonic_ns();
    std::map<std::string, long long> counts;
    abi::Callback callback = nullptr;
    void* user = nullptr;
    std::map<std::pair<std::uint32_t, std::uint32_t>, bool> callbacks;
    std::map<std::uint32_t, bool> kinds;
    abi::RequestBuffer request = nullptr;
    abi::CompleteBuffer complete = nullptr;
    std::uint64_t (*timestamp)() = nullptr;
    std::map<std::uint32_t, Buffer> buffers;  // by thread where each has its own, else one
    std::size_t dropped = 0;
    std::condition_variable_any changed;
};

// The tests ask the stub in forked children too, where a thread that held the mutex does not exist.
Stub* make_stub() {
    static Stub* made = nullptr;
    made = new Stub;
    // The child has another thread id, so it cannot unlock a recursive mutex.
    pthread_atfork([] { made->mutex.lock(); }, [] { made->mutex.unlock(); },
                   [] { new (&made->mutex) std::recursive_mutex; });
    return made;
}

Stub& stub() {
    static auto* const shared = make_stub();
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

// CUPTI's clock at an instant of the monotonic one; 0 stays what it is, for times that are not known.
long long stub_clock(long long monotonic_ns) {
    Stub& shared = stub();
    std::lock_guard lock(shared.mutex);
    if (monotonic_ns == 0) return 0;
    if (shared.settings["clock_stopped_at"] != 0) return shared.settings["clock_stopped_at"];
    if (shared.timestamp != nullptr)
        return monotonic_ns + static_cast<long long>(shared.timestamp()) - gpuprof::monotonic_ns();
    const long long permille = shared.settings["clock_permille"];
    const long long scaled = permille != 0
                                 ? monotonic_ns / 1000 * permille + monotonic_ns % 1000 * permille / 1000
                                 : monotonic_ns + shared.clock_offset_ns;
    return scaled + shared.settings["clock_ahead_ns"];
}

std::uint32_t system_thread() {
    return static_cast<std::uint32_t>(syscall(SYS_gettid));
}

// Which buffer the records of the calling thread go to.
std::uint32_t buffer_owner() {
    std::lock_guard lock(stub().mutex);
    return stub().attributes[abi::buffers_per_thread] != 0 ? system_thread() : 0;
}

void request_buffer(Buffer& buffer) {
    Stub& shared = stub();
    std::size_t limit = 0;
    buffer = {};
    if (shared.request != nullptr) shared.request(&buffer.data, &buffer.size, &limit);
    if (buffer.data == nullptr || shared.attributes[abi::buffers_come_zeroed] != 0) return;
    ++shared.counts["zeroed buffers"];
    std::memset(buffer.data, 0, buffer.size);
}

void return_buffer(Buffer& buffer) {
    const Buffer returned = std::exchange(buffer, Buffer{});
    if (returned.data == nullptr) return;
    stub().complete(nullptr, 0, returned.data, returned.size, returned.used);
}

void return_buffers(bool forced) {
    Stub& shared = stub();
    for (auto& [owner, buffer] : shared.buffers) {
        return_buffer(buffer);
        if (!forced && shared.settings["keeps_empty_buffer"] != 0) request_buffer(buffer);
    }
}

void append(const std::vector<std::uint8_t>& record, std::uint32_t owner) {
    Stub& shared = stub();
    std::lock_guard lock(shared.mutex);
    Buffer& buffer = shared.buffers[owner];
    if (buffer.data != nullptr && buffer.size - buffer.used < record.size()) return_buffer(buffer);
    if (buffer.data == nullptr) request_buffer(buffer);
    if (buffer.data == nullptr) {
        ++shared.dropped;
        return;
    }
    for (std::size_t i = buffer.used; i < buffer.used + record.size(); ++i)
        shared.counts["dirty bytes"] += buffer.data[i] != 0;
    std::memcpy(buffer.data + buffer.used, record.data(), record.size());
    buffer.used += record.size();
}

void append_of(std::uint32_t kind, const std::vector<std::uint8_t>& record, std::uint32_t owner) {
    std::lock_guard lock(stub().mutex);
    if (stub().kinds[kind]) append(record, owner);
}

template <typename T>
void put(std::vector<std::uint8_t>& record, std::size_t offset, T value) {
    if (record.size() < offset + sizeof(value)) std::abort();
    std::memcpy(record.data() + offset, &value, sizeof(value));
}

constexpr std::uint32_t default_stream = 7;

void append_kernel(std::uint32_t owner, std::uint32_t correlation, const char* name, long long start_ns,
                   long long end_ns, std::uint64_t node, std::uint32_t stream) {
    namespace at = abi::kernel_offset;
    std::vector<std::uint8_t> record(stride_of(abi::concurrent_kernel));
    put(record, 0, std::uint32_t{abi::concurrent_kernel});
    put(record, at::start, stub_clock(start_ns));
    put(record, at::end, stub_clock(end_ns));
    put(record, at::correlation, correlation);
    put(record, at::name, name);
    put(record, at::stream, stream);
    put(record, at::graph_node, node);
    put(record, at::graph, std::uint32_t{node != 0 ? 1u : 0u});
    append_of(abi::concurrent_kernel, record, owner);
}

// The runtime's function that calls one of the driver's.
std::uint32_t runtime_function(std::uint32_t driver_function) {
    static const std::map<std::uint32_t, std::uint32_t> functions{
        {abi::launch_kernel, 211}, {514, 311}, {17, 165}, {277, 41}, {119, 135}, {295, 147}};
    const auto found = functions.find(driver_function);
    return found != functions.end() ? found->second : 0;
}

bool records_call(std::uint32_t kind, std::uint32_t function) {
    Stub& shared = stub();
    std::lock_guard lock(shared.mutex);
    return shared.kinds[kind] && !shared.left_out_calls.contains({kind, function});
}

void append_call(std::uint32_t kind, std::uint32_t function, std::uint32_t correlation, std::int64_t start_ns,
                 std::int64_t end_ns) {
    if (!records_call(kind, function)) return;
    namespace at = abi::call_offset;
    std::vector<std::uint8_t> record(stride_of(kind));
    const bool by_system = stub().thread_id_type == abi::system_thread_ids;
    put(record, 0, kind);
    put(record, at::function, function);
    put(record, at::start, stub_clock(start_ns));
    put(record, at::end, stub_clock(end_ns));
    put(record, at::process, static_cast<std::uint32_t>(getpid()));
    put(record, at::thread, by_system ? system_thread() : static_cast<std::uint32_t>(pthread_self()));
    put(record, at::correlation, correlation);
    const std::uint32_t owner = buffer_owner();
    on_another_thread([&] { append(record, owner); });
}

// What CUPTI records of a call, where calls are recorded: the runtime's, or else the driver's.
void note_call(std::uint32_t id, std::uint32_t correlation, std::uint32_t site) {
    Stub& shared = stub();
    std::int64_t start_ns = gpuprof::monotonic_ns();
    bool through_runtime = false;
    {
        std::lock_guard lock(shared.mutex);
        if (site == abi::api_enter) {
            shared.call_starts[correlation] = start_ns;
            return;
        }
        if (const auto found = shared.call_starts.find(correlation); found != shared.call_starts.end())
            start_ns = found->second;
        shared.call_starts.erase(correlation);
        through_runtime = shared.settings["through_runtime"] != 0;
    }
    const std::uint32_t kind = through_runtime ? abi::runtime_call : abi::driver_call;
    append_call(kind, through_runtime ? runtime_function(id) : id, correlation, start_ns,
                gpuprof::monotonic_ns());
}

void tell_call(std::uint32_t id, std::uint32_t correlation, std::uint32_t site) {
    abi::Callback callback = nullptr;
    {
        std::lock_guard lock(stub().mutex);
        if (stub().callbacks[{abi::driver_domain, id}]) callback = stub().callback;
    }
    abi::CallbackData data{};
    data.site = site;
    data.correlation_id = correlation;
    if (callback != nullptr) callback(nullptr, abi::driver_domain, id, &data);
    note_call(id, correlation, site);
}

void tell_whole_call(std::uint32_t id, std::uint32_t correlation) {
    tell_call(id, correlation, abi::api_enter);
    tell_call(id, correlation, abi::api_exit);
}

}  // namespace

// --- what the tests call --------------------------------------------------------------------------

EXPORT void stub_reset() {
    Stub& shared = stub();
    std::lock_guard lock(shared.mutex);
    shared.settings.clear();
    shared.settings["version"] = 130001;
    shared.counts.clear();
    shared.attributes = default_attributes;
    shared.thread_id_type = 0;
    shared.timestamp = nullptr;
    shared.dropped = 0;
}

// A function's name sets the error that it returns.
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
    if (std::strcmp(key, "calls left out") == 0) return static_cast<long long>(shared.left_out_calls.size());
    if (std::strcmp(key, "zeroed") == 0) return shared.attributes[abi::buffers_come_zeroed];
    if (std::strcmp(key, "per thread") == 0) return shared.attributes[abi::buffers_per_thread];
    if (std::strcmp(key, "thread id type") == 0) return shared.thread_id_type;
    if (std::strcmp(key, "subscribers") == 0) return shared.callback != nullptr ? 1 : 0;
    return shared.counts[key];
}

EXPORT void stub_call(std::uint32_t id, std::uint32_t correlation, std::uint32_t site) {
    tell_call(id, correlation, site);
}

// Both ends of a call of the driver, as the thread that makes it sees them. `result` is the driver's result.
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

// All times of the tests are monotonic ones, and the records have them on CUPTI's clock.

// One kernel. `end_ns` 0: it runs until after `running_flushes` flushes.
EXPORT void stub_launch(std::uint32_t correlation, const char* name, long long start_ns, long long end_ns) {
    tell_whole_call(abi::launch_kernel, correlation);
    const std::uint32_t owner = buffer_owner();
    on_another_thread([=] { append_kernel(owner, correlation, name, start_ns, end_ns, 0, default_stream); });
}

// One kernel, of a graph's replay where `node` is not 0; its launch is reported by `stub_call`.
EXPORT void stub_kernel(std::uint32_t correlation, const char* name, long long start_ns, long long end_ns,
                        std::uint64_t node, std::uint64_t stream) {
    const auto id = stream != 0 ? static_cast<std::uint32_t>(stream) : default_stream;
    const std::uint32_t owner = buffer_owner();
    {
        std::lock_guard lock(stub().mutex);
        if (node != 0 && stub().kinds[abi::graph_trace]) return;
    }
    on_another_thread([=] { append_kernel(owner, correlation, name, start_ns, end_ns, node, id); });
}

// A replay of a graph as a whole, which is recorded in place of its kernels.
EXPORT void stub_graph(std::uint32_t correlation, std::uint32_t graph, long long start_ns, long long end_ns) {
    const std::uint32_t owner = buffer_owner();
    on_another_thread([=] {
        namespace at = abi::graph_trace_offset;
        std::vector<std::uint8_t> record(stride_of(abi::graph_trace));
        put(record, 0, std::uint32_t{abi::graph_trace});
        put(record, at::correlation, correlation);
        put(record, at::start, stub_clock(start_ns));
        put(record, at::end, stub_clock(end_ns));
        put(record, at::graph, graph);
        put(record, at::stream, default_stream);
        append_of(abi::graph_trace, record, owner);
    });
}

EXPORT void stub_copy(std::uint32_t correlation, unsigned long long bytes, long long start_ns,
                      long long end_ns) {
    tell_whole_call(277, correlation);
    const std::uint32_t owner = buffer_owner();
    on_another_thread([=] {
        std::vector<std::uint8_t> record(stride_of(abi::memory_copy));
        put(record, 0, std::uint32_t{abi::memory_copy});
        put(record, abi::transfer_offset::copy_kind, std::uint8_t{1});
        put(record, abi::transfer_offset::source_kind, std::uint8_t{2});
        put(record, abi::transfer_offset::destination_kind, std::uint8_t{3});
        put(record, abi::transfer_offset::bytes, std::uint64_t{bytes});
        put(record, abi::transfer_offset::start, stub_clock(start_ns));
        put(record, abi::transfer_offset::end, stub_clock(end_ns));
        put(record, abi::copy_offset::correlation, correlation);
        append_of(abi::memory_copy, record, owner);
    });
}

namespace {
struct Wait {
    std::uint32_t type;
    std::uint32_t stream;
    std::uint32_t event;
    std::uint64_t sync_id;
};

void append_wait(std::uint32_t owner, std::uint32_t correlation, const Wait& wait, long long start_ns,
                 long long end_ns) {
    namespace at = abi::synchronization_offset;
    std::vector<std::uint8_t> record(stride_of(abi::synchronization));
    put(record, 0, std::uint32_t{abi::synchronization});
    put(record, at::type, wait.type);
    put(record, at::start, stub_clock(start_ns));
    put(record, at::end, stub_clock(end_ns));
    put(record, at::correlation, correlation);
    put(record, at::stream, wait.stream);
    put(record, at::event, wait.event);
    if (record.size() >= at::prefix_bytes_with_ids) put(record, at::event_sync, wait.sync_id);
    append_of(abi::synchronization, record, owner);
}
}  // namespace

// A wait of the calling thread for the context.
EXPORT void stub_wait(std::uint32_t correlation, long long start_ns, long long end_ns) {
    tell_whole_call(17, correlation);
    const std::uint32_t owner = buffer_owner();
    on_another_thread(
        [=] { append_wait(owner, correlation, {4, ~0u, ~0u, ~std::uint64_t{0}}, start_ns, end_ns); });
}

// A stream that waits for an event.
EXPORT void stub_wait_event(std::uint32_t correlation, std::uint32_t stream, std::uint32_t event,
                            std::uint64_t sync_id, long long start_ns, long long end_ns) {
    tell_whole_call(295, correlation);
    const std::uint32_t owner = buffer_owner();
    on_another_thread(
        [=] { append_wait(owner, correlation, {2, stream, event, sync_id}, start_ns, end_ns); });
}

// An event that is recorded on a stream.
EXPORT void stub_record_event(std::uint32_t correlation, std::uint32_t stream, std::uint32_t event,
                              std::uint64_t sync_id) {
    tell_whole_call(119, correlation);
    const std::uint32_t owner = buffer_owner();
    on_another_thread([=] {
        namespace at = abi::cuda_event_offset;
        std::vector<std::uint8_t> record(stride_of(abi::cuda_event));
        put(record, 0, std::uint32_t{abi::cuda_event});
        put(record, at::correlation, correlation);
        put(record, at::stream, stream);
        put(record, at::event, event);
        if (record.size() >= at::prefix_bytes_with_ids) put(record, at::event_sync, sync_id);
        append_of(abi::cuda_event, record, owner);
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
    *timestamp = static_cast<std::uint64_t>(stub_clock(gpuprof::monotonic_ns()));
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
    if (stub().settings["refused_kind"] == static_cast<long long>(kind)) return abi::invalid_kind;
    stub().kinds[kind] = true;
    std::erase_if(stub().left_out_calls, [kind](const auto& call) { return call.first == kind; });
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

EXPORT std::uint32_t cuptiActivityRegisterTimestampCallback(std::uint64_t (*timestamp)()) {
    {
        std::lock_guard lock(stub().mutex);
        stub().timestamp = timestamp;
    }
    return answer("cuptiActivityRegisterTimestampCallback");
}

#if !defined(STUB_WITHOUT_ITERATOR)
EXPORT std::uint32_t cuptiActivityGetAttribute(std::uint32_t attribute, std::size_t* size, void* value) {
    std::lock_guard lock(stub().mutex);
    const auto found = stub().attributes.find(attribute);
    if (found == stub().attributes.end() || *size != sizeof(found->second)) return abi::invalid_kind;
    std::memcpy(value, &found->second, sizeof(found->second));
    return answer("cuptiActivityGetAttribute");
}

EXPORT std::uint32_t cuptiActivitySetAttribute(std::uint32_t attribute, std::size_t* size, void* value) {
    if (const std::uint32_t error = answer("cuptiActivitySetAttribute"); error != 0) return error;
    std::lock_guard lock(stub().mutex);
    const auto found = stub().attributes.find(attribute);
    if (found == stub().attributes.end() || *size != sizeof(found->second)) return abi::invalid_kind;
    std::memcpy(&found->second, value, sizeof(found->second));
    return 0;
}

EXPORT std::uint32_t cuptiGetThreadIdType(std::uint32_t* type) {
    *type = stub().thread_id_type;
    return answer("cuptiGetThreadIdType");
}

EXPORT std::uint32_t cuptiSetThreadIdType(std::uint32_t type) {
    if (const std::uint32_t error = answer("cuptiSetThreadIdType"); error != 0) return error;
    std::lock_guard lock(stub().mutex);
    stub().thread_id_type = type;
    return 0;
}

namespace {

constexpr std::uint32_t last_function = 800;

// As CUPTI 13.0 on an H200: calls that are switched on while their kind is off have no records.
std::uint32_t switch_call(const char* name, std::uint32_t kind, std::uint32_t function, std::uint8_t enable) {
    if (const std::uint32_t error = answer(name); error != 0) return error;
    if (function == 0 || function > last_function) return abi::invalid_kind;
    std::lock_guard lock(stub().mutex);
    if (enable != 0)
        stub().left_out_calls.erase({kind, function});
    else
        stub().left_out_calls.insert({kind, function});
    return 0;
}

}  // namespace

EXPORT std::uint32_t cuptiActivityEnableRuntimeApi(std::uint32_t function, std::uint8_t enable) {
    return switch_call("cuptiActivityEnableRuntimeApi", abi::runtime_call, function, enable);
}

EXPORT std::uint32_t cuptiActivityEnableDriverApi(std::uint32_t function, std::uint8_t enable) {
    return switch_call("cuptiActivityEnableDriverApi", abi::driver_call, function, enable);
}
#endif

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
        return_buffers(flag != 0);
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
