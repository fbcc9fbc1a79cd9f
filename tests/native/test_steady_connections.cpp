// SPDX-License-Identifier: Apache-2.0
// Both ends are here: `theirs` is the server's.
#include <cerrno>
#include <string>
#include <system_error>
#include <vector>

#include <sys/socket.h>
#include <unistd.h>

#include "check.hpp"
#include "load/steady_connections.hpp"

using namespace gpuprof;

#if defined(__linux__)
namespace {

const std::string head = "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n", request = "GET / HTTP/1.1\r\n\r\n";
constexpr std::int64_t none = SteadyConnections::no_request;

struct Pair {
    Pair() { CHECK_EQ(::socketpair(AF_UNIX, SOCK_STREAM, 0, ends), 0); }
    ~Pair() {
        ::close(ends[0]);
        close_theirs();
    }
    void close_theirs() {
        if (ends[1] >= 0) ::close(ends[1]);
        ends[1] = -1;
    }
    int ours() const { return ends[0]; }
    void respond(const std::string& text) const {
        CHECK_EQ(::send(ends[1], text.data(), text.size(), 0), static_cast<ssize_t>(text.size()));
    }
    std::string received() const {
        std::string text(1000, '\0');
        const ssize_t size = ::recv(ends[1], text.data(), text.size(), MSG_DONTWAIT);
        text.resize(size < 0 ? 0 : static_cast<std::size_t>(size));
        return text;
    }
    int ends[2];
};

struct Fixture {
    Fixture() { connections.expect(head, head.size() + 2); }
    void send(std::size_t index) {
        CHECK_EQ(connections.send(index, request.data(), request.size()).size, request.size());
    }
    std::vector<std::int64_t> ends() {
        std::vector<std::int64_t> indexes;
        connections.poll();
        for (std::int64_t index = connections.take_end(); index != none; index = connections.take_end())
            indexes.push_back(index);
        return indexes;
    }
    RequestLog log{8};
    SteadyConnections connections{log};
};

using Indexes = std::vector<std::int64_t>;

}  // namespace

TEST(a_response_like_the_one_before_ends_its_request_and_the_connection_sends_the_next) {
    Fixture fixture;
    const Pair pair;
    fixture.connections.add(pair.ours());
    for (std::size_t index = 0; index < 3; ++index) {
        CHECK(fixture.connections.has_idle());
        fixture.send(index);
        CHECK(!fixture.connections.has_idle());
        CHECK(pair.received() == request);
        CHECK(fixture.ends().empty());
        pair.respond(head + "ok");
        CHECK(fixture.ends() == Indexes{static_cast<std::int64_t>(index)});
        const RequestRow& row = fixture.log.rows()[index];
        CHECK_EQ(row.status, static_cast<std::int32_t>(RequestStatus::ok));
        CHECK(row.sent_ns > 0 && row.end_ns >= row.sent_ns);
    }
    CHECK_EQ(fixture.connections.ended(), std::size_t{3});
    CHECK(fixture.connections.take_returned().empty());
    fixture.connections.expect(head, head.size() + 2);
    CHECK_EQ(fixture.connections.ended(), std::size_t{0});
}

TEST(any_other_response_is_returned_with_what_was_received) {
    const std::string others[] = {
        head,                                             // the body comes later
        head + "okk",                                     // longer
        head + "ok" + head + "ok",                        // one more than was requested
        "HTTP/1.1 500 No\r\nContent-Length: 2\r\n\r\nok"  // another head of the same size
    };
    for (const std::string& other : others) {
        Fixture fixture;
        const Pair pair;
        fixture.connections.add(pair.ours());
        fixture.send(5);
        pair.respond(other);
        CHECK(fixture.ends().empty());
        const auto returned = fixture.connections.take_returned();
        CHECK_EQ(returned.size(), std::size_t{1});
        CHECK_EQ(returned[0].socket, pair.ours());
        CHECK_EQ(returned[0].index, 5);
        CHECK_EQ(returned[0].sent_ns, fixture.log.rows()[5].sent_ns);
        CHECK(returned[0].received == other);
        CHECK_EQ(fixture.log.rows()[5].status, static_cast<std::int32_t>(RequestStatus::pending));
        CHECK(!fixture.connections.has_idle());
        pair.respond("later");
        CHECK(fixture.ends().empty());
        CHECK(fixture.connections.take_returned().empty());
    }
}

TEST(an_idle_connection_on_which_something_arrives_or_that_is_closed_is_returned) {
    Fixture fixture;
    Pair closed;
    const Pair talking, quiet;
    for (const int socket : {closed.ours(), talking.ours(), quiet.ours()}) fixture.connections.add(socket);
    closed.close_theirs();
    talking.respond(head + "ok");
    for (int poll = 0; poll < 2; ++poll) {
        CHECK(fixture.ends().empty());
        const auto returned = fixture.connections.take_returned();
        CHECK_EQ(returned.size(), std::size_t{1});
        CHECK_EQ(returned[0].index, none);
        CHECK(returned[0].received == (returned[0].socket == talking.ours() ? head + "ok" : ""));
        CHECK(returned[0].socket != quiet.ours());
    }
    CHECK(fixture.ends().empty());
    CHECK(fixture.connections.take_returned().empty());
    fixture.send(0);
    CHECK(quiet.received() == request);
    CHECK(!fixture.connections.has_idle());
}

TEST(a_request_that_the_system_takes_in_part_or_not_at_all_returns_its_connection) {
    Fixture fixture;
    const Pair slow;
    Pair closed;
    const std::string large(16 << 20, 'x');
    fixture.connections.add(slow.ours());
    auto sent = fixture.connections.send(0, large.data(), large.size());
    CHECK_EQ(sent.socket, slow.ours());
    CHECK(sent.size > 0 && sent.size < large.size());
    CHECK(!fixture.connections.has_idle());
    fixture.connections.add(closed.ours());
    closed.close_theirs();
    sent = fixture.connections.send(1, request.data(), request.size());
    CHECK_EQ(sent.size, std::size_t{0});
    slow.respond(head + "ok");
    CHECK(fixture.ends().empty());
    CHECK(fixture.connections.take_returned().empty());
}

TEST(requests_that_take_too_long_are_returned_and_the_oldest_one_is_known) {
    Fixture fixture;
    const Pair first, second, idle;
    CHECK_EQ(fixture.connections.oldest_sent_ns(), 0);
    fixture.connections.add(first.ours());
    fixture.send(0);
    fixture.connections.add(second.ours());
    fixture.send(1);
    fixture.connections.add(idle.ours());
    const std::int64_t first_ns = fixture.log.rows()[0].sent_ns, second_ns = fixture.log.rows()[1].sent_ns;
    CHECK_EQ(fixture.connections.oldest_sent_ns(), first_ns);
    CHECK(fixture.connections.take_sent_before(first_ns).empty());
    const auto late = fixture.connections.take_sent_before(second_ns);
    CHECK_EQ(late.size(), std::size_t{second_ns > first_ns});
    for (const auto& each : late) CHECK_EQ(each.index, 0);
    CHECK_EQ(fixture.connections.take_sent_before(second_ns + 1).size(), 2 - late.size());
    CHECK_EQ(fixture.connections.oldest_sent_ns(), 0);
    CHECK(fixture.connections.has_idle());
}

TEST(a_connection_that_was_returned_can_be_added_again) {
    Fixture fixture;
    const Pair pair;
    fixture.connections.add(pair.ours());
    fixture.send(0);
    pair.respond(head + "longer");
    CHECK(fixture.ends().empty());
    CHECK_EQ(fixture.connections.take_returned().size(), std::size_t{1});
    fixture.connections.add(pair.ours());
    fixture.send(1);
    pair.respond(head + "ok");
    CHECK(fixture.ends() == Indexes{1});
}

TEST(more_connections_than_one_poll_returns_are_all_read) {
    constexpr std::size_t count = 200;
    RequestLog log(count);
    SteadyConnections connections(log);
    connections.expect(head, head.size() + 2);
    const std::vector<Pair> pairs(count);
    for (std::size_t index = 0; index < count; ++index) {
        connections.add(pairs[index].ours());
        CHECK_EQ(connections.send(index, request.data(), request.size()).socket, pairs[index].ours());
        pairs[index].respond(head + "ok");
    }
    for (int poll = 0; poll < 8; ++poll) {
        connections.poll();
        while (connections.take_end() != none) {
        }
    }
    CHECK_EQ(log.ended(), count);
    CHECK_EQ(connections.ended(), count);
}

TEST(a_file_that_cannot_be_watched_is_an_error) {
    Fixture fixture;
    for (const int socket : {-1, 1000}) {
        int error = 0;
        try {
            fixture.connections.add(socket);
        } catch (const std::system_error& raised) {
            error = raised.code().value();
        }
        CHECK_EQ(error, EBADF);
        CHECK(!fixture.connections.has_idle());
    }
}
#endif
