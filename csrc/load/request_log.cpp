// SPDX-License-Identifier: Apache-2.0
#include "load/request_log.hpp"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <limits>
#include <system_error>

#include "core/clock.hpp"
#include "core/platform.hpp"

namespace gpuprof {
namespace {

// A closed connection is an error, not a signal. macOS has no such flag, and Python ignores the signal.
#if defined(MSG_NOSIGNAL)
constexpr int send_flags = MSG_DONTWAIT | MSG_NOSIGNAL;
#else
constexpr int send_flags = MSG_DONTWAIT;
#endif

void* map_anonymous(std::size_t size) noexcept {
#if defined(MAP_NORESERVE)
    constexpr int flags = MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE;
#else
    constexpr int flags = MAP_PRIVATE | MAP_ANONYMOUS;
#endif
    return mmap(nullptr, size, PROT_READ | PROT_WRITE, flags, -1, 0);
}

void* map_file(const std::string& path, std::size_t size) {
    const int file = ::open(path.c_str(), O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0644);
    if (file < 0) throw std::system_error(errno, std::generic_category(), path);
    // Reserved now: a full disk is an error here, and no signal in the middle of a run.
    int error = reserve_blocks(file, size);
    void* mapping = MAP_FAILED;
    if (error == 0) {
        mapping = mmap(nullptr, size, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
        if (mapping == MAP_FAILED) error = errno;
    }
    ::close(file);
    if (error != 0) {
        ::unlink(path.c_str());
        throw std::system_error(error, std::generic_category(), path);
    }
    return mapping;
}

}  // namespace

RequestLog::RequestLog(std::size_t count, const std::string& path)
    : count_(count), size_(std::max<std::size_t>(count, 1) * sizeof(RequestRow)) {
    if (count > std::numeric_limits<std::int64_t>::max() / sizeof(RequestRow))
        throw std::system_error(ENOMEM, std::generic_category(), path);
    void* const mapping = path.empty() ? map_anonymous(size_) : map_file(path, size_);
    if (mapping == MAP_FAILED) throw std::system_error(errno, std::generic_category(), path);
    rows_ = static_cast<RequestRow*>(mapping);
}

RequestLog::~RequestLog() {
    munmap(rows_, size_);
}

void RequestLog::begin(std::size_t index) noexcept {
    rows_[index].sent_ns = monotonic_ns();
}

std::size_t RequestLog::send(std::size_t index, int socket, const char* request, std::size_t size) noexcept {
    begin(index);
    const ssize_t sent = ::send(socket, request, size, send_flags);
    return sent > 0 ? static_cast<std::size_t>(sent) : 0;
}

void RequestLog::plan_next(std::size_t index, std::int64_t former) noexcept {
    rows_[index].planned_ns = former == no_former ? monotonic_ns() : rows_[former].end_ns;
}

void RequestLog::begin_next(std::size_t index, std::int64_t former) noexcept {
    RequestRow& row = rows_[index];
    row.sent_ns = monotonic_ns();
    row.planned_ns = former == no_former ? row.sent_ns : rows_[former].end_ns;
}

void RequestLog::first(std::size_t index) noexcept {
    RequestRow& row = rows_[index];
    if (row.first_ns == 0) row.first_ns = monotonic_ns();
}

bool RequestLog::end(std::size_t index, std::int32_t status, std::uint32_t units) noexcept {
    if (finish(rows_[index], monotonic_ns(), status, units)) return true;
    __atomic_fetch_add(&duplicates_, 1, __ATOMIC_RELAXED);
    return false;
}

std::size_t RequestLog::close() noexcept {
    const std::int64_t now_ns = monotonic_ns();
    std::size_t unfinished = 0;
    for (std::size_t index = 0; index < count_; ++index) {
        RequestRow& row = rows_[index];
        const auto status = row.sent_ns == 0 ? RequestStatus::not_sent : RequestStatus::timeout;
        if (finish(row, now_ns, static_cast<std::int32_t>(status), 0)) ++unfinished;
    }
    return unfinished;
}

bool RequestLog::finish(RequestRow& row, std::int64_t now_ns, std::int32_t status,
                        std::uint32_t units) noexcept {
    auto expected = static_cast<std::int32_t>(RequestStatus::pending);
    if (!__atomic_compare_exchange_n(&row.status, &expected,
                                     static_cast<std::int32_t>(RequestStatus::being_written), false,
                                     __ATOMIC_ACQ_REL, __ATOMIC_RELAXED))
        return false;
    row.end_ns = now_ns;
    row.units = units;
    __atomic_store_n(&row.status, status, __ATOMIC_RELEASE);
    __atomic_fetch_add(&ended_, 1, __ATOMIC_RELAXED);
    return true;
}

}  // namespace gpuprof
