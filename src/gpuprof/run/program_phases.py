# SPDX-License-Identifier: Apache-2.0
"""What a program does besides its steps: the table `phases`.

Evaluations, generations and checkpoints of known functions are found in the sampled stacks of the thread of
the steps. Other calls of models without gradients are evaluations if they are between steps, or have a data
loader, else inferences. What neither shows is in no phase.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Sequence
from operator import itemgetter
from typing import NamedTuple

import numpy as np

from gpuprof.run.outermost_calls import Call, OutermostCalls, ProgramCalls
from gpuprof.run.stacks import Frames, Stacks, ThreadStacks
from gpuprof.run.steps import Step, find_steps, thread_of_steps

EVALUATION, GENERATION, INFERENCE, CHECKPOINT = "evaluation", "generation", "inference", "checkpoint"
KINDS = (EVALUATION, GENERATION, INFERENCE, CHECKPOINT)
OF_FUNCTIONS = (EVALUATION, GENERATION, CHECKPOINT)  # that sampled stacks show
PHASES_QUERY = "SELECT process_id, kind, source, begin_ns, end_ns FROM batch ORDER BY process_id, begin_ns"

# A program's own function of this name counts if a model is called in it.
_GENERATE = "generate"
# Functions by their file, as stacks name it, and their name without the class.
_FUNCTIONS = {
    "torch/serialization.py": {"save": CHECKPOINT},
    "torch/distributed/checkpoint/state_dict_saver.py": {"save": CHECKPOINT, "async_save": CHECKPOINT},
    "safetensors/torch.py": {"save_file": CHECKPOINT, "save_model": CHECKPOINT},
    "accelerate/accelerator.py": {"save_state": CHECKPOINT, "save_model": CHECKPOINT},
    "transformers/modeling_utils.py": {"save_pretrained": CHECKPOINT},
    "transformers/trainer.py": {
        "_save_checkpoint": CHECKPOINT,
        "save_model": CHECKPOINT,
        "evaluate": EVALUATION,
        "predict": EVALUATION,
    },
    "lightning/pytorch/loops/evaluation_loop.py": {"run": EVALUATION},
    "lightning/pytorch/trainer/trainer.py": {"save_checkpoint": CHECKPOINT},
    "pytorch_lightning/loops/evaluation_loop.py": {"run": EVALUATION},
    "pytorch_lightning/trainer/trainer.py": {"save_checkpoint": CHECKPOINT},
}


class Phase(NamedTuple):
    """A row of the table `phases`; `source` is `stacks` or `calls`."""

    process_id: int
    kind: str
    source: str
    begin_ns: int
    end_ns: int


def steps_and_phases(
    calls: OutermostCalls, stacks: Stacks, *, has_operators: bool
) -> tuple[list[Step], list[Phase]]:
    """Return the steps and the phases of all processes."""
    steps: list[Step] = []
    phases: list[Phase] = []
    for process_id, of_process in calls.by_process():
        thread_id = thread_of_steps(of_process)
        thread_id = process_id if thread_id is None else thread_id
        mine = of_process.chosen(of_process.thread_id == thread_id)
        known = with_models(phases_of_functions(stacks, process_id, thread_id), mine)
        breaks = [(each.begin_ns, each.end_ns) for each in known]
        found = find_steps(of_process, process_id, has_operators=has_operators, breaks=breaks)
        steps += found
        phases += find_phases(mine, found, known, process_id)
    return steps, phases


def find_phases(
    calls: ProgramCalls, steps: Sequence[Step], of_functions: Sequence[Phase], process_id: int
) -> list[Phase]:
    """Return the phases of a process outside its steps, in order; `calls` are those of the steps' thread."""
    intervals = [(step.begin_ns, step.end_ns) for step in steps]
    found = [phase for each in of_functions for phase in _outside(each, intervals)]
    # Steps that are calls of a model may be those of an inference.
    if not steps or steps[0].source != "calls":
        taken = sorted([*intervals, *((each.begin_ns, each.end_ns) for each in of_functions)])
        for stretch in _stretches(calls, taken):
            is_between = bool(steps) and steps[0].end_ns <= stretch[0].begin_ns < steps[-1].begin_ns
            found += _phases_of_calls(stretch, process_id, is_between=is_between)
        return sorted(found, key=lambda phase: phase.begin_ns)
    return [each for each in found if each in of_functions]


# ---- functions in the stacks -------------------------------------------------------------------------------


def phases_of_functions(stacks: Stacks, process_id: int, thread_id: int) -> list[Phase]:
    """Return the phases that known functions are on a thread, in order; the outermost function decides."""
    of_text = {number: kind for number, text in enumerate(stacks.texts) if (kind := _kind_of(text))}
    if not of_text:
        return []
    threads = (
        each for each in stacks.threads if (each.process_id, each.thread_id) == (process_id, thread_id)
    )
    return sorted(
        (phase for thread in threads for phase in _phases_on(thread, of_text)),
        key=lambda phase: phase.begin_ns,
    )


def _kind_of(text: str) -> str | None:
    name, _, place = text.partition(" (")
    last = name.rpartition(".")[2]
    if last == _GENERATE:
        return GENERATION
    return _FUNCTIONS.get(place.rpartition(":")[0], {}).get(last)


def _phases_on(thread: ThreadStacks, of_text: dict[int, str]) -> Iterator[Phase]:
    of_stack: dict[Frames, str | None] = {}
    found: Phase | None = None
    for frames, t_ns, duration_ns in zip(thread.frames, thread.t_ns, thread.duration_ns, strict=True):
        if frames not in of_stack:
            of_stack[frames] = next((of_text[frame] for frame in frames if frame in of_text), None)
        kind = of_stack[frames]
        if found is not None and kind == found.kind:
            found = found._replace(end_ns=t_ns)
            continue
        if found is not None:
            yield found
        found = Phase(thread.process_id, kind, "stacks", t_ns - duration_ns, t_ns) if kind else None
    if found is not None:
        yield found


def with_models(phases: Sequence[Phase], calls: ProgramCalls) -> list[Phase]:
    """Return the phases without functions `generate` in which no model is called."""
    begin = calls.start_ns[calls.call == Call.FORWARD]
    counts = {
        phase: np.searchsorted(begin, phase.end_ns) - np.searchsorted(begin, phase.begin_ns)
        for phase in phases
    }
    return [phase for phase in phases if phase.kind != GENERATION or counts[phase]]


# ---- calls outside steps -----------------------------------------------------------------------------------


def _outside(phase: Phase, steps: Sequence[tuple[int, int]]) -> Iterator[Phase]:
    """Yield the parts of a phase that are in no step; steps are in order."""
    begin = phase.begin_ns
    for step_begin, step_end in steps[bisect_right(steps, begin, key=itemgetter(1)) :]:
        if step_begin >= phase.end_ns:
            break
        if step_begin > begin:
            yield phase._replace(begin_ns=begin, end_ns=step_begin)
        begin = step_end
    if begin < phase.end_ns:
        yield phase._replace(begin_ns=begin)


class _ModelCall(NamedTuple):
    begin_ns: int
    end_ns: int
    data_ns: int | None  # begin of the data loader's call before it


def _stretches(calls: ProgramCalls, taken: Sequence[tuple[int, int]]) -> Iterator[list[_ModelCall]]:
    """Yield calls of models without gradients that follow one another, outside what is taken."""
    stretch: list[_ModelCall] = []
    data_ns: int | None = None
    last_gap = -1
    begins, ends = np.array(taken, dtype=np.int64).reshape(-1, 2).T
    gap = np.searchsorted(begins, calls.start_ns, side="right")
    reached = np.append(np.maximum.accumulate(ends), 0)
    is_taken = (gap > 0) & (calls.start_ns < reached[gap - 1])
    columns = (calls.call, calls.start_ns, calls.end_ns, calls.evaluated, gap, is_taken)
    for call, begin, end, is_evaluated, number, is_in in zip(
        *(column.tolist() for column in columns), strict=True
    ):
        is_training = call in (Call.BACKWARD, Call.OPTIMIZER) or (call == Call.FORWARD and not is_evaluated)
        if number != last_gap or is_training:
            if stretch:
                yield stretch
            stretch, data_ns, last_gap = [], None, number
        if is_in:
            continue
        if call == Call.DATA:
            data_ns = begin
        elif is_evaluated:
            stretch.append(_ModelCall(begin, end, data_ns))
            data_ns = None
    if stretch:
        yield stretch


def _phases_of_calls(stretch: Sequence[_ModelCall], process_id: int, *, is_between: bool) -> Iterator[Phase]:
    """Yield an evaluation, if it is between steps or has calls of a data loader, else inferences.

    Two calls are one inference if the time between them is not longer than the longer one of them.
    """
    first, last = stretch[0], stretch[-1]
    if is_between or any(each.data_ns is not None for each in stretch):
        begin = first.begin_ns if first.data_ns is None else first.data_ns
        yield Phase(process_id, EVALUATION, "calls", begin, last.end_ns)
        return
    begin, before = first.begin_ns, first
    for each in stretch[1:]:
        longest = max(before.end_ns - before.begin_ns, each.end_ns - each.begin_ns)
        if each.begin_ns - before.end_ns > longest:
            yield Phase(process_id, INFERENCE, "calls", begin, before.end_ns)
            begin = each.begin_ns
        before = each
    yield Phase(process_id, INFERENCE, "calls", begin, before.end_ns)
