# SPDX-License-Identifier: Apache-2.0
"""Texts and hints of what the native core refuses: csrc/core/reason.hpp has the codes and their values."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

from gpuprof.text.messages import Messages

_HOLDERS = Messages(
    {
        "kineto": "Kineto of torch.profiler (torch {torch})",
        "proton": "Triton's profiler Proton",
        "injected": "the tool that {variable} names ({path})",
        "other": "another tool",
    }
)
_WITHOUT_COUNTERS = {
    "device": "this device",
    "architecture": "a GPU before compute capability 7.0",
    "sli": "a GPU in SLI",
    "virtual_gpu": "this virtual GPU",
    "confidential_computing": "a GPU in confidential computing",
    "mining_device": "a mining processor",
    "wsl": "this version of WSL",
}
NATIVE = Messages(
    {
        "none": "",
        "exception": "{detail}",
        "forked": "this process was forked from one whose GPU was recorded",
        "already_on": "the GPU is being recorded already",
        "stuck": "CUPTI or the driver did not return from a call in an earlier recording",
        "hung": "CUPTI did not return from a call: GPU records are missing",
        "disk_failed": lambda values: (
            f"the disk failed while GPU records were written: {os.strerror(values['number'])}"
        ),
        "cuda_not_in_use": "CUDA is not in use in this process",
        "cuda_not_initialized": "the program has not initialized CUDA",
        "driver_error": "the NVIDIA driver returned error {number}",
        "driver_error_ended_timing": (
            "the NVIDIA driver returned error {number}: nothing was timed after that"
        ),
        "driver_hung": "the NVIDIA driver did not return from a call",
        "driver_without_device": "the NVIDIA driver has no device",
        "driver_lacks_function": "the NVIDIA driver has no {detail}",
        "named_library_not_loaded": "the library that {file} names cannot be loaded: {detail}",
        "library_not_loaded": "{file} cannot be loaded: {detail}",
        "cupti_not_found": "libcupti.so.13 or libcupti.so.12 was not found",
        "cupti_lacks_function": "{file} has no {detail}",
        "cupti_without_version": "{file} reports no version (error {number})",
        "cupti_too_old": "{file} is older than CUDA 11.8",
        "cupti_unknown_version": "{file} is of version {detail}, whose records are unknown to this gpuprof",
        "cupti_newer_than_driver": lambda values: (
            f"{values['file']} is for CUDA {values['detail']}, and the driver supports up to CUDA "
            f"{values['number'] // 1000}.{values['number'] % 1000 // 10}"
        ),
        "cupti_taken": "another tool uses CUPTI in this process (error {number})",
        "cupti_no_permission": "no permission to trace the GPU (error {number})",
        "cupti_excluded": "the settings of another tool exclude tracing (error {number})",
        "cupti_old_profiler": "an old profiler interface is in use (error {number})",
        "cupti_gpu_lost": "the GPU does not respond (error {number})",
        "cupti_out_of_memory": "CUPTI ran out of memory (error {number})",
        "cupti_not_initialized": "CUPTI could not be initialized (error {number})",
        "cupti_device_unsupported": "CUPTI does not trace this kind of device (error {number})",
        "cupti_error": lambda values: f"{values.get('detail', 'CUPTI')} returned error {values['number']}",
        "nvrtc_not_found": "libnvrtc.so was not found",
        "nvrtc_lacks_function": "{file} has no {detail}",
        "nvrtc_without_version": "{file} reports no version",
        "counters_lack_function": "{file} has no {detail}",
        "counters_no_permission": "no permission to read hardware counters of the GPU (error {number})",
        "counters_taken": "another profiler uses the hardware counters of the GPU (error {number})",
        "counters_device_unsupported": "CUPTI has no counters of this kind of device (error {number})",
        "counters_chip_unknown": "this CUPTI does not know the GPU (error {number})",
        "counters_out_of_memory": "no memory for hardware counters (error {number})",
        "counters_switched_off": "hardware counters are switched off for this virtual GPU",
        "counters_unsupported": lambda values: (
            f"CUPTI reads no counters of {_WITHOUT_COUNTERS[values['detail']]}"
        ),
        "counters_missing": "{detail} has none of the requested counters",
        "counters_not_open": "no counters were opened",
        "no_context": "this thread has no CUDA context",
        "context_without_device": "the NVIDIA driver does not report the device of the context",
        "too_many_launches": "one call launches more than {number:,} kernels and copies",
        "kernels_unmatched": "CUPTI measured {number:,} kernels of {other:,}, so they cannot be identified",
        "graphs_unmatched": (
            "CUPTI measured {number:,} kernels of {other:,} and CUDA graphs, so they cannot be identified"
        ),
        "autograd_not_loaded": "PyTorch has not loaded {file}",
        "autograd_lacks_function": "this version of PyTorch has no {detail}",
        "tool_not_loaded": "it cannot be loaded: {detail}",
        "tool_lacks_function": "it is no NVTX tool, it has no {detail}",
        "tool_refused": "it could not be initialized",
        "tool_without_ranges": "it takes no ranges",
        # Of record/kernels.py and record/layer_timer.py.
        "holder_records": "{holder:holder} records with CUPTI",
        "calls_refused": (
            "{holder:holder} has CUPTI's callbacks, and records of calls are refused: {reason:native}"
        ),
        "no_current_stream": "this version of PyTorch does not report its current stream",
    },
    {"holder": lambda it: _HOLDERS.text(it["code"], it["values"]), "native": lambda it: native_text(it)},
)
_CHECK_GPU = "check that nvidia-smi works"
_OTHER_CUPTI = "name another CUPTI in GPUPROF_CUPTI_LIBRARY"
_OTHER_NVRTC = "name another NVRTC in GPUPROF_NVRTC_LIBRARY"
_FOR_ALL = "let the administrator load the driver with NVreg_RestrictProfilingToAdminUsers=0"
HINTS = Messages(
    {
        "forked": "use spawn instead",
        "already_on": "end that recording first",
        "stuck": "start the program again",
        "hung": "see nvidia-smi",
        "disk_failed": "free disk space, or record into another folder",
        "driver_error": _CHECK_GPU,
        "driver_error_ended_timing": "see nvidia-smi and the kernel's log",
        "driver_hung": "see nvidia-smi",
        "driver_without_device": "check that nvidia-smi shows one",
        "driver_lacks_function": "update it",
        "library_not_loaded": "install it again",
        "named_library_not_loaded": "name another library, or unset {file}",
        "cupti_not_found": "pip install nvidia-cuda-cupti, or name one in GPUPROF_CUPTI_LIBRARY",
        "cupti_lacks_function": _OTHER_CUPTI,
        "cupti_without_version": _OTHER_CUPTI,
        "cupti_too_old": "install the nvidia-cuda-cupti that belongs to your CUDA",
        "cupti_unknown_version": "update gpuprof, or name an older CUPTI in GPUPROF_CUPTI_LIBRARY",
        "cupti_newer_than_driver": "update the driver, or name an older CUPTI in GPUPROF_CUPTI_LIBRARY",
        "cupti_taken": "end torch.profiler, Nsight or the debugger first",
        "cupti_no_permission": _FOR_ALL,
        "cupti_excluded": "end that tool first",
        "cupti_old_profiler": "end that profiler first",
        "cupti_gpu_lost": "see nvidia-smi and the kernel's log",
        "cupti_out_of_memory": "leave some of the GPU's memory free",
        "cupti_not_initialized": _CHECK_GPU,
        "cupti_device_unsupported": "record on another one",
        "cupti_error": "check that CUPTI and the driver are of the same CUDA version",
        "nvrtc_not_found": "pip install nvidia-cuda-nvrtc, or name one in GPUPROF_NVRTC_LIBRARY",
        "nvrtc_lacks_function": _OTHER_NVRTC,
        "nvrtc_without_version": _OTHER_NVRTC,
        "counters_lack_function": (
            "counters need CUPTI of CUDA 12.6 or newer: pip install nvidia-cuda-cupti"
        ),
        "counters_no_permission": f"run as root or with CAP_SYS_ADMIN, or {_FOR_ALL}",
        "counters_taken": "end Nsight, DCGM's profiling or torch.profiler first",
        "counters_device_unsupported": "measure on another one",
        "counters_chip_unknown": "install a newer nvidia-cuda-cupti",
        "counters_out_of_memory": "leave some of the memory free",
        "counters_switched_off": "have profiling enabled on its host",
        "counters_unsupported": "measure on another one",
        "no_context": "use the GPU first",
        "context_without_device": "see nvidia-smi",
        "too_many_launches": "give profile() a smaller model",
        "graphs_unmatched": "call the model without CUDA graphs",
        "holder_records": "end it first",
    }
)


def native_text(reason: Mapping[str, Any]) -> str:
    """Return why the native core refused, with the hint."""
    return "; hint: ".join(filter(None, (NATIVE.text(reason["code"], reason), hint_text(reason))))


def hint_text(reason: Mapping[str, Any]) -> str:
    """Return what to do about what the native core refused; empty where nothing is known."""
    return HINTS.text(reason["code"], reason) if reason["code"] in HINTS.codes else ""
