// SPDX-License-Identifier: Apache-2.0
// The collector's side of Intel's ITT notify interface. PyTorch announces each operator through it when
// `torch.autograd.profiler.emit_itt` is on. Its loader opens the library that INTEL_LIBITTNOTIFY64 names,
// at PyTorch's first static initializer, and calls `__itt_api_init`.
//
// The structures below are that interface's, by offset and size; only what is used is named.
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <mutex>
#include <new>
#include <string_view>
#include <unordered_map>

#include <pthread.h>

#include "collect/autograd.hpp"
#include "collect/fork_guard.hpp"
#include "collect/itt.hpp"
#include "core/recorder.hpp"

namespace gpuprof::itt {
namespace {

struct Domain {
    volatile int enabled;
    const char* name;
    void* wide_name;
    int reserved_number;
    void* reserved;
    Domain* next;
};

// Some are made by the announcing program's own loader, before it finds this library: only the fields
// that the interface gives to the collector may be written.
struct StringHandle {
    const char* text;
    void* wide_text;
    int collector_number;
    // Recording generation << 32 | name id, so that a new recording asks for a new id.
    std::uint64_t collector_data;
    StringHandle* next;
};
static_assert(sizeof(StringHandle) == 40);

struct Identifier {
    unsigned long long parts[3];
};

struct ApiEntry {
    const char* name;
    void** function;
    void* initial_function;
    void* null_function;
    int group;
};

struct ApiGlobal {
    unsigned char magic[8];
    unsigned long version[3];
    volatile long initialized;
    volatile long mutex_initialized;
    volatile long counter;
    pthread_mutex_t mutex;
    void* library;
    void* error_handler;
    const char** library_path;
    ApiEntry* entries;
};
static_assert(sizeof(long) != 8 || offsetof(ApiGlobal, mutex) == 56);

constexpr std::string_view recorded_domain = "PyTorch";

struct Registry {
    std::mutex mutex;
    std::unordered_map<std::string_view, StringHandle*> handles;
    std::unordered_map<std::string_view, Domain*> domains;
};

Registry& registry();

Registry* make_registry() {
    auto* const made = new Registry;
    hold_over_forks<registry>();
    return made;
}

Registry& registry() {
    static Registry* const shared = make_registry();  // outlives every thread that may still announce
    return *shared;
}

char* copy_text(const char* text) {
    const std::size_t size = std::strlen(text) + 1;
    auto* copy = new char[size];
    std::memcpy(copy, text, size);
    return copy;
}

// Handles live as long as the process: PyTorch and oneDNN keep some in static variables.
StringHandle* find_or_make_handle(const char* text) noexcept try {
    Registry& shared = registry();
    std::lock_guard lock(shared.mutex);
    if (const auto found = shared.handles.find(text); found != shared.handles.end()) return found->second;
    auto* handle = new StringHandle{copy_text(text), nullptr, 0, 0, nullptr};
    shared.handles.emplace(handle->text, handle);
    return handle;
} catch (const std::bad_alloc&) {
    return nullptr;
}

// PyTorch asks for the handle of an operator's name at each call. The name's address is nearly always
// the same for the same operator, but may be reused for another name, so the name is compared.
struct CacheEntry {
    const char* address;
    StringHandle* handle;
};
constexpr std::size_t cache_entries = 512;
thread_local constinit CacheEntry cache[cache_entries] = {};

StringHandle* string_handle_create(const char* text) noexcept {
    if (text == nullptr) return nullptr;
    const auto address = reinterpret_cast<std::uintptr_t>(text);
    CacheEntry& entry = cache[(address >> 4 ^ address >> 13) % cache_entries];
    if (entry.address == text && std::strcmp(entry.handle->text, text) == 0) [[likely]]
        return entry.handle;
    StringHandle* handle = find_or_make_handle(text);
    if (handle == nullptr) return nullptr;
    entry = {text, handle};
    return handle;
}

Domain* domain_create(const char* name) noexcept try {
    if (name == nullptr) return nullptr;
    Registry& shared = registry();
    std::lock_guard lock(shared.mutex);
    if (const auto found = shared.domains.find(name); found != shared.domains.end()) return found->second;
    // Disabled domains cost their owners one comparison: only PyTorch's operators are wanted.
    auto* domain = new Domain{name == recorded_domain ? 1 : 0, copy_text(name), nullptr, 0, nullptr, nullptr};
    shared.domains.emplace(domain->name, domain);
    return domain;
} catch (const std::bad_alloc&) {
    return nullptr;
}

NameKey name_key(StringHandle* handle) noexcept {
    Recorder& recorder = Recorder::instance();
    const std::uint32_t generation = recorder.generation();
    const std::atomic_ref<std::uint64_t> key(handle->collector_data);
    const std::uint64_t cached = key.load(std::memory_order_relaxed);
    if (cached >> 32 == generation) [[likely]]
        return static_cast<NameKey>(cached);
    const std::uint32_t id = recorder.intern(handle->text != nullptr ? handle->text : "(unnamed)");
    const NameKey fresh = Recorder::name_key(generation, id);
    key.store(static_cast<std::uint64_t>(fresh), std::memory_order_relaxed);
    return fresh;
}

// Other libraries in the process announce too, oneDNN among them, through domains of their own.
bool is_recorded(const Domain* domain) noexcept {
    static std::atomic<const Domain*> known{nullptr};
    if (domain == known.load(std::memory_order_relaxed)) [[likely]]
        return domain != nullptr;
    if (domain == nullptr || domain->name == nullptr || domain->name != recorded_domain) return false;
    known.store(domain, std::memory_order_relaxed);
    return true;
}

// PyTorch's evaluation of an autograd node. The kind of a name is stored in its handle, which several threads
// may do at once.
bool is_evaluation(StringHandle* handle) noexcept {
    constexpr int unseen = 0, other = 1, evaluation = 2;
    const std::atomic_ref<int> noted(handle->collector_number);
    int kind = noted.load(std::memory_order_relaxed);
    if (kind == unseen) [[unlikely]] {
        const std::string_view text = handle->text != nullptr ? handle->text : "";
        kind = text.starts_with("autograd::engine::evaluate_function: ") ? evaluation : other;
        noted.store(kind, std::memory_order_relaxed);
    }
    return kind == evaluation;
}

std::atomic<ContextProbe> context_probe{nullptr};  // set while other threads may announce
std::atomic<bool> attached{false};

void task_begin(const Domain* domain, Identifier, Identifier, StringHandle* handle) noexcept {
    if (handle == nullptr || !Recorder::active() || !is_recorded(domain)) return;
    if (const ContextProbe probe = context_probe.load(std::memory_order_acquire); probe != nullptr) probe();
    if (autograd::nodes_are_tied.load(std::memory_order_acquire) && is_evaluation(handle))
        autograd::note_current_node();
    Recorder::instance().emit(EventKind::operator_begin, name_key(handle));
}

void task_end(const Domain* domain) noexcept {
    Recorder& recorder = Recorder::instance();
    if (Recorder::active() && is_recorded(domain))
        recorder.emit(EventKind::operator_end, recorder.name_key(0));
}

void* implementation_of(const char* name) noexcept {
    const std::string_view asked = name != nullptr ? name : "";
    if (asked == "__itt_domain_create") return reinterpret_cast<void*>(&domain_create);
    if (asked == "__itt_string_handle_create") return reinterpret_cast<void*>(&string_handle_create);
    if (asked == "__itt_task_begin") return reinterpret_cast<void*>(&task_begin);
    if (asked == "__itt_task_end") return reinterpret_cast<void*>(&task_end);
    return nullptr;
}

}  // namespace

bool is_attached() noexcept {
    return attached.load(std::memory_order_acquire);
}

void set_context_probe(ContextProbe probe) noexcept {
    context_probe.store(probe, std::memory_order_release);
}

}  // namespace gpuprof::itt

// Called by the announcing program's copy of the ITT loader, under its lock, once.
// NOLINTNEXTLINE(bugprone-reserved-identifier): the interface's name
extern "C" __attribute__((visibility("default"))) void __itt_api_init(void* global, int /*groups*/) noexcept {
    using namespace gpuprof::itt;
    if (global == nullptr) return;
    for (ApiEntry* entry = static_cast<ApiGlobal*>(global)->entries; entry->name != nullptr; ++entry)
        if (void* function = implementation_of(entry->name); function != nullptr) *entry->function = function;
    attached.store(true, std::memory_order_release);
}
