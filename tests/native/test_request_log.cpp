// SPDX-License-Identifier: Apache-2.0
#include <cerrno>
#include <filesystem>
#include <fstream>
#include <string>
#include <system_error>
#include <thread>
#include <vector>

#include <sys/socket.h>
#include <unistd.h>

#include "check.hpp"
#include "load/request_log.hpp"

using namespace gpuprof;

namespace {

std::int32_t number(RequestStatus status) {
    return static_cast<std::int32_t>(status);
}

std::filesystem::path new_path(const char* name) {
    const auto path = std::filesystem::temp_directory_path() / (name + std::to_string(::getpid()));
    std::filesystem::remove(path);
    return path;
}

}  // namespace

TEST(each_request_ends_once_from_many_threads) {
    constexpr std::size_t count = 2000, threads = 4;
    RequestLog log(count);
    std::vector<std::thread> enders;
    std::atomic<std::size_t> first_ends{0};
    for (std::size_t thread = 0; thread < threads; ++thread)
        enders.emplace_back([&, thread] {
            for (std::size_t index = 0; index < count; ++index)
                if (log.end(index, number(RequestStatus::ok), static_cast<std::uint32_t>(thread)))
                    ++first_ends;
        });
    for (auto& ender : enders) ender.join();
    CHECK_EQ(first_ends.load(), count);
    CHECK_EQ(log.ended(), count);
    CHECK_EQ(log.duplicates(), count * (threads - 1));
}

TEST(what_is_unfinished_ends_when_the_log_is_closed) {
    RequestLog log(3);
    log.begin(0);
    log.begin(1);
    CHECK(log.end(0, number(RequestStatus::ok), 4));
    CHECK_EQ(log.close(), std::size_t{2});
    CHECK_EQ(log.rows()[0].status, number(RequestStatus::ok));
    CHECK_EQ(log.rows()[1].status, number(RequestStatus::timeout));
    CHECK_EQ(log.rows()[2].status, number(RequestStatus::not_sent));
    CHECK(!log.end(1, number(RequestStatus::ok), 1));
    CHECK_EQ(log.rows()[1].status, number(RequestStatus::timeout));
}

TEST(a_request_is_sent_without_waiting_and_a_closed_socket_is_no_signal) {
    int ends[2];
    CHECK_EQ(::socketpair(AF_UNIX, SOCK_STREAM, 0, ends), 0);
    RequestLog log(3);
    const std::string request = "GET / HTTP/1.1\r\n\r\n", large(16 << 20, 'x');
    CHECK_EQ(log.send(0, ends[0], request.data(), request.size()), request.size());
    CHECK(log.rows()[0].sent_ns > 0);
    std::string received(request.size(), '\0');
    CHECK_EQ(::recv(ends[1], received.data(), received.size(), 0), static_cast<ssize_t>(request.size()));
    CHECK(received == request);
    const std::size_t part = log.send(1, ends[0], large.data(), large.size());
    CHECK(part > 0 && part < large.size());
    ::close(ends[1]);
    CHECK_EQ(log.send(2, ends[0], request.data(), request.size()), std::size_t{0});
    CHECK(log.rows()[2].sent_ns > 0);
    ::close(ends[0]);
}

TEST(rows_of_a_file_survive_the_log) {
    const auto path = new_path("gpuprof_rows");
    {
        RequestLog log(2, path);
        log.begin_next(0, RequestLog::no_former);
        log.first(0);
        log.end(0, number(RequestStatus::ok), 9);
        log.begin_next(1, 0);
    }
    RequestRow rows[2];
    std::ifstream(path, std::ios::binary).read(reinterpret_cast<char*>(rows), sizeof(rows));
    CHECK_EQ(rows[0].planned_ns, rows[0].sent_ns);
    CHECK_EQ(rows[1].planned_ns, rows[0].end_ns);
    CHECK_EQ(rows[0].units, 9U);
    std::filesystem::remove(path);
}

TEST(a_file_that_exists_is_left_alone) {
    const auto path = new_path("gpuprof_exists");
    std::ofstream(path) << "kept";
    int error = 0;
    try {
        const RequestLog log(2, path);
    } catch (const std::system_error& raised) {
        error = raised.code().value();
    }
    CHECK_EQ(error, EEXIST);
    CHECK_EQ(std::filesystem::file_size(path), std::uintmax_t{4});
    std::filesystem::remove(path);
}

TEST(more_requests_than_memory_has_are_refused) {
    int error = 0;
    try {
        const RequestLog log(std::size_t{1} << 62);
    } catch (const std::system_error& raised) {
        error = raised.code().value();
    }
    CHECK_EQ(error, ENOMEM);
}
