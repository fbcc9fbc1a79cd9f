// SPDX-License-Identifier: Apache-2.0
#include "python/frame_reader.hpp"

#include <Python.h>
#include <pthread.h>

#include <algorithm>
#include <array>
#include <cstring>

#include "core/clock.hpp"
#include "core/platform.hpp"
#include "python/interpreter_layout.h"

namespace gpuprof::python {
namespace {

constexpr std::size_t most_threads = 4'096;
constexpr std::size_t largest_chunk_bytes = 1 << 20;
constexpr std::size_t more_bytes = 1'024;  // that the program may take until the copy
constexpr int most_attempts = 4;
// Of a reference in a frame, from CPython 3.14 on; the lowest bits of an object's address are 0.
constexpr Address flags_of_reference = 3;

// The C library keeps the id that the kernel knows a thread by in the structure that pthread_t points to.
long find_id_in_pthread() noexcept {
    constexpr long last = 2'048;
    const auto self = reinterpret_cast<Address>(pthread_self());
    const std::uint32_t own = system_thread_id();
    for (long offset = 0; offset < last; offset += static_cast<long>(sizeof own)) {
        std::uint32_t value = 0;
        if (!read_value(self + static_cast<Address>(offset), value)) return -1;
        if (value == own) return offset;
    }
    return -1;
}

}  // namespace

FrameReader::FrameReader() noexcept : interpreter_(reinterpret_cast<Address>(PyInterpreterState_Get())) {
    if (gpuprof_layout.is_known && gpuprof_layout.thread_native_id == GPUPROF_NO_FIELD)
        id_in_pthread_ = find_id_in_pthread();
}

std::int64_t FrameReader::native_id_of(const std::byte* state) const noexcept {
    if (gpuprof_layout.thread_native_id != GPUPROF_NO_FIELD)
        return static_cast<std::int64_t>(field<unsigned long>(state, gpuprof_layout.thread_native_id));
    std::uint32_t id = 0;
    const auto thread = static_cast<Address>(field<unsigned long>(state, gpuprof_layout.thread_identity));
    if (id_in_pthread_ < 0 || !read_value(thread + static_cast<Address>(id_in_pthread_), id)) return 0;
    return id;
}

bool FrameReader::read_threads(std::vector<ThreadRef>& threads) const {
    threads.clear();
    Address state = 0;
    if (!read_value(interpreter_ + static_cast<Address>(gpuprof_layout.interpreter_threads), state))
        return false;
    std::vector<std::byte> copy(gpuprof_layout.thread_bytes);
    while (state != 0) {
        if (threads.size() == most_threads || !read_memory(state, copy.data(), copy.size())) return false;
        if (field<Address>(copy.data(), gpuprof_layout.thread_interpreter) != interpreter_) return false;
        // A thread that has not begun yet has no id.
        if (const std::int64_t id = native_id_of(copy.data()); id > 0) threads.push_back({state, id});
        state = field<Address>(copy.data(), gpuprof_layout.thread_next);
    }
    return true;
}

// Finds what take_copies() copies: where the address of the innermost frame is, and the memory that most
// frames are in, one after another.
bool FrameReader::find_chunk(Address thread_state) {
    if (!read_memory(thread_state, state_copy_.data(), state_copy_.size())) return false;
    if (field<Address>(state_copy_.data(), gpuprof_layout.thread_interpreter) != interpreter_) return false;
    holder_ = thread_state + static_cast<Address>(gpuprof_layout.thread_frame);
    if (gpuprof_layout.c_frame_current != GPUPROF_NO_FIELD)
        holder_ = field<Address>(state_copy_.data(), gpuprof_layout.thread_frame) +
                  static_cast<Address>(gpuprof_layout.c_frame_current);
    chunk_bytes_ = 0;
    if (gpuprof_layout.thread_chunk == GPUPROF_NO_FIELD) return true;
    chunk_ = field<Address>(state_copy_.data(), gpuprof_layout.thread_chunk);
    const auto top = field<Address>(state_copy_.data(), gpuprof_layout.thread_chunk_top);
    if (chunk_ == 0 || top <= chunk_) return true;
    std::size_t size = 0;
    if (!read_value(chunk_ + static_cast<Address>(gpuprof_layout.chunk_size), size)) return false;
    chunk_bytes_ = std::min({static_cast<std::size_t>(top - chunk_) + more_bytes, largest_chunk_bytes, size});
    for (Copy* copy : {&first_, &second_})
        if (copy->chunk.size() < chunk_bytes_) copy->chunk.resize(chunk_bytes_);
    return true;
}

bool FrameReader::take_copies(Address thread_state) {
    if (!find_chunk(thread_state)) return false;
    tops_.fill(chunk_);
    const std::int64_t before_ns = monotonic_ns();
    const bool is_read = read_copies(thread_state);
    copied_ns_ = before_ns + (monotonic_ns() - before_ns) / 2;
    return is_read;
}

bool FrameReader::read_copies(Address thread_state) {
    if (chunk_bytes_ == 0)
        return read_value(holder_, first_.innermost) && read_value(holder_, second_.innermost);
    const Address top = thread_state + static_cast<Address>(gpuprof_layout.thread_chunk_top);
    const std::array pieces = {MemoryPiece{holder_, &first_.innermost, sizeof(Address)},
                               MemoryPiece{top, &tops_[0], sizeof(Address)},
                               MemoryPiece{chunk_, first_.chunk.data(), chunk_bytes_},
                               MemoryPiece{top, &tops_[1], sizeof(Address)},
                               MemoryPiece{chunk_, second_.chunk.data(), chunk_bytes_},
                               MemoryPiece{top, &tops_[2], sizeof(Address)},
                               MemoryPiece{holder_, &second_.innermost, sizeof(Address)}};
    return read_in_order(pieces);
}

const std::byte* FrameReader::frame_at(const Copy& copy, Address frame) noexcept {
    const std::size_t bytes = gpuprof_layout.frame_bytes;
    if (frame >= chunk_ && frame - chunk_ + bytes <= chunk_bytes_)
        return copy.chunk.data() + (frame - chunk_);
    return read_memory(frame, frame_copy_.data(), bytes) ? frame_copy_.data() : nullptr;
}

bool FrameReader::walk(Copy& copy) {
    copy.places.clear();
    copy.frames.clear();
    Address at = copy.innermost;
    for (std::size_t count = 0; at != 0 && count < deepest_stack; ++count) {
        const std::byte* frame = at % alignof(void*) == 0 ? frame_at(copy, at) : nullptr;
        if (frame == nullptr) return false;
        const bool has_code =
            gpuprof_layout.frame_owner == GPUPROF_NO_FIELD ||
            field<char>(frame, gpuprof_layout.frame_owner) < gpuprof_layout.first_owner_without_code;
        if (has_code) {
            RawFrame found{field<Address>(frame, gpuprof_layout.frame_code) & ~flags_of_reference, 0};
            if (gpuprof_layout.code_instructions == GPUPROF_NO_FIELD)
                found.instruction = 2 * field<int>(frame, gpuprof_layout.frame_instruction);
            else
                found.instruction = static_cast<std::int32_t>(
                    field<Address>(frame, gpuprof_layout.frame_instruction) - found.code -
                    static_cast<Address>(gpuprof_layout.code_instructions));
            copy.places.push_back(at);
            copy.frames.push_back(found);
        }
        at = field<Address>(frame, gpuprof_layout.frame_previous);
    }
    return true;
}

// Whether a frame was not on the stack at one of the moments: the memory after the last frame holds former
// ones.
bool FrameReader::is_stale(Address frame) const noexcept {
    return frame >= chunk_ && frame - chunk_ < chunk_bytes_ &&
           frame >= *std::min_element(tops_.begin(), tops_.end());
}

// How many frames from the outermost on both copies have. A caller that is at another instruction in the
// second is the last one: it has called another function since.
std::size_t FrameReader::count_same() const noexcept {
    std::size_t same = 0;
    while (same < std::min(first_.frames.size(), second_.frames.size())) {
        const std::size_t one = first_.frames.size() - 1 - same;
        const std::size_t other = second_.frames.size() - 1 - same;
        if (first_.places[one] != second_.places[other] ||
            first_.frames[one].code != second_.frames[other].code)
            break;
        ++same;
        if (first_.frames[one].instruction != second_.frames[other].instruction) break;
    }
    return same;
}

// A program that calls functions without end changes its stack while it is copied. What two copies agree on
// was there between them; further in, a copy may mix two moments, and such frames are left out.
FrameReader::Outcome FrameReader::read_stack(Address thread_state, std::vector<RawFrame>& frames) {
    frames.clear();
    state_copy_.resize(gpuprof_layout.thread_bytes);
    frame_copy_.resize(gpuprof_layout.frame_bytes);
    for (int attempt = 0; attempt < most_attempts; ++attempt) {
        if (!take_copies(thread_state) || !walk(first_)) return Outcome::torn;
        // Frames outside of the chunk are read by walking.
        if (chunk_bytes_ == 0 && !read_value(holder_, second_.innermost)) return Outcome::torn;
        if (!walk(second_)) return Outcome::torn;
        const std::size_t same = count_same();
        const bool is_whole = same == first_.frames.size() && same == second_.frames.size();
        if (!is_whole && attempt + 1 < most_attempts) continue;
        frames.assign(first_.frames.end() - static_cast<std::ptrdiff_t>(same), first_.frames.end());
        return frames.empty() && !first_.frames.empty() ? Outcome::torn : Outcome::read;
    }
    return Outcome::torn;
}

}  // namespace gpuprof::python
