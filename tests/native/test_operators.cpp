// SPDX-License-Identifier: Apache-2.0
#include "builder_bench.hpp"

using namespace gpuprof;
using namespace gpuprof::test;

TEST(announcements_of_pytorch_are_classified) {
    CHECK(classify_name("aten::mm") == NameClass::qualified);
    CHECK(classify_name("autograd::engine::evaluate_function: AddmmBackward0") == NameClass::backward);
    CHECK(classify_name("AddmmBackward0") == NameClass::plain);
    CHECK(classify_name("my range") == NameClass::plain);
    CHECK(classify_name("Optimizer.step#SGD.step") == NameClass::plain);
    CHECK(classify_name("enumerate(DataLoader)#a::b") == NameClass::plain);
    CHECK(classify_name("a sentence with a :: in it") == NameClass::plain);
    CHECK(classify_name("::") == NameClass::plain);
    CHECK(classify_name("") == NameClass::plain);

    BuilderBench bench;
    Thread thread(bench);
    thread.operation("my range", 0);
    thread.operation("aten::linear", 10);
    thread.operation("plain inside", 20);
    thread.operation_end(30);
    thread.operation_end(40);
    thread.begin("Model", 50, layer_begin);
    thread.end("Model", 60, layer_end);
    thread.operation_end(70);
    CHECK_EQ(bench.node("/span:my range").total_ns, 70);
    CHECK_EQ(bench.node("/span:my range/operator:aten::linear/operator:plain inside").total_ns, 10);
    CHECK_EQ(bench.node("/span:my range/layer:Model").total_ns, 10);
}

TEST(the_backward_pass_is_gathered_under_its_own_root) {
    const std::string node = "autograd::engine::evaluate_function: AddmmBackward0";
    BuilderBench bench;
    Thread thread(bench);
    thread.begin("step", 0);
    for (const std::uint64_t at : {100u, 200u}) {
        thread.operation(node, at);
        thread.operation("AddmmBackward0", at + 10);
        thread.operation("aten::mm", at + 20);
        thread.operation_end(at + 30);
        thread.operation_end(at + 40);
        thread.operation_end(at + 50);
    }
    thread.end("step", 1000);
    thread.operation(node, 2000);
    thread.operation_end(2001);
    bench.tree.finish();
    const std::string group = "/span:step/backward:backward";
    CHECK_EQ(bench.node(group).calls, 0);
    CHECK_EQ(bench.node(group).total_ns, 100);
    CHECK_EQ(bench.node(group + "/backward:" + node).calls, 2);
    CHECK_EQ(bench.node(group + "/backward:" + node + "/operator:AddmmBackward0/operator:aten::mm").total_ns,
             20);
    CHECK_EQ(bench.node("/backward:backward/backward:" + node).calls, 1);
    CHECK_EQ(bench.node("/span:step").own_ns, 900);
    CHECK_EQ(bench.node("").total_ns, 1001);
}

TEST(an_operator_that_only_forwards_to_its_like_is_one_call) {
    BuilderBench bench;
    Thread thread(bench);
    for (const std::uint64_t at : {0u, 10u, 20u}) thread.operation("aten::mul", at);
    thread.operation("aten::add", 30);
    for (const std::uint64_t at : {40u, 50u, 70u, 100u}) thread.operation_end(at);
    REQUIRE(bench.rows.size() == 2);
    CHECK_EQ(bench.totals.spans, 2u);
    CHECK_EQ(bench.parent_of("aten::add"), "aten::mul");
    CHECK_EQ(bench.rows.depth[bench.row("aten::add")], 1);
    CHECK_EQ(bench.node("/operator:aten::mul").calls, 1);
    CHECK_EQ(bench.node("/operator:aten::mul").own_ns, 90);
    CHECK_EQ(bench.node("/operator:aten::mul/operator:aten::add").total_ns, 10);
    CHECK_EQ(bench.tree.preorder().size(), 3u);
}

TEST(an_operator_that_does_more_than_forward_is_not_merged) {
    BuilderBench bench;
    Thread thread(bench);
    thread.operation("aten::mul", 0);
    for (const std::uint64_t at : {10u, 20u}) {
        thread.operation("aten::mul", at);
        thread.operation_end(at + 5);
    }
    thread.operation_end(40);
    CHECK_EQ(bench.rows.size(), 3u);
    CHECK_EQ(bench.node("/operator:aten::mul").own_ns, 30);
    CHECK_EQ(bench.node("/operator:aten::mul/operator:aten::mul").calls, 2);
}

TEST(siblings_of_a_merged_operator_stay) {
    BuilderBench bench;
    Thread thread(bench);
    thread.operation("x::call", 0);
    thread.begin("Sibling", 10, layer_begin);
    thread.end("Sibling", 20, layer_end);
    thread.operation("x::call", 30);
    thread.operation("x::inner", 40);
    thread.operation_end(50);
    thread.operation_end(60);
    thread.operation_end(100);
    REQUIRE(bench.rows.size() == 3);
    CHECK_EQ(bench.parent_of("Sibling"), "x::call");
    CHECK_EQ(bench.parent_of("x::inner"), "x::call");
    CHECK_EQ(bench.rows.depth[bench.row("Sibling")], 1);
    CHECK_EQ(bench.rows.depth[bench.row("x::inner")], 1);
    CHECK_EQ(bench.node("/operator:x::call").own_ns, 80);
    CHECK_EQ(bench.node("/operator:x::call/layer:Sibling").total_ns, 10);
    CHECK_EQ(bench.tree.nodes().size(), 6u);  // with the two that the merge emptied
}

TEST(an_operator_that_leaves_a_span_open_is_not_merged) {
    BuilderBench bench;
    Thread thread(bench);
    thread.operation("x::call", 0);
    thread.operation("x::call", 10);
    thread.begin("generator", 20);
    thread.operation_end(30);
    thread.operation_end(40);
    thread.end("generator", 50);
    CHECK_EQ(bench.rows.size(), 3u);
    CHECK(bench.parent_of("generator") == "x::call");  // which is there
}

TEST(bookkeeping_of_pytorch_is_left_out) {
    BuilderBench bench;
    Thread thread(bench);
    thread.operation("aten::is_leaf", 0);
    thread.operation_end(5);
    thread.operation("aten::mm", 10);
    thread.operation("profiler::_record_function_enter_new", 20);
    thread.operation("aten::zeros", 30);
    thread.operation_end(40);
    thread.operation_end(50);
    thread.operation_end(100);
    thread.operation("aten::_version", 110);
    thread.finish(200);
    REQUIRE(bench.rows.size() == 2);
    CHECK_EQ(bench.parent_of("aten::zeros"), "aten::mm");
    CHECK_EQ(bench.rows.depth[bench.row("aten::mm")], 0);
    CHECK_EQ(bench.rows.depth[bench.row("aten::zeros")], 1);
    CHECK_EQ(bench.node("/operator:aten::mm").own_ns, 80);
    CHECK_EQ(bench.totals.unfinished_spans, 0u);
    CHECK_EQ(bench.totals.unmatched_ends, 0u);
}

TEST(a_launch_hangs_under_what_is_open) {
    BuilderBench bench;
    Thread thread(bench);
    thread.launch(1, 5);
    thread.begin("Net", 10, layer_begin);
    thread.operation("aten::mm", 20);
    thread.launch(2, 25);
    thread.operation_end(30);
    thread.operation("aten::is_leaf", 31);
    thread.launch(3, 35);
    thread.operation_end(36);
    thread.end("Net", 40, layer_end);
    CHECK_EQ(bench.launched_in(1), "");
    CHECK_EQ(bench.launched_in(2), "/layer:Net/operator:aten::mm");
    CHECK_EQ(bench.launched_in(3), "/layer:Net");
    CHECK_EQ(bench.links.span_id[0], -1);
    CHECK_EQ(bench.links.span_id[1], bench.rows.span_id[bench.row("aten::mm")]);
    CHECK_EQ(bench.links.span_id[2], bench.rows.span_id[bench.row("Net")]);
    CHECK_EQ(bench.links.launch_ns[1], 25);
}

TEST(launches_of_a_merged_operator_go_with_it) {
    BuilderBench bench;
    Thread thread(bench);
    for (const std::uint64_t at : {0u, 10u}) thread.operation("aten::mul", at);
    thread.launch(1, 15);
    thread.operation("aten::add", 20);
    thread.launch(2, 25);
    for (const std::uint64_t at : {30u, 40u}) thread.operation_end(at);
    thread.launch(3, 45);
    thread.operation_end(50);
    CHECK_EQ(bench.launched_in(1), "/operator:aten::mul");
    CHECK_EQ(bench.launched_in(2), "/operator:aten::mul/operator:aten::add");
    CHECK_EQ(bench.launched_in(3), "/operator:aten::mul");
    CHECK_EQ(bench.links.span_id[0], bench.rows.span_id[bench.row("aten::mul")]);
}
