// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <deque>
#include <mutex>
#include <string>
#include <string_view>
#include <unordered_map>

namespace gpuprof {

// Names of one recording, each stored once and appended to a file at once, before any event can carry
// its id. Thread-safe; not for the hot path.
class NameTable {
  public:
    NameTable() = default;
    NameTable(const NameTable&) = delete;
    NameTable& operator=(const NameTable&) = delete;
    ~NameTable() { close(); }

    // Forgets all names and begins a file. The file itself is made with the first name.
    void begin(std::string path);
    // A forked child keeps the names, so that ids stay valid, but writes them to its own file.
    void continue_in(std::string path);
    // Ends the file: names that come later get ids but are written nowhere, for the run may be read, moved
    // or deleted by then. False when a name could not be written.
    bool close() noexcept;

    // The id of a name within a scope, 0 when memory ran out. Names over 1 MiB are cut on a character.
    std::uint32_t intern(std::string_view text, std::uint32_t scope = 0) noexcept;

    // The text of an id, empty if there is none or memory is exhausted.
    std::string text(std::uint32_t id) noexcept;

    // Makes the file if it is not there yet: events may carry ids that were given before a fork.
    void ensure_file() noexcept;

    std::mutex& mutex() noexcept { return mutex_; }

  private:
    struct Key {
        std::string_view text;
        std::uint32_t scope;
        bool operator==(const Key&) const = default;
    };
    struct KeyHash {
        std::size_t operator()(const Key& key) const noexcept {
            return std::hash<std::string_view>{}(key.text) ^ (key.scope * 0x9E3779B97F4A7C15ull);
        }
    };

    void begin_file(std::string path) noexcept;
    void make_file() noexcept;
    void write_out() noexcept;
    static bool append(int file, std::string_view text, std::uint32_t scope) noexcept;

    std::mutex mutex_;
    std::string path_;
    bool made_ = false;  // or wanted to be, where no file can be opened now
    bool has_magic_ = false;
    std::size_t written_ = 0;
    bool wanted_ = false;  // between begin and close
    bool failed_ = false;
    std::deque<std::string> texts_;  // a deque: views into it stay valid
    std::deque<std::uint32_t> scopes_;
    std::unordered_map<Key, std::uint32_t, KeyHash> ids_;
};

}  // namespace gpuprof
