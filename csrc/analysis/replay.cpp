// SPDX-License-Identifier: Apache-2.0
#include "analysis/replay.hpp"

#include <algorithm>
#include <numeric>
#include <stdexcept>

namespace gpuprof {

namespace {

constexpr std::int64_t none = -1;
// An item that waits for nothing may start at any time.
constexpr std::int64_t earliest = std::numeric_limits<std::int64_t>::min() / 4;

std::size_t index(std::int64_t value) {
    return static_cast<std::size_t>(value);
}

bool are_offsets(const std::vector<std::int64_t>& offsets, std::size_t count) {
    return !offsets.empty() && offsets.front() == 0 && offsets.back() == static_cast<std::int64_t>(count) &&
           std::is_sorted(offsets.begin(), offsets.end());
}

void check(const ReplayItems& items) {
    const std::size_t count = items.gap_ns.size();
    const std::size_t waits = items.wait_item.size();
    bool fits = items.least_ns.size() == count && items.delay_ns.size() == count &&
                items.wait_begin.size() == count + 1 && items.wait_kind.size() == waits &&
                items.wait_lag_ns.size() == waits && are_offsets(items.lane_begin, count) &&
                are_offsets(items.wait_begin, waits);
    for (const std::int64_t item : items.wait_item)
        fits = fits && item >= 0 && item < static_cast<std::int64_t>(count);
    for (const WaitsFor kind : items.wait_kind) fits = fits && kind <= WaitsFor::end_after_end;
    if (!fits) throw std::invalid_argument("columns of a replay do not fit together");
}

// Executes lane by lane: a lane continues until it needs a time that is not known yet.
class Execution {
  public:
    explicit Execution(const ReplayItems& items)
        : items_(items),
          next_(items.lane_begin.begin(), items.lane_begin.end() - 1),
          first_waiting_(items.gap_ns.size(), none),
          next_waiting_(next_.size(), none),
          waits_on_(next_.size(), none),
          state_(items.gap_ns.size(), State::not_started),
          ready_(next_.size()) {
        std::iota(ready_.rbegin(), ready_.rend(), 0);  // the first lane is taken first
        times_.start_ns.assign(items.gap_ns.size(), 0);
        times_.end_ns.assign(items.gap_ns.size(), 0);
    }

    ReplayTimes run() {
        for (;;) {
            while (!ready_.empty()) {
                const std::int64_t lane = ready_.back();
                ready_.pop_back();
                advance(lane);
            }
            const std::int64_t stuck = first_stuck();
            if (stuck == none) return std::move(times_);
            leave_out_waits(stuck);
        }
    }

  private:
    enum class State : std::uint8_t { not_started, started, ended };

    void advance(std::int64_t lane) {
        std::int64_t& item = next_[index(lane)];
        const std::int64_t end = items_.lane_begin[index(lane) + 1];
        for (; item < end; ++item) {
            if (state_[index(item)] == State::not_started && !start(lane, item)) return;
            if (!finish(lane, item)) return;
        }
    }

    bool start(std::int64_t lane, std::int64_t item) {
        const std::size_t at = index(item);
        std::int64_t time = earliest;
        if (items_.gap_ns[at] != ReplayItems::unordered) {
            const bool is_first = item == items_.lane_begin[index(lane)];
            time = (is_first ? 0 : times_.end_ns[at - 1]) + items_.gap_ns[at];
        }
        if (!wait(lane, item, false, time)) return false;
        times_.start_ns[at] = time + items_.delay_ns[at];
        state_[at] = State::started;
        wake(at);
        return true;
    }

    bool finish(std::int64_t lane, std::int64_t item) {
        const std::size_t at = index(item);
        std::int64_t time = times_.start_ns[at] + items_.least_ns[at];
        if (!wait(lane, item, true, time)) return false;
        times_.end_ns[at] = time;
        state_[at] = State::ended;
        wake(at);
        return true;
    }

    // Moves `time` to after what the start or the end waits for. False: a time is missing, and the lane is
    // among those that wait for it.
    bool wait(std::int64_t lane, std::int64_t item, bool of_end, std::int64_t& time) {
        if (left_out_ == item) return true;
        for (auto i = index(items_.wait_begin[index(item)]); i < index(items_.wait_begin[index(item) + 1]);
             ++i) {
            const WaitsFor kind = items_.wait_kind[i];
            if ((kind == WaitsFor::end_after_end) != of_end) continue;
            const std::size_t other = index(items_.wait_item[i]);
            const bool is_known = kind == WaitsFor::start_after_start ? state_[other] != State::not_started
                                                                      : state_[other] == State::ended;
            if (!is_known) {
                next_waiting_[index(lane)] = first_waiting_[other];
                first_waiting_[other] = lane;
                waits_on_[index(lane)] = items_.wait_item[i];
                return false;
            }
            const auto& times = kind == WaitsFor::start_after_start ? times_.start_ns : times_.end_ns;
            time = std::max(time, times[other] + items_.wait_lag_ns[i]);
        }
        return true;
    }

    void wake(std::size_t item) {
        for (std::int64_t lane = first_waiting_[item]; lane != none;) {
            ready_.push_back(lane);
            const std::int64_t next = next_waiting_[index(lane)];
            next_waiting_[index(lane)] = none;
            lane = next;
        }
        first_waiting_[item] = none;
    }

    std::int64_t first_stuck() const {
        for (std::size_t lane = 0; lane < next_.size(); ++lane)
            if (next_[lane] < items_.lane_begin[lane + 1]) return static_cast<std::int64_t>(lane);
        return none;
    }

    void leave_out_waits(std::int64_t lane) {
        unlink(lane);
        left_out_ = next_[index(lane)];
        ++times_.circular;
        advance_one(lane);
        left_out_ = none;
        ready_.push_back(lane);
    }

    void advance_one(std::int64_t lane) {
        std::int64_t& item = next_[index(lane)];
        if (state_[index(item)] == State::not_started) start(lane, item);
        finish(lane, item);
        ++item;
    }

    void unlink(std::int64_t lane) {
        std::int64_t* link = &first_waiting_[index(waits_on_[index(lane)])];
        while (*link != lane) link = &next_waiting_[index(*link)];
        *link = next_waiting_[index(lane)];
        next_waiting_[index(lane)] = none;
    }

    const ReplayItems& items_;
    std::vector<std::int64_t> next_;           // the next item of each lane
    std::vector<std::int64_t> first_waiting_;  // the first of the lanes that wait for an item
    std::vector<std::int64_t> next_waiting_;   // the next lane that waits for the same item
    std::vector<std::int64_t> waits_on_;       // the item that a lane that cannot continue waits for
    std::vector<State> state_;
    std::vector<std::int64_t> ready_;  // lanes that can continue
    std::int64_t left_out_ = none;     // the item whose waits are ignored
    ReplayTimes times_;
};

}  // namespace

ReplayTimes replay(const ReplayItems& items) {
    check(items);
    return Execution(items).run();
}

}  // namespace gpuprof
