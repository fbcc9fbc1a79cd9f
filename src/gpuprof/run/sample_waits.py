# SPDX-License-Identifier: Apache-2.0
"""Divides the samples in which a wait begins or ends into the wait and the rest.

A thread seldom begins or ends a wait when it is sampled: of the samples of a wait, the first and the last
have processor time too. The samples between them have none, and show which call waits. The waiting time of
the first sample is at its end, in the same call; that of the last one at its beginning, in the call of the
sample before. A shorter wait belongs to the call of its own sample if that is mostly a wait.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import NamedTuple

from gpuprof.run.call_sites import CallSite, waited_ns

# A wait of less than this part of the sampling interval is the time between the readings of two clocks.
_LEAST_PART = 10
Frames = tuple[int, ...]


class SamplePart(NamedTuple):
    """A sample, or a part of one: its numbers in the order of `stacks.NUMBERS`, and its frames."""

    t_ns: int
    duration_ns: int
    cpu_ns: int
    queued_ns: int
    line: int
    frames: Frames


class Waits:
    """Where the waits of a thread's samples are; all arguments are in nanoseconds.

    Of each sample, `at_begin_ns` and `at_end_ns` are the waits at its beginning and at its end, and `is_kept`
    is whether it keeps what it waits. This has no NumPy, which short programs need not import.
    """

    def __init__(
        self,
        interval_ns: int,
        t_ns: Sequence[int],
        duration_ns: Sequence[int],
        cpu_ns: Sequence[int],
        queued_ns: Sequence[int],
    ) -> None:
        times = list(zip(duration_ns, cpu_ns, queued_ns, strict=True))
        self._waited = [of - cpu - max(queued, 0) for of, cpu, queued in times]
        self._is_wait = [waited_ns(*each) > 0 for each in times]
        self._is_idle = [each and not cpu for each, cpu in zip(self._is_wait, cpu_ns, strict=True)]
        self._follows = [
            False,
            *(b - of == a for a, b, of in zip(t_ns, t_ns[1:], duration_ns[1:], strict=False)),
        ]
        edges = (
            cpu > 0 and wait * _LEAST_PART >= interval_ns
            for cpu, wait in zip(cpu_ns, self._waited, strict=True)
        )
        self.at_begin_ns = [0] * len(times)
        self.at_end_ns = [0] * len(times)
        alone = -1
        for place in [place for place, is_edge in enumerate(edges) if is_edge]:
            if self._divide(place):
                continue
            # A wait that is longer than the interval, and has no idle sample, is in two samples.
            if alone == place - 1 >= 0 and self._follows[place] and self._sum(place) >= interval_ns:
                self.at_end_ns[alone], self.at_begin_ns[place] = self._waited[alone], self._waited[place]
                alone = -1
            else:
                alone = place
        parts = zip(self._is_wait, self.at_begin_ns, self.at_end_ns, strict=True)
        self.is_kept = [is_wait and not begin and not end for is_wait, begin, end in parts]

    def _sum(self, place: int) -> int:
        return self._waited[place - 1] + self._waited[place]

    def _divide(self, place: int) -> bool:
        """Divide a sample next to an idle one; False if there is none."""
        after = place + 1
        begins = self._follows[place] and self._is_idle[place - 1]
        ends = after < len(self._is_idle) and self._follows[after] and self._is_idle[after]
        if begins:
            self.at_begin_ns[place] = self._waited[place] // 2 if ends else self._waited[place]
        if ends:
            self.at_end_ns[place] = self._waited[place] - self.at_begin_ns[place]
        return begins or ends


def divided(
    samples: Iterable[SamplePart],
    sites: Sequence[CallSite | None],
    waits: Waits,
    frame_of: Callable[[CallSite], int | None],
) -> Iterator[SamplePart]:
    """Yield the samples, waits apart; the call that waits is the innermost frame, if `frame_of` has one."""

    def in_call(frames: Frames, site: CallSite | None) -> Frames:
        called = None if site is None else frame_of(site)
        return frames if called is None else (*frames, called)

    former = SamplePart(0, 0, 0, 0, -1, ())
    columns = (waits.at_begin_ns, waits.at_end_ns, waits.is_kept)
    for sample, site, at_begin_ns, at_end_ns, is_kept in zip(samples, sites, *columns, strict=True):
        begin_ns = sample.t_ns - sample.duration_ns
        if at_begin_ns:
            yield SamplePart(begin_ns + at_begin_ns, at_begin_ns, 0, 0, former.line, former.frames)
        if at_begin_ns or at_end_ns:
            rest_ns = sample.duration_ns - at_begin_ns - at_end_ns
            former = sample._replace(t_ns=sample.t_ns - at_end_ns, duration_ns=rest_ns)
            yield former
            if at_end_ns:
                former = SamplePart(sample.t_ns, at_end_ns, 0, 0, sample.line, in_call(sample.frames, site))
                yield former
        else:
            former = sample._replace(frames=in_call(sample.frames, site)) if is_kept else sample
            yield former
