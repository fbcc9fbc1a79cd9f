// SPDX-License-Identifier: Apache-2.0
#include "core/names.hpp"

#include <fcntl.h>
#include <sys/uio.h>
#include <unistd.h>

#include <new>
#include <utility>

#include "core/layout.hpp"

namespace gpuprof {
namespace {

std::string_view cut_to_limit(std::string_view text) noexcept {
    if (text.size() <= longest_name_bytes) return text;
    std::size_t end = longest_name_bytes;
    while (end > 0 && (static_cast<unsigned char>(text[end]) & 0xC0u) == 0x80u) --end;
    return text.substr(0, end);
}

}  // namespace

void NameTable::begin(std::string path) {
    std::lock_guard lock(mutex_);
    ids_.clear();
    texts_.clear();
    scopes_.clear();
    begin_file(std::move(path));
}

// In the child of a fork, where the mutex is held.
void NameTable::continue_in(std::string path) {
    // The descriptor is shared with the parent: writing to it here would mix two processes' ids.
    begin_file(std::move(path));
}

bool NameTable::close() noexcept {
    std::lock_guard lock(mutex_);
    close_file();
    wanted_ = false;
    return !failed_;
}

void NameTable::begin_file(std::string path) noexcept {
    close_file();
    path_ = std::move(path);
    wanted_ = true;
    failed_ = false;
}

void NameTable::close_file() noexcept {
    if (file_ >= 0) ::close(file_);
    file_ = -1;
}

std::uint32_t NameTable::intern(std::string_view text, std::uint32_t scope) noexcept {
    text = cut_to_limit(text);
    std::lock_guard lock(mutex_);
    open_file();
    if (const auto found = ids_.find(Key{text, scope}); found != ids_.end()) return found->second;
    const std::size_t known = texts_.size();
    try {
        texts_.emplace_back(text);
        scopes_.push_back(scope);
        const auto id = static_cast<std::uint32_t>(texts_.size());
        ids_.emplace(Key{texts_.back(), scope}, id);
        append(texts_.back(), scope);
        return id;
    } catch (const std::bad_alloc&) {
        // Whole names only: the places in the file are the ids.
        while (texts_.size() > known) texts_.pop_back();
        while (scopes_.size() > known) scopes_.pop_back();
        return 0;
    }
}

std::string NameTable::text(std::uint32_t id) noexcept try {
    std::lock_guard lock(mutex_);
    return id > 0 && id <= texts_.size() ? texts_[id - 1] : std::string();
} catch (const std::bad_alloc&) {
    return {};
}

void NameTable::ensure_file() noexcept {
    std::lock_guard lock(mutex_);
    open_file();
}

void NameTable::open_file() noexcept {
    if (file_ >= 0 || failed_ || !wanted_) return;
    file_ = ::open(path_.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_APPEND | O_CLOEXEC, 0644);
    if (file_ < 0 || ::write(file_, names_magic, sizeof(names_magic)) != sizeof(names_magic)) {
        failed_ = true;
        return;
    }
    for (std::size_t i = 0; i < texts_.size(); ++i) append(texts_[i], scopes_[i]);
}

void NameTable::append(std::string_view text, std::uint32_t scope) noexcept {
    if (file_ < 0 || failed_) return;
    NameRecord head{static_cast<std::uint32_t>(text.size()), scope};
    iovec parts[2] = {{&head, sizeof(head)}, {const_cast<char*>(text.data()), text.size()}};
    const auto whole = static_cast<ssize_t>(sizeof(head) + text.size());
    // After a short write later records would be read at wrong places: stop, ids without a record
    // are shown as lost names.
    if (::writev(file_, parts, 2) != whole) failed_ = true;
}

}  // namespace gpuprof
