// SPDX-License-Identifier: Apache-2.0
#pragma once

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

  private:
    // The innermost frame before and after the others were copied: whether the stack changed meanwhile.
    struct Snapshot {
        Address before = 0, after = 0;
    };
    bool take_snapshot(Address thread_state, Snapshot& snapshot);
    bool find_chunk(Address thread_state);
    bool walk(Address innermost, std::vector<Address>& places, std::vector<RawFrame>& frames);
    const std::byte* frame_at(Address frame) noexcept;
    std::int64_t native_id_of(const std::byte* state) const noexcept;

    Address interpreter_ = 0;
    long id_in_pthread_ = -1;  // where the C library keeps a thread's id, for interpreters that do not
    Address holder_ = 0;       // where the address of the innermost frame is
    Address chunk_ = 0;
    std::size_t chunk_bytes_ = 0;
    std::vector<std::byte> state_copy_;
    std::vector<std::byte> chunk_copy_;
    std::vector<std::byte> frame_copy_;
    std::vector<RawFrame> other_frames_;
    std::vector<Address> places_, other_places_;
};

}  // namespace gpuprof::python
