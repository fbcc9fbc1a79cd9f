// SPDX-License-Identifier: Apache-2.0
// The part of the stub driver that takes work: it does none, and tells the stub CUPTI of it. For rehearsing
// programs that are meant for a GPU; no number that comes of it says anything about one.
#include <dlfcn.h>

#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <map>
#include <mutex>
#include <string>
#include <vector>

#include "core/clock.hpp"

#define EXPORT extern "C" __attribute__((visibility("default")))

namespace {

struct Node {
    std::uint64_t id = 0;
    std::string* name = nullptr;
};
struct Graph {
    std::vector<Node> nodes;
};
struct State {
    std::recursive_mutex mutex;
    std::uint32_t correlation = 0;
    std::uint64_t nodes = 0;
    std::map<void*, Graph> captured;  // by stream
    std::int64_t last_end_ns = 0;
};

State& state() {
    static auto* const shared = new State;
    return *shared;
}

template <typename Call>
Call stub_cupti(const char* name) {
    const char* const path = std::getenv("GPUPROF_CUPTI_LIBRARY");
    void* const library = path != nullptr ? dlopen(path, RTLD_NOW | RTLD_NOLOAD) : nullptr;
    return library != nullptr ? reinterpret_cast<Call>(dlsym(library, name)) : nullptr;
}

// Kernels of the stub come one after the other, and each lasts a microsecond.
std::int64_t next_begin_ns() {
    const std::int64_t begin = std::max(gpuprof::monotonic_ns(), state().last_end_ns);
    state().last_end_ns = begin + 1000;
    return begin;
}

Node add_node(Graph& graph, std::string* name) {
    const Node node{++state().nodes, name};
    graph.nodes.push_back(node);
    if (const auto tell = stub_cupti<void (*)(std::uint64_t, std::uint64_t)>("stub_graph_node"))
        tell(node.id, 0);
    return node;
}

void tell_launch(std::uint32_t function, std::uint32_t correlation) {
    const auto tell = stub_cupti<void (*)(std::uint32_t, std::uint32_t, std::uint32_t)>("stub_call");
    if (tell == nullptr) return;
    tell(function, correlation, 0);
    tell(function, correlation, 1);
}

void tell_kernel(std::uint32_t correlation, const std::string& name, std::uint64_t node, void* stream) {
    using Tell = void (*)(std::uint32_t, const char*, long long, long long, std::uint64_t, std::uint64_t);
    const auto tell = stub_cupti<Tell>("stub_kernel");
    const std::int64_t begin = next_begin_ns();
    if (tell != nullptr)
        tell(correlation, name.c_str(), begin, begin + 1000, node, reinterpret_cast<std::uint64_t>(stream));
}

Graph* copy_of(const Graph& graph) {
    auto* const copy = new Graph;
    for (const Node& node : graph.nodes) {
        copy->nodes.push_back({++state().nodes, node.name});
        if (const auto tell = stub_cupti<void (*)(std::uint64_t, std::uint64_t)>("stub_graph_node"))
            tell(copy->nodes.back().id, node.id);
    }
    return copy;
}

int transfer(std::size_t size) {
    const std::lock_guard lock(state().mutex);
    const std::int64_t begin = next_begin_ns();
    if (const auto tell =
            stub_cupti<void (*)(std::uint32_t, unsigned long long, long long, long long)>("stub_copy"))
        tell(++state().correlation, size, begin, begin + 1000);
    return 0;
}

}  // namespace

EXPORT int cuDeviceGet(int* device, int ordinal) {
    *device = ordinal;
    return 0;
}
EXPORT int cuDevicePrimaryCtxRetain(void** context, int) {
    *context = &state();
    return 0;
}
EXPORT int cuModuleLoadData(void** module, const void*) {
    *module = &state();
    return 0;
}
EXPORT int cuModuleGetFunction(void** function, void*, const char* name) {
    *function = new std::string(name);  // records point to it for as long as the process lives
    return 0;
}
EXPORT int cuMemAlloc_v2(std::uint64_t* memory, std::size_t) {
    *memory = 4096;
    return 0;
}
EXPORT int cuMemAllocHost_v2(void** memory, std::size_t bytes) {
    *memory = std::calloc(bytes, 1);
    return *memory != nullptr ? 0 : 2;
}
EXPORT int cuCtxSynchronize() {
    const std::lock_guard lock(state().mutex);
    const std::int64_t now = gpuprof::monotonic_ns();
    if (const auto tell = stub_cupti<void (*)(std::uint32_t, long long, long long)>("stub_wait"))
        tell(++state().correlation, now, now + 1000);
    return 0;
}
EXPORT int cuStreamSynchronize(void*) {
    return 0;
}

EXPORT int cuLaunchKernel(void* function, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned,
                          unsigned, void* stream, void**, void**) {
    const std::lock_guard lock(state().mutex);
    auto* const name = static_cast<std::string*>(function);
    if (const auto found = state().captured.find(stream); found != state().captured.end()) {
        add_node(found->second, name);
        return 0;
    }
    const std::uint32_t correlation = ++state().correlation;
    tell_launch(307, correlation);
    tell_kernel(correlation, *name, 0, stream);
    return 0;
}

EXPORT int cuMemsetD8Async(std::uint64_t, unsigned char, std::size_t size, void* stream) {
    return state().captured.contains(stream) ? 0 : transfer(size);
}
EXPORT int cuMemcpyHtoDAsync_v2(std::uint64_t, const void*, std::size_t size, void* stream) {
    return state().captured.contains(stream) ? 0 : transfer(size);
}
EXPORT int cuMemcpyDtoHAsync_v2(void*, std::uint64_t, std::size_t size, void* stream) {
    return state().captured.contains(stream) ? 0 : transfer(size);
}

EXPORT int cuStreamBeginCapture_v2(void* stream, int) {
    const std::lock_guard lock(state().mutex);
    state().captured[stream] = {};
    return 0;
}
EXPORT int cuStreamEndCapture(void* stream, void** graph) {
    const std::lock_guard lock(state().mutex);
    *graph = new Graph(state().captured[stream]);
    state().captured.erase(stream);
    return 0;
}
EXPORT int cuGraphInstantiateWithFlags(void** executable, void* graph, std::uint64_t) {
    const std::lock_guard lock(state().mutex);
    *executable = copy_of(*static_cast<Graph*>(graph));
    return 0;
}
EXPORT int cuGraphClone(void** copy, void* graph) {
    return cuGraphInstantiateWithFlags(copy, graph, 0);
}
EXPORT int cuGraphLaunch(void* executable, void* stream) {
    const std::lock_guard lock(state().mutex);
    const std::uint32_t correlation = ++state().correlation;
    tell_launch(514, correlation);
    for (const Node& node : static_cast<Graph*>(executable)->nodes)
        tell_kernel(correlation, *node.name, node.id, stream);
    return 0;
}
