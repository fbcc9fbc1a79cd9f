// SPDX-License-Identifier: Apache-2.0
// The backward pass below the layers of its forward.
#include <map>
#include <string>
#include <utility>

#include "fake_recording.hpp"
#include "support.hpp"

using namespace gpuprof;
using namespace gpuprof::test;

namespace {

constexpr std::uint64_t main_thread = 1, other_thread = 2;

// A recording whose threads call layers that make nodes, and evaluate nodes.
class Training {
  public:
    void thread(std::uint32_t number, std::uint64_t torch_number) {
        recording.thread(number);
        torch_number_ = torch_number;
    }
    void begin(const std::string& layer) { event(EventKind::layer_begin, id(layer)); }
    // Ends a layer call that made the nodes [first, end).
    void end(const std::string& layer, std::uint64_t first = 0, std::uint64_t end = 0) {
        if (first != end)
            recording.raw(EventKind::layer_nodes, static_cast<std::uint32_t>(end - first),
                          node_mark(torch_number_, first));
        event(EventKind::layer_end, id(layer));
    }
    void call(const std::string& layer, std::uint64_t first = 0, std::uint64_t end_node = 0) {
        begin(layer);
        end(layer, first, end_node);
    }
    void open_evaluation(const std::string& node, std::uint64_t of_thread, std::uint64_t sequence) {
        recording.raw(EventKind::backward_node, 0, node_mark(of_thread, sequence));
        event(EventKind::operator_begin, id("autograd::engine::evaluate_function: " + node));
    }
    void evaluate(const std::string& node, std::uint64_t of_thread, std::uint64_t sequence) {
        open_evaluation(node, of_thread, sequence);
        close_operator();
    }
    void close_operator() { event(EventKind::operator_end, 0); }
    void operation(const std::string& name) { event(EventKind::operator_begin, id(name)); }
    void event(EventKind kind, std::uint32_t name) { recording.event(kind, name, at_ += 10); }

    // The path of the only evaluation of `node`, without the process and the engine's words.
    std::string where(const std::string& node) {
        const TemporaryFolder folder;
        recording.write(folder());
        const Spans spans = decode_folder(folder());
        damaged = spans.run.totals.damaged_events;
        std::string found;
        for (const CallTree::Node& at : spans.run.tree.nodes())
            if (text(spans, at).ends_with(": " + node)) {
                CHECK_EQ(found, "");
                CHECK_EQ(at.calls, 1);
                found = path(spans, at);
            }
        return found;
    }

    FakeRecording recording;
    std::uint64_t damaged = 0;

  private:
    std::uint32_t id(const std::string& name) {
        const auto [place, is_new] = ids_.try_emplace(name, 0);
        if (is_new) place->second = recording.name(name);
        return place->second;
    }
    static std::string text(const Spans& spans, const CallTree::Node& node) {
        return spans.run.names.at(node.name - 1).text;
    }
    static std::string path(const Spans& spans, const CallTree::Node& node) {
        const CallTree::Node& above = spans.run.tree.nodes()[node.parent];
        if (above.parent == CallTree::no_parent) return "";
        if (above.kind == SpanKind::layer) CHECK_EQ(above.calls, 0);
        return path(spans, above) + "/" + text(spans, above);
    }

    std::map<std::string, std::uint32_t> ids_;
    std::uint64_t torch_number_ = main_thread;
    std::uint64_t at_ = 0;
};

// Model calls two layers, the second of which calls a third.
void forward(Training& training, std::uint64_t first) {
    training.begin("Model");
    training.call("a", first + 1, first + 3);
    training.begin("b");
    training.call("b.c", first + 5, first + 6);
    training.end("b", first + 4, first + 8);
    training.end("Model", first, first + 10);
}

}  // namespace

TEST(an_evaluation_is_below_the_innermost_layer_that_made_its_node) {
    const std::pair<std::uint64_t, std::string> expected[] = {
        {99, "/backward"},
        {100, "/backward/Model"},
        {101, "/backward/Model/a"},
        {102, "/backward/Model/a"},
        {103, "/backward/Model"},
        {104, "/backward/Model/b"},
        {105, "/backward/Model/b/b.c"},
        {106, "/backward/Model/b"},
        {107, "/backward/Model/b"},
        {108, "/backward/Model"},
        {109, "/backward/Model"},
        {110, "/backward"},
    };
    for (const auto& [sequence, path] : expected) {
        Training training;
        training.thread(1, main_thread);
        forward(training, 100);
        training.evaluate("AddBackward0", main_thread, sequence);
        CHECK_EQ(training.where("AddBackward0"), path);
        CHECK_EQ(training.damaged, 0u);
    }
}

TEST(each_call_of_a_layer_owns_its_own_nodes) {
    Training training;
    training.thread(1, main_thread);
    for (std::uint64_t step = 0; step < 3; ++step) forward(training, 100 * step);
    training.begin("Other");
    training.call("a", 301, 302);
    training.end("Other", 300, 303);
    training.evaluate("First", main_thread, 1);
    training.evaluate("Second", main_thread, 205);
    training.evaluate("Third", main_thread, 301);
    training.evaluate("Between", main_thread, 150);
    CHECK_EQ(training.where("First"), "/backward/Model/a");
    CHECK_EQ(training.where("Second"), "/backward/Model/b/b.c");
    CHECK_EQ(training.where("Third"), "/backward/Other/a");
    CHECK_EQ(training.where("Between"), "/backward");
}

TEST(calls_that_made_no_node_own_none) {
    Training training;
    training.thread(1, main_thread);
    training.begin("Model");
    training.call("frozen");
    training.call("a", 100, 101);
    training.call("frozen");
    training.end("Model", 100, 102);
    training.call("Model");
    training.evaluate("First", main_thread, 100);
    training.evaluate("Last", main_thread, 101);
    CHECK_EQ(training.where("First"), "/backward/Model/a");
    CHECK_EQ(training.where("Last"), "/backward/Model");
}

TEST(the_engine_may_run_on_another_thread_that_was_seen_first) {
    Training training;
    training.thread(1, other_thread);
    training.evaluate("OnOther", main_thread, 105);
    training.thread(2, main_thread);
    forward(training, 100);
    CHECK_EQ(training.where("OnOther"), "/backward/Model/b/b.c");
}

TEST(threads_number_their_nodes_apart) {
    Training training;
    training.thread(1, main_thread);
    forward(training, 100);
    training.thread(2, other_thread);
    training.begin("Twin");
    training.call("t", 100, 105);
    training.end("Twin", 100, 109);
    training.evaluate("Mine", other_thread, 102);
    training.evaluate("Others", main_thread, 102);
    training.evaluate("Nobodys", 3, 102);
    CHECK_EQ(training.where("Mine"), "/backward/Twin/t");
    CHECK_EQ(training.where("Others"), "/backward/Model/a");
    CHECK_EQ(training.where("Nobodys"), "/backward");
}

TEST(a_call_may_span_several_pieces_of_its_thread) {
    Training training;
    training.thread(1, main_thread);
    training.begin("Model");
    training.recording.thread(1, 1);
    training.call("a", 100, 101);
    training.recording.thread(1, 2);
    training.end("Model", 100, 102);
    training.recording.raw(EventKind::backward_node, 0, node_mark(main_thread, 101));
    training.recording.thread(1, 3);
    training.event(EventKind::operator_begin,
                   training.recording.name("autograd::engine::evaluate_function: Late"));
    training.close_operator();
    CHECK_EQ(training.where("Late"), "/backward/Model");
}

TEST(calls_that_the_recording_did_not_see_whole) {
    Training training;
    training.thread(1, main_thread);
    training.end("Cut", 90, 100);  // begun before the recording
    training.begin("Unending");
    training.call("a", 100, 101);
    training.thread(2, other_thread);
    training.evaluate("Early", main_thread, 95);
    training.evaluate("Late", main_thread, 100);
    CHECK_EQ(training.where("Early"), "/backward");
    CHECK_EQ(training.where("Late"), "/backward/Unending/a");
}

TEST(a_backward_pass_inside_another_has_a_group_of_its_own) {
    Training training;
    training.thread(1, main_thread);
    forward(training, 100);
    training.open_evaluation("CheckpointBackward", main_thread, 104);
    training.operation("CheckpointFunctionBackward");
    training.evaluate("Inner", main_thread, 105);
    training.close_operator();
    training.close_operator();
    CHECK_EQ(training.where("CheckpointBackward"), "/backward/Model/b");
    CHECK_EQ(training.where("Inner"),
             "/backward/Model/b/autograd::engine::evaluate_function: CheckpointBackward"
             "/CheckpointFunctionBackward/backward/Model/b/b.c");
}

TEST(a_node_mark_is_of_the_next_operator_alone) {
    Training training;
    training.thread(1, main_thread);
    forward(training, 100);
    training.recording.raw(EventKind::backward_node, 0, node_mark(main_thread, 101));
    training.operation("aten::mm");
    training.close_operator();
    training.event(EventKind::operator_begin,
                   training.recording.name("autograd::engine::evaluate_function: Unmarked"));
    training.close_operator();
    CHECK_EQ(training.where("Unmarked"), "/backward");
}

TEST(adding_to_a_gradient_belongs_to_the_node_before) {
    const std::string accumulation = "torch::autograd::AccumulateGrad";
    auto accumulate = [&](Training& training) {
        training.operation("autograd::engine::evaluate_function: " + accumulation);
        training.close_operator();
    };
    Training training;
    training.thread(1, main_thread);
    forward(training, 100);
    training.evaluate("Mul", main_thread, 101);
    training.open_evaluation("Checkpoint", main_thread, 104);
    training.evaluate("Inner", main_thread, 105);
    training.close_operator();
    accumulate(training);
    CHECK_EQ(training.where(accumulation), "/backward/Model/b");

    Training first;
    first.thread(1, main_thread);
    forward(first, 100);
    accumulate(first);
    first.evaluate("Mul", main_thread, 101);
    CHECK_EQ(first.where(accumulation), "/backward");

    Training later;
    later.thread(1, main_thread);
    forward(later, 100);
    later.evaluate("Mul", main_thread, 101);
    later.operation("aten::ones_like");
    later.close_operator();
    accumulate(later);
    CHECK_EQ(later.where(accumulation), "/backward");

    Training unowned;
    unowned.thread(1, main_thread);
    forward(unowned, 100);
    unowned.evaluate("Mul", main_thread, 101);
    unowned.evaluate("Loss", main_thread, 111);
    accumulate(unowned);
    CHECK_EQ(unowned.where(accumulation), "/backward");
}
