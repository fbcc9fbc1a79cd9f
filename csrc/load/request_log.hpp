// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

namespace gpuprof {

// `load/requests.py` has the same numbers, and others that only targets report.
enum class RequestStatus : std::int32_t {
    being_written = -1,
    pending = 0,
    ok = 1,
    timeout = 2,
    not_sent = 3
};

// Times are of the monotonic clock; 0 is a moment that has not come.
struct RequestRow {
    std::int64_t planned_ns;
    std::int64_t sent_ns;
    std::int64_t first_ns;
    std::int64_t end_ns;
    std::int32_t status;
    std::uint32_t units;
};
static_assert(sizeof(RequestRow) == 40);

// The times of requests, stamped from any thread without a lock. With a path the rows are a file that is
// mapped shared, so that a process that is killed loses none.
class RequestLog {
  public:
    // Throws std::system_error. The file must not exist.
    explicit RequestLog(std::size_t count, const std::string& path = {});
    RequestLog(const RequestLog&) = delete;
    RequestLog& operator=(const RequestLog&) = delete;
    ~RequestLog();

    std::size_t size() const noexcept { return count_; }
    RequestRow* rows() noexcept { return rows_; }

    void begin(std::size_t index) noexcept;
    // Begins, and sends on a non-blocking socket; returns how much was sent, 0 of an error.
    std::size_t send(std::size_t index, int socket, const char* request, std::size_t size) noexcept;
    // In a closed loop a request is due when the one before it ended; `former` is `no_former` for the first,
    // which is due now. `begin_next` begins it as well.
    static constexpr std::int64_t no_former = -1;
    void plan_next(std::size_t index, std::int64_t former) noexcept;
    void begin_next(std::size_t index, std::int64_t former) noexcept;
    // Only the first call for a request counts.
    void first(std::size_t index) noexcept;
    // False for a request that has ended already: the outcome that came first stays.
    bool end(std::size_t index, std::int32_t status, std::uint32_t units) noexcept;
    // Ends what is unfinished now, as `timeout` or `not_sent`; returns how many there were.
    std::size_t close() noexcept;

    std::size_t ended() const noexcept { return __atomic_load_n(&ended_, __ATOMIC_RELAXED); }
    std::size_t duplicates() const noexcept { return __atomic_load_n(&duplicates_, __ATOMIC_RELAXED); }

  private:
    bool finish(RequestRow& row, std::int64_t now_ns, std::int32_t status, std::uint32_t units) noexcept;

    std::size_t count_;
    std::size_t size_;
    RequestRow* rows_ = nullptr;
    std::size_t ended_ = 0;
    std::size_t duplicates_ = 0;
};

}  // namespace gpuprof
