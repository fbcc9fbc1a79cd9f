// SPDX-License-Identifier: Apache-2.0
#include "collect/nvtx_names.hpp"

#include <cstring>
#include <mutex>
#include <new>
#include <string>
#include <type_traits>
#include <unordered_map>
#include <utility>

#include "collect/fork_guard.hpp"
#include "core/recorder.hpp"

namespace gpuprof::nvtx {
namespace {

constexpr const char* unnamed = "(unnamed)";

struct RegisteredString {
    std::string text;  // as it is shown
    Domain* domain = nullptr;
    CachedKey key{0};
};

struct Registry {
    std::mutex mutex;
    std::unordered_map<std::string, Domain> domains;
    std::unordered_map<const Domain*, std::unordered_map<std::string, RegisteredString>> strings;
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

// What cannot be a character becomes the replacement character.
std::string to_utf8(const wchar_t* wide) {
    std::string text;
    for (; *wide != 0; ++wide) {
        auto code = static_cast<std::uint32_t>(static_cast<std::make_unsigned_t<wchar_t>>(*wide));
        if (code > 0x10FFFF || (code >= 0xD800 && code < 0xE000)) code = 0xFFFD;
        auto add = [&](std::uint32_t bits) { text += static_cast<char>(bits); };
        if (code < 0x80) {
            add(code);
            continue;
        }
        const int more = code < 0x800 ? 1 : code < 0x10000 ? 2 : 3;
        constexpr std::uint32_t heads[] = {0, 0xC0, 0xE0, 0xF0};
        add(heads[more] | code >> 6 * more);
        for (int i = more; i-- > 0;) add(0x80 | (code >> 6 * i & 0x3F));
    }
    return text;
}

std::string shown(const Domain& domain, std::string_view message) {
    std::string text(domain.name);
    if (!text.empty()) text += ": ";
    return text += message;
}

std::uint32_t cached_id(CachedKey& key, std::string_view text, std::uint32_t scope) noexcept {
    Recorder& recorder = Recorder::instance();
    const std::uint64_t generation = recorder.generation();
    const std::uint64_t cached = key.load(std::memory_order_relaxed);
    if (cached >> 32 == generation) [[likely]]
        return static_cast<std::uint32_t>(cached);
    const std::uint32_t id = recorder.intern(text, scope);
    key.store(generation << 32 | id, std::memory_order_relaxed);
    return id;
}

std::uint32_t intern_message(Domain& domain, std::string_view message) noexcept try {
    Recorder& recorder = Recorder::instance();
    if (domain.name.empty()) return recorder.intern(message, domain_id(domain));
    return recorder.intern(shown(domain, message), domain_id(domain));
} catch (const std::bad_alloc&) {
    return 0;
}

// Short messages that a thread used last, with their text, since the same address may hold another one.
struct CachedMessage {
    const Domain* domain;
    std::uint32_t generation;
    std::uint32_t id;
    char text[48];
};
constexpr std::size_t cached_messages = 64;
thread_local constinit CachedMessage message_cache[cached_messages] = {};

void* create(std::string name) {
    if (name.empty()) return &default_domain;
    Registry& shared = registry();
    std::lock_guard lock(shared.mutex);
    const auto [place, is_new] = shared.domains.try_emplace(std::move(name));
    if (is_new) {
        place->second.name = place->first;  // an unordered_map's elements stay where they are
        place->second.number = static_cast<std::uint32_t>(shared.domains.size());
    }
    return &place->second;
}

void* register_text(void* handle, const std::string& text) {
    Domain& domain = domain_of(handle);
    Registry& shared = registry();
    std::lock_guard lock(shared.mutex);
    RegisteredString& string = shared.strings[&domain][text];
    if (string.domain == nullptr) {
        string.text = shown(domain, text);
        string.domain = &domain;
    }
    return &string;
}

}  // namespace

constinit Domain default_domain{};

void* create_narrow(const char* name) noexcept try {
    return create(name != nullptr ? name : "");
} catch (const std::bad_alloc&) {
    return nullptr;
}

void* create_wide(const wchar_t* name) noexcept try {
    return create(name != nullptr ? to_utf8(name) : "");
} catch (const std::bad_alloc&) {
    return nullptr;
}

void* register_narrow(void* handle, const char* text) noexcept try {
    return text != nullptr ? register_text(handle, text) : nullptr;
} catch (const std::bad_alloc&) {
    return nullptr;
}

void* register_wide(void* handle, const wchar_t* text) noexcept try {
    return text != nullptr ? register_text(handle, to_utf8(text)) : nullptr;
} catch (const std::bad_alloc&) {
    return nullptr;
}

std::uint32_t domain_id(Domain& domain) noexcept {
    return cached_id(domain.key, domain.name, 0);
}

std::uint32_t narrow_id(Domain& domain, const char* message) noexcept {
    if (message == nullptr) message = unnamed;
    const auto address = reinterpret_cast<std::uintptr_t>(message);
    CachedMessage& entry = message_cache[(address >> 4 ^ address >> 10 ^ domain.number) % cached_messages];
    const std::uint32_t generation = Recorder::instance().generation();
    if (entry.domain == &domain && entry.generation == generation && std::strcmp(entry.text, message) == 0)
        return entry.id;
    const std::string_view text(message);
    const std::uint32_t id = intern_message(domain, text);
    if (text.size() < sizeof(entry.text)) {
        entry.domain = &domain;
        entry.generation = generation;
        entry.id = id;
        std::memcpy(entry.text, message, text.size() + 1);
    }
    return id;
}

std::uint32_t wide_id(Domain& domain, const wchar_t* message) noexcept try {
    return message != nullptr ? intern_message(domain, to_utf8(message)) : narrow_id(domain, nullptr);
} catch (const std::bad_alloc&) {
    return 0;
}

std::uint32_t attributes_id(Domain& domain, const Attributes* attributes) noexcept {
    if (attributes == nullptr || attributes->size < sizeof(Attributes) || attributes->message == nullptr)
        return narrow_id(domain, nullptr);
    const void* const message = attributes->message;
    switch (attributes->message_type) {
        case MessageType::narrow:
            return narrow_id(domain, static_cast<const char*>(message));
        case MessageType::wide:
            return wide_id(domain, static_cast<const wchar_t*>(message));
        case MessageType::registered: {
            auto* string = static_cast<RegisteredString*>(const_cast<void*>(message));
            // Events end by their own domain, which may differ from the one that the string is of.
            if (string->domain != &domain) return intern_message(domain, string->text);
            return cached_id(string->key, string->text, domain_id(domain));
        }
        default:
            return narrow_id(domain, nullptr);
    }
}

}  // namespace gpuprof::nvtx
