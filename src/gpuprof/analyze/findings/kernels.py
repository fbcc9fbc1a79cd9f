# SPDX-License-Identifier: Apache-2.0
"""Rules about GPU kernels: copies between layouts, chains of small ones, products in fp32, throttling."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import numpy as np

from gpuprof.analyze.findings.device import NO_GPU, without_kernels
from gpuprof.analyze.findings.finding import Draft, GainKind, Missing, Rule, TimeRange
from gpuprof.analyze.whatif.intervals import Intervals
from gpuprof.analyze.whatif.selection import Modification, Selection

if TYPE_CHECKING:
    from gpuprof.analyze.findings.finding import EvidenceFigure
    from gpuprof.analyze.findings.record import ProgramRecord
    from gpuprof.analyze.whatif.intervals import Ints

# In the order of the kernels in a selection.
_KERNELS = """
    SELECT start_ns AS begin_ns, start_ns + duration_ns AS end_ns, coalesce(stream, -1) AS stream,
        regexp_matches(name, {pattern}) AS matches
    FROM kernels WHERE process_id = {process} ORDER BY start_ns, correlation_id
"""
_TIME = """
    SELECT sum(duration_ns)::BIGINT FROM kernels
    WHERE process_id = {process} AND regexp_matches(name, {pattern})
"""
_COUNT = "SELECT count(*) FROM kernels WHERE process_id = {process} AND regexp_matches(name, {pattern})"
# Kernels of cuDNN, and of PyTorch for operators on each element.
_LAYOUT = "nchwToNhwc|nhwcToNchw|nchw_to_nhwc|nhwc_to_nchw"
_ELEMENTWISE = "elementwise_kernel|_elementwise"
_LONGEST_GAP_NS = 10_000  # within a chain
_FEWEST_IN_CHAIN = 3
# Products in fp32 without tensor cores.
_FP32 = "sgemm|scudnn|f32f32_f32f32"
_PEAKS = """
    SELECT max(value) FILTER (dtype = 'fp32') AS fp32, max(value) FILTER (dtype = 'tf32') AS tf32
    FROM ceilings WHERE starts_with(device, 'cuda') AND resource = 'compute'
"""
_READINGS = """
    SELECT t_ns, device, max(value) FILTER (metric = 'throttle_reasons') AS reasons,
        max(value) FILTER (metric = 'sm_clock_hz') AS clock_hz
    FROM samples GROUP BY t_ns, device HAVING reasons IS NOT NULL AND clock_hz IS NOT NULL
    ORDER BY device, t_ns
"""
# Power cap, hardware and software slowdown by heat or power: not idle, nor a clock that a user has set.
_THROTTLED = 4 | 8 | 32 | 64 | 128
_MEAN_CLOCK = "SELECT avg(value) FROM samples WHERE metric = 'sm_clock_hz'"


def layout_copies(record: ProgramRecord) -> list[Draft] | Missing:
    """Find kernels of cuDNN that copy between channels-first and channels-last layouts."""
    found = _matching(record, _LAYOUT)
    if isinstance(found, Missing):
        return found
    begin, end, _, matches = found
    if not matches.any():
        return []
    time = Intervals.union(begin[matches], end[matches])
    kind, gain, explained = _without(record, matches, time)
    values = {"kernels": int(matches.sum())}
    return [
        Draft(Rule.LAYOUT_COPIES, values, time, kind, gain, _evidence(record, _LAYOUT), explained=explained)
    ]


def small_kernels(record: ProgramRecord) -> list[Draft] | Missing:
    """Find chains of kernels that compute on each element, which could be one kernel.

    The upper end is the replay without all but the longest kernel of each chain.
    """
    found = _matching(record, _ELEMENTWISE)
    if isinstance(found, Missing):
        return found
    begin, end, stream, matches = found
    removed = _all_but_longest(begin, end, stream, matches)
    if not removed.any():
        return []
    time = Intervals.union(begin[removed], end[removed])
    _, gain, _ = _without(record, removed, time)
    bound = TimeRange(0.0, max(gain.high_ns, 0.0))
    values = {"kernels": int(removed.sum())}
    return [Draft(Rule.SMALL_KERNELS, values, time, GainKind.BOUND, bound, _evidence(record, _ELEMENTWISE))]


def _all_but_longest(begin: Ints, end: Ints, stream: Ints, matches: Any) -> Any:
    """Return the kernels of chains, of at least three on a stream, without the longest one of each."""
    removed = np.zeros(len(begin), dtype=np.bool_)
    for each in np.unique(stream).tolist():
        own = np.flatnonzero(stream == each)
        follows = np.zeros(len(own), dtype=np.bool_)
        follows[1:] = (
            matches[own][1:] & matches[own][:-1] & (begin[own][1:] - end[own][:-1] <= _LONGEST_GAP_NS)
        )
        chain = np.cumsum(~follows) - 1
        sizes = np.bincount(chain)
        length = end[own] - begin[own]
        longest = np.zeros(len(sizes), dtype=np.int64)
        np.maximum.at(longest, chain, length)
        is_part = (sizes[chain] >= _FEWEST_IN_CHAIN) & matches[own]
        is_longest = is_part & (length == longest[chain])
        # Of several with the same length, the first one remains.
        _, first = np.unique(chain[is_longest], return_index=True)
        kept = np.flatnonzero(is_longest)[first]
        is_part[kept] = False
        removed[own[is_part]] = True
    return removed


def fp32_products(record: ProgramRecord) -> list[Draft] | Missing:
    """Find products in fp32 on a GPU that computes in TF32 faster: by the ratio of the ceilings at most."""
    found = _matching(record, _FP32)
    if isinstance(found, Missing):
        return found
    begin, end, _, matches = found
    if not matches.any():
        return []
    peaks = record.fetch(_PEAKS)
    fp32, tf32 = (float(np.ma.filled(peaks[name], math.nan)[0]) for name in ("fp32", "tf32"))
    if math.isnan(fp32) or math.isnan(tf32):
        return Missing.CEILINGS
    if tf32 <= fp32:
        return []
    time = Intervals.union(begin[matches], end[matches])
    change = Modification("speed_up", "", tf32 / fp32)
    _, gain, _ = record.replayed([Selection(change, 1, kernels=matches)])
    high = gain.high_ns if gain.high_ns > 0 else time.total_ns * (1 - fp32 / tf32)
    values = {"kernels": int(matches.sum()), "factor": tf32 / fp32}
    bound = TimeRange(0.0, high)
    return [Draft(Rule.FP32_PRODUCTS, values, time, GainKind.BOUND, bound, _evidence(record, _FP32))]


def throttling(record: ProgramRecord) -> list[Draft] | Missing:
    """Find a GPU whose clock is reduced because of heat or power.

    At the highest clock, the time of its work would be shorter by the ratio of the clocks at most.
    """
    if not record.is_on("samples"):
        return [] if record.why_off("samples") in NO_GPU else Missing.SAMPLES
    columns = record.fetch(_READINGS)
    devices = {each.get("index"): each for each in record.folder.meta.get("devices") or ()}
    drafts = []
    for device in np.unique(columns["device"]).tolist():
        highest = (devices.get(device) or {}).get("max_sm_clock_hz")
        own = columns["device"] == device
        reasons = columns["reasons"][own].astype(np.int64)
        if highest and (reasons & _THROTTLED).any():
            clock = columns["clock_hz"][own].astype(np.float64)
            drafts.append(_throttled(record, columns["t_ns"][own].astype(np.int64), reasons, clock / highest))
    return drafts


def _throttled(record: ProgramRecord, t_ns: Ints, reasons: Ints, clock: Any) -> Draft:
    """`clock` is relative to the highest one; a reading is valid until the next one."""
    is_throttled = (reasons & _THROTTLED) != 0
    until = np.append(t_ns[1:], max(record.wall_ns, int(t_ns[-1])))
    gpu = record.fetch(
        "SELECT start_ns AS begin_ns, start_ns + duration_ns AS end_ns FROM kernels "
        "WHERE process_id = {process}",
        process=record.process_id,
    )
    busy = Intervals.union(gpu["begin_ns"], gpu["end_ns"])
    busy_ns = busy.covered_ns(t_ns, until)
    lost = np.where(is_throttled, busy_ns * np.clip(1 - clock, 0, 1), 0)
    throttled = Intervals.union(t_ns[is_throttled], until[is_throttled])
    time = busy.without(busy.without(throttled))
    evidence = record.figure("mean_clock", "hz", _MEAN_CLOCK)
    values = {"share": float(is_throttled.mean()), "clock": float(clock[is_throttled].mean())}
    gain = TimeRange(0.0, float(lost.sum()))
    return Draft(Rule.THROTTLING, values, time, GainKind.BOUND, gain, (evidence,))


def _matching(record: ProgramRecord, pattern: str) -> tuple[Ints, Ints, Ints, Any] | Missing:
    """Return begin, end and stream of all kernels, and which ones have a name that matches."""
    if not record.is_on("kernels"):
        lacks = without_kernels(record)
        none = np.zeros(0, dtype=np.int64)
        return lacks if isinstance(lacks, Missing) else (none, none, none, none.astype(bool))
    columns = record.fetch(_KERNELS, process=record.process_id, pattern=pattern)
    begin, end, stream = (columns[name].astype(np.int64) for name in ("begin_ns", "end_ns", "stream"))
    return begin, end, stream, np.asarray(columns["matches"], dtype=bool)


def _without(record: ProgramRecord, kernels: Any, time: Intervals) -> tuple[GainKind, TimeRange, float]:
    kind, gain, explained = record.replayed(
        [Selection(Modification("remove", "", math.inf), 1, kernels=kernels)]
    )
    if kind is GainKind.BOUND:
        gain = TimeRange(0.0, float(time.total_ns))
    return kind, gain, explained


def _evidence(record: ProgramRecord, pattern: str) -> tuple[EvidenceFigure, ...]:
    return (
        record.figure("kernel_time", "ns", _TIME, process=record.process_id, pattern=pattern),
        record.figure("kernels", "count", _COUNT, process=record.process_id, pattern=pattern),
    )
