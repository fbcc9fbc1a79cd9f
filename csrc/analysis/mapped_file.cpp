// SPDX-License-Identifier: Apache-2.0
#include "analysis/mapped_file.hpp"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <system_error>

namespace gpuprof {

MappedFile::MappedFile(const std::string& path) {
    // Non-blocking: the file may be a pipe without a writer.
    const int file = ::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    if (file < 0) throw std::system_error(errno, std::generic_category(), path);
    struct stat status{};
    int error = fstat(file, &status) == 0 ? 0 : errno;
    size_ = error == 0 ? static_cast<std::size_t>(status.st_size) : 0;
    if (size_ > 0) {
        void* mapping = mmap(nullptr, size_, PROT_READ, MAP_PRIVATE, file, 0);
        if (mapping == MAP_FAILED)
            error = errno;
        else
            data_ = static_cast<const std::byte*>(mapping);
    }
    ::close(file);
    if (error != 0) throw std::system_error(error, std::generic_category(), path);
}

MappedFile::~MappedFile() {
    if (data_ != nullptr) munmap(const_cast<std::byte*>(data_), size_);
}

}  // namespace gpuprof
