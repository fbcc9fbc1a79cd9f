# SPDX-License-Identifier: Apache-2.0
"""Rules about GPUs: allocations, waits of the host, pageable copies, a GPU that waits for launches."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from gpuprof.analyze.findings.finding import Draft, GainKind, Missing, Places, Rule, TimeRange
from gpuprof.analyze.whatif.intervals import Intervals
from gpuprof.record.facts import Reason

if TYPE_CHECKING:
    import numpy.typing as npt

    from gpuprof.analyze.findings.record import ProgramRecord, StepTimes
    from gpuprof.analyze.whatif.intervals import Ints
    from gpuprof.run.folder import Value

NO_GPU = (Reason.NO_DRIVER, Reason.TORCH_WITHOUT_CUDA, Reason.TORCH_NOT_IMPORTED)
_LEAST_IDLE = 0.1  # of the time in steps
_FEWEST_LAUNCHES = 10  # a step
_WAITS = """
    SELECT waits.start_ns AS begin_ns, waits.start_ns + waits.duration_ns AS end_ns, waits.span_id,
        coalesce(spans.name, '') AS name
    FROM synchronizations AS waits LEFT JOIN spans USING (span_id)
    WHERE waits.process_id = {process} AND waits.start_ns IS NOT NULL
        AND type IN ('event', 'stream', 'context') AND coalesce(spans.thread_id, {thread}) = {thread}
    ORDER BY waits.start_ns
"""
_TIME_OF_WAITS = """
    SELECT sum(waits.duration_ns)::BIGINT FROM synchronizations AS waits LEFT JOIN spans USING (span_id)
    WHERE waits.process_id = {process} AND type IN ('event', 'stream', 'context')
        AND coalesce(spans.name, '') = {name}
"""
_COPIES = """
    SELECT launch_ns AS begin_ns, greatest(launch_end_ns, start_ns + duration_ns) AS end_ns FROM transfers
    WHERE process_id = {process} AND kind = 'copy' AND launch_ns IS NOT NULL AND launch_end_ns IS NOT NULL
        AND (src = 'pageable' OR dst = 'pageable') ORDER BY launch_ns
"""
_TIME_OF_COPIES = """
    SELECT sum(duration_ns)::BIGINT FROM transfers
    WHERE process_id = {process} AND kind = 'copy' AND (src = 'pageable' OR dst = 'pageable')
"""
# As the CUDA and HIP interfaces call them, with and without virtual memory.
_ALLOCATING = (
    *("cudaMalloc", "cudaMallocAsync", "hipMalloc", "hipExtMallocWithFlags", "cuMemAlloc", "cuMemAlloc_v2"),
    *("cuMemCreate", "cuMemMap", "cuMemSetAccess"),
)
_FREEING = (
    *("cudaFree", "cudaFreeAsync", "hipFree"),
    *("cuMemFree", "cuMemFree_v2", "cuMemUnmap", "cuMemRelease"),
)
_ALLOCATIONS = """
    SELECT span_id, start_ns AS begin_ns, start_ns + duration_ns AS end_ns,
        list_contains({freeing}::VARCHAR[], name) AS is_freeing
    FROM spans WHERE process_id = {process} AND thread_id = {thread} AND start_ns >= {first}
        AND name IN (SELECT unnest({names}::VARCHAR[])) ORDER BY start_ns
"""
_TIME_OF_ALLOCATIONS = """
    SELECT sum(duration_ns)::BIGINT FROM spans
    WHERE process_id = {process} AND thread_id = {thread} AND start_ns >= {first}
        AND name IN (SELECT unnest({names}::VARCHAR[]))
"""
_COUNT_OF_ALLOCATIONS = """
    SELECT count(*) FROM spans
    WHERE process_id = {process} AND thread_id = {thread} AND start_ns >= {first}
        AND name IN (SELECT unnest({names}::VARCHAR[]))
"""
_CALLS_OF_INTERFACE = """
    SELECT 1 AS one FROM spans WHERE process_id = {process} AND kind = 'operator'
        AND regexp_matches(name, '^(cuda|hip|cu)[A-Z]') LIMIT 1
"""
_ON_GPU = """
    SELECT start_ns AS begin_ns, start_ns + duration_ns AS end_ns, coalesce(launch_ns, -1) AS launch_ns
    FROM kernels WHERE process_id = {process}
    UNION ALL SELECT start_ns, start_ns + duration_ns, -1 FROM transfers WHERE process_id = {process}
    ORDER BY 1
"""
_LAUNCHING_THREADS = """
    SELECT DISTINCT thread_id FROM kernels JOIN spans USING (span_id) WHERE kernels.process_id = {process}
"""
_TIME_OF_KERNELS = "SELECT sum(duration_ns)::BIGINT FROM kernels WHERE process_id = {process}"
_KERNELS = "SELECT count(*) FROM kernels WHERE process_id = {process}"


def allocations(record: ProgramRecord) -> list[Draft] | Missing:
    """Find calls in steps after the warm-up by which PyTorch's allocator takes and returns GPU memory.

    It keeps the memory that it has. It returns it if there is too little, before it tries again, or if the
    program calls `empty_cache`. A recorded call is removed; the GPU's work remains.
    """
    if not record.is_on("kernels"):
        return without_kernels(record)
    if not len(record.fetch(_CALLS_OF_INTERFACE, process=record.process_id)["one"]):
        return Missing.ALLOCATIONS
    if record.steps is None:
        return Missing.STEPS
    # The first step allocates in any case.
    number = max(record.steps.warm_up, 1)
    if number >= len(record.steps.begin_ns):
        return []
    of: dict[str, Value] = {
        "process": record.process_id,
        "thread": record.main_thread,
        "first": int(record.steps.begin_ns[number]),
    }
    names = [*_ALLOCATING, *_FREEING]
    columns = record.fetch(_ALLOCATIONS, **of, names=names, freeing=list(_FREEING))
    begin, end = columns["begin_ns"].astype(np.int64), columns["end_ns"].astype(np.int64)
    own = _in_steps(record.steps, begin)
    if not own.any():
        return []
    time = Intervals.union(begin[own], end[own])
    kind, gain, explained = record.without(time)
    freed = int(np.asarray(columns["is_freeing"], dtype=bool)[own].sum())
    values = {"allocated": int(own.sum()) - freed, "freed": freed}
    evidence = (
        record.figure("allocation_time", "ns", _TIME_OF_ALLOCATIONS, **of, names=names),
        record.figure("releases", "count", _COUNT_OF_ALLOCATIONS, **of, names=list(_FREEING)),
    )
    places = Places(spans=tuple(columns["span_id"][own][:3].tolist()))
    return [Draft(Rule.ALLOCATIONS, values, time, kind, gain, evidence, places, explained)]


def gpu_synchronization(record: ProgramRecord) -> list[Draft] | Missing:
    """Find calls in steps in which the main thread waits for the GPU."""
    if record.steps is None:
        return Missing.STEPS
    if not record.is_on("kernels"):
        return without_kernels(record)
    of: dict[str, Value] = {"process": record.process_id, "thread": record.main_thread}
    columns = record.fetch(_WAITS, **of)
    begin, end = columns["begin_ns"].astype(np.int64), columns["end_ns"].astype(np.int64)
    spans = np.ma.filled(columns["span_id"], -1).astype(np.int64)
    names = np.asarray(columns["name"], dtype=object)
    in_steps = _in_steps(record.steps, begin)
    drafts = []
    for name in dict.fromkeys(names[in_steps].tolist()):
        own = in_steps & (names == name)
        time = Intervals.union(begin[own], end[own])
        kind, gain, explained = record.without(time)
        values = {"name": name or None, "waits": int(own.sum())}
        evidence = (
            record.figure("wait_time", "ns", _TIME_OF_WAITS, process=record.process_id, name=str(name)),
        )
        places = Places(spans=tuple(each for each in spans[own][:3].tolist() if each >= 0))
        drafts.append(Draft(Rule.GPU_SYNCHRONIZATION, values, time, kind, gain, evidence, places, explained))
    return drafts


def pageable_copies(record: ProgramRecord) -> list[Draft] | Missing:
    """Find copies of pageable memory, which block the thread that makes them.

    From pinned memory the copy runs next to the host's work. The gain without these waits is the upper end:
    pinning takes time as well.
    """
    if not record.is_on("kernels"):
        return without_kernels(record)
    columns = record.fetch(_COPIES, process=record.process_id)
    begin, end = columns["begin_ns"].astype(np.int64), columns["end_ns"].astype(np.int64)
    if record.steps is not None:
        chosen = _in_steps(record.steps, begin)
        begin, end = begin[chosen], end[chosen]
    if not len(begin):
        return []
    time = Intervals.union(begin, end)
    _, gain, _ = record.without(time)
    evidence = record.figure("copy_time", "ns", _TIME_OF_COPIES, process=record.process_id)
    bound = TimeRange(0.0, gain.high_ns)
    values = {"copies": len(begin)}
    return [Draft(Rule.PAGEABLE_COPIES, values, time, GainKind.BOUND, bound, (evidence,))]


def launches(record: ProgramRecord) -> list[Draft] | Missing:
    """Find a GPU that is idle in steps because the host launches its work too slowly.

    The upper end is the replay without the host's work in the model, as in a CUDA graph, on all threads that
    launch: PyTorch runs the backward pass of a GPU on a thread of its own.
    """
    if record.steps is None:
        return Missing.STEPS
    if not record.is_on("kernels"):
        return without_kernels(record)
    columns = record.fetch(_ON_GPU, process=record.process_id)
    begin, end, launched = (columns[name].astype(np.int64) for name in ("begin_ns", "end_ns", "launch_ns"))
    steps = record.steps
    in_steps_ns = int((steps.end_ns - steps.begin_ns).sum())
    busy_ns = int(Intervals.union(begin, end).covered_ns(steps.begin_ns, steps.end_ns).sum())
    idle = 1 - busy_ns / in_steps_ns if in_steps_ns else 0.0
    count = int(_in_steps(steps, launched).sum()) / len(steps.begin_ns)
    if idle < _LEAST_IDLE or count < _FEWEST_LAUNCHES:
        return []
    in_steps = Intervals.union(steps.begin_ns, steps.end_ns)
    time = record.in_model.without(record.in_model.without(in_steps))
    threads = record.fetch(_LAUNCHING_THREADS, process=record.process_id)["thread_id"].tolist()
    _, gain, _ = record.without(time, threads=threads)
    evidence = (
        record.figure("kernel_time", "ns", _TIME_OF_KERNELS, process=record.process_id),
        record.figure("kernels", "count", _KERNELS, process=record.process_id),
    )
    values = {"idle_share": idle, "launches": count}
    bound = TimeRange(0.0, gain.high_ns)
    return [Draft(Rule.LAUNCHES, values, time, GainKind.BOUND, bound, evidence)]


def without_kernels(record: ProgramRecord) -> list[Draft] | Missing:
    """Return nothing where the program could not use a GPU, else what is missing."""
    return [] if record.why_off("kernels") in NO_GPU else Missing.KERNELS


def _in_steps(steps: StepTimes, times_ns: Ints) -> npt.NDArray[np.bool_]:
    """Return which times are in steps."""
    found: npt.NDArray[np.bool_] = Intervals.union(steps.begin_ns, steps.end_ns).place(times_ns) >= 0
    return found
