// SPDX-License-Identifier: Apache-2.0
// Why something is unavailable, as data: gpuprof/run/native_messages.py has the text and hint of each code.
#pragma once

#include <cstddef>
#include <cstdint>
#include <exception>
#include <new>
#include <string>

namespace gpuprof {

// The comments name the members of Reason that a code uses.
// clang-format off
#define GPUPROF_REASON_CODES(CODE)                                                                          \
    CODE(none)                                                                                              \
    CODE(exception)                 /* detail: its text */                                                  \
    CODE(forked)                                                                                            \
    CODE(already_on)                                                                                        \
    CODE(stuck)                     /* since an earlier recording */                                        \
    CODE(hung)                      /* in this one */                                                       \
    CODE(disk_failed)               /* number: errno */                                                     \
    CODE(cuda_not_in_use)                                                                                   \
    CODE(cuda_not_initialized)                                                                              \
    CODE(driver_error)              /* number */                                                            \
    CODE(driver_error_ended_timing) /* number */                                                            \
    CODE(driver_hung)                                                                                       \
    CODE(driver_without_device)                                                                             \
    CODE(driver_lacks_function)     /* detail: its name */                                                  \
    CODE(named_library_not_loaded)  /* file: the variable that names it; detail: the system's error */      \
    CODE(library_not_loaded)        /* file; detail: the system's error */                                  \
    CODE(cupti_not_found)                                                                                   \
    CODE(cupti_lacks_function)      /* file; detail: its name */                                            \
    CODE(cupti_without_version)     /* file; number: an error of CUPTI */                                   \
    CODE(cupti_too_old)             /* file */                                                              \
    CODE(cupti_unknown_version)     /* file; detail: the version */                                         \
    CODE(cupti_newer_than_driver)   /* file; detail: the version; number: CUDA's, as 12040 */               \
    CODE(cupti_taken)               /* number, as of all errors of CUPTI */                                 \
    CODE(cupti_no_permission)                                                                               \
    CODE(cupti_excluded)                                                                                    \
    CODE(cupti_old_profiler)                                                                                \
    CODE(cupti_gpu_lost)                                                                                    \
    CODE(cupti_out_of_memory)                                                                               \
    CODE(cupti_not_initialized)                                                                             \
    CODE(cupti_device_unsupported)                                                                          \
    CODE(cupti_error)               /* detail: the function, where that is known */                         \
    CODE(nvrtc_not_found)                                                                                   \
    CODE(nvrtc_lacks_function)      /* file; detail: its name */                                            \
    CODE(nvrtc_without_version)     /* file */                                                              \
    CODE(counters_lack_function)    /* file; detail: its name */                                            \
    CODE(counters_no_permission)    /* number */                                                            \
    CODE(counters_taken)            /* number */                                                            \
    CODE(counters_device_unsupported) /* number */                                                          \
    CODE(counters_chip_unknown)     /* number */                                                            \
    CODE(counters_out_of_memory)    /* number */                                                            \
    CODE(counters_switched_off)                                                                             \
    CODE(counters_unsupported)      /* detail: what prevents them */                                        \
    CODE(counters_missing)          /* detail: the chip */                                                  \
    CODE(counters_not_open)                                                                                 \
    CODE(no_context)                                                                                        \
    CODE(context_without_device)                                                                            \
    CODE(too_many_launches)         /* number: the most */                                                  \
    CODE(kernels_unmatched)         /* number: measured; other: launched */                                 \
    CODE(graphs_unmatched)          /* number: measured; other: launched */                                 \
    CODE(autograd_not_loaded)       /* file */                                                              \
    CODE(autograd_lacks_function)   /* detail: its name */                                                  \
    CODE(tool_not_loaded)           /* detail: the system's error */                                        \
    CODE(tool_lacks_function)       /* detail: its name */                                                  \
    CODE(tool_refused)                                                                                      \
    CODE(tool_without_ranges)
// clang-format on

#define GPUPROF_REASON_MEMBER(name) name,
enum class ReasonCode : std::uint8_t { GPUPROF_REASON_CODES(GPUPROF_REASON_MEMBER) };
#undef GPUPROF_REASON_MEMBER

#define GPUPROF_REASON_NAME(name) #name,
inline constexpr const char* reason_names[] = {GPUPROF_REASON_CODES(GPUPROF_REASON_NAME)};
#undef GPUPROF_REASON_NAME
#undef GPUPROF_REASON_CODES

struct Reason {
    ReasonCode code = ReasonCode::none;
    std::string file = {};
    std::string detail = {};
    std::int64_t number = 0;
    std::int64_t other = 0;

    explicit operator bool() const noexcept { return code != ReasonCode::none; }
    const char* name() const noexcept { return reason_names[static_cast<std::size_t>(code)]; }
    bool operator==(ReasonCode expected) const noexcept { return code == expected; }
};

// Where memory is short, a reason without its text.
inline Reason reason_of(const std::exception& error) noexcept {
    try {
        return {.code = ReasonCode::exception, .detail = error.what()};
    } catch (const std::bad_alloc&) {
        return {.code = ReasonCode::exception};
    }
}

}  // namespace gpuprof
