// SPDX-License-Identifier: Apache-2.0
// Finds CUPTI in a process in which CUDA runs. Nothing is linked, and the driver is never initialized
// here: CUDA that was initialized before a fork does not work in the child.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "core/reason.hpp"
#include "cupti/abi.hpp"

namespace gpuprof::cupti {

// CUPTI's functions. Those from `get_next_record` on may be missing.
struct Api {
    abi::GetVersion get_version = nullptr;
    abi::GetTimestamp get_timestamp = nullptr;
    abi::Subscribe subscribe = nullptr;
    abi::Unsubscribe unsubscribe = nullptr;
    abi::EnableCallback enable_callback = nullptr;
    abi::ActivityKindFunction enable = nullptr;
    abi::ActivityKindFunction disable = nullptr;
    abi::ActivityFlushAll flush_all = nullptr;
    abi::ActivityRegisterCallbacks register_callbacks = nullptr;
    abi::ActivityGetDropped get_dropped = nullptr;
    abi::ActivityGetNextRecord get_next_record = nullptr;
    abi::ActivitySwitch enable_all_synchronizations = nullptr;
    abi::GetGraphNodeId get_graph_node_id = nullptr;
    abi::ActivityAttribute get_attribute = nullptr;
    abi::ActivityAttribute set_attribute = nullptr;
    abi::ActivitySwitchCall switch_runtime_call = nullptr;
    abi::ActivitySwitchCall switch_driver_call = nullptr;
    abi::GetThreadIdType get_thread_id_type = nullptr;
    abi::SetThreadIdType set_thread_id_type = nullptr;
};

struct Library {
    Api api;
    void* handle = nullptr;  // for functions that few need; kept open
    std::string path;
    std::uint32_t version = 0;
    Reason reason;  // why there is none
    bool available() const noexcept { return !reason; }
};

// `folders` are searched after the libraries that the process has loaded. GPUPROF_CUPTI_LIBRARY names the
// only library to take.
Library load_library(const std::vector<std::string>& folders);

// Why CUPTI may not be used yet; none if the driver exists and the program has initialized it.
Reason why_no_driver();

// "13.0" of 130001, "12.9" of 28; the number itself where it is not known.
std::string version_text(std::uint32_t version);

// The meaning of an error number for a user.
Reason explain_error(std::uint32_t result);

}  // namespace gpuprof::cupti
