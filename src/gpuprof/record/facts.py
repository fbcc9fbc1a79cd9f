# SPDX-License-Identifier: Apache-2.0
"""Typed facts of a recording: the status of its sources, and notes.

A fact is a code with values. `gpuprof.run.messages` makes text of them; no code reads that text. Facts are no
dataclasses: the import of `dataclasses`, 8 ms, would delay each recorded program.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum
from types import MappingProxyType
from typing import Any, NamedTuple

Plain = dict[str, Any]
# Why the native core refused: `code`, of csrc/core/reason.hpp, and the values that it has.
NativeReason = dict[str, Any]


class SourceState(str, Enum):
    """Whether a source recorded."""

    ON = "on"
    OFF = "off"


class Method(str, Enum):
    """How a source records."""

    RECORDED = "recorded"
    COLLECTED = "collected"  # NVTX ranges, by our own library
    INTERCEPTED_CALLS = "intercepted_calls"  # layers
    ITT = "itt"
    ITT_OF_PROGRAM = "itt_of_program"
    TORCH_PROFILER = "torch_profiler"
    AUTOGRAD_NODES = "autograd_nodes"
    SEQUENCE_NUMBERS = "sequence_numbers"  # of torch.profiler
    GC_CALLBACKS = "gc_callbacks"
    DYNAMO_CALLBACKS = "dynamo_callbacks"
    NVML = "nvml"
    CUPTI = "cupti"
    CUDA_EVENTS = "cuda_events"
    PYINSTRUMENT = "pyinstrument"
    FRAMES = "frames"  # of Python, read by a native thread
    COUNTED = "counted"  # work of first calls
    RANGE_PROFILER = "range_profiler"  # hardware counters
    IMPORTED = "imported"
    OTHER_PROFILER = "other_profiler"
    TEXT = "text"  # a text of an older run


class Reason(str, Enum):
    """Why a source is off, or why it does not use its best method."""

    NOT_WANTED = "not_wanted"
    TORCH_NOT_IMPORTED = "torch_not_imported"
    TORCH_IMPORTED_FIRST = "torch_imported_first"
    INTERRUPTED = "interrupted"
    FAILED = "failed"
    WORK_NOT_COUNTED = "work_not_counted"
    MODULE_CALL_REPLACED = "module_call_replaced"
    OTHER_COLLECTOR = "other_collector"
    AUTOGRAD_LIBRARY = "autograd_library"
    AUTOGRAD_PROFILER_ACTIVE = "autograd_profiler_active"
    AUTOGRAD_DISPATCH_MODE = "autograd_dispatch_mode"
    AUTOGRAD_IN_BACKWARD = "autograd_in_backward"
    AUTOGRAD_NUMBERING = "autograd_numbering"
    AUTOGRAD_NEXT_NUMBER = "autograd_next_number"
    AUTOGRAD_OWNERSHIP = "autograd_ownership"
    AUTOGRAD_LAYOUT = "autograd_layout"
    NVTX_IMPORTED_FIRST = "nvtx_imported_first"
    NVTX_VARIABLE_EMPTY = "nvtx_variable_empty"
    NVTX_OTHER_GPUPROF = "nvtx_other_gpuprof"
    NVTX_TOOL_COLLECTS = "nvtx_tool_collects"
    NVTX_TOOL_NOT_ATTACHED = "nvtx_tool_not_attached"
    NO_DRIVER = "no_driver"
    NO_PYNVML = "no_pynvml"
    NO_INTERPRETER = "no_interpreter"
    ADOPTS_ORPHANS = "adopts_orphans"
    NVML_FAILED = "nvml_failed"
    NO_READING = "no_reading"
    NO_PYINSTRUMENT = "no_pyinstrument"
    INTERPRETER_UNKNOWN = "interpreter_unknown"
    MEMORY_NOT_READABLE = "memory_not_readable"
    PROFILER_TAKEN = "profiler_taken"
    TORCH_FOR_ROCM = "torch_for_rocm"
    TORCH_WITHOUT_CUDA = "torch_without_cuda"
    CUDA_NOT_INITIALIZED = "cuda_not_initialized"
    PROFILER_ACTIVE = "profiler_active"
    PROFILER_WAS_ACTIVE = "profiler_was_active"
    FORKED_AFTER_CUDA = "forked_after_cuda"
    GPU_AND_EVENTS_REFUSED = "gpu_and_events_refused"
    CALLBACKS_OF_KINETO = "callbacks_of_kineto"  # launches come from records of calls
    CALLBACKS_OF_OTHER = "callbacks_of_other"  # likewise
    GC_CALLBACKS_CLEARED = "gc_callbacks_cleared"
    NO_MODEL_CALLED = "no_model_called"
    NO_MODEL_ON_GPU = "no_model_on_gpu"
    COUNTERS_REFUSED = "counters_refused"
    GPU_REFUSED = "gpu_refused"
    IMPORTED = "imported"  # from a trace, which cannot have what this source records
    TEXT = "text"  # of an older run, or of one that this version does not know


class NoteCode(str, Enum):
    """What a reader of a run must know besides its figures."""

    OWN_RECORDING = "own_recording"
    NOT_RESUMED = "not_resumed"
    DISK_FAILED = "disk_failed"
    LIMIT_REACHED = "limit_reached"
    PROCESS_NOT_RECORDED = "process_not_recorded"
    RANKS_WITHOUT_EVENTS = "ranks_without_events"
    NVTX_TOOL_IGNORED = "nvtx_tool_ignored"
    OTHER_THREAD = "other_thread"
    OPERATORS_STEPPED_BACK = "operators_stepped_back"
    OPERATORS_DISPLACED = "operators_displaced"
    OPERATORS_FAILED = "operators_failed"
    STACKS_OF_MAIN_THREAD = "stacks_of_main_thread"
    STACKS_DISPLACED = "stacks_displaced"
    STACKS_LOST_PLACE = "stacks_lost_place"
    STACKS_MISSING = "stacks_missing"
    STACKS_TORN = "stacks_torn"
    SAMPLES_MAY_END_EARLY = "samples_may_end_early"
    NVML_DID_NOT_ANSWER = "nvml_did_not_answer"
    SLOW_READINGS = "slow_readings"
    DEVICE_LOST = "device_lost"
    WORK_UNKNOWN = "work_unknown"
    WORK_INPUTS_CHANGED = "work_inputs_changed"
    WORK_NO_BACKWARD = "work_no_backward"
    WORK_MODELS_LEFT_OUT = "work_models_left_out"
    WORK_NO_MODEL = "work_no_model"
    CALL_COUNTED_PARTLY = "call_counted_partly"
    CALL_NOT_COUNTED = "call_not_counted"
    COUNTERS_NOT_READ = "counters_not_read"
    COUNTERS_OF_COMPILED = "counters_of_compiled"
    CUPTI_NEWER = "cupti_newer"
    GPU_STEPPED_BACK = "gpu_stepped_back"
    GPU_ENDED_EARLY = "gpu_ended_early"
    GPU_BEGAN_IN_CAPTURE = "gpu_began_in_capture"
    GPU_COULD_NOT_BEGIN = "gpu_could_not_begin"
    GPU_PROBLEM = "gpu_problem"
    GPU_DROPPED = "gpu_dropped"
    GPU_UNFINISHED = "gpu_unfinished"
    GPU_OUTSIDE = "gpu_outside"
    NO_WHOLE_GRAPHS = "no_whole_graphs"
    GPU_TRUNCATED = "gpu_truncated"
    GPU_TIMES_OF_LAYERS = "gpu_times_of_layers"
    EVENTS_PROBLEM = "events_problem"
    LAYERS_NOT_NAMED = "layers_not_named"
    LAYERS_NOT_TIMED = "layers_not_timed"
    LAYERS_NOT_ENDED = "layers_not_ended"
    GPU_COUNTS_UNKNOWN = "gpu_counts_unknown"
    FOREIGN_GRAPHS = "foreign_graphs"
    UNSEEN_GRAPHS = "unseen_graphs"
    UNLAUNCHED = "unlaunched"
    PROGRAM_USED_PROFILER = "program_used_profiler"
    PROFILER_COULD_NOT_WRITE = "profiler_could_not_write"
    CPROFILE_HAS_NO_SPANS = "cprofile_has_no_spans"
    LINES_HAVE_NO_SPANS = "lines_have_no_spans"
    INTERVALS_CROSS = "intervals_cross"
    IMPORT = "import"  # of an imported run of an earlier version, as a text
    TEXT = "text"  # of an older run, or of one that this version does not know


class Severity(str, Enum):
    """How much a fact weighs: a note explains, a warning limits a figure, an error invalidates it."""

    NOTE = "note"
    WARNING = "warning"
    ERROR = "error"

    def __str__(self) -> str:
        return self.value


_NO_VALUES: Mapping[str, Any] = MappingProxyType({})
_HARMLESS = (
    NoteCode.OWN_RECORDING,
    NoteCode.CPROFILE_HAS_NO_SPANS,
    NoteCode.LINES_HAVE_NO_SPANS,
    NoteCode.COUNTERS_OF_COMPILED,
)


class SourceStatus(NamedTuple):
    """Whether a source recorded, by which method, and why not, or why not by a better one."""

    state: SourceState
    method: Method | None = None
    reason: Reason | None = None
    values: Mapping[str, Any] = _NO_VALUES

    @classmethod
    def on(cls, method: Method, reason: Reason | None = None, **values: Any) -> SourceStatus:
        """Return the status of a source that records."""
        return cls(SourceState.ON, method, reason, values)

    @classmethod
    def off(cls, reason: Reason, **values: Any) -> SourceStatus:
        """Return the status of a source that does not record."""
        return cls(SourceState.OFF, None, reason, values)

    @classmethod
    def failed(cls, error: BaseException) -> SourceStatus:
        """Return the status of a source that could not begin."""
        return cls.off(Reason.FAILED, error=error_line(error))

    @property
    def is_on(self) -> bool:
        """Whether the source records."""
        return self.state is SourceState.ON

    def to_plain(self) -> Plain:
        """Return plain data for JSON, which `from_plain` reads."""
        return {
            "state": self.state.value,
            "method": None if self.method is None else self.method.value,
            "reason": None if self.reason is None else self.reason.value,
            "values": dict(self.values),
        }

    @classmethod
    def from_plain(cls, plain: Mapping[str, Any]) -> SourceStatus:
        """Read what `to_plain` wrote. Raises ValueError, KeyError or TypeError for anything else."""
        method, reason = plain["method"], plain["reason"]
        return cls(
            SourceState(plain["state"]),
            None if method is None else Method(method),
            None if reason is None else Reason(reason),
            dict(plain["values"]),
        )


class Note(NamedTuple):
    """What a reader must know. `processes` are the ones that it is about, none for the program itself."""

    code: NoteCode
    values: Mapping[str, Any] = _NO_VALUES
    processes: tuple[int, ...] = ()

    @property
    def severity(self) -> Severity:
        """How much it matters."""
        return Severity.NOTE if self.code in _HARMLESS else Severity.WARNING

    def to_plain(self) -> Plain:
        """Return plain data for JSON, which `from_plain` reads."""
        return {
            "code": self.code.value,
            "severity": self.severity.value,
            "values": dict(self.values),
            "processes": list(self.processes),
        }

    @classmethod
    def from_plain(cls, plain: Mapping[str, Any]) -> Note:
        """Read what `to_plain` wrote. Raises ValueError, KeyError or TypeError for anything else."""
        return cls(NoteCode(plain["code"]), dict(plain["values"]), tuple(map(int, plain["processes"])))


def note(code: NoteCode, **values: Any) -> Note:
    """Return a note of the program itself."""
    return Note(code, values)


def error_line(error: BaseException) -> str:
    """Return the type and the first line of an error's message."""
    return f"{type(error).__name__}: {next(iter(str(error).splitlines()), '')}"
