// SPDX-License-Identifier: Apache-2.0
#include "analysis/json_text.hpp"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <cstdlib>

namespace gpuprof {
namespace {

bool is_space(char c) noexcept {
    return c == ' ' || c == '\n' || c == '\r' || c == '\t';
}

void append_utf8(std::string& out, std::uint32_t code) {
    auto put = [&](std::uint32_t byte) { out.push_back(static_cast<char>(byte)); };
    if (code < 0x80) {
        put(code);
    } else if (code < 0x800) {
        put(0xC0 | code >> 6);
        put(0x80 | (code & 0x3F));
    } else if (code < 0x10000) {
        put(0xE0 | code >> 12);
        put(0x80 | (code >> 6 & 0x3F));
        put(0x80 | (code & 0x3F));
    } else {
        put(0xF0 | code >> 18);
        put(0x80 | (code >> 12 & 0x3F));
        put(0x80 | (code >> 6 & 0x3F));
        put(0x80 | (code & 0x3F));
    }
}

constexpr std::uint32_t replacement = 0xFFFD;

std::uint32_t hex4(std::string_view text, std::size_t at) {
    std::uint32_t code = replacement;
    if (at + 4 > text.size()) return code;
    const char* const end = text.data() + at + 4;
    return std::from_chars(text.data() + at, end, code, 16).ptr == end ? code : replacement;
}

// `at` is after "\u"; it moves to the end of the escape.
std::uint32_t unicode_escape(std::string_view text, std::size_t& at) {
    const std::uint32_t high = hex4(text, at);
    at = std::min(at + 4, text.size());
    if (high < 0xD800 || high > 0xDFFF) return high;
    if (high > 0xDBFF || text.substr(at, 2) != "\\u") return replacement;
    const std::uint32_t low = hex4(text, at + 2);
    if (low < 0xDC00 || low > 0xDFFF) return replacement;
    at += 6;
    return 0x10000 + ((high - 0xD800) << 10) + (low - 0xDC00);
}

char plain_escape(char c) noexcept {
    switch (c) {
        case 'n':
            return '\n';
        case 't':
            return '\t';
        case 'r':
            return '\r';
        case 'b':
            return '\b';
        case 'f':
            return '\f';
        default:
            return c;
    }
}

std::string_view without_quotes(std::string_view written) {
    if (written.size() >= 2 && written.front() == '"' && written.back() == '"')
        return written.substr(1, written.size() - 2);
    return written;
}

}  // namespace

char JsonCursor::peek() {
    while (at_ < text_.size() && is_space(text_[at_])) ++at_;
    return at_ < text_.size() ? text_[at_] : '\0';
}

bool JsonCursor::enter(char bracket) {
    if (peek() != bracket) {
        fail();
        return false;
    }
    ++at_;
    first_ = true;
    return true;
}

bool JsonCursor::next_element() {
    const char c = peek();
    if (!ok_ || c == ']' || c == '}') return false;
    if (!first_) {
        if (c != ',') {
            fail();
            return false;
        }
        ++at_;
    }
    first_ = false;
    return true;
}

bool JsonCursor::next_key(std::string& key) {
    if (!next_element()) return false;
    if (peek() != '"') {
        fail();
        return false;
    }
    const std::size_t begin = at_;
    skip_string();
    key = json_string(text_.substr(begin, at_ - begin));
    if (peek() != ':') {
        fail();
        return false;
    }
    ++at_;
    return true;
}

void JsonCursor::skip_string() {
    for (++at_; at_ < text_.size() && text_[at_] != '"'; ++at_)
        if (text_[at_] == '\\') ++at_;
    if (at_ >= text_.size()) {
        at_ = text_.size();
        fail();
        return;
    }
    ++at_;
}

std::string_view JsonCursor::value() {
    const char c = peek();
    const std::size_t begin = at_;
    if (c == '"') {
        skip_string();
    } else if (c == '{' || c == '[') {
        std::size_t depth = 0;
        do {
            const char each = at_ < text_.size() ? text_[at_] : '\0';
            if (each == '\0' && at_ >= text_.size()) {
                fail();
                break;
            }
            if (each == '"') {
                skip_string();
                continue;
            }
            depth += each == '{' || each == '[' ? 1 : 0;
            depth -= each == '}' || each == ']' ? 1 : 0;
            ++at_;
        } while (depth > 0);
    } else {
        while (at_ < text_.size() && text_[at_] != ',' && text_[at_] != '}' && text_[at_] != ']' &&
               !is_space(text_[at_]))
            ++at_;
        if (at_ == begin) fail();
    }
    return text_.substr(begin, at_ - begin);
}

std::string json_string(std::string_view written) {
    const std::string_view text = without_quotes(written);
    std::string result;
    result.reserve(text.size());
    for (std::size_t at = 0; at < text.size();) {
        if (text[at] != '\\' || at + 1 == text.size()) {
            result.push_back(text[at++]);
            continue;
        }
        const char escape = text[at + 1];
        at += 2;
        if (escape == 'u')
            append_utf8(result, unicode_escape(text, at));
        else
            result.push_back(plain_escape(escape));
    }
    return result;
}

std::optional<std::int64_t> json_integer(std::string_view written) {
    const std::string_view text = without_quotes(written);
    std::int64_t value = 0;
    const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
    if (error != std::errc() || end != text.data() + text.size()) return std::nullopt;
    return value;
}

std::optional<std::int64_t> json_microseconds(std::string_view written) {
    const std::string_view text = without_quotes(written);
    constexpr std::int64_t limit = std::int64_t{1} << 61;
    std::int64_t whole = 0;
    const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), whole);
    const std::string_view rest = text.substr(static_cast<std::size_t>(end - text.data()));
    const bool is_plain =
        rest.empty() || (rest[0] == '.' && rest.find_first_not_of("0123456789", 1) == rest.npos);
    if (error == std::errc() && is_plain && whole < limit / 1000 && whole > -limit / 1000) {
        std::int64_t fraction = 0;
        for (std::size_t i = 1; i <= 3; ++i) fraction = fraction * 10 + (i < rest.size() ? rest[i] - '0' : 0);
        if (rest.size() > 4 && rest[4] >= '5') ++fraction;
        return whole * 1000 + (text[0] == '-' ? -fraction : fraction);
    }
    const std::string copy(text);
    char* stop = nullptr;
    const double value = std::strtod(copy.c_str(), &stop) * 1000;
    if (copy.empty() || *stop != '\0' || !(std::abs(value) < static_cast<double>(limit))) return std::nullopt;
    return std::llround(value);
}

}  // namespace gpuprof
