// SPDX-License-Identifier: Apache-2.0
// Records what runs on the GPU, through CUPTI's activity records, from `start` to `stop`.
#pragma once

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "cupti/activity_session.hpp"
#include "cupti/buffer_pool.hpp"
#include "cupti/clock_calibration.hpp"
#include "cupti/decoder.hpp"
#include "cupti/gpu_file.hpp"
#include "cupti/kernel_names.hpp"
#include "cupti/loader.hpp"

namespace gpuprof::cupti {

struct CollectorOptions {
    std::vector<std::string> folders;  // in which CUPTI is searched
    // What a program that is killed loses at most, of what has ended on the GPU.
    std::chrono::milliseconds flush_period{1000};
    // At a stop: how often, and how long in all, work that has not ended is waited for.
    std::chrono::milliseconds retry_period{10};
    std::chrono::milliseconds longest_wait{500};
    // How long CUPTI itself may take over a stop before it is left alone.
    std::chrono::milliseconds longest_stop{10'000};
    SessionOptions session;
};

struct Started {
    Reason reason;  // why there are no GPU records
    std::string path;
    std::uint32_t version = 0;
    SessionFacts session;
    bool version_is_unknown = false;  // newer than this gpuprof
};

struct GpuTotals {
    DecodeCounts counts;
    std::uint64_t dropped = 0;       // by CUPTI, as it reports
    std::uint64_t stale = 0;         // of work before this recording, left out
    std::uint64_t outside = 0;       // whose times lie outside the recording by more than a second, left out
    std::uint64_t lost_records = 0;  // decoded, and not written: the disk
    std::uint64_t held_buffers = 0;  // that CUPTI kept at the end, with whatever is in them
    std::optional<std::int64_t> clock_error_ns;  // nothing where the clock was never read
    ClockState clock = ClockState::unreadable;
    Reason problem;  // the first thing that went wrong
};

// One in a process, never destroyed: CUPTI keeps the addresses of its callbacks.
//
// Locks: `lifecycle_` is held while CUPTI is called and no callback takes it. The callbacks take the
// pool's lock alone, and a thread with that lock, or `state_`, calls nothing of CUPTI.
//
// CUPTI is never finalized. That would free what other threads may be using at that moment, and would end
// the tracing of every other user of CUPTI in the process; callbacks and records are switched off instead.
class Collector {
  public:
    static Collector& instance();
    Collector(const Collector&) = delete;
    Collector& operator=(const Collector&) = delete;

    // While the Recorder records. Never throws: whatever fails is the reason.
    Started start(const CollectorOptions& options) noexcept;
    // Before the Recorder stops. Harmless when nothing is on.
    GpuTotals stop() noexcept;

  private:
    Collector();
    ~Collector() = default;

    Reason begin(const CollectorOptions& options, Started& started);
    std::uint32_t switch_on();
    // Reads CUPTI's clock; twice where its rate is not known.
    void calibrate() noexcept;

    // Of the thread that reads.
    void run() noexcept;
    void finish() noexcept;
    void flush(std::uint32_t flag) noexcept;
    void read_ready() noexcept;
    void read(std::span<std::uint8_t> buffer) noexcept;
    void write() noexcept;
    void place_in_time(DecodeCounts& counts) noexcept;
    bool calibration_is_due() const noexcept;
    void note_problem(Reason problem) noexcept;
    void note_clock() noexcept;

    static void request_buffer(std::uint8_t** buffer, std::size_t* size, std::size_t* limit) noexcept;
    static void complete_buffer(void* context, std::uint32_t stream, std::uint8_t* buffer, std::size_t size,
                                std::size_t valid_bytes) noexcept;
    static void after_fork_in_child() noexcept;
    static void at_exit() noexcept;

    std::atomic<bool> is_child_{false};  // of a process that had CUPTI in use
    std::atomic<bool> cupti_used_{false};
    std::atomic<bool> finishing_{false};
    std::mutex lifecycle_;
    bool on_ = false;
    bool stuck_ = false;  // CUPTI never came back from a call
    CollectorOptions options_;
    Library library_;
    ActivitySession session_;
    std::thread reader_;

    BufferPool pool_;
    GpuFile file_;
    KernelNames names_;
    std::vector<GpuRecord> records_;
    std::int64_t started_ns_ = 0;
    // Filled at the start, and then by the thread that reads.
    ClockCalibration clock_;
    bool flush_failed_ = false;

    std::mutex state_;
    std::condition_variable ended_;
    bool has_ended_ = true;
    GpuTotals totals_;
};

}  // namespace gpuprof::cupti
