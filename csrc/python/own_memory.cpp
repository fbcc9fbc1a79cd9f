// SPDX-License-Identifier: Apache-2.0
#include "python/own_memory.hpp"

#include <cerrno>

#if defined(__linux__)
#include <sys/uio.h>
#include <unistd.h>

#include <algorithm>
#include <array>

namespace gpuprof::python {
namespace {

constexpr std::size_t most_pieces = 64;

iovec piece(Address address, std::size_t bytes) noexcept {
    return {reinterpret_cast<void*>(address), bytes};  // NOLINT(performance-no-int-to-ptr)
}

// The bytes that were copied; -1 with errno where none were.
ssize_t copy(const iovec& to, std::span<const iovec> from) noexcept {
    // The process is asked for each time: after a fork it is another one.
    return process_vm_readv(getpid(), &to, 1, from.data(), from.size(), 0);
}

}  // namespace

bool read_memory(Address from, void* to, std::size_t bytes) noexcept {
    const iovec source = piece(from, bytes);
    return copy({to, bytes}, {&source, 1}) == static_cast<ssize_t>(bytes);
}

std::size_t read_pieces(std::span<const Address> from, std::byte* to, std::size_t bytes) noexcept {
    std::array<iovec, most_pieces> sources;
    std::size_t done = 0;
    while (done < from.size()) {
        const std::size_t count = std::min(most_pieces, from.size() - done);
        for (std::size_t at = 0; at < count; ++at) sources[at] = piece(from[done + at], bytes);
        const ssize_t copied = copy({to + done * bytes, count * bytes}, {sources.data(), count});
        if (copied < 0) return done;
        done += static_cast<std::size_t>(copied) / bytes;
        if (static_cast<std::size_t>(copied) < count * bytes) return done;
    }
    return done;
}

bool read_in_order(std::span<const MemoryPiece> pieces) noexcept {
    std::array<iovec, 8> sources;
    std::array<iovec, 8> targets;
    std::size_t bytes = 0;
    if (pieces.size() > sources.size()) return false;
    for (std::size_t at = 0; at < pieces.size(); ++at) {
        sources[at] = piece(pieces[at].from, pieces[at].bytes);
        targets[at] = {pieces[at].to, pieces[at].bytes};
        bytes += pieces[at].bytes;
    }
    return process_vm_readv(getpid(), targets.data(), pieces.size(), sources.data(), pieces.size(), 0) ==
           static_cast<ssize_t>(bytes);
}

int memory_error() noexcept {
    const int value = 1;
    int copied = 0;
    return read_value(reinterpret_cast<Address>(&value), copied) ? 0 : errno;
}

}  // namespace gpuprof::python

#else

namespace gpuprof::python {

bool read_memory(Address, void*, std::size_t) noexcept {
    return false;
}
std::size_t read_pieces(std::span<const Address>, std::byte*, std::size_t) noexcept {
    return 0;
}
bool read_in_order(std::span<const MemoryPiece>) noexcept {
    return false;
}
int memory_error() noexcept {
    return ENOSYS;
}

}  // namespace gpuprof::python

#endif
