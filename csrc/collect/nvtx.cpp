// SPDX-License-Identifier: Apache-2.0
// The collector's side of NVTX. Each library that announces ranges has a copy of the NVTX header of its own.
// At its first call the copy opens the library that NVTX_INJECTION64_PATH names and calls
// `InitializeInjectionNvtx2`.
#include "collect/nvtx.hpp"

#include <atomic>
#include <string_view>

#include "collect/nvtx_interface.hpp"
#include "collect/nvtx_names.hpp"
#include "core/recorder.hpp"

namespace gpuprof::nvtx {
namespace {

std::atomic<RangeEmitter> range_emitter{nullptr};
std::atomic<unsigned> attached_copies{0};
std::atomic<std::uint64_t> next_range{1};

// ---- levels

// How many ranges this thread has open in each domain, as push and pop are to return. Counted always, since
// a recording may begin between the two.
constexpr std::uint32_t tracked_domains = 64;
thread_local constinit int open_ranges[tracked_domains] = {};

int enter(const Domain& domain) noexcept {
    return domain.number < tracked_domains ? open_ranges[domain.number]++ : level_unknown;
}

int leave(const Domain& domain) noexcept {
    if (domain.number >= tracked_domains) return level_unknown;
    int& open = open_ranges[domain.number];
    return open > 0 ? --open : -1;
}

// Ranges of PyTorch's own emit_nvtx are operators, which have a source of their own, and each has a name of
// its own: `aten::mm, seq = 3, op_id = 42`. They are left out, and so must their ends be. A bit a level.
thread_local constinit std::uint64_t left_out_levels = 0;
constexpr int most_left_out_levels = 64;

bool is_operator_of_torch(const char* message) noexcept {
    constexpr std::string_view sign = ", op_id = ";
    const std::string_view text(message != nullptr ? message : "");
    const std::size_t found = text.find(sign);
    if (found == std::string_view::npos || found + sign.size() == text.size()) return false;
    const char digit = text[found + sign.size()];
    return digit >= '0' && digit <= '9';
}

bool leave_out(int level, const char* message) noexcept {
    if (level < 0 || level >= most_left_out_levels || !is_operator_of_torch(message)) return false;
    left_out_levels |= std::uint64_t{1} << level;
    return true;
}

bool was_left_out(const Domain& domain, int level) noexcept {
    if (left_out_levels == 0 || &domain != &default_domain || level < 0 || level >= most_left_out_levels)
        return false;
    const std::uint64_t bit = std::uint64_t{1} << level;
    const bool found = (left_out_levels & bit) != 0;
    left_out_levels &= ~bit;
    return found;
}

// ---- events

void recorder_emit(EventKind kind, std::uint32_t name, std::uint64_t ticks) noexcept {
    Recorder& recorder = Recorder::instance();
    Recorder::emit_to(recorder.current_log(), kind, recorder.name_key(name), ticks);
}

void emit(EventKind kind, std::uint32_t name, std::uint64_t ticks) noexcept {
    const RangeEmitter emitter = range_emitter.load(std::memory_order_acquire);
    if (emitter != nullptr)
        emitter(kind, name, ticks);
    else
        recorder_emit(kind, name, ticks);
}

void emit_begin(std::uint32_t name) noexcept {
    emit(EventKind::range_begin, name, read_ticks());
}

// A mark is a range of no length.
void emit_mark(Domain& domain, std::uint32_t name) noexcept {
    const std::uint64_t ticks = read_ticks();
    emit(EventKind::range_begin, name, ticks);
    emit(EventKind::range_end, domain_id(domain), ticks);
}

void emit_start(std::uint64_t range, std::uint32_t name) noexcept {
    const std::uint64_t ticks = read_ticks();
    recorder_emit(EventKind::range_id, 0, static_cast<std::uint32_t>(range));
    emit(EventKind::range_start, name, ticks);
}

// ---- the functions of the interface: domains

int push(void* handle, const Attributes* attributes) noexcept {
    Domain& domain = domain_of(handle);
    if (Recorder::active()) emit_begin(attributes_id(domain, attributes));
    return enter(domain);
}

int pop(void* handle) noexcept {
    Domain& domain = domain_of(handle);
    const int level = leave(domain);
    if (was_left_out(domain, level) || !Recorder::active()) return level;
    const std::uint64_t ticks = read_ticks();
    emit(EventKind::range_end, domain_id(domain), ticks);
    return level;
}

void mark(void* handle, const Attributes* attributes) noexcept {
    Domain& domain = domain_of(handle);
    if (Recorder::active()) emit_mark(domain, attributes_id(domain, attributes));
}

std::uint64_t start(void* handle, const Attributes* attributes) noexcept {
    const std::uint64_t range = next_range.fetch_add(1, std::memory_order_relaxed);
    if (Recorder::active()) emit_start(range, attributes_id(domain_of(handle), attributes));
    return range;
}

void stop(void*, std::uint64_t range) noexcept {
    if (Recorder::active()) emit(EventKind::range_stop, static_cast<std::uint32_t>(range), read_ticks());
}

// ---- the functions of the interface: the default domain

int push_ex(const Attributes* attributes) noexcept {
    return push(nullptr, attributes);
}

int push_narrow(const char* message) noexcept {
    const int level = enter(default_domain);
    if (Recorder::active() && !leave_out(level, message)) emit_begin(narrow_id(default_domain, message));
    return level;
}

int push_wide(const wchar_t* message) noexcept {
    if (Recorder::active()) emit_begin(wide_id(default_domain, message));
    return enter(default_domain);
}

int pop_default() noexcept {
    return pop(nullptr);
}

void mark_ex(const Attributes* attributes) noexcept {
    mark(nullptr, attributes);
}

void mark_narrow(const char* message) noexcept {
    if (Recorder::active()) emit_mark(default_domain, narrow_id(default_domain, message));
}

void mark_wide(const wchar_t* message) noexcept {
    if (Recorder::active()) emit_mark(default_domain, wide_id(default_domain, message));
}

std::uint64_t start_ex(const Attributes* attributes) noexcept {
    return start(nullptr, attributes);
}

std::uint64_t start_narrow(const char* message) noexcept {
    const std::uint64_t range = next_range.fetch_add(1, std::memory_order_relaxed);
    if (Recorder::active()) emit_start(range, narrow_id(default_domain, message));
    return range;
}

std::uint64_t start_wide(const wchar_t* message) noexcept {
    const std::uint64_t range = next_range.fetch_add(1, std::memory_order_relaxed);
    if (Recorder::active()) emit_start(range, wide_id(default_domain, message));
    return range;
}

void stop_default(std::uint64_t range) noexcept {
    stop(nullptr, range);
}

// ---- attaching

struct Entry {
    unsigned place;
    void* function;
};

template <typename Function>
Entry entry(unsigned place, Function* function) noexcept {
    return {place, reinterpret_cast<void*>(function)};
}

template <std::size_t count>
bool fill(const Callbacks& callbacks, Module module, const Entry (&entries)[count]) noexcept {
    SlotTable table = nullptr;
    unsigned size = 0;
    if (callbacks.function_table(module, &table, &size) == 0 || table == nullptr) return false;
    for (const Entry& each : entries)
        if (each.place < size && table[each.place] != nullptr) *table[each.place] = each.function;
    return true;
}

bool fill_core(const Callbacks& callbacks) noexcept {
    const Entry entries[] = {
        entry(core::mark_ex, mark_ex),           entry(core::mark_narrow, mark_narrow),
        entry(core::mark_wide, mark_wide),       entry(core::start_ex, start_ex),
        entry(core::start_narrow, start_narrow), entry(core::start_wide, start_wide),
        entry(core::stop, stop_default),         entry(core::push_ex, push_ex),
        entry(core::push_narrow, push_narrow),   entry(core::push_wide, push_wide),
        entry(core::pop, pop_default),
    };
    return fill(callbacks, Module::core, entries);
}

bool fill_core2(const Callbacks& callbacks) noexcept {
    const Entry entries[] = {
        entry(core2::mark, mark),
        entry(core2::start, start),
        entry(core2::stop, stop),
        entry(core2::push, push),
        entry(core2::pop, pop),
        entry(core2::register_narrow, register_narrow),
        entry(core2::register_wide, register_wide),
        entry(core2::create_narrow, create_narrow),
        entry(core2::create_wide, create_wide),
    };
    return fill(callbacks, Module::core2, entries);
}

}  // namespace

unsigned attachments() noexcept {
    return attached_copies.load(std::memory_order_acquire);
}

void set_range_emitter(RangeEmitter emitter) noexcept {
    range_emitter.store(emitter, std::memory_order_release);
}

}  // namespace gpuprof::nvtx

// Called by each copy of the NVTX header at its first use, under that copy's lock: two copies may call at
// once. Returning 0 makes the copy do nothing from then on.
extern "C" __attribute__((visibility("default"))) int InitializeInjectionNvtx2(
    gpuprof::nvtx::GetTable get_table) noexcept {
    using namespace gpuprof::nvtx;
    if (get_table == nullptr) return 0;
    const auto* callbacks = static_cast<const Callbacks*>(get_table(callbacks_table));
    if (callbacks == nullptr || callbacks->struct_size < sizeof(Callbacks)) return 0;
    const bool has_core = fill_core(*callbacks);
    if (!fill_core2(*callbacks) && !has_core) return 0;
    attached_copies.fetch_add(1, std::memory_order_acq_rel);
    return 1;
}
