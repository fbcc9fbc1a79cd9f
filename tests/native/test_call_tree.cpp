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
    void end(std::uint32_t thread, std::uint32_t task, const std::string& kind, const std::string& name,
             std::uint64_t at) {
        const int found = innermost(thread, task, [&](const Span& span) {
            return span.kind == kind && (kind == "operator" || span.name == name);
        });
        if (found < 0) return;
        spans_[static_cast<std::size_t>(found)].end = at;
        spans_[static_cast<std::size_t>(found)].open = false;
    }
    void finish(std::uint64_t at) {
        for (Span& span : spans_)
            if (span.open) span.end = at;
    }
    // Own time: what is not covered by the children, each counted up to the end of its parent.
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
    template <typename Condition>
    int innermost(std::uint32_t thread, std::uint32_t task, Condition condition) const {
        for (std::size_t i = spans_.size(); i-- > 0;)
            if (spans_[i].open && spans_[i].thread == thread && spans_[i].task == task && condition(spans_[i]))
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
    std::uint32_t task = 0;
    for (int i = 0; i < 150; ++i) {
        now += random() % 20;
        if (random() % 10 == 0) builder.enter_context(task = static_cast<std::uint32_t>(random() % 3), 0);
        const KindOfSpan& kind = kinds[random() % 3];
        const std::string name = kind.names[random() % 3];
        if (random() % 9 < 4) {
            builder.add(kind.begin, bench.name(name), now);
            oracle.begin(number, task, kind.text, name, now);
        } else if (oracle_has(oracle, number, task, kind, name)) {
            builder.add(kind.end, bench.name(name), now);
            oracle.end(number, task, kind.text, name, now);
        }
    }
    builder.finish(now + 5);
    oracle.finish(now + 5);
}

}  // namespace
