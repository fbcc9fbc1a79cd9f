// SPDX-License-Identifier: Apache-2.0
// CUPTI's callbacks at launches and at the making of graph nodes, which tie what runs on a device to what
// its thread was doing: they write events into that thread's own log.
#pragma once

#include <cstdint>

#include "cupti/loader.hpp"

namespace gpuprof::cupti {

class Subscription {
  public:
    // Returns CUPTI's error number, 0 when it is in place.
    std::uint32_t begin(const Api& api) noexcept;
    // No callback is called any more, and launches cost what they did before.
    void end() noexcept;
    // For a forked child: callbacks do nothing, and CUPTI is not called.
    void forget() noexcept;

  private:
    void switch_callbacks(bool on) noexcept;

    const Api* api_ = nullptr;
    abi::Subscriber subscriber_ = nullptr;
};

}  // namespace gpuprof::cupti
