// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cstring>
#include <mutex>

#include "builder_bench.hpp"
#include "collect/nvtx.hpp"
#include "fake_nvtx.hpp"

using namespace gpuprof;
using namespace gpuprof::test;

namespace {

using Copy = NvtxCopy<1>;
using OtherCopy = NvtxCopy<2>;

// Attached once, as a header does at its first call.
struct Attached {
    Attached() { CHECK_EQ(Copy::attach(), 1); }
};
void attach() {
    static const Attached once;
}

template <typename Body>
Spans record(Body body) {
    attach();
    const TemporaryFolder folder;
    start(folder);
    body();
    Recorder::instance().stop();
    return decode_folder(folder());
}

std::size_t row_of(const Spans& spans, const std::string& name) {
    for (std::size_t row = 0; row < spans.rows.size(); ++row)
        if (spans.name(row) == name) return row;
    CHECK(name == "is missing");
    throw GivenUp{};
}

std::string parent_of(const Spans& spans, const std::string& name) {
    const std::int64_t parent = spans.rows.parent_id[row_of(spans, name)];
    for (std::size_t row = 0; row < spans.rows.size(); ++row)
        if (spans.rows.span_id[row] == parent) return spans.name(row);
    return "";
}

const void* no_tables(std::uint32_t) {
    return nullptr;
}

const void* short_table(std::uint32_t) {
    static const std::size_t size = 8;
    return &size;
}

}  // namespace

TEST(only_the_wanted_places_are_filled) {
    attach();
    for (unsigned place = 1; place < 16; ++place) {
        CHECK_EQ(Copy::core(place) != nullptr, place <= 11);  // not the names of categories and threads
        const bool wanted = place <= 5 || (place >= 10 && place <= 13);
        CHECK_EQ(Copy::core2(place) != nullptr, wanted);
    }
    CHECK(Copy::core(0) == nullptr && Copy::core2(0) == nullptr);
}

TEST(what_is_no_header_is_refused) {
    attach();
    const unsigned before = nvtx::attachments();
    CHECK_EQ(InitializeInjectionNvtx2(nullptr), 0);
    CHECK_EQ(InitializeInjectionNvtx2(no_tables), 0);
    CHECK_EQ(InitializeInjectionNvtx2(short_table), 0);
    CHECK_EQ(nvtx::attachments(), before);
}

TEST(several_copies_share_domains_and_levels) {
    attach();
    const unsigned before = nvtx::attachments();
    CHECK_EQ(OtherCopy::attach(), 1);
    CHECK_EQ(nvtx::attachments(), before + 1);
    void* const domain = Copy::domain("shared");
    CHECK(OtherCopy::domain("shared") == domain);
    CHECK(OtherCopy::domain(L"shared") == domain);
    CHECK(OtherCopy::domain("another") != domain);
    const Spans spans = record([&] {
        CHECK_EQ(Copy::push("outer"), 0);
        CHECK_EQ(OtherCopy::push("inner"), 1);
        CHECK_EQ(Copy::pop(), 1);
        CHECK_EQ(OtherCopy::pop(), 0);
    });
    CHECK_EQ(parent_of(spans, "inner"), "outer");
    CHECK_EQ(spans.run.totals.unmatched_ends, 0u);
}

TEST(messages_of_every_type) {
    attach();
    void* const domain = Copy::domain("lib");
    void* const narrow = Copy::string(domain, "narrow");
    CHECK(Copy::string(domain, "narrow") == narrow);
    void* const wide = Copy::string(domain, L"w\u00e4hrend \U0001F600");
    CHECK(Copy::string(domain, static_cast<const char*>(nullptr)) == nullptr);
    void* const by_default = Copy::string(nullptr, "plain");
    NvtxAttributes small = ascii("too small");
    small.size = 40;
    const NvtxAttributes type_of_tomorrow = [] {
        NvtxAttributes attributes = ascii("x");
        attributes.message_type = 9;
        return attributes;
    }();
    const std::wstring broken = {L'<', static_cast<wchar_t>(0xD800), static_cast<wchar_t>(0x7FFFFFFF), L'>'};
    const Spans spans = record([&] {
        for (const NvtxAttributes& each :
             {ascii("text"), unicode(L"\u65e5\u672c"), registered(narrow), registered(wide), NvtxAttributes(),
              small, type_of_tomorrow, registered(nullptr), unicode(broken.c_str())}) {
            Copy::push(domain, each);
            Copy::pop(domain);
        }
        const NvtxAttributes plain = registered(by_default);
        Copy::push(&plain);
        Copy::pop();
        Copy::push(L"\u00fc");
        Copy::pop();
        Copy::push(static_cast<const char*>(nullptr));
        Copy::pop();
    });
    CHECK_EQ(spans.count("lib: text"), 1u);
    CHECK_EQ(spans.count("lib: \xe6\x97\xa5\xe6\x9c\xac"), 1u);
    CHECK_EQ(spans.count("lib: narrow"), 1u);
    CHECK_EQ(spans.count("lib: w\xc3\xa4hrend \xf0\x9f\x98\x80"), 1u);
    CHECK_EQ(spans.count("lib: (unnamed)"), 4u);
    CHECK_EQ(spans.count("lib: <\xef\xbf\xbd\xef\xbf\xbd>"), 1u);
    CHECK_EQ(spans.count("plain"), 1u);
    CHECK_EQ(spans.count("\xc3\xbc"), 1u);
    CHECK_EQ(spans.count("(unnamed)"), 1u);
    CHECK_EQ(spans.run.totals.unmatched_ends, 0u);
    for (const std::uint8_t kind : spans.rows.kind) CHECK_EQ(int{kind}, static_cast<int>(SpanKind::nvtx));
}

TEST(a_message_that_changes_at_its_address_is_another) {
    char message[64] = "first";
    const std::string long_text(200, 'x');
    const Spans spans = record([&] {
        Copy::push(message);
        Copy::pop();
        std::strcpy(message, "second");
        Copy::push(message);
        Copy::pop();
        Copy::push(long_text.c_str());
        Copy::pop();
        Copy::push(long_text.c_str());
        Copy::pop();
    });
    CHECK_EQ(spans.count("first"), 1u);
    CHECK_EQ(spans.count("second"), 1u);
    CHECK_EQ(spans.count(long_text), 2u);
}

TEST(levels_are_those_of_the_domain_and_of_the_thread) {
    attach();
    void* const a = Copy::domain("level a");
    void* const b = Copy::domain("level b");
    CHECK_EQ(Copy::pop(a), -1);
    CHECK_EQ(Copy::push(a, ascii("1")), 0);
    CHECK_EQ(Copy::push(b, ascii("1")), 0);
    CHECK_EQ(Copy::push(a, ascii("2")), 1);
    run_in_threads(1, [&](unsigned) {
        CHECK_EQ(Copy::pop(a), -1);
        CHECK_EQ(Copy::push(a, ascii("1")), 0);
    });
    CHECK_EQ(Copy::pop(a), 1);
    CHECK_EQ(Copy::pop(b), 0);
    CHECK_EQ(Copy::pop(a), 0);
}

TEST(levels_of_more_domains_than_are_counted) {
    attach();
    const pid_t child = start_child([] {  // domains live as long as the process
        void* last = nullptr;
        for (int i = 0; i < 100; ++i) last = Copy::domain(("many " + std::to_string(i)).c_str());
        const Spans spans = record([&] {
            CHECK_EQ(Copy::push(last, ascii("x")), -2);
            CHECK_EQ(Copy::pop(last), -2);
        });
        CHECK_EQ(spans.count("many 99: x"), 1u);
        CHECK_EQ(spans.run.totals.unmatched_ends, 0u);
    });
    CHECK_EQ(wait_for(child), 0);
}

TEST(domains_that_cross_end_their_own) {
    attach();
    void* const a = Copy::domain("cross a");
    void* const b = Copy::domain("cross b");
    const Spans spans = record([&] {
        Copy::push(a, ascii("x"));
        Copy::push(b, ascii("x"));
        Copy::push("x");
        Copy::pop(a);
        emit(EventKind::span_begin, Recorder::instance().intern("after a"));
        emit(EventKind::span_end, Recorder::instance().intern("after a"));
        Copy::pop(b);
        Copy::pop();
    });
    CHECK_EQ(parent_of(spans, "cross b: x"), "cross a: x");
    CHECK_EQ(parent_of(spans, "x"), "cross b: x");
    CHECK_EQ(parent_of(spans, "after a"), "x");
    CHECK_EQ(spans.run.totals.unmatched_ends, 0u);
    CHECK_EQ(spans.run.totals.unfinished_spans, 0u);
    const auto& rows = spans.rows;
    const std::size_t outer = row_of(spans, "cross a: x"), inner = row_of(spans, "x");
    CHECK(rows.start_ns[outer] + rows.duration_ns[outer] <= rows.start_ns[inner] + rows.duration_ns[inner]);
}

TEST(marks_have_no_length) {
    attach();
    void* const domain = Copy::domain("marks");
    const Spans spans = record([&] {
        Copy::push("around");
        Copy::mark("narrow");
        Copy::mark(L"wide");
        const NvtxAttributes attributes = ascii("attributes");
        Copy::mark(&attributes);
        Copy::mark(domain, ascii("in a domain"));
        CHECK_EQ(Copy::pop(), 0);
    });
    for (const char* name : {"narrow", "wide", "attributes", "marks: in a domain"}) {
        CHECK_EQ(parent_of(spans, name), "around");
        CHECK_EQ(spans.rows.duration_ns[row_of(spans, name)], 0);
    }
    CHECK_EQ(spans.rows.size(), 5u);
}

TEST(ranges_end_by_their_number_on_any_thread) {
    attach();
    void* const domain = Copy::domain("process");
    std::vector<std::uint64_t> ids;
    const Spans spans = record([&] {
        Copy::push("around");
        ids = {Copy::start("same"), Copy::start("same"), Copy::start(L"wide"),
               Copy::start(domain, ascii("d"))};
        const NvtxAttributes attributes = ascii("never ended");
        ids.push_back(Copy::start(&attributes));
        Copy::push("inside");
        Copy::pop();
        run_in_threads(1, [&](unsigned) {
            Copy::push("other thread");
            Copy::end(ids[0]);
            Copy::end(ids[2]);
            Copy::end(domain, ids[3]);
            Copy::end(1u << 30);
            Copy::pop();
            ids.push_back(Copy::start("started elsewhere"));
        });
        Copy::end(ids[1]);
        Copy::end(ids[5]);
        Copy::pop();
    });
    std::ranges::sort(ids);
    CHECK(std::ranges::adjacent_find(ids) == ids.end());
    CHECK(ids.front() != 0);
    CHECK_EQ(spans.count("same"), 2u);
    for (const char* name : {"same", "wide", "process: d", "never ended", "inside"})
        CHECK_EQ(parent_of(spans, name), "around");
    CHECK_EQ(parent_of(spans, "started elsewhere"), "");
    CHECK_EQ(parent_of(spans, "other thread"), "");
    const auto& rows = spans.rows;
    CHECK_EQ(rows.thread_id[row_of(spans, "wide")], rows.thread_id[row_of(spans, "around")]);
    CHECK_EQ(rows.thread_id[row_of(spans, "started elsewhere")],
             rows.thread_id[row_of(spans, "other thread")]);
    CHECK(rows.start_ns[row_of(spans, "wide")] + rows.duration_ns[row_of(spans, "wide")] >
          rows.start_ns[row_of(spans, "other thread")]);
    CHECK_EQ(spans.run.totals.unfinished_spans, 1u);
    CHECK_EQ(spans.run.totals.unmatched_ends, 1u);
    CHECK_EQ(spans.run.totals.damaged_events, 0u);
}

TEST(many_threads_announce_at_once) {
    constexpr unsigned threads = 6, calls = 3000;
    attach();
    void* const domain = Copy::domain("threads");
    void* const string = Copy::string(domain, "registered");
    std::mutex mutex;
    std::vector<std::uint64_t> handed_over;
    const Spans spans = record([&] {
        run_in_threads(threads, [&](unsigned) {
            for (unsigned i = 0; i < calls; ++i) {
                Copy::push(domain, registered(string));
                Copy::push("default");
                const std::uint64_t id = Copy::start("handed over");
                Copy::pop();
                Copy::pop(domain);
                std::lock_guard lock(mutex);
                handed_over.push_back(id);
                Copy::end(handed_over[handed_over.size() / 2]);
                handed_over.erase(handed_over.begin() + static_cast<std::ptrdiff_t>(handed_over.size() / 2));
            }
        });
    });
    CHECK_EQ(spans.count("threads: registered"), std::size_t{threads} * calls);
    CHECK_EQ(spans.count("default"), std::size_t{threads} * calls);
    CHECK_EQ(spans.count("handed over"), std::size_t{threads} * calls);
    CHECK_EQ(spans.run.totals.unmatched_ends, 0u);
    CHECK_EQ(spans.run.totals.unfinished_spans, 0u);
    for (std::size_t row = 0; row < spans.rows.size(); ++row) {
        const int depth = spans.name(row) == "threads: registered" ? 0 : spans.name(row) == "default" ? 1 : 2;
        CHECK_EQ(spans.rows.depth[row], depth);
    }
}

TEST(nothing_is_recorded_outside_a_recording_of_ranges) {
    attach();
    void* const domain = Copy::domain("outside");
    void* const string = Copy::string(domain, "kept");
    CHECK_EQ(Copy::push("before"), 0);
    const std::uint64_t early = Copy::start("early");
    std::uint64_t late = 0;
    const Spans first = record([&] {
        CHECK_EQ(Copy::push("in time"), 1);
        CHECK_EQ(Copy::pop(), 1);
        CHECK_EQ(Copy::pop(), 0);  // its begin lies before the recording
        Copy::end(early);
        Copy::push(domain, registered(string));
        late = Copy::start("late");
    });
    Copy::pop(domain);
    Copy::end(late);
    CHECK_EQ(first.run.totals.unmatched_ends, 2u);
    CHECK_EQ(first.run.totals.unfinished_spans, 2u);
    CHECK_EQ(first.rows.size(), 3u);
    // A later recording numbers its names again.
    const Spans second = record([&] {
        Recorder::instance().intern("shifts the ids");
        Copy::push(domain, registered(string));
        Copy::pop(domain);
    });
    CHECK_EQ(second.rows.size(), 1u);
    CHECK_EQ(second.count("outside: kept"), 1u);
}

TEST(operators_that_torch_announces_itself_are_left_out) {
    const Spans spans = record([] {
        Copy::push("mine");
        CHECK_EQ(Copy::push("aten::mm, seq = 3, op_id = 42"), 1);
        Copy::push("also mine, op_id = none");
        Copy::push("aten::add, op_id = 43, sizes = [[2, 2]]");
        CHECK_EQ(Copy::pop(), 3);
        CHECK_EQ(Copy::pop(), 2);
        CHECK_EQ(Copy::pop(), 1);
        Copy::push("sibling");
        Copy::pop();
        CHECK_EQ(Copy::pop(), 0);
    });
    CHECK_EQ(spans.rows.size(), 3u);
    CHECK_EQ(parent_of(spans, "also mine, op_id = none"), "mine");
    CHECK_EQ(parent_of(spans, "sibling"), "mine");
    CHECK_EQ(spans.run.totals.unmatched_ends, 0u);
}

TEST(the_binding_may_write_the_events_of_ranges) {
    static std::atomic<int> asked{0};
    attach();
    nvtx::set_range_emitter([](EventKind kind, std::uint32_t name, std::uint64_t ticks) noexcept {
        ++asked;
        Recorder& recorder = Recorder::instance();
        Recorder::emit_to(recorder.current_log(), kind, recorder.name_key(name), ticks);
    });
    Copy::push("idle");
    Copy::pop();
    CHECK_EQ(asked, 0);
    const Spans spans = record([] {
        Copy::push("work");
        Copy::pop();
        Copy::end(Copy::start("range"));
    });
    nvtx::set_range_emitter(nullptr);
    CHECK_EQ(asked, 4);
    CHECK_EQ(spans.rows.size(), 2u);
}

TEST(a_forked_child_continues_with_its_ranges) {
    attach();
    const TemporaryFolder folder;
    start(folder);
    void* const domain = Copy::domain("fork");
    void* const string = Copy::string(domain, "both");
    Copy::push(domain, registered(string));
    const std::uint64_t range = Copy::start("of the parent");
    const pid_t child = start_child([&] {
        CHECK_EQ(Copy::push(domain, registered(string)), 1);
        CHECK_EQ(Copy::pop(domain), 1);
        Copy::end(range);
        Recorder::instance().stop();
    });
    CHECK_EQ(wait_for(child), 0);
    Copy::end(range);
    CHECK_EQ(Copy::pop(domain), 0);
    Recorder::instance().stop();
    const Spans spans = decode_folder(folder());
    CHECK_EQ(spans.count("fork: both"), 2u);
    CHECK_EQ(spans.count("of the parent"), 1u);
    CHECK_EQ(spans.run.totals.unmatched_ends, 1u);
    CHECK_EQ(spans.run.totals.unfinished_spans, 0u);
}

// ---- decoding

TEST(a_pop_ends_the_range_of_its_own_task) {
    BuilderBench bench;
    Thread thread(bench);
    for (const std::uint64_t task : {1u, 2u}) {
        thread.task(task);
        thread.push("", "request", 10 * task);
    }
    thread.task(1);
    thread.pop("", 100);
    thread.task(2);
    thread.pop("", 200);
    CHECK_EQ(bench.rows.duration_ns.at(0), 90);
    CHECK_EQ(bench.rows.duration_ns.at(1), 180);
    CHECK_EQ(bench.totals.unmatched_ends, 0u);
}

TEST(a_pop_without_a_push_in_its_task_ends_the_last_of_the_thread) {
    BuilderBench bench;
    Thread thread(bench);
    for (const std::uint64_t task : {1u, 2u, 3u}) {
        thread.task(task);
        thread.push(task == 3 ? "other" : "", "range " + std::to_string(task), 10 * task);
    }
    thread.task(4);
    thread.pop("", 100);
    thread.pop("", 110);
    thread.pop("", 120);
    CHECK_EQ(bench.rows.size(), 2u);
    CHECK_EQ(bench.text(bench.rows.name[0]), "range 2");
    CHECK_EQ(bench.text(bench.rows.name[1]), "range 1");
    CHECK_EQ(bench.totals.unmatched_ends, 1u);
}

TEST(what_began_before_any_task_was_seen_is_around_the_first) {
    BuilderBench bench;
    Thread thread(bench);
    thread.push("", "unseen", 0);
    thread.task(1);
    thread.begin("span", 10);
    thread.task(2, 1);
    thread.begin("started task", 20);
    thread.end("started task", 30);
    thread.task(1);
    thread.end("span", 40);
    thread.pop("", 50);
    thread.begin("after", 60);
    thread.end("after", 70);
    CHECK_EQ(bench.parent_of("span"), "unseen");
    CHECK_EQ(bench.parent_of("started task"), "span");
    CHECK_EQ(bench.parent_of("after"), "");
    CHECK_EQ(bench.node("/nvtx:unseen").own_ns, 50 - 30);
    CHECK_EQ(bench.totals.unmatched_ends, 0u);
}

TEST(a_process_range_takes_no_time_from_what_is_around_it) {
    BuilderBench bench;
    Thread first(bench, 1);
    first.begin("outer", 0);
    first.operation("aten::mm", 5);
    first.start(7, "range", 10);
    first.operation_end(15);
    first.begin("inner", 20);
    first.end("inner", 30);
    first.end("outer", 40);
    Thread second(bench, 2);
    second.start(8, "ended elsewhere", 50);
    second.stop(7, 60);
    Thread third(bench, 3);
    third.stop(8, 45);  // by a clock that is a little slow
    third.stop(9, 70);
    third.start(9, "range", 65);
    third.stop(10, 80);
    third.start(11, "never ended", 90);
    bench.finish_ranges(100);
    CHECK_EQ(bench.parent_of("range"), "outer");
    CHECK_EQ(bench.parent_of("inner"), "outer");
    CHECK_EQ(bench.node("/span:outer").own_ns, 40 - 10 - 10);
    CHECK_EQ(bench.node("/span:outer/nvtx:range").total_ns, 50);
    CHECK_EQ(bench.node("/span:outer/nvtx:range").own_ns, 0);
    CHECK_EQ(bench.node("/nvtx:range").total_ns, 5);
    CHECK_EQ(bench.node("/nvtx:ended elsewhere").total_ns, 0);
    CHECK_EQ(bench.node("/nvtx:never ended").total_ns, 10);
    CHECK_EQ(bench.totals.unmatched_ends, 1u);
    CHECK_EQ(bench.totals.unfinished_spans, 1u);
}

TEST(threads_of_a_process_range_are_those_that_start_it) {
    BuilderBench bench;
    Thread first(bench, 1), second(bench, 2), third(bench, 3);
    for (std::uint32_t i = 0; i < 4; ++i) {
        first.start(10 + i, "range", i);
    }
    for (std::uint32_t i = 0; i < 4; ++i) {
        second.start(20 + i, "range", i);
        second.stop(20 + i, 10);
    }
    for (std::uint32_t i = 0; i < 4; ++i) third.stop(10 + i, 20);
    CHECK_EQ(bench.node("/nvtx:range").calls, 8);
    CHECK_EQ(bench.node("/nvtx:range").threads, 2);
}

TEST(a_start_without_its_number_is_damage) {
    BuilderBench bench;
    SpanBuilder builder = bench.thread();
    builder.add(range_start, bench.name("x"), 1);
    CHECK_EQ(bench.totals.damaged_events, 1u);
    CHECK_EQ(bench.rows.size(), 0u);
}
