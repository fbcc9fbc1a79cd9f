// SPDX-License-Identifier: Apache-2.0
// Numbers of autograd nodes, read from a library that replaces PyTorch's, with both ways to own a node.
#include <dlfcn.h>

#include <array>
#include <limits>
#include <string>
#include <thread>

#include "collect/autograd.hpp"
#include "support.hpp"

using namespace gpuprof;
using namespace gpuprof::test;

namespace {

struct Fake {
    Fake(const char* file, autograd::Ownership owned) : path(file), ownership(owned) {
        void* const library = dlopen(file, RTLD_NOW);
        REQUIRE(library != nullptr);
        evaluate = reinterpret_cast<void (*)(std::uint64_t, std::uint64_t)>(dlsym(library, "fake_evaluate"));
        finish = reinterpret_cast<void (*)()>(dlsym(library, "fake_finish"));
        owners = reinterpret_cast<long (*)()>(dlsym(library, "fake_owners"));
        offset_of_sequence = reinterpret_cast<std::uint32_t (*)()>(dlsym(library, "fake_offset_of_sequence"));
    }
    std::string path;
    autograd::Ownership ownership;
    void (*evaluate)(std::uint64_t, std::uint64_t);
    void (*finish)();
    long (*owners)();
    std::uint32_t (*offset_of_sequence)();
};

std::array<Fake, 2> both() {
    return {Fake(FAKE_TORCH_SHARED, autograd::Ownership::shared),
            Fake(FAKE_TORCH_INTRUSIVE_PATH, autograd::Ownership::intrusive)};
}

void tie_to(const Fake& fake) {
    REQUIRE(!autograd::open_library(fake.path));
    fake.evaluate(0, 0);
    const std::uint32_t offset = fake.offset_of_sequence();
    fake.finish();
    const autograd::NodeLayout layout{fake.ownership, offset, offset + 24};
    autograd::tie(&layout);
}

// The marks that one recording wrote, in order.
std::vector<Event> events_of(const TemporaryFolder& folder) {
    Recorder::instance().stop();
    std::vector<Event> events;
    const RecordedFolder recorded = read_folder(folder());
    for (const ThreadPiece& piece : recorded.processes.at(0).pieces)
        for (const Event& event : piece.events)
            if (event.kind != 0) events.push_back(event);
    return events;
}

}  // namespace

TEST(a_node_is_marked_and_given_back) {
    for (const Fake& fake : both()) {
        tie_to(fake);
        const TemporaryFolder folder;
        start(folder);
        fake.evaluate(1234, 7);
        for (int i = 0; i < 3; ++i) {
            autograd::note_current_node();
            CHECK_EQ(fake.owners(), 1);
        }
        fake.finish();
        const std::vector<Event> events = events_of(folder);
        REQUIRE(events.size() == 3);
        CHECK_EQ(events[0].kind, static_cast<std::uint32_t>(EventKind::backward_node));
        CHECK_EQ(events[0].ticks, node_mark(7, 1234));
        autograd::untie();
    }
}

TEST(no_node_and_nodes_of_parameters_are_not_marked) {
    for (const Fake& fake : both()) {
        tie_to(fake);
        const TemporaryFolder folder;
        start(folder);
        autograd::note_current_node();
        fake.evaluate(std::numeric_limits<std::uint64_t>::max(), 7);
        autograd::note_current_node();
        CHECK_EQ(fake.owners(), 1);
        fake.finish();
        CHECK_EQ(events_of(folder).size(), 0u);
        autograd::untie();
    }
}

TEST(the_width_of_an_owner_shows) {
    for (const Fake& fake : both()) {
        REQUIRE(!autograd::open_library(fake.path));
        const autograd::Answers answers = autograd::ask();
        CHECK_EQ(answers.current[0], 0u);
        CHECK_EQ(answers.current[1],
                 fake.ownership == autograd::Ownership::shared ? 0u : autograd::unwritten);
        CHECK_EQ(answers.thread, 7u);
    }
}

TEST(owners_of_other_threads_are_counted_right) {
    for (const Fake& fake : both()) {
        tie_to(fake);
        const TemporaryFolder folder;
        start(folder);
        fake.evaluate(5, 7);
        auto note_often = [] {
            for (int i = 0; i < 1000; ++i) autograd::note_current_node();
        };
        std::thread other(note_often);
        note_often();
        other.join();
        CHECK_EQ(fake.owners(), 1);
        fake.finish();
        CHECK_EQ(events_of(folder).size(), 2000u);
        autograd::untie();
    }
}

TEST(a_layer_call_carries_its_first_node_and_their_number) {
    const Fake fake = both()[0];
    tie_to(fake);
    const TemporaryFolder folder;
    start(folder);
    Recorder& recorder = Recorder::instance();
    autograd::note_layer_nodes(recorder.current_log(), recorder.name_key(1), 40, 45);
    autograd::note_layer_nodes(recorder.current_log(), recorder.name_key(1), 1, 1ull << 40);
    const std::vector<Event> events = events_of(folder);
    REQUIRE(events.size() == 2);
    CHECK_EQ(events[0].kind, static_cast<std::uint32_t>(EventKind::layer_nodes));
    CHECK_EQ(events[0].ticks, node_mark(7, 40));
    CHECK_EQ(events[0].name, 5u);
    CHECK_EQ(events[1].name, 0xFFFFFFFFu);
    autograd::untie();
}

TEST(libraries_that_will_not_do) {
    CHECK_EQ(autograd::open_library("/nowhere/libtorch_cpu.so"), ReasonCode::autograd_not_loaded);
    Dl_info info{};
    REQUIRE(dladdr(reinterpret_cast<void*>(&autograd::untie), &info) != 0);
    CHECK_EQ(autograd::open_library(info.dli_fname), ReasonCode::autograd_lacks_function);
}
