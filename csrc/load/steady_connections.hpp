// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "load/request_log.hpp"

namespace gpuprof {

// Connections to an HTTP server whose responses repeat, with one request at a time on each. A response that
// has the head and the size of the one before is complete, and is read here without being parsed. A
// connection on which anything else happens is returned to the caller, with what was received.
//
// For one thread, that of an event loop; nothing waits. Linux only: elsewhere the constructor throws ENOSYS.
class SteadyConnections {
  public:
    static constexpr std::size_t largest_response = 64 << 10;
    static constexpr std::int64_t no_request = -1;

    // The log must outlive it. Throws std::system_error.
    explicit SteadyConnections(RequestLog& log);
    SteadyConnections(const SteadyConnections&) = delete;
    SteadyConnections& operator=(const SteadyConnections&) = delete;
    ~SteadyConnections();

    const RequestLog& log() const noexcept { return log_; }
    // A file that is readable while a connection is.
    int file() const noexcept { return events_; }
    // What the head of a response is from now on, and its size with the head; at most `largest_response`.
    void expect(std::string head, std::size_t size);
    // Requests that ended since `expect` was called.
    std::size_t ended() const noexcept { return ended_; }

    // Takes an idle connection, whose socket nothing else reads meanwhile. Throws std::system_error.
    void add(int socket);
    bool has_idle() const noexcept { return !idle_.empty(); }

    // Sends a request on an idle connection; there must be one. Where less than all was sent, or nothing
    // because of an error, the connection is the caller's again.
    struct Sent {
        int socket;
        std::size_t size;
    };
    Sent send(std::size_t index, const char* request, std::size_t size) noexcept;

    // Finds the connections that can be read; then each call of `take_end` returns a request that has ended,
    // `no_request` at last: when all are read, or one is returned. `poll` finds the rest again.
    void poll() noexcept;
    std::int64_t take_end();

    // A connection that is the caller's again. `index` is the request under way or `no_request`.
    struct Returned {
        int socket;
        std::int64_t index;
        std::int64_t sent_ns;
        std::string received;
    };
    std::vector<Returned> take_returned() noexcept;
    // Returns the connections with requests that were sent before, which are the caller's again.
    std::vector<Returned> take_sent_before(std::int64_t time_ns);
    // When the oldest request under way was sent, 0 if there is none.
    std::int64_t oldest_sent_ns() const noexcept;

  private:
    struct Connection {
        std::int64_t index = no_request;
        std::int64_t sent_ns = 0;
        bool is_taken = false;
    };
    struct Ready {
        int socket;
        bool is_broken;
    };

    Connection* taken(int socket) noexcept;
    bool is_expected(std::size_t size) const noexcept;
    Returned give_back(int socket, std::string received);

    RequestLog& log_;
    int events_ = -1;
    std::string head_;
    std::size_t size_ = 0;
    std::size_t ended_ = 0;
    std::vector<Connection> connections_;  // by socket
    std::vector<int> idle_;                // the latest one last: it is the warmest
    std::vector<Ready> ready_;
    std::size_t next_ready_ = 0;
    std::vector<char> received_;
    std::vector<Returned> returned_;
};

}  // namespace gpuprof
