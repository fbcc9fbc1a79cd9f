// SPDX-License-Identifier: Apache-2.0
#include "analysis/span_builder.hpp"

#include <algorithm>
#include <utility>

namespace gpuprof {
namespace {

// A chain of tasks that started each other; deeper ones are shown as roots.
constexpr int most_context_ancestors = 64;

}  // namespace

void SpanBuilder::add(EventKind kind, std::uint32_t name, std::uint64_t ticks) {
    switch (kind) {
        case EventKind::span_begin:
        case EventKind::layer_begin:
        case EventKind::operator_begin:
        case EventKind::range_begin:
        case EventKind::collection_begin:
        case EventKind::compile_begin:
            begin(kind, name, ticks);
            break;
        case EventKind::span_end:
        case EventKind::layer_end:
        case EventKind::operator_end:
        case EventKind::range_end:
        case EventKind::collection_end:
        case EventKind::compile_end:
            end(begin_of(kind), name, ticks);
            break;
        case EventKind::range_start:
            start_range(name, ticks);
            break;
        default:
            ++set_.totals.damaged_events;
    }
}

void SpanBuilder::link(LinkColumns::Kind kind, std::uint64_t id, std::uint64_t ticks) {
    const Open* const open = enclosing();
    add_link(kind, id, open != nullptr ? open->span_id : -1, open != nullptr ? open->node : process_node_,
             kind == LinkColumns::Kind::launch ? set_.clock(ticks) : 0);
}

// Nothing where another event lies between the two: nested calls.
void SpanBuilder::end_launch(std::uint64_t id, std::uint64_t ticks) {
    LinkColumns& links = set_.links;
    if (links.size() > 0 && links.id.back() == id && links.kind.back() == LinkColumns::Kind::launch)
        links.launch_end_ns.back() = set_.clock(ticks);
}

void SpanBuilder::link_clone(std::uint64_t original, std::uint64_t clone) {
    add_link(LinkColumns::Kind::graph_clone, clone, static_cast<std::int64_t>(original), 0, 0);
}

void SpanBuilder::add_link(LinkColumns::Kind kind, std::uint64_t id, std::int64_t span_id, std::uint32_t node,
                           std::int64_t launch_ns) {
    LinkColumns& links = set_.links;
    // Before a launch, which is not to be handed out without its end, and after anything else.
    if (kind == LinkColumns::Kind::launch) set_.row_added(may_forward_ > 0);
    links.kind.push_back(kind);
    links.id.push_back(id);
    links.span_id.push_back(span_id);
    links.node.push_back(node);
    links.launch_ns.push_back(launch_ns);
    links.launch_end_ns.push_back(LinkColumns::no_time);
    ++set_.totals.links;
    if (kind != LinkColumns::Kind::launch) set_.row_added(may_forward_ > 0);
}

void SpanBuilder::enter_context(std::uint64_t context, std::uint32_t parent_context) {
    Context* const former = std::exchange(current_, &contexts_[context]);  // values stay where they are
    current_->met = true;
    // What the thread began without the interpreter lock, before it was seen in any task, is the first one's.
    if (contexts_.size() == 2 && former == &contexts_[0]) current_->open.swap(former->open);
    if (contexts_.size() >= prune_at_) forget_idle_contexts();
    if (current_->parent == 0 && parent_context != 0) {
        current_->parent = parent_context;
        current_->start_ticks = task_start_ticks_;
    }
    task_start_ticks_ = unknown_start;
}

// A server makes a task for each request: those with nothing open that were not met since the last time
// are forgotten. A task that continues reports its parent again; only its start is lost, and with
// it which of several spans of the parent was open then.
void SpanBuilder::forget_idle_contexts() {
    for (auto entry = contexts_.begin(); entry != contexts_.end();) {
        Context& context = entry->second;
        const bool was_met = std::exchange(context.met, false);
        const bool is_idle = &context != current_ && context.open.empty() && !was_met;
        entry = is_idle ? contexts_.erase(entry) : std::next(entry);
    }
    prune_at_ = std::max(fewest_contexts_to_prune, contexts_.size() * 2);
}

// The innermost open span of this task, or that of the task that started it which was open then.
SpanBuilder::Open* SpanBuilder::enclosing(bool with_operators) noexcept {
    Context* context = current_;
    std::uint64_t limit = unknown_start;
    for (int i = 0; i < most_context_ancestors; ++i) {
        for (std::size_t j = context->open.size(); j-- > 0;)
            if (const Open& open = context->open[j];
                open.begin_ticks <= limit && (with_operators || open.source != EventKind::operator_begin))
                return &context->open[j];
        limit = std::min(limit, context->start_ticks);
        const auto parent = context->parent == 0 ? contexts_.end() : contexts_.find(context->parent);
        if (parent == contexts_.end()) return nullptr;
        context = &parent->second;
    }
    return nullptr;
}

bool SpanBuilder::is_operation(const Open* open) noexcept {
    return open != nullptr && (open->kind == SpanKind::operation || open->kind == SpanKind::backward);
}

SpanKind SpanBuilder::resolve_kind(EventKind source, std::uint32_t name, const Open* parent) const noexcept {
    if (source == EventKind::span_begin) return SpanKind::span;
    if (source == EventKind::layer_begin) return SpanKind::layer;
    if (source == EventKind::range_begin) return SpanKind::nvtx;
    if (source == EventKind::collection_begin) return SpanKind::collection;
    if (source == EventKind::compile_begin) return SpanKind::compile;
    const NameClass name_class = set_.classes[name];
    if (name_class == NameClass::backward || name_class == NameClass::accumulation) return SpanKind::backward;
    // PyTorch announces operators, autograd nodes and the user's own ranges alike. A range inside an
    // operator is PyTorch's own; outside, only a qualified name such as aten::mm is an operator.
    return name_class == NameClass::qualified || is_operation(parent) ? SpanKind::operation : SpanKind::span;
}

void SpanBuilder::begin(EventKind source, std::uint32_t name, std::uint64_t ticks) {
    Open* const parent = enclosing();
    Open open{};
    open.kind = resolve_kind(source, name, parent);
    open.hidden = source == EventKind::operator_begin && set_.classes[name] == NameClass::bookkeeping;
    open.node = parent != nullptr ? parent->node : process_node_;
    const std::uint32_t marked_path = source == EventKind::operator_begin
                                          ? std::exchange(node_path_, ForwardCalls::no_path)
                                          : ForwardCalls::no_path;
    if (open.kind == SpanKind::backward) {
        // The engine adds to a parameter's gradient at once after the node that it came from.
        const bool is_accumulation = set_.classes[name] == NameClass::accumulation;
        open.forward_path = is_accumulation ? last_path_ : marked_path;
        last_path_ = open.forward_path;
        open.node = backward_node(open.node, parent, open.forward_path);
    } else if (open.kind != SpanKind::collection && !is_operation(parent)) {
        last_path_ = ForwardCalls::no_path;  // between two passes
    }
    if (!open.hidden) open.node = set_.tree.child(open.node, open.kind, name);
    open.parent_id = parent != nullptr ? parent->span_id : -1;
    open.span_id = open.hidden ? open.parent_id : set_.next_span_id++;
    open.depth = (parent != nullptr ? parent->depth : -1) + (open.hidden ? 0 : 1);
    open.begin_ticks = ticks;
    open.first_row = set_.totals.spans;
    open.first_link = set_.totals.links;
    open.name = name;
    open.source = source;
    open.may_forward = source == EventKind::operator_begin && !open.hidden;
    if (parent != nullptr && open.may_forward) note_operator_child(*parent, open);
    if (open.may_forward) ++may_forward_;
    note_opened(ticks);
    current_->open.push_back(open);
}

// The parent node of an evaluation: the group of the backward pass, and in it the
// layers of the forward call that made the evaluated node.
std::uint32_t SpanBuilder::backward_node(std::uint32_t above, const Open* parent, std::uint32_t path) {
    const bool is_outermost = parent == nullptr || parent->kind != SpanKind::backward;
    if (is_outermost || path != ForwardCalls::no_path)
        above = set_.tree.child(above, SpanKind::backward, set_.backward_name);
    return mirrored(above, path);
}

std::uint32_t SpanBuilder::mirrored(std::uint32_t above, std::uint32_t path) {
    if (path == ForwardCalls::no_path) return above;
    const ForwardCalls::Step step = set_.forward.step(path);
    return set_.tree.child(mirrored(above, step.before), SpanKind::layer, step.name);
}

void SpanBuilder::note_opened(std::uint64_t ticks) noexcept {
    if (open_count_++ == 0) busy_since_ = ticks;
}

void SpanBuilder::note_closed(std::uint64_t ticks) noexcept {
    if (--open_count_ == 0) busy_ticks_ += ticks - busy_since_;
}

void SpanBuilder::note_operator_child(Open& parent, const Open& child) noexcept {
    ++parent.operator_children;
    parent.operator_child = child.span_id;
    if (!parent.may_forward || (parent.operator_children == 1 && parent.name == child.name)) return;
    parent.may_forward = false;
    --may_forward_;
}

void SpanBuilder::end(EventKind begin_kind, std::uint32_t name, std::uint64_t ticks) {
    if (end_in(*current_, begin_kind, name, ticks)) return;
    if (begin_kind == EventKind::range_begin && end_range_elsewhere(name, ticks)) return;
    for (auto& [id, context] : contexts_)
        if (&context != current_ && end_in(context, begin_kind, name, ticks)) return;
    ++set_.totals.unmatched_ends;
}

bool SpanBuilder::end_in(Context& context, EventKind begin_kind, std::uint32_t name, std::uint64_t ticks) {
    for (std::size_t i = context.open.size(); i-- > 0;) {
        if (!ends(context.open[i], begin_kind, name)) continue;
        close(context, i, ticks);
        return true;
    }
    return false;
}

// Operators end in the order of a stack, ranges in that of their domain's, everything else by its name.
bool SpanBuilder::ends(const Open& open, EventKind begin_kind, std::uint32_t name) const noexcept {
    if (open.source != begin_kind) return false;
    if (begin_kind == EventKind::operator_begin) return true;
    return (begin_kind == EventKind::range_begin ? set_.scopes[open.name] : open.name) == name;
}

// A range that was pushed in one task and popped in another: the thread's last one.
bool SpanBuilder::end_range_elsewhere(std::uint32_t domain, std::uint64_t ticks) {
    std::pair<Context*, std::size_t> last{nullptr, 0};
    for (auto& [id, context] : contexts_)
        for (std::size_t i = context.open.size(); i-- > 0;) {
            const Open& open = context.open[i];
            if (!ends(open, EventKind::range_begin, domain)) continue;
            if (last.first == nullptr || last.first->open[last.second].begin_ticks <= open.begin_ticks)
                last = {&context, i};
            break;
        }
    if (last.first == nullptr) return false;
    close(*last.first, last.second, ticks);
    return true;
}

// Hangs below the innermost span that is no operator, whose rows may yet be merged.
void SpanBuilder::start_range(std::uint32_t name, std::uint64_t ticks) {
    const std::uint64_t number = std::exchange(range_number_, no_number);
    if (number == no_number) {
        ++set_.totals.damaged_events;
        return;
    }
    const Open* const parent = enclosing(false);
    const std::uint32_t above = parent != nullptr ? parent->node : process_node_;
    const std::uint32_t node = set_.tree.child(above, SpanKind::nvtx, name);
    set_.tree.add_thread(node, thread_key_);
    const ProcessRanges::Range range{set_.next_span_id++,
                                     parent != nullptr ? parent->span_id : -1,
                                     ticks,
                                     thread_id_,
                                     name,
                                     node,
                                     parent != nullptr ? parent->depth + 1 : 0};
    set_.ranges.start(set_, static_cast<std::uint32_t>(number), range, may_forward_ > 0);
}

void SpanBuilder::stop_range(std::uint32_t number, std::uint64_t ticks) {
    set_.ranges.stop(set_, number, ticks, may_forward_ > 0);
}

void SpanBuilder::close(Context& context, std::size_t position, std::uint64_t ticks) {
    Open closing = context.open[position];
    note_closed(ticks);
    if (closing.kind == SpanKind::backward) last_path_ = closing.forward_path;
    if (closing.hidden) {
        context.open.erase(context.open.begin() + static_cast<std::ptrdiff_t>(position));
        return;
    }
    // Of begins and ends on one clock, so that the parts of a span never exceed it.
    const std::int64_t start = set_.clock(closing.begin_ticks), end = set_.clock(ticks);
    // What was begun inside and is still open, as generators do, counts up to here.
    for (std::size_t i = position + 1; i < context.open.size(); ++i) {
        const Open& inner = context.open[i];
        if (!inner.hidden && inner.parent_id == closing.span_id)
            closing.child_ns += end - set_.clock(inner.begin_ticks);
    }
    context.open.erase(context.open.begin() + static_cast<std::ptrdiff_t>(position));
    if (closing.may_forward) --may_forward_;
    const bool is_innermost = position == context.open.size();
    if (is_innermost && only_forwards(closing)) absorb_child(closing);
    for (std::size_t i = position; i-- > 0;) {
        Open& outer = context.open[i];
        if (outer.hidden || outer.span_id != closing.parent_id) continue;
        outer.child_ns += end - start;
        if (outer.operator_child == closing.span_id)
            outer.operator_child_own_ns = std::max<std::int64_t>(0, end - start - closing.child_ns);
        break;
    }
    emit_row(closing, start, end);
}

// An operator that does nothing but call an overload of its own name, as aten::mul with a number calls
// aten::mul with a tensor, is one call for the caller. torch.profiler counts the same way.
bool SpanBuilder::only_forwards(const Open& open) const noexcept {
    const SpanColumns& rows = set_.rows;
    const bool is_in_batch = open.first_row >= rows_handed_out() && open.first_row < set_.totals.spans &&
                             open.first_link >= links_handed_out();
    return open.may_forward && open.operator_children == 1 && is_in_batch &&
           rows.span_id.back() == open.operator_child;
}

// How many rows of the run left with earlier batches.
std::uint64_t SpanBuilder::rows_handed_out() const noexcept {
    return set_.totals.spans - set_.rows.size();
}

std::uint64_t SpanBuilder::links_handed_out() const noexcept {
    return set_.totals.links - set_.links.size();
}

// Takes the row of the only operator inside `open` back, the last one written, and moves what was inside
// that one a level up.
void SpanBuilder::absorb_child(Open& open) {
    SpanColumns& rows = set_.rows;
    const std::uint32_t child_node = rows.node.back();
    const std::int64_t child = rows.span_id.back();
    const std::size_t first = open.first_row - rows_handed_out();
    set_.tree.take_back(child_node, rows.duration_ns.back(), rows.own_ns.back());
    rows.pop_back();
    --set_.totals.spans;
    for (std::size_t i = first; i < rows.size(); ++i) {
        const std::uint32_t moved = set_.tree.moved(rows.node[i], child_node, open.node);
        if (moved == rows.node[i]) continue;  // next to the child, or of another task
        --rows.depth[i];
        if (rows.parent_id[i] == child) rows.parent_id[i] = open.span_id;
        set_.tree.take_back(rows.node[i], rows.duration_ns[i], rows.own_ns[i]);
        set_.tree.add_call(moved, thread_key_, rows.duration_ns[i], rows.own_ns[i]);
        rows.node[i] = moved;
    }
    open.child_ns -= std::min(open.child_ns, open.operator_child_own_ns);
    move_links(open, child, child_node);
}

void SpanBuilder::move_links(const Open& open, std::int64_t child, std::uint32_t child_node) {
    LinkColumns& links = set_.links;
    for (std::size_t i = open.first_link - links_handed_out(); i < links.size(); ++i) {
        if (links.kind[i] == LinkColumns::Kind::graph_clone) continue;
        links.node[i] = set_.tree.moved(links.node[i], child_node, open.node);
        if (links.span_id[i] == child) links.span_id[i] = open.span_id;
    }
}

void SpanBuilder::emit_row(const Open& open, std::int64_t start, std::int64_t end) {
    const std::int64_t duration = end - start;
    // Tasks that ran at the same time may add up to more.
    const std::int64_t own = std::max<std::int64_t>(0, duration - open.child_ns);
    SpanColumns& rows = set_.rows;
    rows.span_id.push_back(open.span_id);
    rows.parent_id.push_back(open.parent_id);
    rows.thread_id.push_back(thread_id_);
    rows.kind.push_back(static_cast<std::uint8_t>(open.kind));
    rows.name.push_back(open.name);
    rows.start_ns.push_back(start);
    rows.duration_ns.push_back(duration);
    rows.depth.push_back(open.depth);
    rows.node.push_back(open.node);
    rows.own_ns.push_back(own);
    ++set_.totals.spans;
    set_.tree.add_call(open.node, thread_key_, duration, own);
    // Rows inside an operator that may only forward may still have to be moved; a bound limits the batch
    // in any case.
    set_.row_added(may_forward_ > 0);
}

void SpanBuilder::finish(std::uint64_t ticks) {
    for (auto& [id, context] : contexts_) {
        set_.totals.unfinished_spans += static_cast<std::uint64_t>(std::count_if(
            context.open.begin(), context.open.end(), [](const Open& open) { return !open.hidden; }));
        while (!context.open.empty())
            close(context, context.open.size() - 1, std::max(ticks, context.open.back().begin_ticks));
    }
}

}  // namespace gpuprof
