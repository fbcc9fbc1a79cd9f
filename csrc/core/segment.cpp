// SPDX-License-Identifier: Apache-2.0
#include "core/segment.hpp"

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <system_error>
#include <utility>

#include "core/platform.hpp"

namespace gpuprof {
namespace {

void keep_out_of_children(void* data, std::size_t size) noexcept {
#if defined(MADV_DONTFORK)
    madvise(data, size, MADV_DONTFORK);
#else
    (void)data, (void)size;
#endif
}

void release_blocks(const std::string& path, std::size_t begin, std::size_t size) noexcept {
#if defined(FALLOC_FL_PUNCH_HOLE)
    const int file = ::open(path.c_str(), O_WRONLY | O_CLOEXEC);
    if (file < 0) return;
    // Where the file system cannot, only space is lost.
    static_cast<void>(fallocate(file, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, static_cast<off_t>(begin),
                                static_cast<off_t>(size)));
    ::close(file);
#else
    (void)path, (void)begin, (void)size;
#endif
}

}  // namespace

Segment::Segment(std::string path, const SegmentIdentity& identity)
    : size_(header_bytes + identity.chunk_count * chunk_bytes),
      path_(std::move(path)),
      unfinished_path_(path_ + ".new"),
      identity_(identity) {}

// Takes its name when its header is whole: a process that is killed in between leaves no segment that
// looks damaged.
int Segment::try_open() noexcept {
    const int file = ::open(unfinished_path_.c_str(), O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0644);
    if (file < 0) return errno;
    int error = reserve_blocks(file, size_);
    void* mapping = MAP_FAILED;
    if (error == 0) {
        mapping = mmap(nullptr, size_, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
        if (mapping == MAP_FAILED) error = errno;
    }
    ::close(file);
    if (mapping != MAP_FAILED) {
        keep_out_of_children(mapping, size_);
        data_ = static_cast<std::byte*>(mapping);
        header().identity = identity_;
        header().latest_point = identity_.first_point;
        header().checksum = fnv1a(&identity_, sizeof(identity_));
        error = ::rename(unfinished_path_.c_str(), path_.c_str()) == 0 ? 0 : errno;
        if (error != 0) {
            munmap(mapping, size_);
            data_ = nullptr;
        }
    }
    if (error != 0) ::unlink(unfinished_path_.c_str());
    return error;
}

void Segment::open() {
    if (const int error = try_open(); error != 0)
        throw std::system_error(error, std::generic_category(), path_);
}

Segment::~Segment() {
    if (data_ != nullptr) munmap(data_, size_);
}

Event* Segment::take_chunk() noexcept {
    if (taken_ == chunk_count()) return nullptr;
    if (taken_ >= prepared_) prepare(taken_);
    auto* const chunk = reinterpret_cast<Event*>(data_ + header_bytes + taken_ * chunk_bytes);
    header().chunks_taken.store(static_cast<std::uint32_t>(++taken_), std::memory_order_relaxed);
    return chunk;
}

void Segment::prepare(std::size_t chunk) const noexcept {
#if defined(MADV_POPULATE_WRITE)
    // One batched fault for the chunk instead of sixteen; kernels before 5.14 refuse, harmlessly.
    madvise(data_ + header_bytes + chunk * chunk_bytes, chunk_bytes, MADV_POPULATE_WRITE);
#else
    (void)chunk;
#endif
}

void Segment::release(std::size_t first, std::size_t count) const noexcept {
#if defined(__linux__)
    madvise(data_ + header_bytes + first * chunk_bytes, count * chunk_bytes, MADV_DONTNEED);
#else
    (void)first, (void)count;
#endif
}

void Segment::remove_file() noexcept {
    ::unlink(path_.c_str());
}

void Segment::trim(Size size) noexcept {
    const std::size_t used = header_bytes + taken_ * chunk_bytes;
    if (data_ == nullptr || used >= size_) return;
    munmap(data_ + used, size_ - used);
    const std::size_t unused = std::exchange(size_, used) - used;
    if (size == Size::kept) {
        release_blocks(path_, used, unused);
        return;
    }
    if (::truncate(path_.c_str(), static_cast<off_t>(used)) != 0) return;  // only space is lost
}

}  // namespace gpuprof
