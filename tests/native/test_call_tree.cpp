// SPDX-License-Identifier: Apache-2.0
// The merge by path against an oracle that keeps every span and looks at all of them each time.
#include <algorithm>
#include <random>
#include <set>

#include "builder_bench.hpp"

using namespace gpuprof;
using namespace gpuprof::test;

namespace {

struct Merged {
    std::int64_t calls = 0, total_ns = 0, own_ns = 0;
    std::set<std::uint32_t> threads;
};
using Paths = std::map<std::string, Merged>;

struct Span {
    std::string kind, name, path;
    std::uint32_t thread, task;
    std::uint64_t begin, end;
    int parent;
    bool open;
};

class Oracle {
  public:
    void begin(std::uint32_t thread, std::uint32_t task, const std::string& kind, const std::string& name,
               std::uint64_t at) {
        const int parent = innermost(thread, task, [](const Span&) { return true; });
        const std::string above = parent < 0 ? "" : spans_[static_cast<std::size_t>(parent)].path;
        spans_.push_back({kind, name, above + "/" + kind + ":" + name, thread, task, at, 0, parent, true});
    }
    // False, and nothing done, where this task has no such span.
    bool end(std::uint32_t thread, std::uint32_t task, const std::string& kind, const std::string& name,
             std::uint64_t at) {
        const int found = innermost(thread, task, [&](const Span& span) {
            return span.kind == kind && (kind == "operator" || span.name == name);
        });
        if (found >= 0) close(spans_[static_cast<std::size_t>(found)], at);
        return found >= 0;
    }
    bool would_forward(std::uint32_t thread, std::uint32_t task, const std::string& kind,
                       const std::string& name) const {
        const int parent = innermost(thread, task, [](const Span&) { return true; });
        if (parent < 0 || kind != "operator") return false;
        const Span& outer = spans_[static_cast<std::size_t>(parent)];
        return outer.kind == kind && outer.name == name;
    }
    void finish(std::uint64_t at) {
        for (Span& span : spans_)
            if (span.open) close(span, at);
    }
    // Self time: what is not covered by the children, each counted up to the end of its parent.
    Paths merge() const {
        Paths paths;
        for (std::size_t i = 0; i < spans_.size(); ++i) {
            const Span& span = spans_[i];
            auto own = static_cast<std::int64_t>(span.end - span.begin);
            for (const Span& child : spans_)
                if (child.parent == static_cast<int>(i))
                    own -= static_cast<std::int64_t>(std::min(child.end, span.end) - child.begin);
            Merged& merged = paths[span.path];
            ++merged.calls;
            merged.total_ns += static_cast<std::int64_t>(span.end - span.begin);
            merged.own_ns += own;
            merged.threads.insert(span.thread);
        }
        return paths;
    }

  private:
    static void close(Span& span, std::uint64_t at) {
        span.end = at;
        span.open = false;
    }
    template <typename Condition>
    int innermost(std::uint32_t thread, std::uint32_t task, Condition condition) const {
        for (std::size_t i = spans_.size(); i-- > 0;)
            if (spans_[i].open && spans_[i].thread == thread && spans_[i].task == task &&
                condition(spans_[i]))
                return static_cast<int>(i);
        return -1;
    }
    std::vector<Span> spans_;
};

struct KindOfSpan {
    const char* text;
    EventKind begin, end;
    const char* names[3];
};
constexpr KindOfSpan kinds[] = {
    {"span", EventKind::span_begin, EventKind::span_end, {"a", "b", "c"}},
    {"layer", EventKind::layer_begin, EventKind::layer_end, {"Model", "head", "a"}},
    {"operator", EventKind::operator_begin, EventKind::operator_end, {"aten::mm", "aten::add", "x::y"}},
};

// A thread of random begins and ends, in three tasks, not always like a stack.
void play(std::mt19937_64& random, BuilderBench& bench, Oracle& oracle, std::uint32_t number) {
    SpanBuilder builder = bench.thread(number);
    std::uint64_t now = random() % 100;
    std::uint32_t task = 1;
    builder.enter_context(task, 0);
    for (int i = 0; i < 150; ++i) {
        now += random() % 20;
        if (random() % 10 == 0) builder.enter_context(task = static_cast<std::uint32_t>(1 + random() % 3), 0);
        const KindOfSpan& kind = kinds[random() % 3];
        const std::string name = kind.names[random() % 3];
        // An operator inside its like is a matter of its own: test_span_builder.cpp.
        if (random() % 9 < 4 && !oracle.would_forward(number, task, kind.text, name)) {
            builder.add(kind.begin, bench.name(name), now);
            oracle.begin(number, task, kind.text, name, now);
        } else if (oracle.end(number, task, kind.text, name, now)) {
            builder.add(kind.end, bench.name(name), now);
        }
    }
    builder.finish(now + 5);
    oracle.finish(now + 5);
}

Paths merged_by(BuilderBench& bench) {
    Paths paths;
    for (std::uint32_t i = 0; i < bench.tree.nodes().size(); ++i) {
        const CallTree::Node& node = bench.tree.nodes()[i];
        if (node.parent == CallTree::no_parent) continue;
        Merged merged{node.calls, node.total_ns, node.own_ns, {}};
        for (std::int32_t thread = 0; thread < node.threads; ++thread)
            merged.threads.insert(static_cast<std::uint32_t>(thread));
        CHECK(paths.emplace(bench.path_of(i), merged).second);
    }
    return paths;
}

}  // namespace

TEST(random_traces_agree_with_the_oracle) {
    constexpr std::uint64_t seeds = sanitized ? 60 : 300;
    for (std::uint64_t seed = 1; seed <= seeds; ++seed) {
        std::mt19937_64 random(seed);
        BuilderBench bench;
        Oracle oracle;
        const auto threads = static_cast<std::uint32_t>(1 + random() % 3);
        for (std::uint32_t thread = 1; thread <= threads; ++thread) play(random, bench, oracle, thread);
        const Paths found = merged_by(bench), expected = oracle.merge();
        CHECK_EQ(found.size(), expected.size());
        for (const auto& [path, merged] : expected) {
            const auto place = found.find(path);
            REQUIRE(place != found.end());
            const bool agree = place->second.calls == merged.calls &&
                               place->second.total_ns == merged.total_ns &&
                               place->second.own_ns == merged.own_ns &&
                               place->second.threads.size() == merged.threads.size();
            if (!CHECK(agree)) std::fprintf(stderr, "  seed %lu, %s\n", seed, path.c_str());
        }
        CHECK_EQ(bench.totals.unmatched_ends, 0u);
    }
}

TEST(own_times_without_tasks_add_up_to_the_whole) {
    BuilderBench bench;
    SpanBuilder builder = bench.thread();
    std::mt19937_64 random(3);
    std::vector<std::uint32_t> open;
    std::uint64_t now = 0;
    std::int64_t covered = 0;
    for (int i = 0; i < 20'000; ++i) {
        const std::uint64_t step = random() % 50;
        covered += open.empty() ? 0 : static_cast<std::int64_t>(step);
        now += step;
        if (!open.empty() && random() % 2 == 0) {
            builder.add(EventKind::span_end, open.back(), now);
            open.pop_back();
        } else {
            open.push_back(bench.name(std::string(1, static_cast<char>('a' + random() % 5))));
            builder.add(EventKind::span_begin, open.back(), now);
        }
    }
    builder.finish(now);
    bench.tree.finish();
    std::int64_t own = 0;
    for (const CallTree::Node& node : bench.tree.nodes()) own += node.own_ns;
    CHECK_EQ(own, covered);
    CHECK_EQ(bench.tree.nodes()[0].total_ns, covered);
}

TEST(a_wide_tree_is_found_again) {
    constexpr std::uint32_t width = 50'000;
    CallTree tree;
    const std::uint32_t first = tree.add_process(1, 1), second = tree.add_process(2, 1);
    std::vector<std::uint32_t> nodes;
    for (std::uint32_t name = 1; name <= width; ++name)
        nodes.push_back(tree.child(name % 2 == 0 ? first : second, SpanKind::span, name));
    for (std::uint32_t name = 1; name <= width; ++name)
        CHECK_EQ(tree.child(name % 2 == 0 ? first : second, SpanKind::span, name), nodes[name - 1]);
    CHECK(tree.child(first, SpanKind::layer, 2) != nodes[1]);
    CHECK_EQ(tree.nodes()[nodes[0]].process_id, 2u);
    CHECK_EQ(tree.nodes()[nodes[1]].process_id, 1u);
}

TEST(preorder_has_parents_first_and_subtrees_together) {
    CallTree tree;
    const std::uint32_t first = tree.add_process(1, 1), second = tree.add_process(2, 1);
    const std::uint32_t a = tree.child(first, SpanKind::span, 1), x = tree.child(second, SpanKind::span, 1);
    const std::uint32_t b = tree.child(first, SpanKind::span, 2), aa = tree.child(a, SpanKind::span, 1);
    const std::uint32_t ba = tree.child(b, SpanKind::span, 1), ab = tree.child(a, SpanKind::span, 2);
    for (const std::uint32_t node : {aa, ab, ba, x}) tree.add_call(node, 1, 1, 1);
    tree.child(first, SpanKind::span, 9);  // never called: not listed
    const std::vector<std::uint32_t> order = tree.preorder();
    auto place = [&](std::uint32_t node) {
        return std::find(order.begin(), order.end(), node) - order.begin();
    };
    REQUIRE(order.size() == 8);
    for (const auto& subtree : {std::vector{a, aa, ab}, std::vector{b, ba}, std::vector{second, x}}) {
        std::vector<std::ptrdiff_t> places;
        for (const std::uint32_t node : subtree) places.push_back(place(node));
        CHECK_EQ(*std::min_element(places.begin(), places.end()), places[0]);
        CHECK_EQ(*std::max_element(places.begin(), places.end()),
                 places[0] + static_cast<std::ptrdiff_t>(subtree.size()) - 1);
    }
    CHECK(place(first) < place(a) && place(first) < place(b));
}
