// SPDX-License-Identifier: Apache-2.0
#include "python/frame_reader.hpp"

#include <Python.h>
#include <pthread.h>

#include <algorithm>
#include <cstring>

#include "core/platform.hpp"
#include "python/interpreter_layout.h"

namespace gpuprof::python {
namespace {

constexpr std::size_t most_threads = 4'096;
constexpr std::size_t largest_chunk_bytes = 1 << 20;

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

bool FrameReader::current_frame(const std::byte* state, Address& frame) const noexcept {
    frame = field<Address>(state, gpuprof_layout.thread_frame);
    if (gpuprof_layout.c_frame_current == GPUPROF_NO_FIELD || frame == 0) return true;
    return read_value(frame + static_cast<Address>(gpuprof_layout.c_frame_current), frame);
}

// Most frames lie one behind the other: one copy takes them all.
void FrameReader::copy_chunk(const std::byte* state) {
    chunk_bytes_ = 0;
    if (gpuprof_layout.thread_chunk == GPUPROF_NO_FIELD) return;
    chunk_ = field<Address>(state, gpuprof_layout.thread_chunk);
    std::size_t size = 0;
    if (chunk_ == 0 || !read_value(chunk_ + static_cast<Address>(gpuprof_layout.chunk_size), size)) return;
    size = std::min(size, largest_chunk_bytes);
    if (chunk_copy_.size() < size) chunk_copy_.resize(size);
    if (read_memory(chunk_, chunk_copy_.data(), size)) chunk_bytes_ = size;
}

const std::byte* FrameReader::frame_at(Address frame) noexcept {
    const std::size_t bytes = gpuprof_layout.frame_bytes;
    if (frame >= chunk_ && frame - chunk_ + bytes <= chunk_bytes_)
        return chunk_copy_.data() + (frame - chunk_);
    return read_memory(frame, frame_copy_.data(), bytes) ? frame_copy_.data() : nullptr;
}

FrameReader::Outcome FrameReader::read_stack(Address thread_state, std::vector<RawFrame>& frames) {
    frames.clear();
    frame_copy_.resize(std::max(gpuprof_layout.frame_bytes, gpuprof_layout.thread_bytes));
    Address at = 0;
    if (!read_memory(thread_state, frame_copy_.data(), gpuprof_layout.thread_bytes)) return Outcome::torn;
    if (field<Address>(frame_copy_.data(), gpuprof_layout.thread_interpreter) != interpreter_ ||
        !current_frame(frame_copy_.data(), at))
        return Outcome::torn;
    copy_chunk(frame_copy_.data());
    for (std::size_t count = 0; at != 0 && count < deepest_stack; ++count) {
        const std::byte* frame = at % alignof(void*) == 0 ? frame_at(at) : nullptr;
        if (frame == nullptr) return Outcome::torn;
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
            frames.push_back(found);
        }
        at = field<Address>(frame, gpuprof_layout.frame_previous);
    }
    return Outcome::read;
}

}  // namespace gpuprof::python
