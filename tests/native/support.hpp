// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <sched.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdlib>
#include <exception>
#include <filesystem>
#include <map>
#include <new>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include "analysis/decode.hpp"
#include "analysis/segment_reader.hpp"
#include "check.hpp"
#include "core/recorder.hpp"

namespace gpuprof::test {

namespace fs = std::filesystem;

#if defined(__SANITIZE_THREAD__) || defined(__SANITIZE_ADDRESS__)
constexpr bool sanitized = true;
#else
constexpr bool sanitized = false;
#endif

class TemporaryFolder {
  public:
    TemporaryFolder() {
        std::string pattern = (fs::temp_directory_path() / "gpuprof-test-XXXXXX").string();
        if (mkdtemp(pattern.data()) == nullptr) throw std::runtime_error("no temporary folder");
        path_ = pattern;
    }
    TemporaryFolder(const TemporaryFolder&) = delete;
    TemporaryFolder& operator=(const TemporaryFolder&) = delete;
    ~TemporaryFolder() {
        std::error_code ignored;
        fs::remove_all(path_, ignored);
    }
    std::string operator()() const { return path_.string(); }
    std::string operator/(const std::string& name) const { return (path_ / name).string(); }
    std::vector<fs::path> files(const std::string& ending) const {
        std::vector<fs::path> found;
        for (const auto& entry : fs::directory_iterator(path_))
            if (entry.path().extension() == ending) found.push_back(entry.path());
        return found;
    }

  private:
    fs::path path_;
};

// Memory that a process and its forked children share: one T.
template <typename T>
class SharedMemory {
  public:
    SharedMemory() {
        void* memory = mmap(nullptr, sizeof(T), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
        if (memory == MAP_FAILED) throw std::bad_alloc();
        value_ = new (memory) T();
    }
    SharedMemory(const SharedMemory&) = delete;
    SharedMemory& operator=(const SharedMemory&) = delete;
    ~SharedMemory() { munmap(value_, sizeof(T)); }
    T* operator->() const { return value_; }
    T& operator*() const { return *value_; }

  private:
    T* value_;
};

// Forks; the child runs `body` and ends with the number of its failed checks.
template <typename Body>
pid_t start_child(Body&& body) {
    const pid_t child = fork();
    if (child != 0) return child;
    failures = 0;
    try {
        body();
    } catch (const std::exception& error) {
        note(false, "child", 0, std::string("threw ") + error.what());
    } catch (const GivenUp&) {
    }
    _exit(failures > 100 ? 100 : failures.load());
}

// The exit code, or 1000 + the signal that ended the child.
inline int wait_for(pid_t child) {
    int status = 0;
    if (waitpid(child, &status, 0) != child) return -1;
    return WIFEXITED(status) ? WEXITSTATUS(status) : 1000 + WTERMSIG(status);
}

// What a decode handed out, row by row.
struct Spans {
    DecodedRun run;
    SpanColumns rows;
    const std::string& name(std::size_t row) const { return run.names.at(rows.name[row] - 1).text; }
    std::size_t count(const std::string& text) const {
        std::size_t found = 0;
        for (std::size_t row = 0; row < rows.size(); ++row)
            if (name(row) == text) ++found;
        return found;
    }
};

template <typename T>
void append(std::vector<T>& all, const std::vector<T>& part) {
    all.insert(all.end(), part.begin(), part.end());
}

inline void append(SpanColumns& all, const SpanColumns& part) {
    append(all.span_id, part.span_id);
    append(all.parent_id, part.parent_id);
    append(all.start_ns, part.start_ns);
    append(all.duration_ns, part.duration_ns);
    append(all.thread_id, part.thread_id);
    append(all.kind, part.kind);
    append(all.name, part.name);
    append(all.depth, part.depth);
}

inline Spans decode_folder(const std::string& folder, std::size_t batch_rows = 1 << 16) {
    Spans spans;
    spans.run = decode_run(read_folder(folder), batch_rows,
                           [&](const Batch& batch) { append(spans.rows, batch.rows); });
    return spans;
}

inline void start(const TemporaryFolder& folder) {
    Recorder::instance().start(folder());
}

inline void emit(EventKind kind, std::uint32_t name) {
    Recorder::instance().emit(kind, Recorder::instance().name_key(name));
}

// One span for each of `count` numbers, which take the place of a name's id.
inline void emit_numbered_spans(std::uint32_t count) {
    for (std::uint32_t i = 1; i <= count; ++i) {
        emit(EventKind::span_begin, i);
        emit(EventKind::span_end, i);
    }
}

// The `name` fields of each thread's written events, by thread number, of a process's pieces in order.
inline std::map<std::uint32_t, std::vector<std::uint32_t>> numbers_by_thread(const RecordedProcess& process) {
    std::map<std::uint32_t, std::vector<std::uint32_t>> numbers;
    for (const ThreadPiece& piece : process.pieces)
        for (const Event& event : piece.events)
            if (event.kind != 0) numbers[piece.thread_number].push_back(event.name);
    return numbers;
}

// Whether `numbers` is what emit_numbered_spans(count) writes.
inline bool are_numbered_spans(const std::vector<std::uint32_t>& numbers, std::uint32_t count) {
    if (numbers.size() != 2 * static_cast<std::size_t>(count)) return false;
    for (std::size_t i = 0; i < numbers.size(); ++i)
        if (numbers[i] != i / 2 + 1) return false;
    return true;
}

template <typename Body>
void run_in_threads(unsigned count, Body body) {
    std::vector<std::thread> threads;
    for (unsigned i = 0; i < count; ++i) threads.emplace_back(body, i);
    for (std::thread& thread : threads) thread.join();
}

}  // namespace gpuprof::test
