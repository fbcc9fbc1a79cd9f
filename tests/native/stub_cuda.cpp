// SPDX-License-Identifier: Apache-2.0
// Replaces libcuda.so.1, with results that the tests set. Streams are queues of work whose lengths the tests
// script, on a clock that the tests move. Its numbers are not those of any GPU.
#include <pthread.h>

#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <map>
#include <mutex>
#include <set>
#include <string>

#define EXPORT extern "C" __attribute__((visibility("default")))

namespace {

constexpr int not_ready = 600, invalid_context = 201, invalid_handle = 400, capture_implicit = 906,
              capture_unsupported = 900;

struct Event {
    long long context = 0;
    long long at_ns = -1;  // when the GPU gets to it; below 0: never recorded
};

struct Stub {
    std::mutex mutex;
    int initialized = 0;
    int version = 13000;
    int devices = 1;
    // Settings: "error" is the result of every call, a function's name that of this function; "running" 1
    // lets work end by itself only when the clock has come to it; "tick" moves the clock at each question
    // about an event, "launch takes" at each launch; "ns " and a kernel's name are how long a round of it
    // lasts.
    std::map<std::string, long long> settings;
    std::map<std::string, long long> counts;
    std::map<const void*, long long> busy_until_ns;  // by stream
    std::map<const void*, long long> context_of_stream;
    std::map<const void*, int> capturing;
    std::set<Event*> events;
    std::size_t former_events = 0;
    long long now_ns = 1'000'000'000;
    long long streams = 0;
    std::uintptr_t last_stream = 0x900000;
};

// The tests ask the stub in forked children too, where a thread that held the mutex does not exist.
Stub* make_stub() {
    static Stub* made = nullptr;
    made = new Stub;
    const auto unlock = [] { made->mutex.unlock(); };
    pthread_atfork([] { made->mutex.lock(); }, unlock, unlock);
    return made;
}

Stub& stub() {
    static auto* const shared = make_stub();
    return *shared;
}

// PyTorch makes a device's context the thread's own; here it is 1 until another is set, and none at all where
// the environment has STUB_CUDA_WITHOUT_CONTEXT, as on a thread that only uses the driver.
thread_local long long current_context = std::getenv("STUB_CUDA_WITHOUT_CONTEXT") == nullptr ? 1 : 0;
thread_local int capture_mode = 0;

// Requires the lock.
int answer(const char* function) {
    Stub& shared = stub();
    ++shared.counts[function];
    ++shared.counts["calls"];
    const auto set = shared.settings.find(function);
    if (set != shared.settings.end() && set->second != 0) return static_cast<int>(set->second);
    return static_cast<int>(shared.settings["error"]);
}

bool any_capture() {
    return std::ranges::any_of(stub().capturing, [](const auto& entry) { return entry.second != 0; });
}

// What a thread in the strict mode must not ask while another one captures.
void note_unsafe_call() {
    if (capture_mode != 2 && any_capture()) ++stub().counts["spoilt captures"];
}

long long context_of(const void* stream) {
    const auto found = stub().context_of_stream.find(stream);
    return found != stub().context_of_stream.end() ? found->second : current_context;
}

}  // namespace

// --- what the tests call --------------------------------------------------------------------------

EXPORT void stub_cuda_set(int is_initialized, int supported, int count) {
    std::lock_guard lock(stub().mutex);
    stub().initialized = is_initialized;
    stub().version = supported;
    stub().devices = count;
}

// Events that were not destroyed stay alive, and are not counted any more.
EXPORT void stub_cuda_reset() {
    Stub& shared = stub();
    std::lock_guard lock(shared.mutex);
    shared.settings.clear();
    shared.counts.clear();
    shared.busy_until_ns.clear();
    shared.context_of_stream.clear();
    shared.capturing.clear();
    shared.former_events = shared.events.size();
}

EXPORT void stub_cuda_setting(const char* key, long long value) {
    std::lock_guard lock(stub().mutex);
    stub().settings[key] = value;
}

EXPORT long long stub_cuda_count(const char* key) {
    std::lock_guard lock(stub().mutex);
    if (std::string(key) == "events")
        return static_cast<long long>(stub().events.size() - stub().former_events);
    if (std::string(key) == "streams") return stub().streams;
    return stub().counts[key];
}

// Puts so much work on a stream.
EXPORT void stub_cuda_work(void* stream, long long duration_ns) {
    std::lock_guard lock(stub().mutex);
    long long& until = stub().busy_until_ns[stream];
    until = std::max(until, stub().now_ns) + duration_ns;
}

EXPORT void stub_cuda_advance(long long duration_ns) {
    std::lock_guard lock(stub().mutex);
    stub().now_ns += duration_ns;
}

// The results of the rest of the stub driver, and the work that it launches.
EXPORT int stub_cuda_answer(const char* function) {
    std::lock_guard lock(stub().mutex);
    return answer(function);
}

// The result on this thread of a call that needs a context.
EXPORT int stub_cuda_context_error() {
    return current_context == 0 ? invalid_context : 0;
}

EXPORT void stub_cuda_launched(const char* kernel, void* stream, unsigned rounds) {
    Stub& shared = stub();
    std::lock_guard lock(shared.mutex);
    shared.now_ns += shared.settings["launch takes"];
    const auto round_ns = shared.settings.find(std::string("ns ") + kernel);
    if (round_ns == shared.settings.end()) return;
    ++shared.counts[std::string("launches of ") + kernel];
    shared.counts[std::string("rounds of ") + kernel] = rounds;
    long long& until = shared.busy_until_ns[stream];
    until = std::max(until, shared.now_ns) + round_ns->second * static_cast<long long>(rounds);
}

EXPORT void stub_cuda_capture(void* stream, int status) {
    std::lock_guard lock(stub().mutex);
    stub().capturing[stream] = status;
}

EXPORT void stub_cuda_context(void* stream, long long context) {
    std::lock_guard lock(stub().mutex);
    stub().context_of_stream[stream] = context;
}

// --- the interface --------------------------------------------------------------------------------

EXPORT int cuInit(unsigned) {
    std::lock_guard lock(stub().mutex);
    stub().initialized = 1;
    return 0;
}

EXPORT int cuDriverGetVersion(int* number) {
    std::lock_guard lock(stub().mutex);
    *number = stub().version;
    return 0;
}

EXPORT int cuDeviceGetCount(int* count) {
    std::lock_guard lock(stub().mutex);
    if (stub().initialized == 0) return 3;
    *count = stub().devices;
    return 0;
}

EXPORT int cuCtxGetCurrent(void** context) {
    std::lock_guard lock(stub().mutex);
    *context = reinterpret_cast<void*>(current_context);
    return answer("cuCtxGetCurrent");
}

EXPORT int cuCtxGetDevice(int* device) {
    std::lock_guard lock(stub().mutex);
    *device = 0;
    return answer("cuCtxGetDevice");
}

EXPORT int cuCtxSetCurrent(void* context) {
    std::lock_guard lock(stub().mutex);
    current_context = reinterpret_cast<long long>(context);
    return answer("cuCtxSetCurrent");
}

EXPORT int cuThreadExchangeStreamCaptureMode(int* mode) {
    std::lock_guard lock(stub().mutex);
    std::swap(*mode, capture_mode);
    return answer("cuThreadExchangeStreamCaptureMode");
}

EXPORT int cuStreamGetCtx(void* stream, void** context) {
    std::lock_guard lock(stub().mutex);
    *context = reinterpret_cast<void*>(context_of(stream));
    return answer("cuStreamGetCtx");
}

EXPORT int cuStreamIsCapturing(void* stream, int* status) {
    std::lock_guard lock(stub().mutex);
    *status = stub().capturing[stream];
    if (stream == nullptr && any_capture()) return capture_implicit;
    return answer("cuStreamIsCapturing");
}

EXPORT int cuStreamCreate(void** stream, unsigned) {
    std::lock_guard lock(stub().mutex);
    const int result = answer("cuStreamCreate");
    if (result != 0) return result;
    ++stub().streams;
    *stream = reinterpret_cast<void*>(++stub().last_stream);
    stub().context_of_stream[*stream] = current_context;
    return 0;
}

EXPORT int cuStreamDestroy_v2(void*) {
    std::lock_guard lock(stub().mutex);
    --stub().streams;
    return answer("cuStreamDestroy_v2");
}

EXPORT int cuEventCreate(void** event, unsigned) {
    std::lock_guard lock(stub().mutex);
    const int result = answer("cuEventCreate");
    if (result != 0) return result;
    auto* const made = new Event{current_context};
    stub().events.insert(made);
    *event = made;
    return 0;
}

EXPORT int cuEventDestroy_v2(void* event) {
    std::lock_guard lock(stub().mutex);
    const int result = answer("cuEventDestroy_v2");
    auto* const old = static_cast<Event*>(event);
    if (stub().events.erase(old) == 0) return invalid_handle;
    delete old;
    return result;
}

EXPORT int cuEventRecord(void* event, void* stream) {
    Stub& shared = stub();
    std::lock_guard lock(shared.mutex);
    const int result = answer("cuEventRecord");
    if (result != 0) return result;
    auto* const recorded = static_cast<Event*>(event);
    if (!shared.events.contains(recorded) || recorded->context != context_of(stream)) return invalid_handle;
    if (shared.capturing[stream] != 0) {
        ++shared.counts["captured events"];
        return capture_unsupported;
    }
    recorded->at_ns = std::max(shared.busy_until_ns[stream], shared.now_ns);
    return 0;
}

EXPORT int cuEventQuery(void* event) {
    Stub& shared = stub();
    std::lock_guard lock(shared.mutex);
    note_unsafe_call();
    shared.now_ns += shared.settings["tick"];
    const int result = answer("cuEventQuery");
    if (result != 0) return result;
    const auto* const asked = static_cast<Event*>(event);
    if (!shared.events.contains(static_cast<Event*>(event))) return invalid_handle;
    return shared.settings["running"] != 0 && asked->at_ns > shared.now_ns ? not_ready : 0;
}

EXPORT int cuEventElapsedTime(float* milliseconds, void* begin, void* end) {
    Stub& shared = stub();
    std::lock_guard lock(shared.mutex);
    const int result = answer("cuEventElapsedTime");
    if (result != 0) return result;
    const auto *from = static_cast<Event*>(begin), *to = static_cast<Event*>(end);
    if (from->context != to->context || from->at_ns < 0 || to->at_ns < 0) return invalid_handle;
    *milliseconds = static_cast<float>(static_cast<double>(to->at_ns - from->at_ns) / 1e6);
    return 0;
}
