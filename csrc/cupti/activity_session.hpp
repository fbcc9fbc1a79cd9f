// SPDX-License-Identifier: Apache-2.0
// What is switched on in CUPTI for a recording, and off again.
#pragma once

#include <cstdint>

#include "cupti/loader.hpp"
#include "cupti/subscription.hpp"

namespace gpuprof::cupti {

struct SessionOptions {
    // Of launches and graph nodes, on the launching threads. CUPTI gives them to one tool alone; without
    // them, records of the launching calls are asked for, which cost CUPTI 40 bytes and us 128 a call.
    bool with_callbacks = true;
    // One record for each replay of a CUDA graph, in place of one for each of its nodes.
    bool whole_graphs = false;
};

// Which of the things that older versions lack are on.
struct SessionFacts {
    bool whole_graphs = false;
    bool event_records = false;
    bool chosen_calls = false;  // records of those calls alone that launch or wait
};

class ActivitySession {
  public:
    // Both return CUPTI's error number, 0 when all is in place; else nothing is on. First everything but
    // records. The library is kept for as long as the session.
    std::uint32_t begin(const Library& library, const SessionOptions& options, abi::RequestBuffer request,
                        abi::CompleteBuffer complete) noexcept;
    std::uint32_t enable_records() noexcept;
    void disable_records() noexcept;
    // Also takes back what was set for the whole process. Harmless when nothing is on.
    void end() noexcept;
    // For a forked child, or where CUPTI hangs: CUPTI is not called any more.
    void forget() noexcept;
    const SessionFacts& facts() const noexcept { return facts_; }

  private:
    std::uint32_t use_system_thread_ids() noexcept;
    void set_attribute(std::uint32_t attribute, std::uint8_t value) noexcept;
    bool leave_out_other_calls() noexcept;
    std::uint32_t enable_calls() noexcept;

    const Library* library_ = nullptr;
    SessionOptions options_;
    SessionFacts facts_;
    Subscription subscription_;
    bool sets_thread_ids_ = false;
    std::uint32_t former_thread_ids_ = 0;
    bool sets_zeroed_buffers_ = false;
};

}  // namespace gpuprof::cupti
