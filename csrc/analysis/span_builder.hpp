// SPDX-License-Identifier: Apache-2.0
// Turns the events of one thread, in order, into finished spans.
#pragma once

#include <cstdint>
#include <functional>
#include <unordered_map>
#include <vector>

#include "analysis/call_tree.hpp"
#include "analysis/columns.hpp"
#include "analysis/forward_calls.hpp"
#include "analysis/name_class.hpp"
#include "analysis/process_ranges.hpp"
#include "core/layout.hpp"

namespace gpuprof {

struct DecodeTotals {
    std::uint64_t events = 0;
    std::uint64_t spans = 0;
    std::uint64_t links = 0;
    std::uint64_t damaged_events = 0;
    std::uint64_t dropped_events = 0;
    std::uint64_t unmatched_ends = 0;    // their begin lies before the recording, or in a parent process
    std::uint64_t unfinished_spans = 0;  // cut off at the last instant that is known
};

class TickToRun {
  public:
    TickToRun(TickScale scale, std::int64_t origin_monotonic_ns)
        : scale_(scale), origin_(origin_monotonic_ns) {}
    std::int64_t operator()(std::uint64_t ticks) const noexcept {
        return scale_.to_monotonic_ns(ticks) - origin_;
    }

  private:
    TickScale scale_;
    std::int64_t origin_;
};

// What the threads of a run share while they are decoded one after the other.
struct BuilderSetting {
    TickToRun clock;
    CallTree& tree;
    DecodeTotals& totals;
    SpanColumns& rows;
    LinkColumns& links;
    std::int64_t& next_span_id;
    std::uint32_t backward_name;            // of the group that gathers the backward pass
    const std::vector<NameClass>& classes;  // by run-wide name id
    std::function<void(bool may_move)> row_added;
    const std::vector<std::uint32_t>& scopes;  // by run-wide name id; of a range, its domain
    ProcessRanges& ranges;
    const ForwardCalls& forward;
};

class SpanBuilder {
  public:
    SpanBuilder(BuilderSetting setting, std::uint32_t process_node, std::uint64_t thread_key,
                std::uint32_t thread_id)
        : set_(std::move(setting)),
          process_node_(process_node),
          thread_key_(thread_key),
          thread_id_(thread_id) {}

    // `name` is run-wide. `ticks` must not decrease.
    void add(EventKind kind, std::uint32_t name, std::uint64_t ticks);
    // GPU work was launched, or captured into a graph, where the thread is now.
    void link(LinkColumns::Kind kind, std::uint64_t id, std::uint64_t ticks);
    // The call that launched the work with this correlation id returned. Known only right after the launch.
    void end_launch(std::uint64_t id, std::uint64_t ticks);
    void link_clone(std::uint64_t original, std::uint64_t clone);
    void enter_context(std::uint64_t context, std::uint32_t parent_context);
    // The task that is entered next, if it is a new one, was started at `ticks` or shortly after.
    void start_task(std::uint64_t ticks) noexcept { task_start_ticks_ = ticks; }
    // The range of the process that is started next has this number.
    void number_range(std::uint64_t number) noexcept { range_number_ = number; }
    void stop_range(std::uint32_t number, std::uint64_t ticks);
    // The operator that begins next evaluates this autograd node.
    void evaluate_node(std::uint64_t node_mark) noexcept { node_path_ = set_.forward.path_of(node_mark); }
    // Closes what is open at `ticks`: at the end, and before events that were lost.
    void finish(std::uint64_t ticks);
    // Whether rows that were written may still be changed: an operator that may only forward is open.
    bool may_move_rows() const noexcept { return may_forward_ > 0; }
    // While a recording lasts, its clock becomes known better.
    void set_clock(const TickToRun& clock) { set_.clock = clock; }
    // How long anything was open on this thread, in whatever task. After finish().
    std::uint64_t busy_ticks() const noexcept { return busy_ticks_; }

  private:
    struct Open {
        std::int64_t span_id;
        std::int64_t parent_id;
        std::uint64_t begin_ticks;
        std::int64_t child_ns;
        std::uint64_t first_row;      // of what is inside it, counted over the run
        std::uint64_t first_link;     // likewise
        std::int64_t operator_child;  // the last operator begun directly inside it
        std::int64_t operator_child_own_ns;
        std::uint32_t operator_children;
        std::uint32_t name;
        std::uint32_t node;
        std::uint32_t forward_path;  // of an evaluation
        std::int32_t depth;
        SpanKind kind;
        EventKind source;
        bool hidden;
        bool may_forward;  // an operator that has begun nothing but its like
    };
    static constexpr std::uint64_t unknown_start = ~std::uint64_t{0};
    struct Context {
        std::uint32_t parent = 0;
        std::uint64_t start_ticks = unknown_start;
        std::vector<Open> open;
        bool met = true;  // since idle contexts were last forgotten
    };

    static constexpr std::size_t fewest_contexts_to_prune = 1 << 16;

    static constexpr std::uint64_t no_number = ~std::uint64_t{0};

    void forget_idle_contexts();
    void start_range(std::uint32_t name, std::uint64_t ticks);
    void begin(EventKind source, std::uint32_t name, std::uint64_t ticks);
    void end(EventKind begin_kind, std::uint32_t name, std::uint64_t ticks);
    bool end_in(Context& context, EventKind begin_kind, std::uint32_t name, std::uint64_t ticks);
    void note_opened(std::uint64_t ticks) noexcept;
    void note_closed(std::uint64_t ticks) noexcept;
    bool end_range_elsewhere(std::uint32_t domain, std::uint64_t ticks);
    bool ends(const Open& open, EventKind begin_kind, std::uint32_t name) const noexcept;
    void close(Context& context, std::size_t position, std::uint64_t ticks);
    void emit_row(const Open& open, std::int64_t start, std::int64_t end);
    Open* enclosing(bool with_operators = true) noexcept;
    void note_operator_child(Open& parent, const Open& child) noexcept;
    std::uint64_t rows_handed_out() const noexcept;
    std::uint64_t links_handed_out() const noexcept;
    bool only_forwards(const Open& open) const noexcept;
    void absorb_child(Open& open);
    void move_links(const Open& open, std::int64_t child, std::uint32_t child_node);
    void add_link(LinkColumns::Kind kind, std::uint64_t id, std::int64_t span_id, std::uint32_t node,
                  std::int64_t launch_ns);
    std::uint32_t backward_node(std::uint32_t above, const Open* parent, std::uint32_t path);
    std::uint32_t mirrored(std::uint32_t above, std::uint32_t path);
    static bool is_operation(const Open* open) noexcept;
    SpanKind resolve_kind(EventKind source, std::uint32_t name, const Open* parent) const noexcept;

    BuilderSetting set_;
    std::uint32_t process_node_;
    std::uint64_t thread_key_;
    std::uint32_t thread_id_;
    std::unordered_map<std::uint64_t, Context> contexts_;
    Context* current_ = &contexts_[0];
    std::uint32_t may_forward_ = 0;  // how many open operators
    std::uint64_t open_count_ = 0;   // over all tasks
    std::uint64_t busy_since_ = 0;
    std::uint64_t busy_ticks_ = 0;
    std::uint64_t task_start_ticks_ = unknown_start;
    std::uint64_t range_number_ = no_number;
    std::uint32_t node_path_ = ForwardCalls::no_path;  // of the node that is evaluated next
    std::uint32_t last_path_ = ForwardCalls::no_path;  // of the evaluation that was begun or ended last
    std::size_t prune_at_ = fewest_contexts_to_prune;
};

}  // namespace gpuprof
