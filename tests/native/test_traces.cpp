// SPDX-License-Identifier: Apache-2.0
// Traces of other tools read and written. The formats themselves are checked against independent readers in
// tests/run/imports; here is what a sanitizer should see: damaged text in pieces of any size.
#include <random>
#include <string>

#include "analysis/chrome_reader.hpp"
#include "analysis/json_text.hpp"
#include "analysis/lanes.hpp"
#include "analysis/nester.hpp"
#include "analysis/perfetto.hpp"
#include "check.hpp"

using namespace gpuprof;

namespace {

const std::string trace_text =
    R"({"schemaVersion":1,"deviceProperties":[{"name":"a \"GPU\" ]}"}],"traceEvents":[)"
    R"({"ph":"M","name":"thread_name","pid":1,"tid":2,"args":{"name":"main é"}},)"
    R"({"ph":"X","cat":"cpu_op","name":"aten::mm","pid":1,"tid":2,"ts":10.125,"dur":5,"args":{"External id":7}},)"
    R"({"ph":"B","name":"\u0062\ud83d\ude00","pid":"p","tid":"t","ts":1},{"ph":"E","pid":"p","tid":"t","ts":3},)"
    R"({"ph":"X","cat":"kernel","name":"k","pid":0,"tid":7,"ts":"12","dur":"1","args":{"grid":[4,2,1],)"
    R"("correlation":9,"nested":{"deep":[[["x"]]]}}}],"baseTimeNanoseconds":1700000000000000000})";

void feed_in_pieces(ChromeReader& reader, const std::string& text, std::mt19937& random) {
    for (std::size_t at = 0; at < text.size();) {
        const std::size_t size = std::min<std::size_t>(1 + random() % 97, text.size() - at);
        reader.feed(std::string_view(text).substr(at, size));
        at += size;
    }
    reader.finish();
}

}  // namespace

TEST(events_are_read_from_pieces) {
    std::mt19937 random(1);
    for (int round = 0; round < 50; ++round) {
        ChromeReader reader;
        feed_in_pieces(reader, trace_text, random);
        CHECK(reader.is_whole());
        REQUIRE(reader.rows() == 3);
        const auto texts = reader.take_texts();
        const auto rows = reader.take();
        CHECK_EQ(texts[rows.name[0]], "aten::mm");
        CHECK_EQ(rows.start_ns[0], 10'125);
        CHECK_EQ(rows.external_id[0], 7u);
        CHECK_EQ(texts[rows.name[1]], "b\xF0\x9F\x98\x80");
        CHECK_EQ(rows.duration_ns[1], 2'000);
        CHECK_EQ(rows.correlation_id[2], 9u);
        CHECK_EQ(rows.grid_y[2], 2u);
        CHECK_EQ(rows.block_x[2], ChromeReader::unknown);
        CHECK_EQ(reader.facts().at("baseTimeNanoseconds"), "1700000000000000000");
        CHECK_EQ(reader.facts().at("deviceProperties"), R"([{"name":"a \"GPU\" ]}"}])");
        CHECK_EQ(reader.track_names().at({1, 2}), "main \xC3\xA9");
    }
}

TEST(damaged_text_never_does_harm) {
    std::mt19937 random(2);
    for (int round = 0; round < 20'000; ++round) {
        std::string text = trace_text;
        for (auto i = random() % 6; i > 0 && !text.empty(); --i) {
            const std::size_t at = random() % text.size();
            switch (random() % 4) {
                case 0:
                    text[at] = static_cast<char>(random());
                    break;
                case 1:
                    text.erase(at, random() % 8);
                    break;
                case 2:
                    text.insert(at, 1, "{}[]\",:\\u0e-"[random() % 12]);
                    break;
                default:
                    text.resize(at + 1);
            }
        }
        ChromeReader reader;
        feed_in_pieces(reader, text, random);
        CHECK(reader.rows() <= 8);
        const auto rows = reader.take();
        for (const std::int64_t duration : rows.duration_ns) CHECK(duration >= 0);
    }
}

TEST(an_event_without_an_end_is_not_gathered_for_ever) {
    ChromeReader reader;
    reader.feed(R"([{"name":")");
    const std::string piece(1 << 20, 'x');
    for (int i = 0; i < 20; ++i) reader.feed(piece);
    CHECK(reader.state() == ChromeReader::State::broken);
    CHECK_EQ(reader.problem(), "an event is larger than 16 MiB");
}

TEST(times_are_exact_or_none) {
    CHECK_EQ(json_microseconds("1789012345678.123").value_or(-1), 1'789'012'345'678'123);
    CHECK_EQ(json_microseconds("-0.5").value_or(0), -500);
    CHECK_EQ(json_microseconds("-1.25").value_or(0), -1'250);
    CHECK_EQ(json_microseconds("\"7\"").value_or(0), 7'000);
    CHECK_EQ(json_microseconds("1.9996").value_or(0), 2'000);
    CHECK_EQ(json_microseconds("2e3").value_or(0), 2'000'000);
    for (const char* text :
         {"", "\"\"", "x", "1.2.3", "nan", "inf", "1e300", "9223372036854775807", "--1", "null"})
        CHECK(!json_microseconds(text).has_value());
}

TEST(slices_that_cross_are_in_lanes) {
    SliceLanes lanes;
    CHECK_EQ(lanes.place({1, -1, 0, 10}, true).lane, 0);
    CHECK_EQ(lanes.place({2, 1, 1, 4}, true).level, 1);
    CHECK_EQ(lanes.place({3, 1, 3, 6}, true).lane, 1);    // crosses 2
    CHECK_EQ(lanes.place({4, 3, 4, 2}, true).lane, 1);    // inside 3
    CHECK_EQ(lanes.place({5, 1, 10, 0}, true).level, 1);  // at the very end of its parent
    lanes.begin_track();
    CHECK_EQ(lanes.place({6, -1, 0, 10}, false).lane, 0);
    CHECK_EQ(lanes.place({7, -1, 2, 3}, false).lane, 1);
    CHECK_EQ(lanes.place({8, -1, 10, 3}, false).lane, 0);
}

TEST(what_a_call_launched_belongs_to_what_is_around_it) {
    Nester nester;
    const std::uint32_t process = nester.begin_process(1, 1);
    const auto call = [&](std::int64_t start, std::int64_t length, Nester::Role role) {
        return nester.add({7, SpanKind::operation, role, 2, start, length});
    };
    const auto outer = call(0, 100, Nester::Role::span);
    const auto launch = call(10, 5, Nester::Role::interface_call);
    CHECK_EQ(launch.owner_id, outer.span_id);
    CHECK_EQ(launch.owner_node, outer.owner_node);
    const auto range = call(20, 500, Nester::Role::floating);
    CHECK_EQ(range.parent_id, outer.span_id);
    const auto inside = call(30, 5, Nester::Role::span);
    CHECK_EQ(inside.parent_id, outer.span_id);
    const auto alone = call(200, 5, Nester::Role::interface_call);
    CHECK_EQ(alone.owner_id, -1);
    CHECK_EQ(alone.owner_node, process);
    nester.finish();
    CHECK_EQ(nester.crossings(), 0u);
}

TEST(an_unknown_name_or_track_is_an_error_of_the_caller) {
    PerfettoEncoder encoder(0, {"span"});
    const std::uint32_t track = encoder.add_track({PerfettoEncoder::TrackKind::thread, 0, "t", 1, 2});
    int refused = 0;
    for (const std::uint32_t at : {track, track + 1}) {
        try {
            encoder.add_slice(at, {5, 0, 0, 0, 1});
        } catch (const std::out_of_range&) {
            ++refused;
        }
    }
    CHECK_EQ(refused, 2);
}
