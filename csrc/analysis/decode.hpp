// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "analysis/call_tree.hpp"
#include "analysis/segment_reader.hpp"
#include "analysis/span_builder.hpp"

namespace gpuprof {

struct DecodedThread {
    std::uint32_t process_id;
    std::uint32_t thread_id;
    std::string name;
};

struct DecodedProcess {
    std::uint32_t process_id;
    std::uint32_t parent_process_id;
    bool closed;
    std::int64_t start_ns;
    std::int64_t end_ns;
    std::uint64_t process_key = 0;
    std::vector<std::uint32_t> name_ids;  // run-wide id of each of the process's own, which start from 0
};

// From this time on, the outermost layer calls that end on the thread have the mode.
struct DecodedMode {
    std::uint32_t process_id;
    std::uint32_t thread_id;
    std::int64_t begin_ns;
    std::uint32_t mode;  // a LayerMode
};

struct DecodedRun {
    CallTree tree;
    DecodeTotals totals;
    std::vector<RecordedName> names;  // run-wide; scopes are run-wide ids too, id i at index i - 1
    std::vector<DecodedProcess> processes;
    std::vector<DecodedThread> threads;
    std::vector<DecodedMode> modes;  // by process and thread, then in time
    std::vector<Damage> damage;
    std::int64_t origin_monotonic_ns = 0;
    double ns_per_tick = 1.0;
};

// Some spans and links of one process; `names` are complete for them.
struct Batch {
    const DecodedProcess& process;
    const SpanColumns& rows;
    const LinkColumns& links;
    const std::vector<RecordedName>& names;
};
using BatchSink = std::function<void(const Batch&)>;

// Decodes all processes of a recording, one thread after the other, in memory bounded by `batch_rows`
// and by the number of distinct names and paths.
DecodedRun decode_run(const RecordedFolder& folder, std::size_t batch_rows, const BatchSink& sink);

}  // namespace gpuprof
