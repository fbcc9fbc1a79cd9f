// SPDX-License-Identifier: Apache-2.0
#include "load/pacer.hpp"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <ctime>
#include <system_error>
#include <utility>

#include "core/clock.hpp"
#include "core/signals_blocked.hpp"

#if defined(__linux__)
#include <sys/eventfd.h>
#include <sys/prctl.h>
#endif

namespace gpuprof {
namespace {

constexpr std::int64_t second_ns = 1'000'000'000;
// How long a sleeping thread may not notice that the pacer was stopped.
constexpr std::int64_t longest_sleep_ns = 20'000'000;

timespec to_timespec(std::int64_t time_ns) noexcept {
    return {static_cast<std::time_t>(time_ns / second_ns), static_cast<long>(time_ns % second_ns)};
}

// The kernel may delay a thread's wake-up by its timer slack, 50 us unless it is set. A thread of the program
// gets its own slack back.
class NoTimerSlack {
  public:
#if defined(__linux__)
    NoTimerSlack() noexcept : before_(prctl(PR_GET_TIMERSLACK, 0, 0, 0, 0)) {
        prctl(PR_SET_TIMERSLACK, 1, 0, 0, 0);
    }
    ~NoTimerSlack() { prctl(PR_SET_TIMERSLACK, before_ > 0 ? before_ : 0, 0, 0, 0); }

  private:
    int before_;
#else
    NoTimerSlack() noexcept {}
    ~NoTimerSlack() {}

  public:
#endif
    NoTimerSlack(const NoTimerSlack&) = delete;
    NoTimerSlack& operator=(const NoTimerSlack&) = delete;
};

void sleep_on_system(std::int64_t wake_ns) noexcept {
#if defined(__linux__)
    const timespec wake = to_timespec(wake_ns);
    clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &wake, nullptr);
#else
    const std::int64_t left_ns = wake_ns - monotonic_ns();
    if (left_ns <= 0) return;
    const timespec left = to_timespec(left_ns);
    nanosleep(&left, nullptr);
#endif
}

void relax() noexcept {
#if defined(__x86_64__)
    _mm_pause();
#elif defined(__aarch64__)
    asm volatile("yield");
#endif
}

// A pair of files of which the first can be read after something was written to the second; an eventfd is
// both.
int open_notification(int& read_file, int& write_file) noexcept {
#if defined(__linux__)
    read_file = write_file = eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC);
    return read_file < 0 ? errno : 0;
#else
    int files[2];
    if (pipe(files) != 0) return errno;
    for (const int file : files) {
        fcntl(file, F_SETFD, FD_CLOEXEC);
        fcntl(file, F_SETFL, O_NONBLOCK);
    }
    read_file = files[0];
    write_file = files[1];
    return 0;
#endif
}

}  // namespace

PacerClock PacerClock::of_system() noexcept {
    return {[]() noexcept { return monotonic_ns(); }, sleep_on_system};
}

Pacer::Pacer(std::vector<std::int64_t> offsets_ns, std::int64_t spin_ns, PacerClock clock)
    : offsets_ns_(std::move(offsets_ns)),
      released_ns_(offsets_ns_.size(), 0),
      spin_ns_(spin_ns),
      clock_(clock) {}

Pacer::~Pacer() {
    stop();
    if (has_thread_) pthread_join(thread_, nullptr);
    if (read_file_ >= 0) ::close(read_file_);
    if (write_file_ >= 0 && write_file_ != read_file_) ::close(write_file_);
}

// --- threads that take requests ------------------------------------------------------------------

bool Pacer::claim(std::size_t index) noexcept {
    const std::int64_t now_ns = clock_.now_ns();
    if (!next_.compare_exchange_strong(index, index + 1)) return false;
    released_ns_[index] = now_ns;
    return true;
}

std::int64_t Pacer::try_take() noexcept {
    while (!is_finished()) {
        const std::size_t index = next_;
        if (index >= size()) break;
        if (clock_.now_ns() < due_ns(index)) return timed_out;
        if (claim(index)) return static_cast<std::int64_t>(index);
    }
    return finished;
}

std::int64_t Pacer::take(std::int64_t until_ns) noexcept {
    while (true) {
        const std::int64_t taken = try_take();
        if (taken != timed_out) return taken;
        if (clock_.now_ns() >= until_ns) return timed_out;
        if (!become_leader(until_ns)) continue;
        const std::size_t index = next_;
        if (index < size()) wait_until(std::min(due_ns(index), until_ns));
        const std::int64_t due = try_take();
        give_up_lead();
        if (due != timed_out) return due;
    }
}

std::size_t Pacer::fill_batch(std::int64_t* indexes, std::size_t most, std::int64_t delay_ns) noexcept {
    const std::int64_t until_ns = due_ns(static_cast<std::size_t>(indexes[0])) + delay_ns;
    std::size_t count = 1;
    while (count < most) {
        const std::int64_t index = take(until_ns);
        if (index < 0) {
            // A server does not know that no more requests come.
            if (index == finished && !stopped_) wait_until(until_ns);
            break;
        }
        indexes[count++] = index;
    }
    return count;
}

// False when another thread is the leader, after a wait for its end.
bool Pacer::become_leader(std::int64_t until_ns) noexcept {
    pthread_mutex_lock(&mutex_);
    if (has_leader_) {
        // The real-time clock, the only one that a condition has everywhere: a wait that is too long or
        // too short after the clock was set ends with the lead, or begins again.
        const std::int64_t wait_ns =
            std::min(longest_sleep_ns, std::max<std::int64_t>(until_ns - clock_.now_ns(), 0));
        const timespec end = to_timespec(realtime_ns() + wait_ns);
        ++waiting_;
        pthread_cond_timedwait(&lead_is_free_, &mutex_, &end);
        --waiting_;
    }
    const bool is_leader = !has_leader_;
    if (is_leader) has_leader_ = true;
    pthread_mutex_unlock(&mutex_);
    return is_leader;
}

void Pacer::give_up_lead() noexcept {
    pthread_mutex_lock(&mutex_);
    has_leader_ = false;
    if (waiting_ > 0) pthread_cond_signal(&lead_is_free_);
    pthread_mutex_unlock(&mutex_);
}

void Pacer::wait_until(std::int64_t due_ns) noexcept {
    std::int64_t now_ns = clock_.now_ns();
    if (now_ns < due_ns - spin_ns_) {
        const NoTimerSlack set;
        while (now_ns < due_ns - spin_ns_ && !stopped_) {
            clock_.sleep_until(std::min(due_ns - spin_ns_, now_ns + longest_sleep_ns));
            now_ns = clock_.now_ns();
        }
    }
    while (clock_.now_ns() < due_ns && !stopped_) relax();
}

// --- event loops ---------------------------------------------------------------------------------

int Pacer::begin_notifying() {
    if (has_thread_) return read_file_;
    int error = open_notification(read_file_, write_file_);
    if (error == 0) {
        const SignalsBlocked blocked;
        const auto enter = [](void* self) -> void* {
            static_cast<Pacer*>(self)->notify_all_due();
            return nullptr;
        };
        error = pthread_create(&thread_, nullptr, enter, this);
    }
    if (error != 0) throw std::system_error(error, std::generic_category(), "pacer");
    has_thread_ = true;
    return read_file_;
}

void Pacer::notify_all_due() noexcept {
    for (std::size_t index = 0; index < size(); ++index) {
        wait_until(due_ns(index));
        if (stopped_) break;
        released_ns_[index] = clock_.now_ns();
        due_ = index + 1;
        if (!is_notified_.exchange(true)) notify();
    }
    notify();
}

void Pacer::notify() noexcept {
    const std::uint64_t one = 1;
    // Full means that it is readable already.
    static_cast<void>(!::write(write_file_, &one, sizeof(one)));
}

Pacer::Range Pacer::take_ready() noexcept {
    std::uint64_t unread = 0;
    while (::read(read_file_, &unread, sizeof(unread)) > 0 && read_file_ != write_file_) {
    }
    // Before `due_` is read: what is found due later is notified again.
    is_notified_ = false;
    const std::size_t end = stopped_ ? next_.load() : due_.load();
    return {next_.exchange(end), end};
}

void Pacer::stop() noexcept {
    stopped_ = true;
    pthread_mutex_lock(&mutex_);
    pthread_cond_broadcast(&lead_is_free_);
    pthread_mutex_unlock(&mutex_);
}

}  // namespace gpuprof
