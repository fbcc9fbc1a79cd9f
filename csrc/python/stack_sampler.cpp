// SPDX-License-Identifier: Apache-2.0
#include "python/stack_sampler.hpp"

#include <Python.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <ctime>
#include <exception>
#include <iterator>
#include <utility>

#include "core/clock.hpp"
#include "core/platform.hpp"
#include "core/recorder.hpp"
#include "core/signals_blocked.hpp"
#include "python/interpreter_layout.h"

namespace gpuprof::python {
namespace {

constexpr std::int64_t second_ns = 1'000'000'000;
// A killed program loses the wait of a thread from the last time that it was written.
constexpr std::int64_t longest_wait_ns = 50'000'000;
constexpr std::int64_t usage_interval_ns = second_ns;
constexpr std::int64_t unknown_ns = -1;
constexpr std::int64_t longest_read_ns = 200'000;
constexpr std::int64_t longest_frame_read_ns = 10'000;
constexpr int most_reads = 3;
// Of processor time. A helper or an idle worker uses less.
constexpr std::int64_t least_used_ns = second_ns;

std::int64_t to_ns(const timespec& time) noexcept {
    return static_cast<std::int64_t>(time.tv_sec) * second_ns + time.tv_nsec;
}

// The processor time of any thread of this process. The kernel's number for the clock is made of the thread's
// id (include/linux/posix-timers.h); 6 is the time of one thread as the scheduler counts it.
std::int64_t thread_cpu_ns(std::int64_t native_id) noexcept {
    timespec time{};
    const auto clock = static_cast<clockid_t>(~static_cast<std::uint32_t>(native_id) << 3U | 6U);
    return clock_gettime(clock, &time) == 0 ? to_ns(time) : unknown_ns;
}

}  // namespace

StackSampler::StackSampler(std::string path, std::int64_t interval_ns, FrameNaming naming)
    : interval_ns_(interval_ns),
      file_(std::move(path), getpid(), interval_ns),
      names_(std::move(naming), file_) {
    pthread_condattr_t attributes;
    pthread_condattr_init(&attributes);
    pthread_condattr_setclock(&attributes, CLOCK_MONOTONIC);
    pthread_cond_init(&wake_, &attributes);
    pthread_condattr_destroy(&attributes);
    error_ = file_.error();
}

// Also in a forked process, in which another thread may have held the lock.
StackSampler::~StackSampler() {
    if (is_running_) stop();
}

int StackSampler::start() noexcept {
    pthread_mutex_lock(&lifecycle_);
    is_wanted_ = true;
    const int failed = is_running_ || pauses_ > 0 ? 0 : begin();
    pthread_mutex_unlock(&lifecycle_);
    return failed;
}

void StackSampler::stop() noexcept {
    pthread_mutex_lock(&lifecycle_);
    is_wanted_ = false;
    end();
    write_all();
    pthread_mutex_unlock(&lifecycle_);
}

void StackSampler::pause() noexcept {
    pthread_mutex_lock(&lifecycle_);
    ++pauses_;
    end();
    pthread_mutex_unlock(&lifecycle_);
}

void StackSampler::resume() noexcept {
    pthread_mutex_lock(&lifecycle_);
    if (pauses_ > 0 && --pauses_ == 0 && is_wanted_)
        if (const int failed = begin(); failed != 0) error_ = failed;
    pthread_mutex_unlock(&lifecycle_);
}

int StackSampler::begin() noexcept {
    is_ending_ = false;
    try {
        write_usage(0);  // here, so that a thread that the program starts next is counted from its begin
    } catch (const std::exception&) {
        return ENOMEM;
    }
    const SignalsBlocked blocked;
    const auto enter = [](void* self) -> void* {
        static_cast<StackSampler*>(self)->run();
        return nullptr;
    };
    const int failed = pthread_create(&thread_, nullptr, enter, this);
    is_running_ = failed == 0;
    return failed;
}

void StackSampler::end() noexcept {
    if (!is_running_) return;
    pthread_mutex_lock(&mutex_);
    is_ending_ = true;
    pthread_cond_signal(&wake_);
    pthread_mutex_unlock(&mutex_);
    pthread_join(thread_, nullptr);
    is_running_ = false;
}

// What the sampling thread left open.
void StackSampler::write_all() noexcept {
    try {
        for (Thread& thread : threads_) write_open(thread);
    } catch (const std::exception&) {
        error_ = ENOMEM;
    }
    if (file_.error() != 0) error_ = file_.error();
}

StackSampler::Counts StackSampler::counts() const noexcept {
    return {samples_.load(std::memory_order_relaxed), torn_.load(std::memory_order_relaxed),
            cpu_ns_.load(std::memory_order_relaxed)};
}

std::vector<Address> StackSampler::own_stack() {
    FrameReader reader;
    std::vector<RawFrame> frames;
    std::vector<Address> codes;
    if (!gpuprof_layout.is_known) return codes;
    if (reader.read_stack(reinterpret_cast<Address>(PyThreadState_Get()), frames) !=
        FrameReader::Outcome::read)
        return codes;
    for (const RawFrame& frame : frames) codes.push_back(frame.code);
    return codes;
}

void StackSampler::run() noexcept {
    try {
        std::int64_t due_ns = monotonic_ns();
        list_threads();
        for (Thread& thread : threads_) {
            thread.cpu_ns = thread_cpu_ns(thread.ref.native_id);
            thread.sampled_ns = due_ns;
            thread.has_stack = false;
        }
        do {
            due_ns = std::max(due_ns + interval_ns_, monotonic_ns() - interval_ns_);
        } while (wait_until(due_ns) && (sample_all(), file_.error() == 0) && !is_last());
        sample_all();
        for (Thread& thread : threads_) keep_rest(thread, thread.idle_ns);
        write_usage(system_thread_id());
    } catch (const std::exception&) {
        error_ = ENOMEM;  // nothing else is thrown here
    }
    if (file_.error() != 0) error_ = file_.error();
    timespec used{};
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &used);
    cpu_ns_.fetch_add(to_ns(used), std::memory_order_relaxed);
}

bool StackSampler::wait_until(std::int64_t due_ns) noexcept {
    const timespec until{static_cast<time_t>(due_ns / second_ns), static_cast<long>(due_ns % second_ns)};
    pthread_mutex_lock(&mutex_);
    while (!is_ending_ && pthread_cond_timedwait(&wake_, &mutex_, &until) != ETIMEDOUT) {
    }
    const bool goes_on = !is_ending_;
    pthread_mutex_unlock(&mutex_);
    return goes_on;
}

// A process that a thread other than the first one forked ends with its last thread, which this one must not
// be. Python's threads are counted first, since that is known already.
bool StackSampler::is_last() const noexcept {
    return listed_.empty() && !has_other_threads();
}

void StackSampler::sample_all() {
    list_threads();
    for (Thread& thread : threads_) sample(thread);
    if (monotonic_ns() - usage_ns_ >= usage_interval_ns) write_usage(system_thread_id());
}

void StackSampler::write_usage(std::int64_t except) {
    usage_ns_ = monotonic_ns();
    read_thread_usage(usage_, except);
    for (const NamedUsage& each : usage_) file_.add_usage(usage_ns_, each);
}

// Brings `threads_` up to date. A thread that has ended keeps what was written; the rest of its time is lost,
// which is less than an interval unless it waited.
void StackSampler::list_threads() {
    const bool is_whole = reader_.read_threads(listed_);
    for (Thread& thread : threads_) thread.is_listed = false;
    for (const ThreadRef& ref : listed_) {
        const auto same = [&ref](const Thread& thread) {
            return thread.ref.state == ref.state && thread.ref.native_id == ref.native_id;
        };
        const auto found = std::find_if(threads_.begin(), threads_.end(), same);
        if (found == threads_.end()) {
            Thread fresh;
            fresh.ref = ref;
            fresh.cpu_ns = thread_cpu_ns(ref.native_id);
            fresh.sampled_ns = monotonic_ns();
            fresh.queued_ns = thread_queued_ns(ref.native_id);
            fresh.counts_queued = fresh.queued_ns != unknown_ns;
            fresh.is_listed = true;
            threads_.push_back(fresh);
        } else {
            found->is_listed = true;
        }
    }
    if (!is_whole) return;
    for (Thread& thread : threads_) {
        if (thread.is_listed) continue;
        keep_rest(thread, thread.idle_ns);
        write_open(thread);
    }
    std::erase_if(threads_, [](const Thread& thread) { return !thread.is_listed; });
}

void StackSampler::sample(Thread& thread) {
    const std::int64_t now_ns = monotonic_ns();
    const std::int64_t cpu_ns = thread_cpu_ns(thread.ref.native_id);
    if (cpu_ns == unknown_ns) return;
    if (thread.has_stack && cpu_ns == thread.cpu_ns) {
        // Once for each wait: a thread that waited for a processor first has run before it waits otherwise.
        if (thread.idle_ns <= thread.sampled_ns && !thread.waits) {
            thread.waits = !is_thread_ready(thread.ref.native_id);
            if (thread.waits) thread.waited_in = thread.named.stack;
        } else if (!thread.waits) {
            thread.ready_ns += now_ns - thread.idle_ns;
        }
        thread.idle_ns = now_ns;
        if (now_ns - std::max(thread.sampled_ns, thread.checked_ns) < longest_wait_ns) return;
        thread.checked_ns = now_ns;
        if (is_thread_ready(thread.ref.native_id)) return;  // its time in the queue is not counted yet
        keep_rest(thread, now_ns);
        write_open(thread);
        return;
    }
    keep_rest(thread, thread.idle_ns);
    write_open(thread);
    sample_running(thread, cpu_ns);
}

// The stack and the instant of which it is. This thread may lose its processor while it reads.
bool StackSampler::read_in_time(const Thread& thread, std::int64_t& now_ns) {
    for (int attempt = 0; attempt < most_reads; ++attempt) {
        const std::int64_t before_ns = monotonic_ns();
        if (reader_.read_stack(thread.ref.state, frames_) != FrameReader::Outcome::read) return false;
        now_ns = reader_.copied_ns();
        if (monotonic_ns() - before_ns < longest_read_ns + std::ssize(frames_) * longest_frame_read_ns)
            return true;
    }
    return false;
}

void StackSampler::sample_running(Thread& thread, std::int64_t cpu_ns) {
    std::int64_t now_ns = 0;
    const std::optional<CodeNames::Named> named =
        read_in_time(thread, now_ns) ? names_.name(frames_) : std::nullopt;
    if (!named) {
        torn_.fetch_add(1, std::memory_order_relaxed);
        return;
    }
    const std::int64_t used_ns = thread.cpu_ns == unknown_ns ? 0 : cpu_ns - thread.cpu_ns;
    const std::int64_t rest_ns = keep_begin(thread, now_ns, used_ns);
    thread.named = *named;
    thread.cpu_ns = cpu_ns;
    thread.has_stack = true;
    thread.is_empty = frames_.empty();
    // A thread that was woken is ready for a while before it leaves the call that waited.
    if (thread.waits)
        thread.waited_in = named->stack;
    else if (!thread.is_empty && named->stack != thread.waited_in)
        thread.ran = named;
    keep(thread, now_ns, rest_ns);
    count_used(used_ns);
}

// Of the time since the last sample, keeps what is not that of the stack that was read now: the rest of a
// wait if the thread runs, or what it ran if it waits. What it ran between two waits is that of the
// function it was last seen to run, so that functions that run for less than an interval have their time.
// Returns for how long the thread was on a processor in what is not kept.
std::int64_t StackSampler::keep_begin(Thread& thread, std::int64_t now_ns, std::int64_t used_ns) {
    const bool waited = std::exchange(thread.waits, false);
    const std::int64_t off_ns = now_ns - thread.sampled_ns - used_ns;
    if (!thread.has_stack || off_ns < interval_ns_ / 10) return used_ns;
    thread.waits = !is_thread_ready(thread.ref.native_id);
    if (!thread.waits) {
        if (waited) keep(thread, thread.sampled_ns + off_ns, 0);
        return used_ns;
    }
    if (!thread.ran || used_ns < interval_ns_ / 10) return used_ns;
    thread.named = *thread.ran;
    thread.is_empty = false;
    keep(thread, thread.sampled_ns + used_ns, used_ns);
    return 0;
}

// A process that computes is in the run even without events: its samples need its files.
void StackSampler::count_used(std::int64_t used_ns) noexcept {
    const bool was_idle = used_ns_ < least_used_ns;
    used_ns_ += used_ns;
    if (was_idle && used_ns_ >= least_used_ns) Recorder::instance().make_files();
}

// The time from the last sample to `until_ns`, in which the thread was on a processor for `cpu_ns`.
std::optional<StackSampler::Row> StackSampler::next_row(Thread& thread, std::int64_t until_ns,
                                                        std::int64_t cpu_ns) {
    if (until_ns <= thread.sampled_ns) return std::nullopt;
    const std::int64_t duration_ns = until_ns - thread.sampled_ns;
    thread.sampled_ns = until_ns;
    if (thread.is_empty) return std::nullopt;
    const std::int64_t off_ns = duration_ns - std::clamp(cpu_ns, std::int64_t{0}, duration_ns);
    return Row{until_ns, duration_ns, off_ns, 0, thread.named};
}

void StackSampler::keep(Thread& thread, std::int64_t until_ns, std::int64_t cpu_ns) {
    if (const std::optional<Row> row = next_row(thread, until_ns, cpu_ns)) thread.open.push_back(*row);
}

// Keeps the sample of the time since the last one, in which the thread was not on a processor.
void StackSampler::keep_rest(Thread& thread, std::int64_t until_ns) {
    const std::int64_t ready_ns = std::exchange(thread.ready_ns, 0);
    if (!thread.has_stack) return;
    if (std::optional<Row> row = next_row(thread, until_ns, 0)) {
        row->ready_ns = std::min(ready_ns, row->off_ns);
        thread.open.push_back(*row);
    }
}

// A thread may be ready for longer than the kernel counts it in the queue: a hypervisor can take the
// processor away from the machine, while the thread is on it.
void StackSampler::write_open(Thread& thread) {
    std::int64_t off_ns = 0;
    for (const Row& row : thread.open) off_ns += row.off_ns;
    std::int64_t queued_ns = queued_since(thread, off_ns);
    if (thread.waits && queued_ns > 0 && !thread.open.empty()) return write_wait(thread, queued_ns);
    for (const Row& row : thread.open) {
        if (queued_ns == unknown_ns) {
            write(thread, row, unknown_ns);
            continue;
        }
        const std::int64_t own_ns = std::min(queued_ns, row.off_ns);
        write(thread, row, std::max(own_ns, row.ready_ns));
        queued_ns -= own_ns;
        thread.queued_ns += own_ns;
    }
    thread.open.clear();
}

// A thread that waited is in the queue after its wait: in the time since its last sample, which the next one
// has, and before that at the end of the last row.
void StackSampler::write_wait(Thread& thread, std::int64_t queued_ns) {
    const std::int64_t since_ns = monotonic_ns() - thread.sampled_ns;
    Row& last = thread.open.back();
    const std::int64_t own_ns = std::clamp(queued_ns - since_ns, std::int64_t{0}, last.off_ns);
    const Row in_queue{last.until_ns, own_ns, own_ns, 0, last.named};
    last.until_ns -= own_ns;
    last.duration_ns -= own_ns;
    last.off_ns -= own_ns;
    for (const Row& row : thread.open)
        if (row.duration_ns > 0) write(thread, row, 0);
    if (own_ns > 0) write(thread, in_queue, own_ns);
    thread.queued_ns += own_ns;
    thread.open.clear();
}

// The time in the queue that no sample has yet. Not read for each sample in which the thread nearly always
// ran, as reading costs it something then; what it was queued in these is left out, before it adds up to a
// wait. More than since the last sample is not left for the next ones.
std::int64_t StackSampler::queued_since(Thread& thread, std::int64_t off_ns) {
    if (!thread.counts_queued) return unknown_ns;
    const bool ran = off_ns < interval_ns_ / 10;
    thread.skipped_ns = ran ? thread.skipped_ns + off_ns : 0;
    if (ran && thread.skipped_ns < interval_ns_) return 0;
    const std::int64_t total_ns = thread_queued_ns(thread.ref.native_id);
    if (total_ns == unknown_ns) return 0;  // it has ended
    const std::int64_t since_ns = monotonic_ns() - thread.sampled_ns;
    const std::int64_t least_ns = ran ? total_ns : total_ns - off_ns - since_ns;
    thread.queued_ns = std::clamp(thread.queued_ns, least_ns, total_ns);
    if (ran) thread.skipped_ns = 0;
    return total_ns - thread.queued_ns;
}

void StackSampler::write(const Thread& thread, const Row& row, std::int64_t queued_ns) {
    file_.add_sample(thread.ref.native_id, {row.until_ns, row.duration_ns, row.duration_ns - row.off_ns,
                                            queued_ns, row.named.stack, row.named.site});
    samples_.fetch_add(1, std::memory_order_relaxed);
}

}  // namespace gpuprof::python
