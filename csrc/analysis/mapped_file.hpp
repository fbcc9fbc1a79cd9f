// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <string>

namespace gpuprof {

// A file mapped for reading; empty where the file is empty.
class MappedFile {
  public:
    // Throws std::system_error with the path.
    explicit MappedFile(const std::string& path);
    MappedFile(const MappedFile&) = delete;
    MappedFile& operator=(const MappedFile&) = delete;
    ~MappedFile();
    const std::byte* data() const noexcept { return data_; }
    std::size_t size() const noexcept { return size_; }

  private:
    const std::byte* data_ = nullptr;
    std::size_t size_ = 0;
};

}  // namespace gpuprof
