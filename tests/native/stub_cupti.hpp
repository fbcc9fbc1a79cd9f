// SPDX-License-Identifier: Apache-2.0
// What the parts of the stub share.
#pragma once

#include <cstdint>
#include <string>

#define EXPORT extern "C" __attribute__((visibility("default")))

// Counts a call of the function, and returns the result that a test set.
std::uint32_t answer(const char* function);
long long setting(const std::string& key);

EXPORT void stub_driver_call(std::uint32_t id, const char* kernel, void* context, int result);
