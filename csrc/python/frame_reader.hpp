// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "python/own_memory.hpp"

namespace gpuprof::python {

// What a thread of Python is known by.
struct ThreadRef {
    Address state;
    std::int64_t native_id;
};

struct RawFrame {
    Address code;
    std::int32_t instruction;  // bytes from the first instruction
};

// Reads threads and stacks of an interpreter without its lock. Structures may change while they are read, so
// what is found must be such as the interpreter makes it, else the stack is torn and counts as unread.
class FrameReader {
  public:
    // With the interpreter lock held, by a thread of the interpreter.
    FrameReader() noexcept;

    static constexpr std::size_t deepest_stack = 2'000;

    // False where the list could not be read to its end; the threads before that are in `threads`.
    bool read_threads(std::vector<ThreadRef>& threads) const;

    enum class Outcome { read, torn };
    // The innermost frame first. A thread without frames has an empty stack. Cut at deepest_stack.
    Outcome read_stack(Address thread_state, std::vector<RawFrame>& frames);

    // On the monotonic clock, the instant between the two copies of which the last stack was read.
    std::int64_t copied_ns() const noexcept { return copied_ns_; }

  private:
    // Two copies of the memory that frames lie in, one right after the other, and the innermost frame of
    // each.
    struct Copy {
        Address innermost = 0;
        std::vector<std::byte> chunk;
        std::vector<Address> places;
        std::vector<RawFrame> frames;
    };
    bool take_copies(Address thread_state);
    bool read_copies(Address thread_state);
    bool find_chunk(Address thread_state);
    bool walk(Copy& copy);
    const std::byte* frame_at(const Copy& copy, Address frame) noexcept;
    std::size_t count_same() const noexcept;
    bool is_stale(Address frame) const noexcept;
    std::int64_t native_id_of(const std::byte* state) const noexcept;

    Address interpreter_ = 0;
    long id_in_pthread_ = -1;  // where the C library keeps a thread's id, for interpreters that do not
    Address holder_ = 0;       // where the address of the innermost frame is
    Address chunk_ = 0;
    std::size_t chunk_bytes_ = 0;
    std::vector<std::byte> state_copy_;
    Copy first_, second_;
    std::int64_t copied_ns_ = 0;
    std::array<Address, 3> tops_{};  // the end of the frames before, between and after the copies
    std::vector<std::byte> frame_copy_;
};

}  // namespace gpuprof::python
