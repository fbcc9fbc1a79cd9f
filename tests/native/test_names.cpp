// SPDX-License-Identifier: Apache-2.0
#include "support.hpp"

using namespace gpuprof;
using namespace gpuprof::test;

namespace {

std::vector<RecordedName> read_back(const TemporaryFolder& folder) {
    RecordedFolder recorded = read_folder(folder());
    REQUIRE(recorded.processes.size() == 1);
    CHECK_EQ(recorded.damage.size(), 0u);
    return recorded.processes[0].names;
}

}  // namespace

TEST(names_of_every_kind_come_back) {
    const TemporaryFolder folder;
    start(folder);
    Recorder& recorder = Recorder::instance();
    const std::vector<std::string> texts{"plain",
                                         "",
                                         "quote \" and '",
                                         "line\nbreak",
                                         "</script>",
                                         "\U0001F525",
                                         std::string("zero\0inside", 11),
                                         std::string(longest_name_bytes, 'a')};
    for (std::size_t i = 0; i < texts.size(); ++i) CHECK_EQ(recorder.intern(texts[i]), i + 1);
    for (std::size_t i = 0; i < texts.size(); ++i) CHECK_EQ(recorder.intern(texts[i]), i + 1);
    recorder.stop();
    const auto names = read_back(folder);
    REQUIRE(names.size() == texts.size());
    for (std::size_t i = 0; i < texts.size(); ++i) CHECK(names[i].text == texts[i]);
}

TEST(long_names_are_cut_between_characters) {
    const TemporaryFolder folder;
    start(folder);
    const std::string flames = [] {
        std::string text = "x";  // four bytes each: the limit falls inside one
        while (text.size() <= longest_name_bytes) text += "\U0001F525";
        return text;
    }();
    Recorder::instance().intern(flames);
    Recorder::instance().stop();
    const auto names = read_back(folder);
    REQUIRE(names.size() == 1);
    CHECK_EQ(names[0].text.size(), longest_name_bytes - 3);
    CHECK(flames.starts_with(names[0].text));
}

TEST(one_text_in_two_scopes_is_two_names) {
    const TemporaryFolder folder;
    start(folder);
    Recorder& recorder = Recorder::instance();
    const std::uint32_t root = recorder.intern("Model"), other = recorder.intern("Other");
    const std::uint32_t a = recorder.intern("layers.0", root), b = recorder.intern("layers.0", other);
    CHECK(a != b);
    CHECK_EQ(recorder.intern("layers.0", root), a);
    for (const std::uint32_t name : {b, a, a}) {
        emit(EventKind::layer_begin, name);
        emit(EventKind::layer_end, name);
    }
    recorder.stop();
    const Spans spans = decode_folder(folder());
    REQUIRE(spans.rows.size() == 3);
    auto scope_of = [&](std::size_t row) {
        return spans.run.names.at(spans.run.names.at(spans.rows.name[row] - 1).scope - 1).text;
    };
    CHECK_EQ(scope_of(0), "Other");
    CHECK_EQ(scope_of(1), "Model");
    CHECK_EQ(spans.rows.name[1], spans.rows.name[2]);
}

TEST(many_threads_intern_the_same_names) {
    constexpr unsigned threads = 8, names = 2000;
    const TemporaryFolder folder;
    start(folder);
    std::vector<std::vector<std::uint32_t>> ids(threads);
    run_in_threads(threads, [&](unsigned thread) {
        for (unsigned i = 0; i < names; ++i)
            ids[thread].push_back(Recorder::instance().intern("name " + std::to_string(i)));
    });
    Recorder::instance().stop();
    const auto texts = read_back(folder);
    CHECK_EQ(texts.size(), names);
    for (unsigned thread = 0; thread < threads; ++thread) {
        CHECK(ids[thread] == ids[0]);
        for (unsigned i = 0; i < names; ++i)
            CHECK_EQ(texts.at(ids[thread][i] - 1).text, "name " + std::to_string(i));
    }
}

// A thread may have looked at `active` just before a stop. The run may be read, moved or deleted by then.
TEST(a_name_that_comes_after_the_stop_touches_no_file) {
    const TemporaryFolder folder;
    start(folder);
    Recorder::instance().intern("in time");
    Recorder::instance().stop();
    const auto names = folder.files(".names");
    REQUIRE(names.size() == 1);
    const auto size = fs::file_size(names[0]);
    Recorder::instance().intern("too late");
    CHECK_EQ(fs::file_size(names[0]), size);
    fs::remove(names[0]);
    Recorder::instance().intern("much too late");
    CHECK(folder.files(".names").empty());

    const TemporaryFolder next;
    start(next);
    CHECK_EQ(Recorder::instance().intern("in time again"), 1u);
    Recorder::instance().stop();
    CHECK_EQ(read_back(next).at(0).text, "in time again");
}

TEST(a_name_before_the_first_recording_of_a_process) {
    // In a child, which has never recorded when this test runs alone.
    const TemporaryFolder folder;
    CHECK_EQ(wait_for(start_child([&] {
                 Recorder::instance().intern("early");
                 start(folder);
                 CHECK_EQ(Recorder::instance().intern("first"), 1u);
                 Recorder::instance().stop();
             })),
             0);
    CHECK_EQ(read_back(folder).at(0).text, "first");
}

TEST(a_process_without_a_file_to_spare_writes_its_names_later) {
    const TemporaryFolder folder;
    start(folder);
    std::vector<int> taken;
    for (int file = dup(0); file >= 0; file = dup(0)) taken.push_back(file);
    const std::uint32_t name = Recorder::instance().intern("named without a file");
    emit(EventKind::span_begin, name);
    emit(EventKind::span_end, name);
    for (const int file : taken) close(file);
    const RecorderTotals totals = Recorder::instance().stop();
    CHECK(!totals.storage_failed);
    CHECK_EQ(decode_folder(folder()).count("named without a file"), 1u);
}
