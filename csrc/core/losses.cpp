// SPDX-License-Identifier: Apache-2.0
#include "core/losses.hpp"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <new>

namespace gpuprof {

void Losses::add_event(const std::string& folder) noexcept {
    if (!was_opened_) open(folder);
    if (header_ != nullptr) header_->dropped_events.fetch_add(1, std::memory_order_relaxed);
}

void Losses::open(const std::string& folder) noexcept {
    was_opened_ = true;
    int file = -1;
    try {
        file = ::open(path_in(folder).c_str(), O_RDWR | O_CLOEXEC);
    } catch (const std::bad_alloc&) {
        return;
    }
    if (file < 0) return;
    struct stat status{};
    // A write after the end of a truncated file would be a SIGBUS.
    if (fstat(file, &status) == 0 && status.st_size >= static_cast<off_t>(header_bytes)) {
        void* mapping = mmap(nullptr, header_bytes, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
        if (mapping != MAP_FAILED) header_ = static_cast<SegmentHeader*>(mapping);
    }
    ::close(file);
    if (header_ != nullptr) header_->chunks_taken.fetch_add(1, std::memory_order_relaxed);
}

void Losses::close() noexcept {
    if (header_ != nullptr) munmap(header_, header_bytes);
    header_ = nullptr;
    was_opened_ = false;
}

}  // namespace gpuprof
