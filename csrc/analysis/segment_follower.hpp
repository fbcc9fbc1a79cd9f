// SPDX-License-Identifier: Apache-2.0
// Reads the segments of a recording while it grows, each event once. The recorded program notices nothing of
// it: files are only read, and no lock of the recording is taken.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "analysis/call_tree.hpp"
#include "analysis/columns.hpp"
#include "analysis/name_merger.hpp"
#include "analysis/segment_reader.hpp"
#include "analysis/span_builder.hpp"
#include "analysis/thread_feed.hpp"

namespace gpuprof {

// What is known of one process of the recording.
struct FollowedProcessState {
    std::uint32_t process_id = 0;
    std::uint32_t parent_process_id = 0;
    std::uint64_t process_key = 0;
    bool closed = false;    // its recording was ended in order
    bool finished = false;  // all of it was read
    std::int64_t start_ns = 0;
    std::int64_t last_ns = 0;     // of the latest event that was read
    std::int64_t waiting_ns = 0;  // since when a thread's compilation or collection lasts; 0: none does
    std::uint64_t events = 0;
    std::uint64_t spans = 0;
    std::uint64_t dropped_events = 0;
    std::uint64_t added_events = 0;  // that another tool recorded, which are not followed
};

// Times are nanoseconds of the monotonic clock. While a process records, its ticks are converted by
// this machine's clock, and after its end by the two points that the decoder uses too.
class SegmentFollower {
  public:
    using Sink = std::function<void(const FollowedProcessState& process, const SpanColumns& rows)>;

    explicit SegmentFollower(std::string folder);
    SegmentFollower(const SegmentFollower&) = delete;
    SegmentFollower& operator=(const SegmentFollower&) = delete;
    ~SegmentFollower();

    // Hands the spans that ended since the last call to `sink`, after about `most_events` events at the
    // latest; returns whether there are more. `ended` are processes that exist no more: what they left open
    // ends. Files that cannot be read are left out, and tried again by the next call.
    bool poll(const std::vector<std::uint32_t>& ended, std::size_t most_events, const Sink& sink);

    const CallTree& tree() const noexcept { return tree_; }
    const std::vector<RecordedName>& names() const noexcept { return names_; }
    std::uint32_t backward_name() const noexcept { return backward_; }
    std::vector<FollowedProcessState> processes() const;
    // Modes of layer calls that were met since the last call.
    std::vector<DecodedMode> take_modes();

  private:
    class Process;

    void find_segments();
    TickToRun clock() const;

    std::string folder_;
    CallTree tree_;
    std::vector<RecordedName> names_;
    NameMerger merger_{names_};
    std::uint32_t backward_;
    std::int64_t next_span_id_ = 0;
    std::vector<DecodedMode> modes_;
    std::map<std::string, bool> known_files_;
    std::map<std::pair<std::uint64_t, std::uint32_t>, std::unique_ptr<Process>> processes_;
};

}  // namespace gpuprof
