# SPDX-License-Identifier: Apache-2.0
"""Kernels, copies and fills on GPUs, as columns, with the span that launched each."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from gpuprof.analyze.ceilings.ceiling import GPU

if TYPE_CHECKING:
    import numpy.typing as npt

    from gpuprof.run.folder import RunFolder

    Ints = npt.NDArray[np.int64]
    Floats = npt.NDArray[np.float64]
    Bools = npt.NDArray[np.bool_]


@dataclass(frozen=True, slots=True)
class DeviceActivity:
    """Columns with one element a kernel, copy or fill, in the order of time.

    `span_id` is the span that launched it, -1 for none. `name` and `device` are indices into `names` and
    `devices`. `replay` numbers the launch of the CUDA graph that it is part of, -1 outside of graphs.
    `gap_ns` is how long its stream was idle before it, `late_ns` how long after the end of the stream's work
    it was launched (below 0: before); NaN where nothing ran on the stream before, and in graphs. `crosses`
    marks copies between the host and a device.
    """

    span_id: Ints
    name: Ints
    device: Ints
    duration_ns: Ints
    replay: Ints
    gap_ns: Floats
    late_ns: Floats
    crosses: Bools
    names: list[str]
    devices: list[str]

    def __len__(self) -> int:
        """Return the number of kernels, copies and fills."""
        return len(self.name)


# The end of what a stream did before is the latest one: kernels of other contexts and graphs overlap.
_WORK = """
    WITH device_work AS ({parts}), named AS (
        SELECT name, row_number() OVER (ORDER BY name) - 1 AS code
        FROM (SELECT DISTINCT name FROM device_work WHERE process_id = {process_id})
    ), placed AS (
        SELECT *, max(start_ns + duration_ns) OVER (
            PARTITION BY device, context, stream ORDER BY start_ns, correlation_id
            ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING) AS free_ns
        FROM device_work WHERE process_id = {process_id})
"""
_NAMES = "SELECT name FROM named ORDER BY code"
_ACTIVITY = """
    SELECT coalesce(span_id, -1) AS span_id, code AS name, coalesce(device, 0)::BIGINT AS device, duration_ns,
           CASE WHEN graph_id IS NULL THEN -1 ELSE correlation_id END::BIGINT AS replay,
           coalesce(CASE WHEN graph_id IS NULL THEN start_ns - free_ns END, 'nan'::DOUBLE) AS gap_ns,
           coalesce(CASE WHEN graph_id IS NULL THEN launch_ns - free_ns END, 'nan'::DOUBLE) AS late_ns,
           crosses
    FROM placed JOIN named USING (name) ORDER BY start_ns
"""
_SHARED = (
    "span_id, process_id, device, context, stream, start_ns, duration_ns, launch_ns, correlation_id, graph_id"
)
_ON_DEVICE = "('device', 'array', 'managed', 'device static', 'managed static')"
_PARTS = {
    "kernels": f"SELECT coalesce(name, '') AS name, {_SHARED}, false AS crosses FROM kernels",  # noqa: S608
    "transfers": f"""
        SELECT concat_ws(' ', kind, src, CASE WHEN kind = 'copy' THEN 'to' END, dst) AS name, {_SHARED},
               kind = 'copy' AND NOT coalesce(src IN {_ON_DEVICE} AND dst IN {_ON_DEVICE}, false) AS crosses
        FROM transfers""",  # noqa: S608 - constants
}


def load_activity(folder: RunFolder, process_id: int) -> DeviceActivity:
    """Return what ran on GPUs for a process; empty where no kernel and no copy was recorded."""
    parts = [_PARTS[table] for table in _PARTS if table in folder.tables]
    if not parts:
        return no_activity()
    work = _WORK.format(parts=" UNION ALL ".join(parts), process_id=int(process_id))
    names = [name for (name,) in folder.sql(work + _NAMES).fetchall()]
    columns = {key: np.ma.getdata(found) for key, found in folder.sql(work + _ACTIVITY).fetchnumpy().items()}
    ordinals, device = np.unique(columns.pop("device"), return_inverse=True)
    devices = [f"{GPU}:{ordinal}" for ordinal in ordinals.tolist()]
    return DeviceActivity(**columns, device=device.reshape(-1), names=names, devices=devices)


def no_activity() -> DeviceActivity:
    """Return the activity of a run without a GPU."""
    ints, floats = np.zeros(0, np.int64), np.zeros(0)
    return DeviceActivity(ints, ints, ints, ints, ints, floats, floats, np.zeros(0, np.bool_), [], [])


@dataclass(frozen=True, slots=True)
class Executions:
    """Columns with one element for all that one call of an operator ran on one device, or one graph replay.

    `owner` is the index of the operator's span, `device` an index into the activity's devices, `time_ns` the
    sum of its kernels' times (concurrent ones count twice), `launches` their number. `gap_ns` and `late_ns`
    are those of the first kernel.
    """

    owner: Ints
    device: Ints
    time_ns: Ints
    launches: Ints
    crosses: Bools
    gap_ns: Floats
    late_ns: Floats

    def __len__(self) -> int:
        """Return the number of executions."""
        return len(self.owner)

    def taken(self, which: Ints | Bools) -> Executions:
        """Return some of them."""
        return Executions(*(getattr(self, name)[which] for name in self.__slots__))


def executions_of(activity: DeviceActivity, owner: Ints) -> tuple[Executions, Ints]:
    """Group activity by owner, device and graph replay; -1 in `owner` is in no execution.

    Returns the executions, ordered by owner, and for each element of the activity the index of its
    execution or -1.
    """
    owned = np.flatnonzero(owner >= 0)
    order = owned[np.lexsort((owned, activity.replay[owned], activity.device[owned], owner[owned]))]
    is_first = changes((owner[order], activity.device[order], activity.replay[order]))
    starts = np.flatnonzero(is_first)
    execution_of = np.full(len(activity), -1, np.int64)
    execution_of[order] = np.cumsum(is_first) - 1
    first = order[starts]
    return Executions(
        owner=owner[first],
        device=activity.device[first],
        time_ns=sums_from(activity.duration_ns[order], starts),
        launches=np.diff(np.append(starts, len(order))),
        crosses=sums_from(activity.crosses[order].astype(np.int64), starts) > 0,
        gap_ns=activity.gap_ns[first],
        late_ns=activity.late_ns[first],
    ), execution_of


def single_executions(activity: DeviceActivity, which: Ints) -> Executions:
    """Return an execution for each of these kernels, copies and fills alone."""
    return Executions(
        owner=np.full(len(which), -1, np.int64),
        device=activity.device[which],
        time_ns=activity.duration_ns[which],
        launches=np.ones(len(which), np.int64),
        crosses=activity.crosses[which],
        gap_ns=activity.gap_ns[which],
        late_ns=activity.late_ns[which],
    )


def changes(columns: Sequence[npt.NDArray[Any]]) -> Bools:
    """Return where any of the columns differs from the element before; True for the first."""
    changed = np.ones(len(columns[0]), np.bool_)
    changed[1:] = np.logical_or.reduce([column[1:] != column[:-1] for column in columns])
    return changed


def sums_from(values: Ints, starts: Ints) -> Ints:
    """Return the sums of the stretches of `values` that begin at `starts`."""
    return np.add.reduceat(values, starts) if len(starts) else np.zeros(0, np.int64)


@dataclass(frozen=True, slots=True)
class HostDelay:
    """How often a stream was idle because the host launched too late, of the calls for which it is known."""

    late: int
    known: int

    @property
    def is_usual(self) -> bool:
        """Whether it is so for half of the calls or more."""
        return self.late > 0 and 2 * self.late >= self.known


def host_delay(executions: Executions, floor_ns: float, period_ns: float) -> HostDelay:
    """Look at the gap before the first kernel of each execution.

    A gap is one that is longer than the time from one empty kernel to the next. The host was late where
    the launch, which takes `period_ns`, was not complete when the stream had finished its work.
    """
    gap_ns, late_ns = executions.gap_ns, executions.late_ns
    known = ~(np.isnan(gap_ns) | np.isnan(late_ns))
    late = known & (gap_ns > floor_ns) & (late_ns + period_ns > 0)
    return HostDelay(int(late.sum()), int(known.sum()))
