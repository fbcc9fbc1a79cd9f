// SPDX-License-Identifier: Apache-2.0
// A span builder under a clock that ticks once a nanosecond, and what it made.
#pragma once

#include <string>
#include <vector>

#include "support.hpp"

namespace gpuprof::test {

class BuilderBench {
  public:
    BuilderBench()
        : setting_{clock(), tree,     totals,      rows,    links,   next_span_id_,
                   0,       classes_, [](bool) {}, scopes_, ranges_, forward_} {
        setting_.backward_name = name("backward");
        process_ = tree.add_process(1, name("process"));
    }
    BuilderBench(const BuilderBench&) = delete;
    BuilderBench& operator=(const BuilderBench&) = delete;

    std::uint32_t name(const std::string& text, std::uint32_t scope = 0) {
        for (std::size_t i = 1; i < names_.size(); ++i)
            if (names_[i] == text && scopes_[i] == scope) return static_cast<std::uint32_t>(i);
        names_.push_back(text);
        scopes_.push_back(scope);
        classes_.push_back(classify_name(text));
        return static_cast<std::uint32_t>(names_.size() - 1);
    }
    const std::string& text(std::uint32_t name) const { return names_.at(name); }
    void finish_ranges(std::uint64_t at) { ranges_.finish(setting_, at); }
    SpanBuilder thread(std::uint32_t number = 1) { return {setting_, process_, number, number}; }

    // The row of the first finished span with this name.
    std::size_t row(const std::string& wanted) const {
        for (std::size_t i = 0; i < rows.size(); ++i)
            if (text(rows.name[i]) == wanted) return i;
        CHECK(wanted == "is missing");
        throw GivenUp{};
    }
    // The name of the parent of the first span with this name, or "" where it has none.
    std::string parent_of(const std::string& wanted) const {
        const std::int64_t parent = rows.parent_id[row(wanted)];
        for (std::size_t i = 0; i < rows.size(); ++i)
            if (rows.span_id[i] == parent) return text(rows.name[i]);
        return parent == -1 ? "" : "a span that is not there";
    }
    // Where a node hangs in the tree: kinds and names from the process down.
    std::string path_of(std::uint32_t node) const {
        static const char* const kinds[] = {"process", "span",     "layer",  "operator",
                                            "nvtx",    "backward", "compile"};
        const CallTree::Node& at = tree.nodes()[node];
        if (at.parent == CallTree::no_parent) return "";
        return path_of(at.parent) + "/" + kinds[static_cast<int>(at.kind)] + ":" + text(at.name);
    }
    const CallTree::Node& node(const std::string& path) const {
        for (std::uint32_t i = 0; i < tree.nodes().size(); ++i)
            if (path_of(i) == path) return tree.nodes()[i];
        CHECK(path == "is missing");
        throw GivenUp{};
    }

    // The path of the node that the launch with this correlation id hangs under.
    std::string launched_in(std::uint64_t correlation_id) const {
        for (std::size_t i = 0; i < links.size(); ++i)
            if (links.id[i] == correlation_id) return path_of(links.node[i]);
        CHECK("the launch" == std::string("is missing"));
        throw GivenUp{};
    }

    CallTree tree;
    DecodeTotals totals;
    SpanColumns rows;
    LinkColumns links;

  private:
    static TickToRun clock() { return {TickScale({0, 0}, {1'000'000, 1'000'000}), 0}; }

    std::int64_t next_span_id_ = 0;
    std::vector<std::string> names_{""};
    std::vector<NameClass> classes_{NameClass::plain};
    std::vector<std::uint32_t> scopes_{0};
    ProcessRanges ranges_;
    ForwardCalls forward_{{}, {}};
    BuilderSetting setting_;
    std::uint32_t process_ = 0;
};

using enum EventKind;

// One thread's events, given in the order and with the ticks of the test.
class Thread {
  public:
    explicit Thread(BuilderBench& bench, std::uint32_t number = 1)
        : bench_(bench), builder_(bench.thread(number)) {}
    void begin(const std::string& name, std::uint64_t at, EventKind kind = span_begin) {
        builder_.add(kind, bench_.name(name), at);
    }
    void end(const std::string& name, std::uint64_t at, EventKind kind = span_end) {
        builder_.add(kind, bench_.name(name), at);
    }
    void operation(const std::string& name, std::uint64_t at) { begin(name, at, operator_begin); }
    void launch(std::uint64_t correlation_id, std::uint64_t at) {
        builder_.link(LinkColumns::Kind::launch, correlation_id, at);
    }
    void operation_end(std::uint64_t at) { builder_.add(operator_end, 0, at); }
    void push(const std::string& domain, const std::string& name, std::uint64_t at) {
        builder_.add(range_begin, bench_.name(name, bench_.name(domain)), at);
    }
    void pop(const std::string& domain, std::uint64_t at) {
        builder_.add(range_end, bench_.name(domain), at);
    }
    void start(std::uint32_t number, const std::string& name, std::uint64_t at) {
        builder_.number_range(number);
        builder_.add(range_start, bench_.name(name), at);
    }
    void stop(std::uint32_t number, std::uint64_t at) { builder_.stop_range(number, at); }
    void task(std::uint64_t id, std::uint32_t parent = 0) { builder_.enter_context(id, parent); }
    void finish(std::uint64_t at) { builder_.finish(at); }

  private:
    BuilderBench& bench_;
    SpanBuilder builder_;
};

}  // namespace gpuprof::test
