// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace gpuprof {

// Reads the text of one complete JSON value. Invalid JSON ends the reading, and `ok` is false.
class JsonCursor {
  public:
    explicit JsonCursor(std::string_view text) : text_(text) {}

    bool ok() const noexcept { return ok_; }
    // Enters the object or array at this position.
    bool enter(char bracket);
    // The next key of the object that was entered; false at its end.
    bool next_key(std::string& key);
    // The next element of the array that was entered; false at its end.
    bool next_element();
    // The value at this position, as written: a string with its quotes, an object with its brackets.
    std::string_view value();

  private:
    char peek();
    void fail() noexcept { ok_ = false; }
    void skip_string();

    std::string_view text_;
    std::size_t at_ = 0;
    bool first_ = false;
    bool ok_ = true;
};

// The text of a string as it is written; anything else unchanged. Halves of surrogate pairs become U+FFFD.
std::string json_string(std::string_view written);
// Numbers may be written as strings. None where it is neither, or does not fit.
std::optional<std::int64_t> json_integer(std::string_view written);
// A number of microseconds in nanoseconds, exactly where it is written as a decimal.
std::optional<std::int64_t> json_microseconds(std::string_view written);

}  // namespace gpuprof
