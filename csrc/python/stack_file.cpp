// SPDX-License-Identifier: Apache-2.0
#include "python/stack_file.hpp"

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <utility>

namespace gpuprof::python {
namespace {

constexpr std::array<char, 8> magic = {'G', 'P', 'U', 'P', 'S', 'T', 'C', 'K'};
constexpr std::uint32_t version = 3;
constexpr std::size_t largest_block_bytes = 1 << 16;
constexpr std::size_t longest_text_bytes = 1'000;

struct RecordHead {
    std::uint16_t kind, size;
    std::uint32_t check;
};

std::size_t first_block_bytes() noexcept {
    static const auto page = static_cast<std::size_t>(sysconf(_SC_PAGESIZE));
    return std::max(std::size_t{1} << 12, page);
}

constexpr std::array<std::uint32_t, 256> make_crc_table() {
    std::array<std::uint32_t, 256> table{};
    for (std::uint32_t byte = 0; byte < 256; ++byte) {
        std::uint32_t value = byte;
        for (int bit = 0; bit < 8; ++bit) value = (value >> 1) ^ ((value & 1) != 0 ? 0xEDB88320U : 0U);
        table[byte] = value;
    }
    return table;
}

// As zlib's crc32.
std::uint32_t crc32(const void* bytes, std::size_t size) noexcept {
    static constexpr auto table = make_crc_table();
    const auto* at = static_cast<const unsigned char*>(bytes);
    std::uint32_t value = ~0U;
    for (std::size_t place = 0; place < size; ++place)
        value = (value >> 8) ^ table[(value ^ at[place]) & 0xFFU];
    return ~value;
}

int reserve(int file, std::size_t begin, std::size_t size) noexcept {
#if defined(__APPLE__)
    return ftruncate(file, static_cast<off_t>(begin + size)) == 0 ? 0 : errno;
#else
    return posix_fallocate(file, static_cast<off_t>(begin), static_cast<off_t>(size));
#endif
}

}  // namespace

StackFile::StackFile(std::string path, std::int64_t process_id, std::int64_t interval_ns)
    : path_(std::move(path)) {
    put(magic);
    put(version);
    put(static_cast<std::uint32_t>(first_block_bytes()));
    put(process_id);
    put(interval_ns);
    put(crc32(body_.data(), body_.size()));
    next_block();
    write(body_.data(), body_.size());
    body_.clear();
}

StackFile::~StackFile() {
    if (block_ != nullptr) munmap(block_, size_);
}

template <typename Value>
void StackFile::put(const Value& value) {
    const auto* bytes = reinterpret_cast<const std::byte*>(&value);
    body_.insert(body_.end(), bytes, bytes + sizeof value);
}

void StackFile::add_frame(std::uint32_t number, std::string_view text) {
    put(number);
    const auto* bytes = reinterpret_cast<const std::byte*>(text.data());
    body_.insert(body_.end(), bytes, bytes + std::min(text.size(), longest_text_bytes));
    append(Kind::frame);
}

void StackFile::add_stack(std::uint32_t number, std::span<const std::uint32_t> frames) {
    put(number);
    for (const std::uint32_t frame : frames) put(frame);
    append(Kind::stack);
}

void StackFile::add_site(std::uint32_t number, const Site& site, std::string_view path) {
    put(number);
    put(site);
    const auto* bytes = reinterpret_cast<const std::byte*>(path.data());
    body_.insert(body_.end(), bytes, bytes + std::min(path.size(), longest_text_bytes));
    append(Kind::site);
}

void StackFile::add_usage(std::int64_t t_ns, const NamedUsage& usage) {
    put(t_ns);
    put(usage.usage);
    put(usage.name);
    append(Kind::usage);
}

void StackFile::add_sample(std::int64_t thread_id, const Sample& sample) {
    if (thread_id != thread_id_) {
        thread_id_ = thread_id;
        put(thread_id);
        append(Kind::thread);
    }
    put(sample);
    append(Kind::sample);
}

void StackFile::append(Kind kind) {
    const RecordHead head{static_cast<std::uint16_t>(kind), static_cast<std::uint16_t>(body_.size()),
                          crc32(body_.data(), body_.size())};
    if (used_ + sizeof head + body_.size() > size_) {
        next_block();
        // A block begins with its thread, so that it can be read without the one before.
        if (kind != Kind::thread && thread_id_ >= 0) {
            const RecordHead thread{static_cast<std::uint16_t>(Kind::thread), sizeof thread_id_,
                                    crc32(&thread_id_, sizeof thread_id_)};
            write(&thread, sizeof thread);
            write(&thread_id_, sizeof thread_id_);
        }
    }
    write(&head, sizeof head);
    write(body_.data(), body_.size());
    body_.clear();
}

void StackFile::write(const void* bytes, std::size_t size) noexcept {
    if (block_ == nullptr) return;
    std::memcpy(block_ + used_, bytes, size);
    used_ += size;
}

void StackFile::next_block() noexcept {
    if (error_ != 0) return;
    const std::size_t begin = begin_ + size_;
    const std::size_t size = std::max(first_block_bytes(), std::min(begin, largest_block_bytes));
    if (block_ != nullptr) munmap(block_, size_);
    block_ = nullptr;
    const int file = open(path_.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0644);
    if (file < 0) {
        error_ = errno;
        return;
    }
    // A mapped page that finds no room later would kill the program.
    error_ = reserve(file, begin, size);
    if (error_ == 0) {
        void* mapped =
            mmap(nullptr, size, PROT_READ | PROT_WRITE, MAP_SHARED, file, static_cast<off_t>(begin));
        if (mapped == MAP_FAILED)
            error_ = errno;
        else
            block_ = static_cast<std::byte*>(mapped);
    }
    close(file);
    begin_ = begin;
    size_ = size;
    used_ = 0;
}

}  // namespace gpuprof::python
