// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "python/thread_usage.hpp"

namespace gpuprof::python {

// Appends the records of src/gpuprof/record/stack_file.py to a file that grows by blocks mapped shared: what
// is written is in the kernel's hands at once. Used by one thread.
class StackFile {
  public:
    StackFile(std::string path, std::int64_t process_id, std::int64_t interval_ns);
    StackFile(const StackFile&) = delete;
    StackFile& operator=(const StackFile&) = delete;
    ~StackFile();

    struct Site {
        std::uint32_t frame;
        std::int32_t line, end_line, column, end_column;  // -1 for what is not known
    };
    struct Sample {
        std::int64_t t_ns, duration_ns;
        std::int64_t cpu_ns;     // of it on a processor
        std::int64_t queued_ns;  // of it ready to run, without a processor; -1 where that is not known
        std::uint32_t stack, site;
    };
    static constexpr std::uint32_t no_site = UINT32_MAX;
    static constexpr std::size_t longest_stack = 1'000;

    void add_frame(std::uint32_t number, std::string_view text);
    void add_stack(std::uint32_t number, std::span<const std::uint32_t> frames);  // the outermost first
    void add_site(std::uint32_t number, const Site& site, std::string_view path);
    void add_usage(std::int64_t t_ns, const NamedUsage& usage);
    void add_sample(std::int64_t thread_id, const Sample& sample);

    int error() const noexcept { return error_; }  // after one nothing is written

  private:
    enum class Kind : std::uint16_t { frame = 1, sample = 2, thread = 3, stack = 4, site = 5, usage = 6 };
    void append(Kind kind);
    void write(const void* bytes, std::size_t size) noexcept;
    void next_block() noexcept;
    template <typename Value>
    void put(const Value& value);

    std::string path_;
    std::vector<std::byte> body_;
    std::byte* block_ = nullptr;
    std::size_t begin_ = 0, size_ = 0, used_ = 0;
    std::int64_t thread_id_ = -1;
    int error_ = 0;
};

}  // namespace gpuprof::python
