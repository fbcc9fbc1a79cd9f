// SPDX-License-Identifier: Apache-2.0
// The part of the stub driver that takes work: it does none, and reports it to the stub CUPTI. For rehearsals
// of programs that are meant for a GPU; the numbers are not those of any GPU.
#include <dlfcn.h>

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <map>
#include <mutex>
#include <set>
#include <string>
#include <vector>

#include "core/clock.hpp"

#define EXPORT extern "C" __attribute__((visibility("default")))

extern "C" int stub_cuda_answer(const char* function);
extern "C" int stub_cuda_context_error();
extern "C" void stub_cuda_launched(const char* kernel, void* stream, unsigned rounds);

namespace {

// How many there are of what was made and not given back.
long long things = 0;

int made(const char* function) {
    const int result = stub_cuda_answer(function);
    things += result == 0;
    return result;
}
int given_back(const char* function) {
    --things;
    return stub_cuda_answer(function);
}

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

// Contexts, modules and memory that were made and not given back.
EXPORT long long stub_cuda_things() {
    return things;
}

EXPORT int cuDeviceGet(int* device, int ordinal) {
    *device = ordinal;
    return stub_cuda_answer("cuDeviceGet");
}
// A GPU that does not exist: round numbers.
EXPORT int cuDeviceGetName(char* name, int length, int) {
    std::snprintf(name, static_cast<std::size_t>(length), "Stub GPU");
    return stub_cuda_answer("cuDeviceGetName");
}
EXPORT int cuDeviceGetUuid_v2(unsigned char* uuid, int device) {
    for (int i = 0; i < 16; ++i) uuid[i] = static_cast<unsigned char>(17 * i);
    uuid[15] = static_cast<unsigned char>(device);
    return stub_cuda_answer("cuDeviceGetUuid_v2");
}
EXPORT int cuDeviceGetAttribute(int* value, int attribute, int) {
    static const std::map<int, int> values{{13, 1'000'000}, {16, 10},   {36, 500'000}, {37, 1000},
                                           {38, 1'000'000}, {39, 2048}, {75, 9},       {76, 0}};
    const auto found = values.find(attribute);
    if (found == values.end()) return 1;
    *value = found->second;
    return stub_cuda_answer("cuDeviceGetAttribute");
}
EXPORT int cuDeviceTotalMem_v2(std::size_t* bytes, int) {
    *bytes = 4'000'000'000;
    return stub_cuda_answer("cuDeviceTotalMem_v2");
}
EXPORT int cuMemGetInfo_v2(std::size_t* free, std::size_t* total) {
    *free = 3'000'000'000;
    *total = 4'000'000'000;
    return stub_cuda_answer("cuMemGetInfo_v2");
}
EXPORT int cuGetErrorName(int error, const char** name) {
    *name = error == 2 ? "CUDA_ERROR_OUT_OF_MEMORY" : "CUDA_ERROR_OF_THE_STUB";
    return 0;
}
EXPORT int cuDevicePrimaryCtxRetain(void** context, int) {
    *context = &state();
    return made("cuDevicePrimaryCtxRetain");
}
EXPORT int cuDevicePrimaryCtxRelease_v2(int) {
    return given_back("cuDevicePrimaryCtxRelease_v2");
}
EXPORT int cuModuleLoadData(void** module, const void*) {
    if (const int result = stub_cuda_context_error(); result != 0) return result;
    *module = &state();
    return made("cuModuleLoadData");
}
EXPORT int cuModuleUnload(void*) {
    return given_back("cuModuleUnload");
}
EXPORT int cuModuleGetFunction(void** function, void*, const char* name) {
    // Records point to it for as long as the process lives.
    static auto* const names = new std::set<std::string>;
    *function = const_cast<std::string*>(&*names->insert(name).first);
    return stub_cuda_answer(name) != 0 ? 500 : stub_cuda_answer("cuModuleGetFunction");
}
EXPORT int cuMemAlloc_v2(std::uint64_t* memory, std::size_t) {
    *memory = 4096;
    return made("cuMemAlloc_v2");
}
EXPORT int cuMemFree_v2(std::uint64_t) {
    return given_back("cuMemFree_v2");
}
EXPORT int cuMemAllocHost_v2(void** memory, std::size_t bytes) {
    *memory = std::calloc(bytes, 1);
    return *memory != nullptr ? 0 : 2;
}
EXPORT int cuCtxSynchronize() {
    if (const int result = stub_cuda_context_error(); result != 0) return result;
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
                          unsigned, void* stream, void** arguments, void**) {
    if (const int result = stub_cuda_context_error(); result != 0) return result;
    if (const int result = stub_cuda_answer("cuLaunchKernel"); result != 0) return result;
    const std::lock_guard lock(state().mutex);
    auto* const name = static_cast<std::string*>(function);
    // As the kernels that measure ceilings take it.
    if (name->starts_with("gpuprof_"))
        stub_cuda_launched(name->c_str(), stream, *static_cast<unsigned*>(arguments[4]));
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
    const std::int64_t begin = next_begin_ns();
    if (const auto tell =
            stub_cupti<void (*)(std::uint32_t, std::uint32_t, long long, long long)>("stub_graph"))
        tell(correlation, 1, begin, begin + 1000);
    return 0;
}
