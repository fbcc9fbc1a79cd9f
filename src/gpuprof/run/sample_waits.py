# SPDX-License-Identifier: Apache-2.0
"""Divides the samples in which a wait begins or ends into the wait and the rest.

A thread seldom begins or ends a wait when it is sampled: of the samples of a wait, the first and the last
have processor time too. The samples between them have none, and show which call waits. The waiting time of
the first sample is at its end, in the same call; that of the last one at its beginning, in the call of the
sample before. A shorter wait belongs to the call of its own sample if that is mostly a wait.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, NamedTuple

from gpuprof.run.call_sites import CallSite, waited_in_each_ns

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    Ints = npt.NDArray[np.int64]

# A wait of less than this part of the sampling interval is the time between the readings of two clocks.
_LEAST_PART = 10
Frames = tuple[int, ...]


class Sample(NamedTuple):
    """A sample, or a part of one: its numbers in the order of `stacks.NUMBERS`, and its frames."""

    t_ns: int
    duration_ns: int
    cpu_ns: int
    queued_ns: int
    line: int
    frames: Frames


class Waits(NamedTuple):
    """Of each sample: the wait at its beginning, the wait at its end, and whether it keeps what it waits."""

    at_begin_ns: Ints
    at_end_ns: Ints
    is_kept: npt.NDArray[np.bool_]


def find_waits(t_ns: Ints, duration_ns: Ints, cpu_ns: Ints, queued_ns: Ints, interval_ns: int) -> Waits:
    """Return where the waits of a thread's samples are; all arguments are in nanoseconds."""
    import numpy as np

    is_wait = waited_in_each_ns(duration_ns, cpu_ns, queued_ns) > 0
    is_idle = is_wait & (cpu_ns == 0)
    waited = duration_ns - cpu_ns - np.maximum(queued_ns, 0)
    is_edge = (cpu_ns > 0) & (waited * _LEAST_PART >= interval_ns)
    follows = t_ns - duration_ns == np.append(np.iinfo(np.int64).min, t_ns[:-1])  # no sample is missing
    begins = is_edge & follows & np.append(False, is_idle[:-1])
    ends = is_edge & np.append((is_idle & follows)[1:], False)
    # A wait that is longer than the interval, and has no idle sample, is in two samples.
    is_alone = is_edge & ~begins & ~ends
    is_long = np.append(False, waited[1:] + waited[:-1] >= interval_ns)
    is_second = _is_odd_in_row(is_alone & follows & is_long & np.append(False, is_alone[:-1]))
    begins |= is_second
    ends |= np.append(is_second[1:], False)
    at_begin = np.where(begins, np.where(ends, waited // 2, waited), 0)
    at_end = np.where(ends, waited - at_begin, 0)
    return Waits(at_begin, at_end, is_wait & ~begins & ~ends)


def _is_odd_in_row(flags: npt.NDArray[np.bool_]) -> npt.NDArray[np.bool_]:
    """Return for each flag whether it is the first, third, ... of set ones that follow one another."""
    import numpy as np

    places = np.arange(len(flags))
    unset: Ints = np.maximum.accumulate(np.where(flags, -1, places))
    is_odd: npt.NDArray[np.bool_] = flags & ((places - unset) % 2 == 1)
    return is_odd


def divided(
    samples: Iterable[Sample],
    sites: Sequence[CallSite | None],
    waits: Waits,
    frame_of: Callable[[CallSite], int | None],
) -> Iterator[Sample]:
    """Yield the samples, waits apart; the call that waits is the innermost frame, if `frame_of` has one."""

    def in_call(frames: Frames, site: CallSite | None) -> Frames:
        called = None if site is None else frame_of(site)
        return frames if called is None else (*frames, called)

    former = Sample(0, 0, 0, 0, -1, ())
    columns = (waits.at_begin_ns.tolist(), waits.at_end_ns.tolist(), waits.is_kept.tolist())
    for sample, site, at_begin_ns, at_end_ns, is_kept in zip(samples, sites, *columns, strict=True):
        begin_ns = sample.t_ns - sample.duration_ns
        if at_begin_ns:
            yield Sample(begin_ns + at_begin_ns, at_begin_ns, 0, 0, former.line, former.frames)
        if at_begin_ns or at_end_ns:
            rest_ns = sample.duration_ns - at_begin_ns - at_end_ns
            former = sample._replace(t_ns=sample.t_ns - at_end_ns, duration_ns=rest_ns)
            yield former
            if at_end_ns:
                former = Sample(sample.t_ns, at_end_ns, 0, 0, sample.line, in_call(sample.frames, site))
                yield former
        else:
            former = sample._replace(frames=in_call(sample.frames, site)) if is_kept else sample
            yield former
