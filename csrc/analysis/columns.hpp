// SPDX-License-Identifier: Apache-2.0
// What the decoder hands on, column by column.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace gpuprof {

// One element a finished span in each column. Times are nanoseconds since the run's origin.
struct SpanColumns {
    std::vector<std::int64_t> span_id, parent_id, start_ns, duration_ns;  // parent_id -1: none
    std::vector<std::int64_t> thread_id;
    std::vector<std::uint8_t> kind;
    std::vector<std::uint32_t> name;
    std::vector<std::int32_t> depth;
    // Where the call tree counts the row, and with how much of its own: not part of the table.
    std::vector<std::uint32_t> node;
    std::vector<std::int64_t> own_ns;

    std::size_t size() const noexcept { return span_id.size(); }
    void clear() noexcept;
    void pop_back() noexcept;
    void reserve(std::size_t rows);
};

// What ties GPU work to the spans that it was launched or captured in. One element a link in each column.
struct LinkColumns {
    enum class Kind : std::uint8_t { launch, graph_node, graph_clone };
    std::vector<Kind> kind;
    std::vector<std::uint64_t> id;      // a correlation id, or a graph node's
    std::vector<std::int64_t> span_id;  // the innermost open span, -1 for none; of a clone: the original's id
    std::vector<std::uint32_t> node;    // of the call tree
    std::vector<std::int64_t> launch_ns;      // since the run's origin; 0 but for launches
    std::vector<std::int64_t> launch_end_ns;  // likewise; `no_time` where the end of the call is not known
    static constexpr std::int64_t no_time = -(std::int64_t{1} << 62);

    std::size_t size() const noexcept { return id.size(); }
    void clear() noexcept;
};

}  // namespace gpuprof
