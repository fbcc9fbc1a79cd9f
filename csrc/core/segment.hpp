// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <string>

#include "core/layout.hpp"

namespace gpuprof {

// A preallocated file mapped shared. The blocks are reserved before the mapping, since a write into a
// hole on a full disk would be a SIGBUS in the measured program.
class Segment {
  public:
    // Makes no file yet.
    Segment(std::string path, const SegmentIdentity& identity);
    Segment(const Segment&) = delete;
    Segment& operator=(const Segment&) = delete;
    ~Segment();

    // Makes the file and reserves its blocks; returns errno, or 0. Neither allocates nor frees memory.
    int try_open() noexcept;
    // The same; throws std::system_error with the path.
    void open();

    // The next untouched chunk, or null when all are given out. Not thread-safe.
    Event* take_chunk() noexcept;

    std::size_t chunk_count() const noexcept { return (size_ - header_bytes) / chunk_bytes; }
    std::size_t taken_chunks() const noexcept { return taken_; }
    // Number of free chunks with provided memory.
    std::size_t ready_chunks() const noexcept { return next_to_prepare() - taken_; }
    std::size_t next_to_prepare() const noexcept { return prepared_ > taken_ ? prepared_ : taken_; }
    // Has the kernel provide the memory of a chunk. May run while chunks are taken, that one too.
    void prepare(std::size_t chunk) const noexcept;
    void note_prepared(std::size_t chunk) noexcept { prepared_ = prepared_ > chunk ? prepared_ : chunk + 1; }

    // Unmaps the pages of chunks that are full. They stay in the file: a thread that still has one of these
    // chunks finds them there, at the cost of a page fault. May run while chunks are taken and written.
    void release(std::size_t first, std::size_t count) const noexcept;

    SegmentHeader& header() noexcept { return *reinterpret_cast<SegmentHeader*>(data_); }
    // In a forked child the mapping does not exist any more.
    void forget() noexcept { data_ = nullptr; }
    // Releases the blocks of free chunks, if the system can do that at the size `kept`.
    enum class Size { cut, kept };
    void trim(Size size) noexcept;
    void remove_file() noexcept;

  private:
    std::byte* data_ = nullptr;
    std::size_t size_;
    std::size_t taken_ = 0;
    std::size_t prepared_ = 0;  // chunks before this one were
    std::string path_;
    std::string unfinished_path_;
    SegmentIdentity identity_;
};

}  // namespace gpuprof
