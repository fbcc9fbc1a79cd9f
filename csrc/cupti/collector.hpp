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

#include "cupti/buffer_pool.hpp"
#include "cupti/clock_check.hpp"
#include "cupti/decoder.hpp"
#include "cupti/gpu_file.hpp"
#include "cupti/kernel_names.hpp"
#include "cupti/loader.hpp"
#include "cupti/subscription.hpp"

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
};

struct Started {
    std::string reason;  // why there are no GPU records, with the mend; empty when they are on
    std::string path;
    std::uint32_t version = 0;
    std::vector<std::string> notes;
};

struct GpuTotals {
    DecodeCounts counts;
    std::uint64_t dropped = 0;       // by CUPTI, as it says
    std::uint64_t stale = 0;         // of work before this recording, left out
    std::uint64_t lost_records = 0;  // decoded, and not written: the disk
    std::uint64_t held_buffers = 0;  // that CUPTI kept at the end, with whatever is in them
    std::optional<std::int64_t> clock_error_ns;
    std::string problem;  // the first thing that went wrong, in one line
};

// One in a process, never destroyed: CUPTI keeps the addresses of its callbacks.
//
// Locks: `lifecycle_` is held while CUPTI is called and no callback takes it. The callbacks take the
// pool's lock alone, and whoever holds that, or `state_`, calls nothing of CUPTI.
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

    std::string begin(const CollectorOptions& options, Started& started);
    std::string switch_on();
    void disable_kinds() const noexcept;
    void register_clock() noexcept;

    // Of the thread that reads.
    void run() noexcept;
    void finish() noexcept;
    void flush(std::uint32_t flag) noexcept;
    void read_ready() noexcept;
    void read(std::span<std::uint8_t> buffer) noexcept;
    void write() noexcept;
    void leave_out_stale(DecodeCounts& counts) noexcept;
    template <typename MakeText>
    void note_problem(MakeText make_text) noexcept;
    void note_clock_error() noexcept;

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
    abi::ActivityRegisterTimestamp clock_registered_with_ = nullptr;
    CollectorOptions options_;
    Library library_;
    Subscription subscription_;
    std::thread reader_;

    BufferPool pool_;
    GpuFile file_;
    KernelNames names_;
    std::vector<GpuRecord> records_;
    std::int64_t started_ns_ = 0;
    std::int64_t correction_ns_ = 0;

    std::mutex state_;
    std::condition_variable ended_;
    bool has_ended_ = true;
    GpuTotals totals_;
};

}  // namespace gpuprof::cupti
