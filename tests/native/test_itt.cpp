// SPDX-License-Identifier: Apache-2.0
// Plays PyTorch's ITT loader: the structures are written here once more, from the interface, so that a
// mistake in the collector's own shows.
#include <unistd.h>

#include <atomic>
#include <cstdint>
#include <cstring>
#include <string>
#include <thread>

#include "collect/itt.hpp"
#include "support.hpp"

using namespace gpuprof;
using namespace gpuprof::test;

extern "C" void __itt_api_init(void* global, int groups);

namespace {

struct IttDomain {
    volatile int flags;
    const char* name_a;
    void* name_w;
    int extra1;
    void* extra2;
    IttDomain* next;
};
struct IttStringHandle {
    const char* text_a;
    void* text_w;
    int extra1;
    void* extra2;
    IttStringHandle* next;
};
static_assert(sizeof(IttStringHandle) == 40 && sizeof(IttDomain) == 48);
struct IttId {
    unsigned long long d1, d2, d3;
};
struct IttApiInfo {
    const char* name;
    void** function;
    void* init_function;
    void* null_function;
    int group;
};
struct IttGlobal {
    unsigned char magic[8];
    unsigned long version_major, version_minor, version_build;
    volatile long api_initialized, mutex_initialized, atomic_counter;
    pthread_mutex_t mutex;
    void* library;
    void* error_handler;
    const char** library_path;
    IttApiInfo* api_list;
    IttGlobal* next;
};

class Loader {
  public:
    Loader() {
        IttApiInfo list[] = {entry("__itt_domain_create", &create_domain_),
                             entry("__itt_string_handle_create", &create_handle_),
                             entry("__itt_task_begin", &begin_),
                             entry("__itt_task_end", &end_),
                             entry("__itt_frame_begin_v3", &other_),
                             {nullptr, nullptr, nullptr, nullptr, 0}};
        IttGlobal global{};
        global.api_list = list;
        __itt_api_init(&global, 0);
    }
    IttDomain* domain(const char* name) const { return call<IttDomain*(const char*)>(create_domain_)(name); }
    IttStringHandle* handle(const char* text) const {
        return call<IttStringHandle*(const char*)>(create_handle_)(text);
    }
    void begin(const IttDomain* domain, IttStringHandle* handle) const {
        call<void(const IttDomain*, IttId, IttId, IttStringHandle*)>(begin_)(domain, {}, {}, handle);
    }
    void end(const IttDomain* domain) const { call<void(const IttDomain*)>(end_)(domain); }
    bool is_complete() const { return create_domain_ && create_handle_ && begin_ && end_; }
    bool touched_others() const { return other_ != nullptr; }

  private:
    static IttApiInfo entry(const char* name, void** function) {
        return {name, function, nullptr, nullptr, -1};
    }
    template <typename Signature>
    static Signature* call(void* function) {
        return reinterpret_cast<Signature*>(function);
    }
    void *create_domain_ = nullptr, *create_handle_ = nullptr, *begin_ = nullptr, *end_ = nullptr;
    void* other_ = nullptr;
};

const Loader& loader() {
    static const Loader shared;
    return shared;
}

}  // namespace

TEST(the_loader_gets_what_we_collect_and_no_more) {
    CHECK(loader().is_complete());
    CHECK(!loader().touched_others());
    CHECK(itt::is_attached());
    __itt_api_init(nullptr, 0);
}

TEST(names_are_handled_once) {
    const std::string text = "aten::once", same = text;
    IttStringHandle* const handle = loader().handle(text.c_str());
    REQUIRE(handle != nullptr);
    CHECK_EQ(std::string(handle->text_a), text);
    CHECK(handle->text_a != text.c_str());  // the caller's text may go away
    CHECK(loader().handle(same.c_str()) == handle);
    CHECK(loader().handle(nullptr) == nullptr);
    CHECK(loader().domain(nullptr) == nullptr);
    CHECK(loader().domain("PyTorch") == loader().domain("PyTorch"));
    CHECK(loader().domain("PyTorch") != loader().domain("oneDNN"));
    // Text that changes at one address is another name.
    char buffer[16] = "aten::first";
    IttStringHandle* const first = loader().handle(buffer);
    std::strcpy(buffer, "aten::other");
    CHECK(loader().handle(buffer) != first);
    CHECK_EQ(std::string(loader().handle(buffer)->text_a), "aten::other");
}

// The registry is held by the other thread nearly all the time.
TEST(a_forked_child_announces_what_is_new_to_it) {
    std::atomic<bool> ended{false};
    std::thread other([&] {
        for (unsigned i = 0; !ended; ++i) loader().handle(("aten::thread" + std::to_string(i)).c_str());
    });
    for (unsigned i = 0; i < 100; ++i) {
        const pid_t child = start_child([&] {
            alarm(120);
            CHECK(loader().handle(("aten::child" + std::to_string(i)).c_str()) != nullptr);
        });
        CHECK_EQ(wait_for(child), 0);
    }
    ended = true;
    other.join();
}

TEST(operators_of_several_threads) {
    constexpr unsigned threads = 6, calls = 2000;
    const TemporaryFolder folder;
    start(folder);
    const IttDomain* const domain = loader().domain("PyTorch");
    run_in_threads(threads, [&](unsigned) {
        for (unsigned i = 0; i < calls; ++i) {
            loader().begin(domain, loader().handle("aten::linear"));
            loader().begin(domain, loader().handle("aten::addmm"));
            loader().end(domain);
            loader().end(domain);
        }
    });
    Recorder::instance().stop();
    const Spans spans = decode_folder(folder());
    CHECK_EQ(spans.count("aten::linear"), std::size_t{threads} * calls);
    CHECK_EQ(spans.count("aten::addmm"), std::size_t{threads} * calls);
    CHECK_EQ(spans.run.totals.unmatched_ends, 0u);
    for (std::size_t i = 0; i < spans.rows.size(); ++i)
        CHECK_EQ(spans.rows.depth[i], spans.name(i) == "aten::addmm" ? 1 : 0);
}

// PyTorch makes some handles itself, before its loader has found us, of 40 bytes and no more. Each lies
// here between guards, and on the heap where the address sanitizer watches.
TEST(handles_that_the_caller_made) {
    struct Guarded {
        std::uint64_t before = 0x1111111111111111;
        IttStringHandle handle{};
        std::uint64_t after = 0x2222222222222222;
    } guarded;
    guarded.handle.text_a = "aten::made_by_the_caller";
    guarded.handle.next = reinterpret_cast<IttStringHandle*>(0x3333);
    const auto on_heap = std::make_unique<IttStringHandle>();
    on_heap->text_a = "aten::on_the_heap";
    IttDomain own_domain{1, "PyTorch", nullptr, 0, nullptr, nullptr};
    for (int round = 0; round < 3; ++round) {  // a generation each
        const TemporaryFolder folder;
        start(folder);
        Recorder::instance().intern("shifts the ids " + std::to_string(round));
        run_in_threads(4, [&](unsigned) {
            for (IttStringHandle* handle : {&guarded.handle, on_heap.get()}) {
                loader().begin(&own_domain, handle);
                loader().end(&own_domain);
            }
        });
        Recorder::instance().stop();
        const Spans spans = decode_folder(folder());
        CHECK_EQ(spans.count("aten::made_by_the_caller"), 4u);
        CHECK_EQ(spans.count("aten::on_the_heap"), 4u);
    }
    CHECK_EQ(guarded.before, 0x1111111111111111u);
    CHECK_EQ(guarded.after, 0x2222222222222222u);
    CHECK_EQ(std::string(guarded.handle.text_a), "aten::made_by_the_caller");
    CHECK(guarded.handle.next == reinterpret_cast<IttStringHandle*>(0x3333));
}

TEST(other_domains_and_missing_names) {
    const TemporaryFolder folder;
    start(folder);
    IttStringHandle unnamed{};
    IttDomain nameless{1, nullptr, nullptr, 0, nullptr, nullptr};
    const IttDomain* const other = loader().domain("oneDNN");
    CHECK_EQ(other->flags, 0);
    const IttDomain* const recorded = loader().domain("PyTorch");
    CHECK_EQ(recorded->flags, 1);
    for (const IttDomain* domain :
         {other, static_cast<const IttDomain*>(&nameless), static_cast<const IttDomain*>(nullptr)}) {
        loader().begin(domain, loader().handle("ignored"));
        loader().end(domain);
    }
    loader().begin(recorded, &unnamed);
    loader().end(recorded);
    loader().begin(recorded, nullptr);
    Recorder::instance().stop();
    const Spans spans = decode_folder(folder());
    CHECK_EQ(spans.rows.size(), 1u);
    CHECK_EQ(spans.count("(unnamed)"), 1u);
    CHECK_EQ(spans.run.totals.unmatched_ends, 0u);
}

TEST(nothing_is_recorded_outside_a_recording) {
    const IttDomain* const domain = loader().domain("PyTorch");
    loader().begin(domain, loader().handle("too early"));
    loader().end(domain);
    const TemporaryFolder folder;
    start(folder);
    loader().begin(domain, loader().handle("in time"));
    loader().end(domain);
    Recorder::instance().stop();
    loader().begin(domain, loader().handle("too late"));
    CHECK_EQ(decode_folder(folder()).run.totals.events, 2u);
}

TEST(the_context_is_asked_before_each_recorded_operator) {
    static std::atomic<int> asked{0};
    itt::set_context_probe([]() noexcept { ++asked; });
    const TemporaryFolder folder;
    const IttDomain* const domain = loader().domain("PyTorch");
    loader().begin(domain, loader().handle("idle"));
    CHECK_EQ(asked, 0);
    start(folder);
    loader().begin(domain, loader().handle("work"));
    loader().end(domain);
    loader().begin(loader().domain("oneDNN"), loader().handle("ignored"));
    Recorder::instance().stop();
    itt::set_context_probe(nullptr);
    CHECK_EQ(asked, 1);
}
