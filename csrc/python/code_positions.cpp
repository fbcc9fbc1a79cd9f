// SPDX-License-Identifier: Apache-2.0
#include "python/code_positions.hpp"

#include <Python.h>

namespace gpuprof::python {

#if PY_VERSION_HEX >= 0x030b0000

namespace {

constexpr int unit_bytes = 2;
enum Form : unsigned { first_one_line = 10, no_columns = 13, long_form = 14, no_location = 15 };

class Table {
  public:
    explicit Table(std::span<const unsigned char> bytes) noexcept : bytes_(bytes) {}
    bool is_at_end() const noexcept { return at_ >= bytes_.size(); }
    unsigned byte() noexcept { return is_at_end() ? 0U : bytes_[at_++]; }
    int number() noexcept {
        unsigned value = 0;
        for (unsigned shift = 0; shift < 30; shift += 6) {
            const unsigned next = byte();
            value |= (next & 63U) << shift;
            if ((next & 64U) == 0) break;
        }
        return static_cast<int>(value);
    }
    int signed_number() noexcept {
        const int value = number();
        return (value & 1) != 0 ? -(value >> 1) : value >> 1;
    }

  private:
    std::span<const unsigned char> bytes_;
    std::size_t at_ = 0;
};

// Reads what follows the first byte of an entry, and moves `line` on.
CodePosition read_entry(Table& table, unsigned form, int& line) noexcept {
    if (form == no_location) return {};
    if (form == long_form) {
        line += table.signed_number();
        const int end_line = line + table.number();
        const int column = table.number() - 1;
        return {line, end_line, column, table.number() - 1};
    }
    if (form == no_columns) {
        line += table.signed_number();
        return {line, line, -1, -1};
    }
    if (form >= first_one_line) {
        line += static_cast<int>(form - first_one_line);
        const auto column = static_cast<int>(table.byte());
        return {line, line, column, static_cast<int>(table.byte())};
    }
    const unsigned second = table.byte();
    const auto column = static_cast<int>(form << 3U | second >> 4U);
    return {line, line, column, column + static_cast<int>(second & 15U)};
}

}  // namespace

CodePosition code_position(std::span<const unsigned char> bytes, int first_line, int offset) noexcept {
    Table table(bytes);
    int line = first_line;
    int end = 0;
    while (!table.is_at_end()) {
        const unsigned head = table.byte();
        const CodePosition position = read_entry(table, head >> 3U & 15U, line);
        end += unit_bytes * (static_cast<int>(head & 7U) + 1);
        if (offset < end) return position;
    }
    return {};
}

#else

CodePosition code_position(std::span<const unsigned char> bytes, int first_line, int offset) noexcept {
    constexpr int no_line = -128;
    int line = first_line;
    int end = 0;
    for (std::size_t at = 0; at + 1 < bytes.size(); at += 2) {
        end += bytes[at];
        const auto change = static_cast<signed char>(bytes[at + 1]);
        if (change != no_line) line += change;
        if (offset < end) {
            const int found = change == no_line ? -1 : line;
            return {found, found, -1, -1};
        }
    }
    return {};
}

#endif

}  // namespace gpuprof::python
