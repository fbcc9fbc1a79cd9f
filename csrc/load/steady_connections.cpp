// SPDX-License-Identifier: Apache-2.0
#include "load/steady_connections.hpp"

#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <system_error>
#include <utility>

#if defined(__linux__)
#include <sys/epoll.h>
#endif

namespace gpuprof {
namespace {

// Between two calls of `poll` the event loop does its other work.
constexpr std::size_t most_events = 64;

[[noreturn]] void throw_error(int error, const char* what) {
    throw std::system_error(error, std::generic_category(), what);
}

#if defined(__linux__)

int open_events() noexcept {
    return epoll_create1(EPOLL_CLOEXEC);
}

bool watch(int events, int socket) noexcept {
    epoll_event event{};
    event.events = EPOLLIN;
    event.data.fd = socket;
    return epoll_ctl(events, EPOLL_CTL_ADD, socket, &event) == 0;
}

void unwatch(int events, int socket) noexcept {
    epoll_ctl(events, EPOLL_CTL_DEL, socket, nullptr);
}

// Calls `found(socket, is_broken)` for each socket that can be read.
template <typename Found>
void find_readable(int events, const Found& found) noexcept {
    epoll_event readable[most_events];
    const int count = epoll_wait(events, readable, static_cast<int>(most_events), 0);
    for (int place = 0; place < count; ++place)
        found(readable[place].data.fd, (readable[place].events & (EPOLLERR | EPOLLHUP)) != 0);
}

#else

int open_events() noexcept {
    errno = ENOSYS;
    return -1;
}

bool watch(int, int) noexcept {
    return false;
}

void unwatch(int, int) noexcept {}

template <typename Found>
void find_readable(int, const Found&) noexcept {}

#endif

}  // namespace

SteadyConnections::SteadyConnections(RequestLog& log) : log_(log), received_(largest_response + 1) {
    ready_.reserve(most_events);
    events_ = open_events();
    if (events_ < 0) throw_error(errno, "epoll_create1");
}

SteadyConnections::~SteadyConnections() {
    ::close(events_);
}

void SteadyConnections::expect(std::string head, std::size_t size) {
    head_ = std::move(head);
    size_ = size;
    ended_ = 0;
}

void SteadyConnections::add(int socket) {
    if (socket < 0) throw_error(EBADF, "socket");
    const auto place = static_cast<std::size_t>(socket);
    if (place >= connections_.size()) {
        connections_.resize(place + 1);
        idle_.reserve(place + 1);  // so that `take_end` allocates nothing
    }
    if (!watch(events_, socket)) throw_error(errno, "epoll_ctl");
    connections_[place] = {no_request, 0, true};
    idle_.push_back(socket);
}

SteadyConnections::Sent SteadyConnections::send(std::size_t index, const char* request,
                                                std::size_t size) noexcept {
    const int socket = idle_.back();
    idle_.pop_back();
    const std::size_t sent = log_.send(index, socket, request, size);
    Connection& connection = connections_[static_cast<std::size_t>(socket)];
    connection.index = static_cast<std::int64_t>(index);
    connection.sent_ns = log_.rows()[index].sent_ns;
    if (sent < size) {
        connection.is_taken = false;
        unwatch(events_, socket);
    }
    return {socket, sent};
}

void SteadyConnections::poll() noexcept {
    ready_.clear();
    next_ready_ = 0;
    find_readable(events_, [this](int socket, bool is_broken) { ready_.push_back({socket, is_broken}); });
}

std::int64_t SteadyConnections::take_end() {
    while (next_ready_ < ready_.size()) {
        const auto [socket, is_broken] = ready_[next_ready_++];
        Connection* const connection = taken(socket);
        if (connection == nullptr) continue;  // returned since the socket was found
        // The caller reads the error of a broken connection: only the first read returns it.
        const ssize_t size = is_broken ? 0 : ::recv(socket, received_.data(), received_.size(), MSG_DONTWAIT);
        if (size < 0 && (errno == EAGAIN || errno == EWOULDBLOCK || errno == EINTR)) continue;
        const std::size_t received = size < 0 ? 0 : static_cast<std::size_t>(size);
        if (connection->index == no_request || !is_expected(received)) {
            returned_.push_back(give_back(socket, std::string(received_.data(), received)));
            return no_request;
        }
        const std::int64_t index = std::exchange(connection->index, no_request);
        idle_.push_back(socket);
        log_.end(static_cast<std::size_t>(index), static_cast<std::int32_t>(RequestStatus::ok), 1);
        ++ended_;
        return index;
    }
    return no_request;
}

std::vector<SteadyConnections::Returned> SteadyConnections::take_returned() noexcept {
    return std::exchange(returned_, {});
}

std::vector<SteadyConnections::Returned> SteadyConnections::take_sent_before(std::int64_t time_ns) {
    std::vector<Returned> before;
    for (std::size_t place = 0; place < connections_.size(); ++place) {
        const Connection& each = connections_[place];
        if (each.is_taken && each.index != no_request && each.sent_ns < time_ns)
            before.push_back(give_back(static_cast<int>(place), {}));
    }
    return before;
}

std::int64_t SteadyConnections::oldest_sent_ns() const noexcept {
    std::int64_t oldest_ns = 0;
    for (const Connection& each : connections_)
        if (each.is_taken && each.index != no_request && (oldest_ns == 0 || each.sent_ns < oldest_ns))
            oldest_ns = each.sent_ns;
    return oldest_ns;
}

SteadyConnections::Connection* SteadyConnections::taken(int socket) noexcept {
    Connection& connection = connections_[static_cast<std::size_t>(socket)];
    return connection.is_taken ? &connection : nullptr;
}

bool SteadyConnections::is_expected(std::size_t size) const noexcept {
    return size == size_ && size >= head_.size() && !head_.empty() &&
           std::memcmp(received_.data(), head_.data(), head_.size()) == 0;
}

SteadyConnections::Returned SteadyConnections::give_back(int socket, std::string received) {
    Connection& connection = connections_[static_cast<std::size_t>(socket)];
    connection.is_taken = false;
    unwatch(events_, socket);
    if (connection.index == no_request)
        idle_.erase(std::remove(idle_.begin(), idle_.end(), socket), idle_.end());
    return {socket, connection.index, connection.sent_ns, std::move(received)};
}

}  // namespace gpuprof
