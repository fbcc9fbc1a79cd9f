// SPDX-License-Identifier: Apache-2.0
#include "analysis/columns.hpp"

namespace gpuprof {

void SpanColumns::clear() noexcept {
    for (auto* column : {&span_id, &parent_id, &start_ns, &duration_ns, &thread_id}) column->clear();
    kind.clear();
    name.clear();
    depth.clear();
    node.clear();
    own_ns.clear();
}

void SpanColumns::pop_back() noexcept {
    for (auto* column : {&span_id, &parent_id, &start_ns, &duration_ns, &thread_id, &own_ns})
        column->pop_back();
    kind.pop_back();
    name.pop_back();
    depth.pop_back();
    node.pop_back();
}

void SpanColumns::reserve(std::size_t rows) {
    for (auto* column : {&span_id, &parent_id, &start_ns, &duration_ns, &thread_id}) column->reserve(rows);
    kind.reserve(rows);
    name.reserve(rows);
    depth.reserve(rows);
    node.reserve(rows);
    own_ns.reserve(rows);
}

void LinkColumns::clear() noexcept {
    kind.clear();
    id.clear();
    span_id.clear();
    node.clear();
    launch_ns.clear();
    launch_end_ns.clear();
}

}  // namespace gpuprof
