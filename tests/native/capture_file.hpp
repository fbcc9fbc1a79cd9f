// SPDX-License-Identifier: Apache-2.0
// A capture of CUPTI's raw buffers: "GPUPROFR"; the library's version; the buffers, each with its length;
// the names that the records point to, each with its pointer; and numbers by name, which record what the
// program launched and what was decoded at the time. Counts and lengths go before what they count.
#pragma once

#include <cstdint>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <map>
#include <stdexcept>
#include <string>
#include <vector>

namespace gpuprof::golden {

struct Capture {
    std::uint32_t version = 0;
    std::vector<std::vector<std::uint8_t>> buffers;
    std::map<std::uint64_t, std::string> names;
    std::map<std::string, std::uint64_t> facts;
};

constexpr char magic[8] = {'G', 'P', 'U', 'P', 'R', 'O', 'F', 'R'};
// A damaged length must not ask for all the memory.
constexpr std::uint64_t longest = std::uint64_t{1} << 26;

class CaptureWriter {
  public:
    explicit CaptureWriter(const std::filesystem::path& path) : path_(path), file_(path, std::ios::binary) {}
    void write(const Capture& capture) {
        file_.write(magic, sizeof(magic));
        number(capture.version);
        number(static_cast<std::uint32_t>(capture.buffers.size()));
        for (const auto& buffer : capture.buffers) bytes(buffer.data(), buffer.size());
        number(static_cast<std::uint32_t>(capture.names.size()));
        for (const auto& [pointer, name] : capture.names) {
            number(pointer);
            bytes(name.data(), name.size());
        }
        number(static_cast<std::uint32_t>(capture.facts.size()));
        for (const auto& [name, value] : capture.facts) {
            bytes(name.data(), name.size());
            number(value);
        }
        if (!file_.flush()) throw std::runtime_error("cannot write " + path_.string());
    }

  private:
    template <typename T>
    void number(T value) {
        file_.write(reinterpret_cast<const char*>(&value), sizeof(value));
    }
    void bytes(const void* data, std::size_t size) {
        number(static_cast<std::uint64_t>(size));
        file_.write(static_cast<const char*>(data), static_cast<std::streamsize>(size));
    }
    std::filesystem::path path_;
    std::ofstream file_;
};

class CaptureReader {
  public:
    explicit CaptureReader(const std::filesystem::path& path) : path_(path), file_(path, std::ios::binary) {}
    Capture read() {
        char found[sizeof(magic)] = {};
        file_.read(found, sizeof(found));
        if (!file_ || std::memcmp(found, magic, sizeof(magic)) != 0) fail("is no capture");
        Capture capture;
        capture.version = number<std::uint32_t>();
        for (auto left = number<std::uint32_t>(); left > 0; --left) {
            const std::string buffer = text();
            capture.buffers.emplace_back(buffer.begin(), buffer.end());
        }
        for (auto left = number<std::uint32_t>(); left > 0; --left) {
            const auto pointer = number<std::uint64_t>();
            capture.names.emplace(pointer, text());
        }
        for (auto left = number<std::uint32_t>(); left > 0; --left) {
            const std::string name = text();
            capture.facts.emplace(name, number<std::uint64_t>());
        }
        return capture;
    }

  private:
    [[noreturn]] void fail(const char* what) const { throw std::runtime_error(path_.string() + " " + what); }
    template <typename T>
    T number() {
        T value{};
        if (!file_.read(reinterpret_cast<char*>(&value), sizeof(value))) fail("is cut off");
        return value;
    }
    std::string text() {
        const auto size = number<std::uint64_t>();
        if (size > longest) fail("is damaged");
        std::string found(size, '\0');
        if (!file_.read(found.data(), static_cast<std::streamsize>(size))) fail("is cut off");
        return found;
    }
    std::filesystem::path path_;
    std::ifstream file_;
};

}  // namespace gpuprof::golden
