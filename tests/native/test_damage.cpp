// SPDX-License-Identifier: Apache-2.0
// Flipped bits at any place: the decoder ends, its output is sane, and what it lost
// is counted.
#include <random>

#include "fake_recording.hpp"
#include "support.hpp"

using namespace gpuprof;
using namespace gpuprof::test;

namespace {

constexpr std::uint64_t spans_in_example = 320;

FakeRecording example() {
    FakeRecording recording;
    const std::uint32_t names[] = {recording.name("step"), recording.name("aten::mm"),
                                   recording.name("Model"), recording.name("layers.0", 3)};
    for (std::uint32_t thread = 1; thread <= 2; ++thread) {
        recording.thread(thread);
        for (std::uint64_t i = 0; i < spans_in_example / 8; ++i) {
            const std::uint64_t at = 1000 * i + thread;
            if (i % 10 == 0) recording.raw(EventKind::context, 0, 1 + i / 10);
            recording.event(EventKind::span_begin, names[0], at);
            recording.event(EventKind::layer_begin, names[3], at + 100);
            recording.event(EventKind::operator_begin, names[1], at + 200);
            recording.event(EventKind::operator_end, 0, at + 300);
            recording.event(EventKind::layer_end, names[3], at + 400);
            recording.span(names[2], at + 450, at + 480);
            recording.event(EventKind::span_end, names[0], at + 500);
        }
    }
    return recording;
}

class Decoder {
  public:
    explicit Decoder(const FakeRecording& recording) : stem_(recording.stem()) { recording.write(folder_()); }
    Spans with_segment(const Bytes& bytes) { return with(".0.segment", bytes); }
    Spans with_names(const Bytes& bytes) { return with(".names", bytes); }

  private:
    Spans with(const std::string& ending, const Bytes& bytes) {
        write_file(folder_ / (stem_ + ending), bytes);
        return decode_folder(folder_());
    }

    TemporaryFolder folder_;
    std::string stem_;
};

bool rows_are_sane(const Spans& spans) {
    const SpanColumns& rows = spans.rows;
    for (std::size_t i = 0; i < rows.size(); ++i) {
        const bool sane = rows.duration_ns[i] >= 0 && rows.start_ns[i] >= 0 && rows.name[i] >= 1 &&
                          rows.name[i] <= spans.run.names.size() && rows.kind[i] >= 1 && rows.kind[i] <= 6 &&
                          rows.parent_id[i] < rows.span_id[i] && rows.depth[i] >= 0 &&
                          rows.start_ns[i] + rows.duration_ns[i] >= rows.start_ns[i];
        if (!sane) return false;
    }
    return true;
}

bool tree_is_sane(const Spans& spans) {
    std::int64_t calls = 0;
    const auto& nodes = spans.run.tree.nodes();
    for (std::size_t i = 0; i < nodes.size(); ++i) {
        const bool rooted = nodes[i].parent == CallTree::no_parent || nodes[i].parent < i;
        if (!rooted || nodes[i].own_ns < 0 || nodes[i].own_ns > nodes[i].total_ns) return false;
        calls += nodes[i].calls;
    }
    return calls == static_cast<std::int64_t>(spans.rows.size()) &&
           spans.run.totals.spans == spans.rows.size() && spans.run.tree.preorder().size() <= nodes.size();
}

bool is_sane(const Spans& spans) {
    return rows_are_sane(spans) && tree_is_sane(spans);
}

bool says_damaged(const Spans& spans) {
    const DecodeTotals& totals = spans.run.totals;
    return !spans.run.damage.empty() ||
           totals.damaged_events + totals.unmatched_ends + totals.unfinished_spans > 0;
}

bool same_rows(const Spans& a, const Spans& b) {
    return a.rows.start_ns == b.rows.start_ns && a.rows.duration_ns == b.rows.duration_ns &&
           a.rows.name == b.rows.name && a.rows.parent_id == b.rows.parent_id && a.rows.kind == b.rows.kind;
}

Bytes flipped(Bytes bytes, std::size_t bit) {
    bytes[bit / 8] = static_cast<char>(bytes[bit / 8] ^ 1 << bit % 8);
    return bytes;
}

}  // namespace

TEST(the_example_is_whole) {
    const Spans spans = Decoder(example()).with_segment(example().segment(false));
    CHECK(is_sane(spans));
    CHECK_EQ(spans.run.totals.spans, spans_in_example);
    CHECK_EQ(spans.run.totals.damaged_events, 0u);
    CHECK_EQ(spans.run.totals.unmatched_ends, 0u);
}

TEST(each_bit_of_the_header_flipped) {
    for (const bool closed : {true, false}) {
        FakeRecording recording = example();
        recording.closed = closed;
        Decoder decoder(recording);
        const Bytes whole = recording.segment();
        const Spans reference = decoder.with_segment(whole);
        for (std::size_t bit = 0; bit < 8 * (sizeof(SegmentHeader) + 8); ++bit) {
            const Spans spans = decoder.with_segment(flipped(whole, bit));
            CHECK(is_sane(spans));
            if (bit / 8 < offsetof(SegmentHeader, latest_point)) {
                CHECK_EQ(spans.run.damage.size(), 1u);
                CHECK_EQ(spans.rows.size(), 0u);
            } else if (!CHECK_EQ(spans.rows.size(), reference.rows.size())) {
                std::fprintf(stderr, "  bit %zu\n", bit);
            }
        }
    }
}

TEST(each_byte_of_the_header_overwritten) {
    Decoder decoder(example());
    const Bytes whole = example().segment();
    for (std::size_t at = 0; at < header_bytes; at += at < sizeof(SegmentHeader) ? 1 : 101)
        for (const char value : {'\0', '\x7f', '\xff'}) {
            Bytes bytes = whole;
            bytes[at] = value;
            CHECK(is_sane(decoder.with_segment(bytes)));
        }
}

TEST(one_bit_of_an_event_flipped) {
    std::mt19937_64 random(20'240'601);
    for (const bool closed : {true, false}) {
        FakeRecording recording = example();
        recording.closed = closed;
        Decoder decoder(recording);
        const Bytes whole = recording.segment(false);
        const Spans reference = decoder.with_segment(whole);
        const std::size_t chunk_end = header_bytes + recording.chunks()[0].size() * sizeof(Event);
        for (int i = 0; i < 1500; ++i) {
            // Of the first chunk's used part; the rest reads as zeros.
            const std::size_t bit = 8 * header_bytes + random() % (8 * (chunk_end - header_bytes));
            const Spans spans = decoder.with_segment(flipped(whole, bit));
            if (!CHECK(is_sane(spans))) std::fprintf(stderr, "  bit %zu\n", bit);
            // One event is one begin or one end: the rest is there.
            const bool in_mark = (bit / 8 - header_bytes) / sizeof(Event) < thread_mark_slots;
            CHECK(in_mark || spans.rows.size() + 2 >= reference.rows.size());
            const bool lost = spans.rows.size() != reference.rows.size();
            if (!CHECK(!lost || says_damaged(spans))) std::fprintf(stderr, "  bit %zu\n", bit);
        }
    }
}

TEST(many_bits_flipped_anywhere) {
    std::mt19937_64 random(7);
    Decoder decoder(example());
    const Bytes whole = example().segment();
    for (int i = 0; i < 1000; ++i) {
        Bytes bytes = whole;
        const std::uint64_t flips = 1 + random() % 500;
        for (std::uint64_t k = 0; k < flips; ++k) {
            const std::size_t from = k % 2 == 0 ? 8 * header_bytes : 0;
            bytes = flipped(std::move(bytes), from + random() % (8 * bytes.size() - from));
            // The identity stays, or nothing would be read at all.
            std::copy_n(whole.begin(), offsetof(SegmentHeader, latest_point), bytes.begin());
        }
        CHECK(is_sane(decoder.with_segment(bytes)));
    }
}

TEST(random_bytes_in_place_of_events) {
    std::mt19937_64 random(99);
    Decoder decoder(example());
    const Bytes whole = example().segment(false);
    for (int i = 0; i < 500; ++i) {
        Bytes bytes = whole;
        for (std::size_t at = header_bytes + 32; at < bytes.size(); ++at)
            bytes[at] = static_cast<char>(at % 16 >= 12 ? (at % 16 == 12 ? random() % 10 : 0) : random());
        CHECK(is_sane(decoder.with_segment(bytes)));
    }
}

TEST(bits_of_the_names_flipped) {
    Decoder decoder(example());
    const Bytes whole = example().names();
    const Spans reference = decoder.with_names(whole);
    for (std::size_t bit = 0; bit < 8 * whole.size(); ++bit) {
        const Spans spans = decoder.with_names(flipped(whole, bit));
        CHECK(is_sane(spans));
        CHECK_EQ(spans.rows.size(), reference.rows.size());
        CHECK(spans.rows.start_ns == reference.rows.start_ns);
    }
}

TEST(damage_in_one_process_leaves_the_others_alone) {
    const TemporaryFolder folder;
    FakeRecording good(100), bad(101);
    for (FakeRecording* recording : {&good, &bad}) {
        recording->name("work");
        recording->thread(1);
        for (std::uint64_t i = 0; i < 100; ++i) recording->span(1, 10 * i, 10 * i + 5);
    }
    good.write(folder());
    const Spans alone = decode_folder(folder());
    bad.latest = {~std::uint64_t{0}, 1};
    for (Event& event : bad.chunks()[0])
        if (event.kind != 8) event.ticks = event.ticks * 0x9E3779B97F4A7C15ull;
    bad.write(folder());
    Spans both = decode_folder(folder());
    CHECK(is_sane(both));
    for (auto* column : {&both.rows.start_ns, &both.rows.duration_ns, &both.rows.parent_id})
        column->resize(alone.rows.size());
    both.rows.name.resize(alone.rows.size());
    both.rows.kind.resize(alone.rows.size());
    CHECK_EQ(alone.rows.size(), 100u);
    CHECK(same_rows(both, alone));
}

TEST(a_segment_that_is_gone_is_missed) {
    const TemporaryFolder folder;
    start(folder);
    emit_numbered_spans(40'000);
    Recorder::instance().stop();
    REQUIRE(folder.files(".segment").size() == 2);
    CHECK_EQ(decode_folder(folder()).run.damage.size(), 0u);
    for (const fs::path& path : folder.files(".segment"))
        if (path.stem().extension() == ".0") fs::remove(path);
    const Spans spans = decode_folder(folder());
    REQUIRE(spans.run.damage.size() == 1);
    CHECK(spans.run.damage[0].kind == DamageKind::segments_missing);
    CHECK_EQ(spans.run.damage[0].count, 1u);
}

namespace {

// Two spans are open when the events are lost that `lose` takes away; then one of them ends, and one is
// whole.
template <typename Lose>
void check_spans_around_a_gap(Lose lose) {
    FakeRecording recording;
    const std::uint32_t outer = recording.name("outer"), inner = recording.name("inner");
    recording.thread(1, 0);
    recording.event(EventKind::span_begin, outer, 100);
    recording.event(EventKind::span_begin, inner, 250);
    lose(recording);
    recording.event(EventKind::span_end, inner, 9'000);
    recording.span(inner, 9'500, 9'600);
    const TemporaryFolder folder;
    recording.write(folder());
    const Spans spans = decode_folder(folder());
    REQUIRE(spans.rows.size() == 3);
    std::map<std::int64_t, std::pair<std::string, std::int64_t>> found;
    for (std::size_t row = 0; row < 3; ++row)
        found[spans.rows.start_ns[row]] = {spans.name(row), spans.rows.duration_ns[row]};
    CHECK(found[100] == std::pair(std::string("outer"), std::int64_t{150}));
    CHECK(found[250] == std::pair(std::string("inner"), std::int64_t{0}));
    CHECK(found[9'500] == std::pair(std::string("inner"), std::int64_t{100}));
    CHECK_EQ(spans.run.totals.unfinished_spans, 2u);
    CHECK_EQ(spans.run.totals.unmatched_ends, 1u);
    CHECK(tree_is_sane(spans));
}

}  // namespace

TEST(what_was_open_before_lost_events_ends_there) {
    check_spans_around_a_gap([](FakeRecording& recording) { recording.thread(1, 2); });
    check_spans_around_a_gap([](FakeRecording& recording) { recording.chunks().back().push_back(Event{}); });
}

TEST(damaged_counts_of_losses_are_reported) {
    const TemporaryFolder folder;
    start(folder);
    emit_numbered_spans(1);
    Recorder::instance().stop();
    write_file(Losses::path_in(folder()), Bytes(header_bytes, '\7'));
    const Spans spans = decode_folder(folder());
    CHECK_EQ(spans.run.totals.spans, 1u);
    REQUIRE(spans.run.damage.size() == 1);
    CHECK(spans.run.damage[0].kind == DamageKind::losses_header);
}
