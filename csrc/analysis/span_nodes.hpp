// SPDX-License-Identifier: Apache-2.0
// The nodes of spans in a tree with Python's frames: that of the span around, the group of frames between
// them, and the row of the plain tree. Of most spans the group is a guess from the samples around.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <limits>
#include <optional>
#include <set>
#include <span>
#include <utility>
#include <vector>

namespace gpuprof {

// Numbers by three others, none of which is negative.
class NumberOfThree {
  public:
    struct Key {
        std::int32_t first, second, third;
        bool operator==(const Key&) const = default;
    };
    NumberOfThree() : entries_(1024) {}
    // The number of a key, which `make` gives where it is new.
    template <typename Make>
    std::int32_t of(const Key& key, const Make& make) {
        std::size_t slot = slot_of(key);
        if (entries_[slot].number >= 0) return entries_[slot].number;
        const std::int32_t number = make();
        if ((++count_) * 2 > entries_.size()) {
            grow();
            slot = slot_of(key);
        }
        entries_[slot] = {key, number};
        return number;
    }

  private:
    struct Entry {
        Key key{};
        std::int32_t number = -1;
    };
    std::size_t slot_of(const Key& key) const noexcept;
    void grow();

    std::vector<Entry> entries_;  // open addressing
    std::size_t count_ = 0;
};

class SpanNodes {
  public:
    static constexpr std::int32_t nothing = -1;
    // The node below another, and the group above a span of a family between two groups, or `nothing` twice.
    struct Made {
        std::function<std::int32_t(std::int32_t base, std::int32_t group, std::int32_t row)> node;
        std::function<std::int32_t(std::int32_t family, std::int32_t before, std::int32_t after)> group;
    };
    // The samples of a thread: their moments, in order, and the group above all spans in each.
    struct Samples {
        std::vector<std::int64_t> moments;
        std::vector<std::int32_t> outer;
    };
    // One element a span in each column. Ids ascend, and a thread's are in the order of their begin.
    struct Spans {
        std::span<const std::int64_t> id, parent_id, start_ns, duration_ns, own_ns;
        std::span<const std::uint32_t> thread;
        std::span<const std::int32_t> row;
    };
    struct Sums {
        std::int64_t calls = 0, total_ns = 0, own_ns = 0;
    };

    // `families` are by row, -1 or above.
    SpanNodes(std::vector<std::int32_t> families, Made made)
        : families_(std::move(families)), made_(std::move(made)) {}

    // `root` is the node around all spans. Above those of a thread without samples are no frames: group 0.
    void add_thread(std::int32_t root, std::optional<Samples> samples);
    // The groups above spans that samples met; ids ascend.
    void add_met(std::vector<std::int64_t> ids, std::vector<std::int32_t> groups);
    // Gives spans that follow those of the call before their nodes.
    void make(const Spans& spans, std::span<std::int32_t> nodes);

    const std::vector<Sums>& sums() const noexcept { return sums_; }  // by node
    // Which nodes have spans of which threads.
    const std::set<std::pair<std::int32_t, std::uint32_t>>& threads() const noexcept { return threads_; }
    std::size_t thread_count() const noexcept { return of_thread_.size(); }
    std::size_t row_count() const noexcept { return families_.size(); }

  private:
    struct Open {
        std::int64_t id, end_ns;
        std::int32_t node;
    };
    struct Thread {
        std::int32_t root;
        std::optional<Samples> samples;
        std::size_t after = 0;  // the first sample that is not before the last span's begin
        std::int64_t last_start_ns = std::numeric_limits<std::int64_t>::min();
        std::int64_t until_ns = std::numeric_limits<std::int64_t>::min();  // the latest end
        std::vector<Open> open;  // and some that ended, by their ids
        std::size_t prune_at = 1024;
    };
    std::int32_t group_of(Thread& thread, std::int64_t id, std::int64_t start_ns, std::int64_t end_ns,
                          std::int32_t row);
    static std::int32_t node_around(const Thread& thread, std::int64_t parent_id) noexcept;
    static void forget_ended(Thread& thread, std::int64_t now_ns);
    void count(std::int32_t node, std::uint32_t thread, std::int64_t duration_ns, std::int64_t own_ns);

    std::vector<std::int32_t> families_;
    Made made_;
    std::vector<Thread> of_thread_;
    std::vector<std::int64_t> met_;
    std::vector<std::int32_t> groups_of_met_;
    std::size_t next_met_ = 0;
    NumberOfThree nodes_, groups_;
    std::vector<Sums> sums_;
    std::vector<std::uint32_t> last_thread_;  // by node
    std::set<std::pair<std::int32_t, std::uint32_t>> threads_;
};

}  // namespace gpuprof
