// SPDX-License-Identifier: Apache-2.0
#include <set>

#include "builder_bench.hpp"

using namespace gpuprof;
using namespace gpuprof::test;

TEST(nested_spans) {
    BuilderBench bench;
    Thread thread(bench);
    thread.begin("a", 0);
    thread.begin("b", 10);
    thread.begin("c", 20);
    thread.end("c", 25);
    thread.end("b", 40);
    thread.begin("d", 50);
    thread.end("d", 51);
    thread.end("a", 100);
    CHECK_EQ(bench.parent_of("c"), "b");
    CHECK_EQ(bench.parent_of("b"), "a");
    CHECK_EQ(bench.parent_of("d"), "a");
    CHECK_EQ(bench.parent_of("a"), "");
    CHECK_EQ(bench.node("/span:a").total_ns, 100);
    CHECK_EQ(bench.node("/span:a").own_ns, 100 - 30 - 1);
    CHECK_EQ(bench.node("/span:a/span:b").own_ns, 30 - 5);
    CHECK_EQ(bench.rows.depth[bench.row("c")], 2);
    CHECK_EQ(bench.totals.spans, 4u);
}

TEST(recursion) {
    BuilderBench bench;
    Thread thread(bench);
    for (std::uint64_t i = 0; i < 4; ++i) thread.begin("f", i);
    for (std::uint64_t i = 0; i < 4; ++i) thread.end("f", 10 * (i + 1));
    CHECK_EQ(bench.node("/span:f").total_ns, 40);
    CHECK_EQ(bench.node("/span:f/span:f").total_ns, 29);
    CHECK_EQ(bench.node("/span:f/span:f/span:f/span:f").total_ns, 7);
    CHECK_EQ(bench.node("/span:f").own_ns, 11);
    const std::set<std::int64_t> ids(bench.rows.span_id.begin(), bench.rows.span_id.end());
    CHECK_EQ(ids.size(), 4u);
}

TEST(spans_that_do_not_end_like_a_stack) {
    BuilderBench bench;
    Thread thread(bench);
    thread.begin("consumer", 0);
    thread.begin("generator", 10);
    thread.begin("inside", 20);
    thread.end("generator", 30);  // "inside" continues
    thread.begin("later", 40);
    thread.end("later", 45);
    thread.end("inside", 50);
    thread.begin("last", 60);
    thread.end("last", 70);
    thread.end("consumer", 100);
    CHECK_EQ(bench.parent_of("inside"), "generator");
    CHECK_EQ(bench.parent_of("later"), "inside");
    CHECK_EQ(bench.parent_of("last"), "consumer");
    const std::string generator = "/span:consumer/span:generator";
    CHECK_EQ(bench.node(generator).total_ns, 20);
    CHECK_EQ(bench.node(generator).own_ns, 10);
    CHECK_EQ(bench.node(generator + "/span:inside").total_ns, 30);
    CHECK_EQ(bench.node(generator + "/span:inside").own_ns, 25);
    CHECK_EQ(bench.node("/span:consumer").own_ns, 100 - 20 - 10);
}

// As many tasks as it takes for idle ones to be forgotten, several times over.
TEST(a_task_that_lives_long_keeps_its_parent) {
    BuilderBench bench;
    Thread thread(bench);
    constexpr std::uint32_t serving = 1, old = 2, many = 400'000;
    thread.task(serving);
    thread.begin("serve", 0);
    thread.task(old, serving);
    thread.begin("first", 1);
    thread.end("first", 2);
    for (std::uint32_t task = old + 1; task < many; ++task) thread.task(task, serving);
    thread.task(old, serving);
    thread.begin("late", 10);
    thread.end("late", 11);
    thread.finish(20);
    CHECK_EQ(bench.parent_of("first"), "serve");
    CHECK_EQ(bench.parent_of("late"), "serve");
}

TEST(interleaved_tasks_with_equal_names) {
    BuilderBench bench;
    Thread thread(bench);
    for (const std::uint64_t task : {1u, 2u}) {
        thread.task(task);
        thread.begin("request", 10 * task);
    }
    for (const std::uint64_t task : {1u, 2u}) {
        thread.task(task);
        thread.begin("query", 100 * task);
    }
    thread.task(1);
    thread.end("query", 300);
    thread.end("request", 310);
    thread.task(2);
    thread.end("query", 400);
    thread.end("request", 420);
    REQUIRE(bench.rows.size() == 4);
    const auto& rows = bench.rows;
    CHECK_EQ(rows.duration_ns[0], 200);
    CHECK_EQ(rows.duration_ns[1], 300);
    CHECK_EQ(rows.duration_ns[2], 200);
    CHECK_EQ(rows.duration_ns[3], 400);
    CHECK_EQ(rows.parent_id[0], rows.span_id[1]);
    CHECK_EQ(rows.parent_id[2], rows.span_id[3]);
    CHECK_EQ(bench.node("/span:request").calls, 2);
    CHECK_EQ(bench.node("/span:request").own_ns, 100 + 200);
}

TEST(a_task_hangs_under_the_span_that_was_open_where_it_started) {
    BuilderBench bench;
    Thread thread(bench);
    thread.task(1);
    thread.begin("main", 0);
    thread.task(2, 1);
    thread.begin("child task", 10);
    thread.task(3, 2);
    thread.begin("grandchild task", 20);
    thread.task(1);
    thread.end("main", 30);
    thread.task(3);
    thread.end("grandchild task", 40);
    thread.task(2);
    thread.end("child task", 50);
    CHECK_EQ(bench.parent_of("child task"), "main");
    CHECK_EQ(bench.parent_of("grandchild task"), "child task");
    CHECK_EQ(bench.totals.unmatched_ends, 0u);
}

TEST(a_task_whose_ancestors_are_done_or_circular_is_a_root) {
    BuilderBench bench;
    Thread thread(bench);
    thread.task(1);
    thread.begin("main", 0);
    thread.end("main", 1);
    thread.task(2, 1);
    thread.begin("orphan", 2);
    thread.end("orphan", 3);
    thread.task(8, 9);
    thread.task(9, 8);
    thread.begin("circular", 4);
    thread.end("circular", 5);
    CHECK_EQ(bench.parent_of("orphan"), "");
    CHECK_EQ(bench.parent_of("circular"), "");
}

TEST(a_span_that_ends_in_another_task) {
    BuilderBench bench;
    Thread thread(bench);
    thread.task(1);
    thread.begin("generator", 0);
    thread.task(2);
    thread.end("generator", 10);
    CHECK_EQ(bench.rows.duration_ns.at(0), 10);
    CHECK_EQ(bench.totals.unmatched_ends, 0u);
}

TEST(ends_without_a_begin) {
    BuilderBench bench;
    Thread thread(bench);
    thread.end("never begun", 5);
    thread.operation_end(6);
    thread.begin("a", 10);
    thread.end("b", 15);
    thread.end("a", 16, layer_end);  // another kind
    thread.operation_end(17);
    thread.end("a", 20);
    thread.end("a", 30);
    CHECK_EQ(bench.totals.unmatched_ends, 6u);
    CHECK_EQ(bench.totals.spans, 1u);
    CHECK_EQ(bench.rows.duration_ns.at(0), 10);
}

TEST(spans_that_never_end) {
    BuilderBench bench;
    Thread thread(bench);
    thread.begin("outer", 10);
    thread.begin("inner", 20);
    thread.task(7, 0);
    thread.begin("in a task", 30);
    thread.finish(100);
    CHECK_EQ(bench.totals.unfinished_spans, 3u);
    CHECK_EQ(bench.rows.duration_ns[bench.row("outer")], 90);
    CHECK_EQ(bench.rows.duration_ns[bench.row("in a task")], 70);
    CHECK_EQ(bench.node("/span:outer").own_ns, 10);
}

TEST(a_depth_of_twenty_thousand) {
    constexpr std::uint64_t depth = 20'000;
    BuilderBench bench;
    Thread thread(bench);
    for (std::uint64_t i = 0; i < depth; ++i) thread.begin(i % 2 == 0 ? "even" : "odd", i);
    for (std::uint64_t i = depth; i-- > 0;) thread.end(i % 2 == 0 ? "even" : "odd", 2 * depth - i);
    bench.tree.finish();
    REQUIRE(bench.rows.size() == depth);
    CHECK_EQ(bench.rows.depth[0], static_cast<std::int32_t>(depth - 1));
    CHECK_EQ(bench.rows.duration_ns[depth - 1], static_cast<std::int64_t>(2 * depth));
    CHECK_EQ(bench.tree.preorder().size(), depth + 1);
    std::int64_t own = 0;
    for (const CallTree::Node& node : bench.tree.nodes()) own += node.own_ns;
    CHECK_EQ(own, static_cast<std::int64_t>(2 * depth));
}

TEST(unknown_kinds_are_counted) {
    BuilderBench bench;
    SpanBuilder builder = bench.thread();
    for (const std::uint32_t kind : {0u, 7u, 8u, 9u, 0xFFFFFFFFu})
        builder.add(static_cast<EventKind>(kind), bench.name("x"), 1);
    CHECK_EQ(bench.totals.damaged_events, 5u);
    CHECK_EQ(bench.rows.size(), 0u);
}
