// SPDX-License-Identifier: Apache-2.0
#include "analysis/span_builder.hpp"

#include <algorithm>

namespace gpuprof {
namespace {

constexpr std::string_view engine_prefix = "autograd::engine::evaluate_function: ";
// A chain of tasks that started each other; deeper ones are shown as roots.
constexpr int most_context_ancestors = 64;

EventKind begin_of(EventKind end) noexcept {
    return static_cast<EventKind>(static_cast<std::uint32_t>(end) - 1);
}

}  // namespace

NameClass classify_name(std::string_view name) noexcept {
    if (name.starts_with(engine_prefix)) return NameClass::backward;
    const std::size_t mark = name.find("::");
    if (mark == std::string_view::npos || mark == 0) return NameClass::plain;
    return name.find_first_of(" #\n") == std::string_view::npos ? NameClass::qualified : NameClass::plain;
}

void SpanColumns::clear() noexcept {
    for (auto* column : {&span_id, &parent_id, &start_ns, &duration_ns, &thread_id}) column->clear();
    kind.clear();
    name.clear();
    depth.clear();
}

void SpanColumns::reserve(std::size_t rows) {
    for (auto* column : {&span_id, &parent_id, &start_ns, &duration_ns, &thread_id}) column->reserve(rows);
    kind.reserve(rows);
    name.reserve(rows);
    depth.reserve(rows);
}

void SpanBuilder::add(EventKind kind, std::uint32_t name, std::uint64_t ticks) {
    switch (kind) {
        case EventKind::span_begin:
        case EventKind::layer_begin:
        case EventKind::operator_begin:
            begin(kind, name, ticks);
            break;
        case EventKind::span_end:
        case EventKind::layer_end:
        case EventKind::operator_end:
            end(begin_of(kind), name, ticks);
            break;
        default:
            ++set_.totals.damaged_events;
    }
}

void SpanBuilder::enter_context(std::uint64_t context, std::uint32_t parent_context) {
    current_ = &contexts_[context];  // values of an unordered_map stay where they are
    if (current_->parent == 0) current_->parent = parent_context;
}

// The innermost open span of this task, or of the task that started it.
const SpanBuilder::Open* SpanBuilder::enclosing() const {
    const Context* context = current_;
    for (int i = 0; i < most_context_ancestors; ++i) {
        if (!context->open.empty()) return &context->open.back();
        const auto parent = context->parent == 0 ? contexts_.end() : contexts_.find(context->parent);
        if (parent == contexts_.end()) return nullptr;
        context = &parent->second;
    }
    return nullptr;
}

SpanKind SpanBuilder::resolve_kind(EventKind source, std::uint32_t name, const Open* parent) const noexcept {
    if (source == EventKind::span_begin) return SpanKind::span;
    if (source == EventKind::layer_begin) return SpanKind::layer;
    const NameClass name_class = set_.classes[name];
    if (name_class == NameClass::backward) return SpanKind::backward;
    // PyTorch announces operators, autograd nodes and the user's own ranges alike. A range inside an
    // operator is PyTorch's own; outside, only a qualified name such as aten::mm tells an operator.
    const bool inside_operator =
        parent != nullptr && (parent->kind == SpanKind::operation || parent->kind == SpanKind::backward);
    return name_class == NameClass::qualified || inside_operator ? SpanKind::operation : SpanKind::span;
}

void SpanBuilder::begin(EventKind source, std::uint32_t name, std::uint64_t ticks) {
    const Open* parent = enclosing();
    const SpanKind kind = resolve_kind(source, name, parent);
    std::uint32_t node = parent != nullptr ? parent->node : process_node_;
    if (kind == SpanKind::backward && (parent == nullptr || parent->kind != SpanKind::backward))
        node = set_.tree.child(node, SpanKind::backward, set_.backward_name);
    node = set_.tree.child(node, kind, name);
    const std::int64_t parent_id = parent != nullptr ? parent->span_id : -1;
    const std::int32_t depth = parent != nullptr ? parent->depth + 1 : 0;
    current_->open.push_back({set_.next_span_id++, parent_id, ticks, 0, name, node, depth, kind, source, false});
}

void SpanBuilder::end(EventKind begin_kind, std::uint32_t name, std::uint64_t ticks) {
    if (end_in(*current_, begin_kind, name, ticks)) return;
    for (auto& [id, context] : contexts_)
        if (&context != current_ && end_in(context, begin_kind, name, ticks)) return;
    ++set_.totals.unmatched_ends;
}

bool SpanBuilder::end_in(Context& context, EventKind begin_kind, std::uint32_t name, std::uint64_t ticks) {
    const bool named = begin_kind != EventKind::operator_begin;
    for (std::size_t i = context.open.size(); i-- > 0;) {
        const Open& open = context.open[i];
        if (open.source != begin_kind || (named && open.name != name)) continue;
        close(context, i, ticks);
        return true;
    }
    return false;
}

void SpanBuilder::close(Context& context, std::size_t position, std::uint64_t ticks) {
    Open closing = context.open[position];
    // What was begun inside and is still open, as generators do, counts up to here.
    for (std::size_t i = position + 1; i < context.open.size(); ++i) {
        Open& inner = context.open[i];
        if (inner.parent_id != closing.span_id || inner.outlived_parent) continue;
        closing.child_ticks += ticks - inner.begin_ticks;
        inner.outlived_parent = true;
    }
    context.open.erase(context.open.begin() + static_cast<std::ptrdiff_t>(position));
    for (std::size_t i = position; !closing.outlived_parent && i-- > 0;) {
        if (context.open[i].span_id != closing.parent_id) continue;
        context.open[i].child_ticks += ticks - closing.begin_ticks;
        break;
    }
    emit_row(closing, ticks);
}

void SpanBuilder::emit_row(const Open& open, std::uint64_t ticks) {
    const std::int64_t start = set_.clock(open.begin_ticks);
    const std::int64_t duration = set_.clock(ticks) - start;
    // Scaled as a whole, since rounding each child would let the parts exceed it.
    const std::int64_t children = set_.clock(open.begin_ticks + open.child_ticks) - start;
    SpanColumns& rows = set_.rows;
    rows.span_id.push_back(open.span_id);
    rows.parent_id.push_back(open.parent_id);
    rows.thread_id.push_back(thread_id_);
    rows.kind.push_back(static_cast<std::uint8_t>(open.kind));
    rows.name.push_back(open.name);
    rows.start_ns.push_back(start);
    rows.duration_ns.push_back(duration);
    rows.depth.push_back(open.depth);
    ++set_.totals.spans;
    set_.tree.add_call(open.node, thread_key_, duration, std::max<std::int64_t>(0, duration - children));
    set_.row_added();
}

void SpanBuilder::finish(std::uint64_t ticks) {
    for (auto& [id, context] : contexts_) {
        set_.totals.unfinished_spans += context.open.size();
        while (!context.open.empty())
            close(context, context.open.size() - 1, std::max(ticks, context.open.back().begin_ticks));
    }
}

}  // namespace gpuprof
