// SPDX-License-Identifier: Apache-2.0
#include "python/frame_reader.hpp"

#include <Python.h>
#include <pthread.h>

#include <algorithm>
#include <array>
#include <cstring>

#include "core/platform.hpp"
#include "python/interpreter_layout.h"

namespace gpuprof::python {
namespace {

constexpr std::size_t most_threads = 4'096;
constexpr std::size_t largest_chunk_bytes = 1 << 20;
constexpr std::size_t more_bytes = 1'024;  // that the program may take until the copy
constexpr int most_attempts = 4;

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

// Finds what take_snapshot() copies: where the address of the innermost frame is, and the memory that most
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
    if (chunk_copy_.size() < chunk_bytes_) chunk_copy_.resize(chunk_bytes_);
    return true;
}

bool FrameReader::take_snapshot(Address thread_state, Snapshot& snapshot) {
    if (!find_chunk(thread_state)) return false;
    const std::array pieces = {MemoryPiece{holder_, &snapshot.before, sizeof snapshot.before},
                               MemoryPiece{chunk_, chunk_copy_.data(), chunk_bytes_},
                               MemoryPiece{holder_, &snapshot.after, sizeof snapshot.after}};
    return read_in_order(pieces);
}

const std::byte* FrameReader::frame_at(Address frame) noexcept {
    const std::size_t bytes = gpuprof_layout.frame_bytes;
    if (frame >= chunk_ && frame - chunk_ + bytes <= chunk_bytes_)
        return chunk_copy_.data() + (frame - chunk_);
    return read_memory(frame, frame_copy_.data(), bytes) ? frame_copy_.data() : nullptr;
}

bool FrameReader::walk(Address innermost, std::vector<Address>& places, std::vector<RawFrame>& frames) {
    places.clear();
    frames.clear();
    Address at = innermost;
    for (std::size_t count = 0; at != 0 && count < deepest_stack; ++count) {
        const std::byte* frame = at % alignof(void*) == 0 ? frame_at(at) : nullptr;
        if (frame == nullptr) return false;
        const bool has_code =
            gpuprof_layout.frame_owner == GPUPROF_NO_FIELD ||
            field<char>(frame, gpuprof_layout.frame_owner) != gpuprof_layout.owner_without_code;
        if (has_code) {
            RawFrame found{field<Address>(frame, gpuprof_layout.frame_code), 0};
            if (gpuprof_layout.code_instructions == GPUPROF_NO_FIELD)
                found.instruction = 2 * field<int>(frame, gpuprof_layout.frame_instruction);
            else
                found.instruction = static_cast<std::int32_t>(
                    field<Address>(frame, gpuprof_layout.frame_instruction) - found.code -
                    static_cast<Address>(gpuprof_layout.code_instructions));
            places.push_back(at);
            frames.push_back(found);
        }
        at = field<Address>(frame, gpuprof_layout.frame_previous);
    }
    return true;
}

FrameReader::Outcome FrameReader::read_stack(Address thread_state, std::vector<RawFrame>& frames) {
    frames.clear();
    state_copy_.resize(gpuprof_layout.thread_bytes);
    frame_copy_.resize(gpuprof_layout.frame_bytes);
    Snapshot snapshot;
    for (int attempt = 0; attempt < most_attempts; ++attempt) {
        if (!take_snapshot(thread_state, snapshot) || !walk(snapshot.before, places_, frames))
            return Outcome::torn;
        // Frames outside of the chunk were read by the walk alone.
        if (chunk_bytes_ == 0 && !read_value(holder_, snapshot.after)) return Outcome::torn;
        if (snapshot.before == snapshot.after) return Outcome::read;
    }
    // Functions were called or left at each attempt. Frames that were on the stack before and after the copy
    // were on it meanwhile, and the innermost of them is one that the copy shows. Further in, two moments may
    // be mixed.
    if (!walk(snapshot.after, other_places_, other_frames_)) return Outcome::torn;
    std::size_t shared = 0;
    while (shared < std::min(places_.size(), other_places_.size()) &&
           places_[places_.size() - 1 - shared] == other_places_[other_places_.size() - 1 - shared])
        ++shared;
    frames.erase(frames.begin(), frames.end() - static_cast<std::ptrdiff_t>(shared));
    return frames.empty() ? Outcome::torn : Outcome::read;
}

}  // namespace gpuprof::python
