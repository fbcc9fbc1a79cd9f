// SPDX-License-Identifier: Apache-2.0
#include "cupti/gpu_file.hpp"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <system_error>

namespace gpuprof {

void GpuFile::open(const ProcessFile& file) {
    close();
    error_ = 0;
    file_ = ::open(file.path.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0644);
    struct stat facts{};
    if (file_ < 0 || fstat(file_, &facts) != 0)
        throw std::system_error(errno, std::generic_category(), file.path);
    if (static_cast<std::size_t>(facts.st_size) >= sizeof(GpuFileHead)) return;
    GpuFileHead head{};
    std::memcpy(head.magic, gpu_magic, sizeof(head.magic));
    head.version = gpu_file_version;
    head.record_bytes = sizeof(GpuRecord);
    head.process_id = static_cast<std::uint32_t>(getpid());
    head.parent_process_id = static_cast<std::uint32_t>(getppid());
    head.process_key = file.process_key;
    if (write_whole(&head, sizeof(head))) return;
    close();
    // A head that is cut off would be taken for damage.
    ::unlink(file.path.c_str());
    throw std::system_error(error_, std::generic_category(), file.path);
}

void GpuFile::remove_empty(const ProcessFile& file) noexcept {
    struct stat facts{};
    if (::stat(file.path.c_str(), &facts) == 0 && facts.st_size == sizeof(GpuFileHead))
        ::unlink(file.path.c_str());
}

bool GpuFile::append(std::span<const GpuRecord> records) noexcept {
    return records.empty() || write_whole(records.data(), records.size_bytes());
}

bool GpuFile::write_whole(const void* data, std::size_t size) noexcept {
    const auto* bytes = static_cast<const char*>(data);
    while (size > 0 && error_ == 0 && file_ >= 0) {
        const ssize_t written = ::write(file_, bytes, size);
        if (written < 0 && errno == EINTR) continue;
        if (written <= 0) {
            error_ = written < 0 ? errno : ENOSPC;
            break;
        }
        bytes += written;
        size -= static_cast<std::size_t>(written);
    }
    return size == 0;
}

void GpuFile::close() noexcept {
    if (file_ >= 0) ::close(file_);
    file_ = -1;
}

}  // namespace gpuprof
