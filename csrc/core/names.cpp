// SPDX-License-Identifier: Apache-2.0
#include "core/names.hpp"

#include <fcntl.h>
#include <sys/uio.h>
#include <unistd.h>

#include <cerrno>
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
    begin_file(std::move(path));
}

bool NameTable::close() noexcept {
    std::lock_guard lock(mutex_);
    if (wanted_ && made_) write_out();
    wanted_ = false;
    return !failed_ && written_ >= texts_.size();
}

void NameTable::begin_file(std::string path) noexcept {
    path_ = std::move(path);
    wanted_ = true;
    made_ = false;
    has_magic_ = false;
    failed_ = false;
    written_ = 0;
}

std::uint32_t NameTable::intern(std::string_view text, std::uint32_t scope) noexcept {
    text = cut_to_limit(text);
    std::lock_guard lock(mutex_);
    make_file();
    if (const auto found = ids_.find(Key{text, scope}); found != ids_.end()) return found->second;
    const std::size_t known = texts_.size();
    try {
        texts_.emplace_back(text);
        scopes_.push_back(scope);
        const auto id = static_cast<std::uint32_t>(texts_.size());
        ids_.emplace(Key{texts_.back(), scope}, id);
        if (made_ && wanted_) write_out();
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
    make_file();
}

void NameTable::make_file() noexcept {
    if (made_ || !wanted_) return;
    made_ = true;
    write_out();
}

// The file is opened for each new name, which are few: a program may close every file that it finds, and
// one that were kept open would then be written into, or close, whatever the program opened in its place.
// A process that has no file to spare writes its names later.
void NameTable::write_out() noexcept {
    if (failed_) return;
    const int file = ::open(path_.c_str(), O_WRONLY | O_APPEND | O_CREAT | O_CLOEXEC, 0644);
    if (file < 0) {
        failed_ = errno != EMFILE && errno != ENFILE;
        return;
    }
    if (!has_magic_) {
        has_magic_ = ::write(file, names_magic, sizeof(names_magic)) == sizeof(names_magic);
        failed_ = !has_magic_;
    }
    for (; !failed_ && written_ < texts_.size(); ++written_)
        failed_ = !append(file, texts_[written_], scopes_[written_]);
    ::close(file);
}

// After a short write later records would be read at wrong places, so nothing may follow it: ids without
// a record are shown as lost names.
bool NameTable::append(int file, std::string_view text, std::uint32_t scope) noexcept {
    NameRecord head{static_cast<std::uint32_t>(text.size()), scope};
    iovec parts[2] = {{&head, sizeof(head)}, {const_cast<char*>(text.data()), text.size()}};
    return ::writev(file, parts, 2) == static_cast<ssize_t>(sizeof(head) + text.size());
}

}  // namespace gpuprof
