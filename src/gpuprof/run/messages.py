# SPDX-License-Identifier: Apache-2.0
"""The texts of a run's facts: statuses of sources, notes, damage, losses, and what an import left out."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from gpuprof.record.facts import Note, SourceStatus
from gpuprof.run.damage import Damage
from gpuprof.run.losses import Loss, losses
from gpuprof.run.native_messages import native_text
from gpuprof.text.messages import Messages
from gpuprof.text.units import counted, format_share

_NATIVE_FORMAT = {"native": native_text}
# What a source that is on is named after its method, where a reader should know it.
METHODS = Messages(
    {
        "recorded": "",
        "collected": "",
        "intercepted_calls": "intercepted calls",
        "itt": "ITT",
        "itt_of_program": "ITT, announced by the program itself",
        "torch_profiler": "torch.profiler, at a higher cost",
        "autograd_nodes": "sequence numbers of autograd nodes",
        "sequence_numbers": "sequence numbers of torch.profiler",
        "gc_callbacks": "",
        "dynamo_callbacks": "",
        "nvml": "NVML, every {period_ns:ms}",
        "cupti": "CUPTI {version}, {path}",
        "cuda_events": "CUDA events per layer",
        "pyinstrument": "pyinstrument, every {interval_ns:ms}",
        "frames": "native sampler, every {interval_ns:ms}",
        "counted": "counted after the recording",
        "range_profiler": "CUPTI {version}, {chip}, {passes:#pass/passes}",
        "imported": "imported from {source}",
        "other_profiler": "",
        "text": "{text}",
    }
)
REASONS = Messages(
    {
        "not_wanted": "not requested",
        "torch_not_imported": "torch was never imported",
        "torch_imported_first": (
            "torch was imported before gpuprof: import gpuprof first, or use `gpuprof run`"
        ),
        "interrupted": "interrupted",
        "failed": "{error}",
        "work_not_counted": "the work could not be counted either",
        "module_call_replaced": "torch.nn.Module.__call__ was replaced by something that is not a function",
        "other_collector": "another ITT collector is named by {variable}: {path}",
        "autograd_library": "{detail:native}",
        "autograd_profiler_active": "a profiler was active when the recording began",
        "autograd_dispatch_mode": "a dispatch mode was active when the recording began",
        "autograd_in_backward": "the recording began inside a backward pass",
        "autograd_numbering": "autograd nodes of this PyTorch are not numbered consecutively",
        "autograd_next_number": "the number of the next autograd node differs from what this PyTorch reports",
        "autograd_ownership": "autograd nodes of this PyTorch are owned in an unknown way",
        "autograd_layout": "the {what} of an autograd node is not at its known offset in this PyTorch",
        "nvtx_imported_first": "nvtx was imported before gpuprof: import gpuprof first, or use `gpuprof run`",
        "nvtx_variable_empty": "{variable} is set and empty",
        "nvtx_other_gpuprof": "another copy of gpuprof is named by {variable}: {tool}",
        "nvtx_tool_collects": "another tool collects, and gets spans and layers too: {tool}",
        "nvtx_tool_not_attached": "another tool collects, and could not be attached: {tool}",
        "no_driver": "no NVIDIA driver",
        "no_pynvml": "nvidia-ml-py is not installed: pip install 'gpuprof-native[gpu]'",
        "no_interpreter": "{path} is no Python interpreter that could read the devices",
        "adopts_orphans": (
            "this process adopts orphaned processes: start it with gpuprof run, or under an init"
        ),
        "nvml_failed": "{error}",
        "no_reading": (
            "no reading was taken: the recording, or the process that reads the devices, ended too early"
        ),
        "no_pyinstrument": "pyinstrument is not installed: pip install 'gpuprof-native[python]'",
        "gc_callbacks_cleared": "the program removed what records them from gc.callbacks",
        "interpreter_unknown": "the native sampler does not know this build of Python",
        "memory_not_readable": "this system does not allow process_vm_readv",
        "profiler_taken": "another profiler was set on the main thread",
        "torch_for_rocm": "this build of torch is for ROCm, which CUPTI does not support",
        "torch_without_cuda": "this build of torch has no CUDA",
        "cuda_not_initialized": "the program never initialized CUDA",
        "profiler_active": "a profiler of PyTorch is active: end it before the recording begins",
        "profiler_was_active": "a profiler of PyTorch was active",
        "forked_after_cuda": (
            "this process was forked from one that used CUDA, which does not work: start it with spawn"
        ),
        "gpu_and_events_refused": "{detail:native}; no CUDA events either: {events:native}",
        "callbacks_of_kineto": (
            "launches from records of calls, since Kineto of torch.profiler (torch {torch}) has CUPTI's "
            "callbacks"
        ),
        "callbacks_of_other": "launches from records of calls, since another tool has CUPTI's callbacks",
        "no_model_called": "no model was called while layers were recorded: call one inside the recording",
        "no_model_on_gpu": "no model that was called is on a GPU: move it there",
        "counters_refused": "{detail:native}",
        "gpu_refused": "{detail:native}",
        "imported": "imported from {source}",
        "text": "{text}",
    },
    _NATIVE_FORMAT,
)
WORK_HINTS = Messages(
    {
        "not_wanted": "record it with gpuprof.profile(model, work=True) or gpuprof run --work",
        "imported": "work is counted where the model runs: record the program with gpuprof run --work",
    }
)
_OTHER_WORK_HINT = "correct this, then record it again with gpuprof run --work"


def _torn_text(values: Mapping[str, Any]) -> str:
    torn, samples = values["torn"], values["samples"]
    of_all = f"{counted(samples, 'stack sample')} ({format_share(torn / samples)})"
    return f"{torn:,} of {of_all} changed while they were read; their time counts with the next sample"


NOTES = Messages(
    {
        "own_recording": "the program made a recording of its own: that time is not in this run",
        "not_resumed": "the recording could not be resumed after the program's own: {error}",
        "disk_failed": "the disk failed while recording ({error}): events are missing",
        "limit_reached": "this window reached its part of the disk budget: later events are missing",
        "process_not_recorded": "the process could not be recorded: {error}",
        "ranks_without_events": "ranks of which no event was recorded are not in this run: {ranks:list}",
        "nvtx_tool_ignored": "the NVTX tool named by {variable} was ignored: {error:native}",
        "other_thread": "the recording ended on another thread than it began on",
        "operators_stepped_back": "operators were not recorded while the program used a profiler of PyTorch",
        "operators_displaced": (
            "the program used threading.setprofile: operators of threads that began after that are not "
            "recorded"
        ),
        "operators_failed": "operators of new threads are missing: announcing them failed ({errors:list})",
        "stacks_of_main_thread": (
            "the program used threading.setprofile before: only stacks of the main thread are sampled"
        ),
        "stacks_displaced": (
            "the program used threading.setprofile: stacks of threads that began after that are not sampled"
        ),
        "stacks_lost_place": (
            "the program used sys.setprofile itself, or raised from a signal handler: its main thread has "
            "stack samples until then"
        ),
        "stacks_missing": "stack samples are missing: {reasons:list}",
        "stacks_torn": _torn_text,
        "samples_may_end_early": "the program closed the pipe of the device samples: they may be incomplete",
        "nvml_did_not_answer": "NVML did not respond within {limit_s:g} s at the end",
        "slow_readings": (
            "{count:,} device readings took longer than half their period ({period_ns:ms}): the next one "
            "was delayed"
        ),
        "device_lost": "{device} stopped responding (NVML error {error})",
        "work_unknown": "{root}: {operator}: its work is unknown ({error})",
        "work_inputs_changed": (
            "{root}: {count:#input} written to after the first call; work is counted with the present values"
        ),
        "work_no_backward": "{root}: its backward pass calls no operator that could be counted",
        "work_models_left_out": (
            "work: only the first {counted:#model} counted, {left_out:,} left out: give profile() the ones "
            "that matter"
        ),
        "work_no_model": "work: nothing was counted, since no model was called while layers were recorded",
        "call_counted_partly": "{what} of {root}: only the part before a failure is counted: {error}",
        "call_not_counted": "{what} of {root} not counted: {error}",
        "counters_not_read": "hardware counters of {root} were not read: {detail:native}",
        "counters_of_compiled": (
            "{root}: compiled layers have no hardware counters: they run uncompiled while measured"
        ),
        "cupti_newer": (
            "CUPTI {version} is newer than this gpuprof: its records are read by what did not change so far"
        ),
        "gpu_stepped_back": "GPU records were left out while the program used a profiler of PyTorch",
        "gpu_ended_early": "GPU recording stopped early: {detail:native}",
        "gpu_began_in_capture": (
            "the recording of the GPU began during the capture of a CUDA graph: what was captured before "
            "cannot be attributed to its layers"
        ),
        "gpu_could_not_begin": "GPU records could not begin: {error}",
        "gpu_problem": "GPU records: {detail:native}",
        "gpu_dropped": "CUPTI dropped {count:#GPU record}: no buffer was free",
        "gpu_unfinished": "{count:#GPU record} without times: not ended, or no room on the device",
        "gpu_outside": "{count:#GPU record} with times outside the recording left out",
        "no_whole_graphs": "this CUPTI cannot record CUDA graphs as a whole: their kernels have records each",
        "gpu_truncated": "{count:#buffer} of GPU records could not be read to the end",
        "gpu_times_of_layers": (
            "GPU times are those of whole layers, by CUDA events: they include gaps between kernels, and "
            "the backward pass has none"
        ),
        "events_problem": "CUDA events: {detail:native}",
        "layers_not_named": "layers may be missing: naming {module} or its modules failed: {error}",
        "layers_not_timed": (
            "{count:#call} of layers not timed, since no event or stream was free: their GPU time is in the "
            "layers around them"
        ),
        "layers_not_ended": "{count:#call} of layers had not ended on the GPU",
        "gpu_counts_unknown": "the process ended before it could report whether GPU records are missing",
        "foreign_graphs": (
            "CUDA graphs captured while the GPU was not recorded: {graphs:list}; each is one unit below its "
            "launch, since the layers of its kernels are not known"
        ),
        "unseen_graphs": (
            "CUDA graphs captured while another tool had CUPTI's callbacks: {graphs:list}; each is one unit "
            "below its launch, since the layers of its kernels are not known"
        ),
        "unlaunched": (
            "{count:,} of {records:,} kernels, copies and fills have no launch in this recording: they are "
            "listed below their process"
        ),
        "program_used_profiler": "the program used {profiler} itself: what ran after that is not recorded",
        "profiler_could_not_write": "torch.profiler could not write its trace: {error}",
        "cprofile_has_no_spans": (
            "cProfile has calls and times of functions and no time stamps: there are no spans, and the tree "
            "has one level"
        ),
        "lines_have_no_spans": (
            "line_profiler has times of lines and no time stamps: there are no spans and no tree"
        ),
        "intervals_cross": (
            "{count:,} intervals end outside of the one that they begin in; they are shown next to it"
        ),
        "import": "{text}",
        "text": "{text}",
    },
    _NATIVE_FORMAT,
)
DAMAGE = Messages(
    {
        "clock_point": "{file}: its last clock point is damaged",
        "segment_cut_short": "{file}: cut short, {count:,} places for events are missing",
        "segment_header": "{file}: its header is damaged; its events are lost",
        "segment_copy": "{file}: a copy of another segment; ignored",
        "segments_missing": "process {process_id}: {count:#segment} missing; the events are lost",
        "names_no_file": "{file}: not a names file; its names are lost",
        "names_cut": "{file}: damaged after {count:#name}",
        "losses_header": "{file}: its header is damaged; losses of other processes are unknown",
        "no_room": (
            "no room for the events of {count:#process/processes} that the program started; they are lost"
        ),
        "unreadable": "{file}: {error}",
        "process_facts": "{file}: {error}; facts of its process are lost",
        "records": "{file}: {count:#damaged record}",
        "record_cut": "{file}: ends in the middle of a record",
        "samples_no_file": "{file}: not a file of device samples",
        "samples_end_early": "{file}: the device samples end before the recording does",
        "stacks_no_file": "{file}: not a file of stack samples",
        "work": "the counted work is damaged and left out: {error}",
        "counters": "the hardware counters are damaged and left out: {error}",
        "gpu_file": "{file}: {error}; its GPU records are lost",
        "gpu_file_without_process": "{file}: its process left no events; its records are lost",
        "trace_not_readable": "the trace cannot be read on after {count:,} events: {error}",
        "trace_cut": "the trace is cut off after {count:,} events",
        "trace_events_invalid": "{count:,} events are no JSON or lack their times, and were left out",
        "trace_negative_durations": "{count:,} events have a negative duration, and were left out",
        "trace_rows_invalid": "{count:,} rows have a negative duration or no times, and were left out",
        "import": "{text}",
        "text": "{text}",
    }
)
LOSSES = Messages(
    {
        "dropped_events": "{count:#event} dropped",
        "damaged_events": "{count:#event} damaged",
        "unmatched_ends": "{count:#end} without a beginning",
        "unfinished_spans": "{count:#span} cut off at the end",
        "gpu_dropped": "{count:#GPU record} dropped by CUPTI",
        "gpu_unfinished": "{count:#GPU record} without times",
        "gpu_truncated": "{count:#buffer} of GPU records cut off",
        "gpu_lost_records": "{count:#GPU record} not written",
        "gpu_outside": "{count:#GPU record} with times outside the recording",
        "gpu_clock_unreadable": "exact GPU times, since CUPTI's clock could not be read",
        "gpu_clock_stopped": "GPU times, since CUPTI's clock did not advance",
        "gpu_clock_changed": "exact GPU times, since CUPTI's clock changed during the recording",
        "gpu_clock_error": "exact GPU times, which are known to {count:,} ns",
        "layers_untimed": "{count:#call} of layers not timed on the GPU",
        "layers_unfinished": "{count:#call} of layers not ended on the GPU",
        "layers_lost_records": "{count:#call} of layers not written",
        "gpu_problem": "GPU work after an error",
        "damaged_segments": "events of {count:#damaged segment}",
        "missing_segments": "events of {count:#missing segment}",
        "unknown_losses": "losses of processes that found no room",
        "damaged_names": "names of {count:#process/processes}",
    }
)
NOT_IMPORTED = Messages(
    {
        "table": "{events:#row} of {name}",
        "nvtx event type": "{events:#NVTX event} of type {name}",
        "category": "{events:#event} of category {name}",
        "phase": "{events:#event} of phase {name}",
        "unknown device category": "{events:#event} on devices of the unknown category {name}",
        "forwarded operator": "{events:#operator} that only forwarded to {name}",
    }
)


def reason_text(status: SourceStatus) -> str:
    """Return why a source is off, or not on its best method; empty where there is no reason."""
    return "" if status.reason is None else REASONS.text(status.reason, status.values)


def missing_work_text(status: SourceStatus) -> tuple[str, str]:
    """Return why a run has no counted work, and a hint."""
    if status.reason is None or status.reason not in WORK_HINTS.codes:
        return reason_text(status) or "unknown why", _OTHER_WORK_HINT
    return reason_text(status), WORK_HINTS.text(status.reason, status.values)


def method_text(status: SourceStatus) -> str:
    """Return how a source that is on records; empty where its name is enough."""
    method = "" if status.method is None else METHODS.text(status.method, status.values)
    where = "in processes that the program started" if status.values.get("in_children") else ""
    return "; ".join(filter(None, (method, reason_text(status), where)))


def note_text(note: Note) -> str:
    """Return a note with the processes that it is about."""
    text = NOTES.text(note.code, note.values)
    if not note.processes:
        return text
    one = len(note.processes) == 1
    who = f"process {note.processes[0]}" if one else f"{len(note.processes)} child processes"
    return f"{who}: {text}"


def loss_text(loss: Loss) -> str:
    """Return what is missing, and how much of it."""
    return LOSSES.text(loss.code, {"count": loss.count})


def losses_text(meta: Mapping[str, Any]) -> str:
    """Return what a run lost in a few words; empty where that is nothing, or is not known."""
    return ", ".join(loss_text(each) for each in losses(meta))


def incomplete_text(meta: Mapping[str, Any]) -> str | None:
    """Return that a run is incomplete, and what it lost; None for one that is complete."""
    if meta.get("complete"):
        return None
    text = "this run is incomplete: it contains what could be recovered"
    lost = losses_text(meta)
    return f"{text}; lost: {lost}" if lost else text


def damage_text(damage: Damage) -> str:
    """Return what is missing from a run."""
    return DAMAGE.text(damage.code, {**damage.values, "file": damage.file, "count": damage.count})


def not_imported_text(not_imported: Iterable[Mapping[str, Any]]) -> str:
    """Return in one line what an imported run leaves out of its trace; empty where that is nothing."""
    return ", ".join(NOT_IMPORTED.text(each["kind"], each) for each in not_imported)
