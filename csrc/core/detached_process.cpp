// SPDX-License-Identifier: Apache-2.0
#include "core/detached_process.hpp"

#include <cerrno>
#include <system_error>

#if defined(__linux__)

#include <fcntl.h>
#include <pthread.h>
#include <sched.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <cstddef>
#include <cstdint>
#include <memory>

namespace gpuprof {
namespace {

constexpr std::size_t stack_bytes = 65536;
constexpr int first_free_file = 3;

// What all three processes see: they share memory, and one at a time runs.
struct Launch {
    char* const* arguments = nullptr;
    char* const* environment = nullptr;
    int standard_input = -1;
    int nowhere = -1;
    void* inner_stack = nullptr;
    int process_id = 0;
    int error = 0;
};

// Sent to every process of a session or a job, for the program to decide on; we end when it does.
constexpr int not_for_us[] = {SIGHUP,  SIGINT,  SIGQUIT, SIGALRM, SIGTERM,
                              SIGUSR1, SIGUSR2, SIGTSTP, SIGTTIN, SIGTTOU};

void reset_signals() noexcept {
    struct sigaction action{};
    for (int number = 1; number < NSIG; ++number) {
        const bool ignored = std::ranges::find(not_for_us, number) != std::end(not_for_us);
        action.sa_handler = ignored ? SIG_IGN : SIG_DFL;
        sigaction(number, &action, nullptr);
    }
    sigset_t none;
    sigemptyset(&none);
    pthread_sigmask(SIG_SETMASK, &none, nullptr);
}

void close_files_from(int first) noexcept {
#if defined(SYS_close_range)
    if (syscall(SYS_close_range, static_cast<unsigned>(first), ~0U, 0U) == 0) return;
#endif
    constexpr rlim_t most = 65536;
    rlimit limit{};
    getrlimit(RLIMIT_NOFILE, &limit);
    const int end = static_cast<int>(std::min(limit.rlim_cur, most));
    for (int file = first; file < end; ++file) close(file);
}

// Through high numbers first: the program may have closed its own 0 to 2, so that ours are among them.
bool place_files(const Launch& launch) noexcept {
    const int input = fcntl(launch.standard_input, F_DUPFD, first_free_file);
    const int nowhere = fcntl(launch.nowhere, F_DUPFD, first_free_file);
    if (input < 0 || nowhere < 0) return false;
    if (dup2(input, 0) < 0 || dup2(nowhere, 1) < 0 || dup2(nowhere, 2) < 0) return false;
    close_files_from(first_free_file);
    return true;
}

int become_program(void* data) {
    auto& launch = *static_cast<Launch*>(data);
    setsid();
    reset_signals();
    if (chdir("/") == 0 && place_files(launch))
        execve(launch.arguments[0], launch.arguments, launch.environment);
    launch.error = errno;
    _exit(127);
}

// Ends at once, and so gives its child away.
int step_between(void* data) {
    auto& launch = *static_cast<Launch*>(data);
    launch.process_id = clone(&become_program, launch.inner_stack, CLONE_VM | CLONE_VFORK | SIGCHLD, data);
    if (launch.process_id < 0) launch.error = errno;
    _exit(0);
}

// A clone without an exit signal is invisible to wait() and makes no SIGCHLD. An exec would take that back,
// so the process between is one that only exits.
void launch_detached(Launch& launch, void* outer_stack) {
    sigset_t all, former;
    sigfillset(&all);
    // No handler of the program may run in a process with the same memory.
    pthread_sigmask(SIG_SETMASK, &all, &former);
    const int between = clone(&step_between, outer_stack, CLONE_VM | CLONE_VFORK, &launch);
    if (between < 0)
        launch.error = errno;
    else
        waitpid(between, nullptr, static_cast<int>(__WCLONE));
    pthread_sigmask(SIG_SETMASK, &former, nullptr);
}

std::vector<char*> pointers_to(const std::vector<std::string>& texts) {
    std::vector<char*> pointers;
    pointers.reserve(texts.size() + 1);
    for (const std::string& text : texts) pointers.push_back(const_cast<char*>(text.c_str()));
    pointers.push_back(nullptr);
    return pointers;
}

// Stacks grow down, from an address that the processor wants aligned.
void* top_of(std::byte* stack) noexcept {
    constexpr std::uintptr_t alignment = 64;
    const auto end = reinterpret_cast<std::uintptr_t>(stack) + stack_bytes;
    return stack + (end / alignment * alignment - reinterpret_cast<std::uintptr_t>(stack));
}

}  // namespace

int start_detached(const std::vector<std::string>& arguments, const std::vector<std::string>& environment,
                   int standard_input) {
    if (arguments.empty()) throw std::system_error(EINVAL, std::generic_category());
    const std::vector<char*> words = pointers_to(arguments), variables = pointers_to(environment);
    const auto stacks = std::make_unique<std::byte[]>(2 * stack_bytes);
    const int nowhere = open("/dev/null", O_RDWR | O_CLOEXEC);
    if (nowhere < 0) throw std::system_error(errno, std::generic_category());
    Launch launch{words.data(), variables.data(), standard_input, nowhere, top_of(stacks.get())};
    launch_detached(launch, top_of(stacks.get() + stack_bytes));
    close(nowhere);
    if (launch.error != 0) throw std::system_error(launch.error, std::generic_category());
    return launch.process_id;
}

bool adopts_orphans() noexcept {
    int adopts = 0;
    prctl(PR_GET_CHILD_SUBREAPER, &adopts);
    return adopts != 0 || getpid() == 1;
}

}  // namespace gpuprof

#else

namespace gpuprof {

int start_detached(const std::vector<std::string>&, const std::vector<std::string>&, int) {
    throw std::system_error(ENOSYS, std::generic_category());
}

bool adopts_orphans() noexcept {
    return false;
}

}  // namespace gpuprof

#endif
