// SPDX-License-Identifier: Apache-2.0
// Plays a copy of the NVTX header: the tables and structures are written here once more, from the interface,
// so that a mistake in the collector's own shows.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cwchar>

extern "C" int InitializeInjectionNvtx2(const void* (*get_table)(std::uint32_t));

namespace gpuprof::test {

struct NvtxAttributes {
    std::uint16_t version = 3;
    std::uint16_t size = 48;
    std::uint32_t category = 0;
    std::int32_t color_type = 1;
    std::uint32_t color = 0xFF00FF00;
    std::int32_t payload_type = 0, reserved = 0;
    union {
        std::uint64_t integer;
        double real;
    } payload{7};
    std::int32_t message_type = 0;
    union {
        const char* ascii;
        const wchar_t* unicode;
        void* registered;
    } message{nullptr};
};
static_assert(sizeof(NvtxAttributes) == 48);

inline NvtxAttributes ascii(const char* text) {
    NvtxAttributes attributes;
    attributes.message_type = 1;
    attributes.message.ascii = text;
    return attributes;
}
inline NvtxAttributes unicode(const wchar_t* text) {
    NvtxAttributes attributes;
    attributes.message_type = 2;
    attributes.message.unicode = text;
    return attributes;
}
inline NvtxAttributes registered(void* string) {
    NvtxAttributes attributes;
    attributes.message_type = 3;
    attributes.message.registered = string;
    return attributes;
}

// One copy a number, since the interface passes no state: each `which` has its own tables.
template <int which>
class NvtxCopy {
  public:
    static int attach() { return InitializeInjectionNvtx2(get_table); }
    static void* core(unsigned place) { return core_[place]; }
    static void* core2(unsigned place) { return core2_[place]; }

    static int push(const char* text) { return call<int(const char*)>(core_[9])(text); }
    static int push(const wchar_t* text) { return call<int(const wchar_t*)>(core_[10])(text); }
    static int push(const NvtxAttributes* a) { return call<int(const NvtxAttributes*)>(core_[8])(a); }
    static int pop() { return call<int()>(core_[11])(); }
    static void mark(const char* text) { call<void(const char*)>(core_[2])(text); }
    static void mark(const wchar_t* text) { call<void(const wchar_t*)>(core_[3])(text); }
    static void mark(const NvtxAttributes* a) { call<void(const NvtxAttributes*)>(core_[1])(a); }
    static std::uint64_t start(const char* text) { return call<std::uint64_t(const char*)>(core_[5])(text); }
    static std::uint64_t start(const wchar_t* text) {
        return call<std::uint64_t(const wchar_t*)>(core_[6])(text);
    }
    static std::uint64_t start(const NvtxAttributes* a) {
        return call<std::uint64_t(const NvtxAttributes*)>(core_[4])(a);
    }
    static void end(std::uint64_t id) { call<void(std::uint64_t)>(core_[7])(id); }

    static void* domain(const char* name) { return call<void*(const char*)>(core2_[12])(name); }
    static void* domain(const wchar_t* name) { return call<void*(const wchar_t*)>(core2_[13])(name); }
    static void* string(void* domain, const char* text) {
        return call<void*(void*, const char*)>(core2_[10])(domain, text);
    }
    static void* string(void* domain, const wchar_t* text) {
        return call<void*(void*, const wchar_t*)>(core2_[11])(domain, text);
    }
    static int push(void* domain, const NvtxAttributes& a) {
        return call<int(void*, const NvtxAttributes*)>(core2_[4])(domain, &a);
    }
    static int pop(void* domain) { return call<int(void*)>(core2_[5])(domain); }
    static void mark(void* domain, const NvtxAttributes& a) {
        call<void(void*, const NvtxAttributes*)>(core2_[1])(domain, &a);
    }
    static std::uint64_t start(void* domain, const NvtxAttributes& a) {
        return call<std::uint64_t(void*, const NvtxAttributes*)>(core2_[2])(domain, &a);
    }
    static void end(void* domain, std::uint64_t id) {
        call<void(void*, std::uint64_t)>(core2_[3])(domain, id);
    }

  private:
    struct Callbacks {
        std::size_t struct_size;
        int (*function_table)(int module, void**** table, unsigned* size);
    };
    template <typename Signature>
    static Signature* call(void* function) {
        return reinterpret_cast<Signature*>(function);
    }
    static int function_table(int module, void**** table, unsigned* size) {
        if (module != 1 && module != 5) return 0;
        void** const functions = module == 1 ? core_ : core2_;
        void*** const slots = module == 1 ? core_slots_ : core2_slots_;
        for (int i = 1; i < 16; ++i) slots[i] = &functions[i];
        *table = slots;
        *size = 16;
        return 1;
    }
    static const void* get_table(std::uint32_t id) { return id == 1 ? &callbacks_ : nullptr; }

    inline static const Callbacks callbacks_{sizeof(Callbacks), function_table};
    inline static void* core_[16];
    inline static void* core2_[16];
    inline static void** core_slots_[17];
    inline static void** core2_slots_[17];
};

}  // namespace gpuprof::test
