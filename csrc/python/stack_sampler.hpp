// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <pthread.h>

#include <atomic>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "python/code_names.hpp"
#include "python/frame_reader.hpp"
#include "python/stack_file.hpp"
#include "python/thread_usage.hpp"

namespace gpuprof::python {

// Samples the stacks of all threads of the interpreter from a thread of its own, which never takes the
// interpreter lock: the program runs on while it is read. A thread that used no processor since its last
// sample has the stack that it had then, so one that waits costs a question to the kernel and no more.
class StackSampler {
  public:
    // With the interpreter lock held. Makes the file.
    StackSampler(std::string path, std::int64_t interval_ns, FrameNaming naming);
    StackSampler(const StackSampler&) = delete;
    StackSampler& operator=(const StackSampler&) = delete;
    ~StackSampler();

    // Begins; returns an error number, or 0.
    int start() noexcept;
    // Takes the last samples and ends; may be started again. Waits for the sampling thread, which needs no
    // lock of the interpreter.
    void stop() noexcept;
    // Nothing may be sampled in mid-fork (fork_pauses.hpp). The first `pause` ends the sampling, the last
    // `resume` begins it again, unless it was stopped meanwhile.
    void pause() noexcept;
    void resume() noexcept;

    struct Counts {
        std::int64_t samples = 0;
        std::int64_t torn = 0;
        std::int64_t cpu_ns = 0;  // what the sampling thread used
    };
    Counts counts() const noexcept;
    int error() const noexcept { return error_.load(std::memory_order_relaxed); }

    // The code objects of the calling thread's frames, the innermost first: what can be compared with
    // Python's own result. Empty if they cannot be read. With the interpreter lock held.
    static std::vector<Address> own_stack();

  private:
    // A sample that is not written yet, for `off_ns` of which the thread was not on a processor.
    struct Row {
        std::int64_t until_ns = 0, duration_ns = 0, off_ns = 0;
        std::int64_t ready_ns = 0;  // of `off_ns`, for which the thread was seen to be ready
        CodeNames::Named named{0, StackFile::no_site};
    };
    struct Thread {
        ThreadRef ref;
        std::int64_t cpu_ns = 0;      // when its stack was read
        std::int64_t sampled_ns = 0;  // until when samples represent it
        std::int64_t queued_ns = 0;   // in all, as far as samples have it
        std::int64_t idle_ns = 0;     // until when it is known to have waited since
        std::int64_t ready_ns = 0;    // of that, for which it was ready
        CodeNames::Named named{0, StackFile::no_site};
        std::optional<CodeNames::Named> ran;     // where it was last seen to run
        std::optional<std::uint32_t> waited_in;  // the stack in which it was last seen to wait
        std::int64_t skipped_ns = 0;             // off the processor in samples since the queue was last read
        std::int64_t checked_ns = 0;             // when a thread that does not run was found to be ready
        bool waits = false;                      // seen neither running nor ready since its last sample
        // The kernel counts the time in the queue when it is over, so samples are written when their thread
        // has run again, or waits. No more than three.
        std::vector<Row> open;
        bool counts_queued = false;
        bool has_stack = false;
        bool is_empty = false;  // no function of Python runs in it
        bool is_listed = false;
    };

    void run() noexcept;
    bool wait_until(std::int64_t due_ns) noexcept;  // false when it is to end
    bool is_last() const noexcept;
    void sample_all();
    void write_usage(std::int64_t except);  // of all threads, at the start, once a second, and at the end
    void list_threads();
    void sample(Thread& thread);
    bool read_in_time(const Thread& thread, std::int64_t& now_ns);
    void sample_running(Thread& thread, std::int64_t cpu_ns);
    void count_used(std::int64_t used_ns) noexcept;
    static std::optional<Row> next_row(Thread& thread, std::int64_t until_ns, std::int64_t cpu_ns);
    void keep(Thread& thread, std::int64_t until_ns, std::int64_t cpu_ns);
    std::int64_t keep_begin(Thread& thread, std::int64_t now_ns, std::int64_t used_ns);
    void keep_rest(Thread& thread, std::int64_t until_ns);
    void write_wait(Thread& thread, std::int64_t queued_ns);
    void write_open(Thread& thread);
    std::int64_t queued_since(Thread& thread, std::int64_t off_ns);
    void write(const Thread& thread, const Row& row, std::int64_t queued_ns);
    int begin() noexcept;
    void end() noexcept;
    void write_all() noexcept;

    const std::int64_t interval_ns_;
    StackFile file_;
    CodeNames names_;
    FrameReader reader_;
    std::vector<Thread> threads_;
    std::vector<ThreadRef> listed_;
    std::vector<RawFrame> frames_;
    std::vector<NamedUsage> usage_;
    std::int64_t usage_ns_ = 0;  // when it was last written
    std::int64_t used_ns_ = 0;   // by all threads while they were sampled

    pthread_mutex_t lifecycle_ = PTHREAD_MUTEX_INITIALIZER;
    pthread_t thread_{};
    // Under lifecycle_.
    bool is_running_ = false, is_wanted_ = false;
    int pauses_ = 0;
    pthread_mutex_t mutex_ = PTHREAD_MUTEX_INITIALIZER;
    pthread_cond_t wake_;
    bool is_ending_ = false;  // under mutex_
    std::atomic<std::int64_t> samples_{0}, torn_{0}, cpu_ns_{0};
    std::atomic<int> error_{0};
};

}  // namespace gpuprof::python
