// SPDX-License-Identifier: Apache-2.0
#include "python/thread_usage.hpp"

#include <dirent.h>
#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <ctime>
#include <memory>

#include "core/platform.hpp"

namespace gpuprof::python {
namespace {

using FileText = std::array<char, 4096>;

// The file is opened each time: the number of an open file is the program's to close.
bool read_file(std::int64_t thread_id, const char* name, FileText& text) noexcept {
    std::array<char, 64> path{};
    std::snprintf(path.data(), path.size(), "/proc/self/task/%lld/%s", static_cast<long long>(thread_id),
                  name);
    const int file = open(path.data(), O_RDONLY | O_CLOEXEC);
    if (file < 0) return false;
    const ssize_t size = read(file, text.data(), text.size() - 1);
    close(file);
    text[static_cast<std::size_t>(std::max<ssize_t>(size, 0))] = 0;
    return size > 0;
}

void read_times(ThreadUsage& usage, FileText& text) noexcept {
    long long ran = 0;
    long long queued = 0;
    if (!read_file(usage.thread_id, "schedstat", text)) return;
    if (std::sscanf(text.data(), "%lld %lld", &ran, &queued) != 2) return;
    usage.cpu_ns = ran;
    usage.queued_ns = queued;
}

// A kernel without these statistics writes zeros, as for a thread that has not run yet. This one has.
bool counts_times() noexcept {
    ThreadUsage own;
    own.thread_id = system_thread_id();
    FileText text;
    read_times(own, text);
    return own.cpu_ns > 0;
}

std::int64_t number_after(const char* text, const char* label) noexcept {
    const char* at = std::strstr(text, label);
    return at == nullptr ? -1 : std::strtoll(at + std::strlen(label), nullptr, 10);
}

void read_switches(ThreadUsage& usage, FileText& text) noexcept {
    if (!read_file(usage.thread_id, "status", text)) return;
    usage.voluntary_switches = number_after(text.data(), "\nvoluntary_ctxt_switches:");
    usage.involuntary_switches = number_after(text.data(), "\nnonvoluntary_ctxt_switches:");
}

#if defined(__linux__)
constexpr std::int64_t ns_per_second = 1'000'000'000;

std::int64_t now_ns(clockid_t clock) noexcept {
    timespec time{};
    clock_gettime(clock, &time);
    return static_cast<std::int64_t>(time.tv_sec) * ns_per_second + time.tv_nsec;
}

// Of "id (name) state ...": a name may contain parentheses and blanks. The start is the 22nd field, in clock
// ticks since boot.
void read_stat(NamedUsage& found, FileText& text) noexcept {
    if (!read_file(found.usage.thread_id, "stat", text)) return;
    const char* begin = std::strchr(text.data(), '(');
    const char* end = std::strrchr(text.data(), ')');
    if (begin == nullptr || end == nullptr || end <= begin) return;
    const auto length =
        std::min<std::size_t>(static_cast<std::size_t>(end - begin - 1), found.name.size() - 1);
    std::memcpy(found.name.data(), begin + 1, length);
    const char* field = end + 1;
    for (int number = 2; number < 22 && field != nullptr; ++number)
        field = std::strchr(number == 2 ? field : field + 1, ' ');
    if (field == nullptr) return;
    const std::int64_t ticks = std::strtoll(field, nullptr, 10);
    const std::int64_t since_boot_ns = ticks * (ns_per_second / sysconf(_SC_CLK_TCK));
    // Once, so that the start of a thread is always the same.
    static const std::int64_t difference_ns = now_ns(CLOCK_BOOTTIME) - now_ns(CLOCK_MONOTONIC);
    found.usage.start_ns = since_boot_ns - difference_ns;
}
#else
void read_stat(NamedUsage&, FileText&) noexcept {}
#endif

constexpr char unknown_state = 0;  // of a thread that is not there

// The letter of proc_pid_stat(5): R of a thread that runs or is ready to run.
char state_of(std::int64_t thread_id) noexcept {
    FileText text;
    if (!read_file(thread_id, "stat", text)) return unknown_state;
    const char* end_of_name = std::strrchr(text.data(), ')');
    return end_of_name != nullptr && end_of_name[1] == ' ' ? end_of_name[2] : unknown_state;
}

}  // namespace

void read_thread_usage(std::vector<NamedUsage>& found, std::int64_t except) {
    found.clear();
    const std::unique_ptr<DIR, int (*)(DIR*)> tasks(opendir("/proc/self/task"), closedir);
    if (tasks == nullptr) return;
    FileText text;
    const bool has_times = counts_times();
    while (const dirent* entry = readdir(tasks.get())) {
        NamedUsage next;
        next.usage.thread_id = std::strtoll(entry->d_name, nullptr, 10);
        if (next.usage.thread_id <= 0 || next.usage.thread_id == except) continue;
        read_stat(next, text);
        if (has_times) read_times(next.usage, text);
        read_switches(next.usage, text);
        if (next.usage.start_ns >= 0 || next.usage.cpu_ns >= 0) found.push_back(next);
    }
}

std::int64_t thread_queued_ns(std::int64_t thread_id) noexcept {
    ThreadUsage usage;
    usage.thread_id = thread_id;
    FileText text;
    read_times(usage, text);
    return usage.cpu_ns > 0 ? usage.queued_ns : -1;
}

bool is_thread_ready(std::int64_t thread_id) noexcept {
    return state_of(thread_id) == 'R';
}

// The first thread stays in the list until the process ends, as a zombie.
bool has_other_threads() noexcept {
    const std::unique_ptr<DIR, int (*)(DIR*)> tasks(opendir("/proc/self/task"), closedir);
    if (tasks == nullptr) return true;
    const std::int64_t own = system_thread_id();
    while (const dirent* entry = readdir(tasks.get())) {
        const std::int64_t id = std::strtoll(entry->d_name, nullptr, 10);
        if (id <= 0 || id == own) continue;
        const char state = state_of(id);
        if (state != unknown_state && state != 'Z' && state != 'X') return true;
    }
    return false;
}

}  // namespace gpuprof::python
