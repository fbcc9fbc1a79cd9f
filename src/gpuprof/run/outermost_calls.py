# SPDX-License-Identifier: Apache-2.0
"""The calls that a program makes itself: of layers, operators, the optimizer, the data loader.

A call inside another one of these is left out. The program's own spans are looked through, and so is the
optimizer's step, which may contain a closure with a whole training step.
"""

from __future__ import annotations

import enum
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from gpuprof.run.database import registered
from gpuprof.run.format import KINDS

if TYPE_CHECKING:
    import duckdb

Ints = npt.NDArray[np.int64]
Flags = npt.NDArray[np.bool_]


class Call(enum.IntEnum):
    """What an outermost call is."""

    FORWARD = 0
    BACKWARD = 1
    OPTIMIZER = 2
    ZERO_GRAD = 3
    DATA = 4
    OPERATOR = 5
    MARK = 6  # the program's own span `step`


NO_CALL = -1
_OF_KIND = {"layer": Call.FORWARD, "backward": Call.BACKWARD, "operator": Call.OPERATOR}
# By the begin of the name that PyTorch announces.
_OF_SPAN = {
    "Optimizer.step#": Call.OPTIMIZER,
    "Optimizer.zero_grad#": Call.ZERO_GRAD,
    "enumerate(DataLoader)#": Call.DATA,
}
_MARK = "step"
_WITHOUT_GRADIENTS = (2, 3)  # of LayerMode in csrc/core/layout.hpp
TRANSPARENT = (NO_CALL, Call.OPTIMIZER, Call.MARK)
_MAKE_STEPS = (Call.FORWARD, Call.OPTIMIZER, Call.MARK)
_CALLS_QUERY = """
    SELECT process_id, thread_id, start_ns, start_ns + duration_ns AS end_ns, path_id
    FROM read_parquet($spans) WHERE path_id IN (SELECT path_id FROM outermost)
    ORDER BY process_id, start_ns, end_ns DESC
"""


@dataclass(frozen=True, slots=True)
class ProgramCalls:
    """Outermost calls of a process in columns, by their begin; `call` has values of Call.

    `evaluated` are the calls of models in evaluation mode, or without gradients.
    """

    layer: npt.NDArray[np.object_]  # its name
    thread_id: Ints
    start_ns: Ints
    end_ns: Ints
    call: Ints
    evaluated: Flags

    def chosen(self, which: Flags) -> ProgramCalls:
        """Return some of them."""
        return ProgramCalls(
            self.layer[which],
            self.thread_id[which],
            self.start_ns[which],
            self.end_ns[which],
            self.call[which],
            self.evaluated[which],
        )


@dataclass(frozen=True, slots=True)
class LayerModes:
    """From `begin_ns` on, the outermost layer calls that end on the thread have the mode; in columns.

    Rows of a thread are in the order of time.
    """

    process_id: Ints
    thread_id: Ints
    begin_ns: Ints
    mode: Ints

    @classmethod
    def of(cls, decoded: dict[str, Any]) -> LayerModes:
        """Return the modes that the native core has decoded."""
        columns = decoded["layer_modes"]
        return cls(
            *(columns[name].astype(np.int64) for name in ("process_id", "thread_id", "begin_ns", "mode"))
        )

    def are_evaluated(self, process_id: Ints, thread_id: Ints, end_ns: Ints) -> Flags:
        """Return for each call whether its model was in evaluation mode, or made no gradients."""
        found = np.zeros(len(end_ns), dtype=np.bool_)
        for process, thread in set(zip(self.process_id.tolist(), self.thread_id.tolist(), strict=True)):
            mine = (self.process_id == process) & (self.thread_id == thread)
            calls = (process_id == process) & (thread_id == thread)
            place = np.searchsorted(self.begin_ns[mine], end_ns[calls], side="right") - 1
            found[calls] = (place >= 0) & np.isin(self.mode[mine][place], _WITHOUT_GRADIENTS)
        return found


@dataclass(frozen=True, slots=True)
class OutermostCalls:
    """The outermost calls of a run."""

    process_id: Ints
    calls: ProgramCalls

    def by_process(self) -> Iterator[tuple[int, ProgramCalls]]:
        """Yield each process and its calls."""
        for process_id in np.unique(self.process_id).tolist():
            yield process_id, self.calls.chosen(self.process_id == process_id)


def after_closures(
    begin_ns: Ints, end_ns: Ints, forward_ns: Ints, backward_begin_ns: Ints, backward_end_ns: Ints
) -> Ints:
    """Return where each step of an optimizer begins its update: after the backward pass of its closure.

    `forward_ns` are begins of layer calls; all but the steps are in the order of time. A step without a
    backward pass has no closure. If one has several passes, as of LBFGS, the optimizer works between them,
    too: then each step keeps its begin.
    """
    if not len(backward_begin_ns):
        return begin_ns
    first, until = np.searchsorted(backward_begin_ns, begin_ns), np.searchsorted(backward_begin_ns, end_ns)
    last_ns = np.maximum.accumulate(backward_end_ns)[until - 1]
    has_closure = (first < until) & (last_ns <= end_ns)
    first_ns = backward_begin_ns[np.minimum(first, len(backward_begin_ns) - 1)]
    is_again = np.searchsorted(forward_ns, last_ns) > np.searchsorted(forward_ns, first_ns)
    if (has_closure & is_again).any():
        return begin_ns
    return np.where(has_closure, last_ns, begin_ns)


def read_outermost_calls(
    connection: duckdb.DuckDBPyConnection,
    spans: Path,
    tree: dict[str, Any],
    names: Sequence[str],
    modes: LayerModes | None,
    *,
    are_needed: bool = False,
) -> OutermostCalls:
    """Read the outermost calls in the written table `spans`, by the columns and names of the call tree.

    Without any that makes steps there are none, unless they `are_needed`. `modes` are None for a trace.
    """
    call = _call_of_nodes(tree, names)
    path_id = tree["number"].astype(np.int64)
    is_outermost = _are_outermost(tree["parent"].astype(np.int64), call) & (path_id >= 0)
    if not are_needed and not np.isin(call[is_outermost], _MAKE_STEPS).any():
        is_outermost[:] = False  # without steps, a program of a million operators need not be read
    paths = path_id[is_outermost]
    query = {"spans": str(spans / "**" / "*.parquet")}
    with registered(connection, "outermost", {"path_id": paths}):
        columns = connection.execute(_CALLS_QUERY, query).fetchnumpy()
    order = np.argsort(paths)
    place = order[np.searchsorted(paths, columns["path_id"].astype(np.int64), sorter=order)]
    node = np.flatnonzero(is_outermost)[place]
    layer = np.array(names, dtype=object)[tree["name"][node]]
    thread_id, start_ns, end_ns = (
        columns[name].astype(np.int64) for name in ("thread_id", "start_ns", "end_ns")
    )
    process_id = columns["process_id"].astype(np.int64)
    evaluated = np.zeros(len(node), dtype=np.bool_)
    if modes is not None:
        evaluated = (call[node] == Call.FORWARD) & modes.are_evaluated(process_id, thread_id, end_ns)
    calls = ProgramCalls(layer, thread_id, start_ns, end_ns, call[node], evaluated)
    return OutermostCalls(process_id, calls)


def _call_of_nodes(tree: dict[str, Any], names: Sequence[str]) -> Ints:
    """Return what each node is; a node without calls only groups others."""
    of_kind = np.array([_OF_KIND.get(kind, NO_CALL) for kind in KINDS], dtype=np.int64)
    of_name = np.array([_call_of_span(name) for name in names], dtype=np.int64)
    call: Ints = of_kind[tree["kind"]]
    is_span = tree["kind"] == KINDS.index("span")
    call[is_span] = of_name[tree["name"][is_span]]
    call[tree["calls"] <= 0] = NO_CALL
    return call


def call_of(kind: str, name: str) -> int:
    """Return what a call of a kind of KINDS is, a value of Call; NO_CALL for none."""
    return _call_of_span(name) if kind == "span" else _OF_KIND.get(kind, NO_CALL)


def _call_of_span(name: str) -> int:
    if name == _MARK:
        return Call.MARK
    announced = (call for begin, call in _OF_SPAN.items() if name.startswith(begin))
    return next(announced, NO_CALL)


def _are_outermost(parent: Ints, call: Ints) -> Flags:
    """Return for each node whether it is a call outside all others."""
    is_inside = _has_ancestor(parent, ~np.isin(call, TRANSPARENT))
    is_of_optimizer = _has_ancestor(parent, call == Call.OPTIMIZER) & (call == Call.OPERATOR)
    found: Flags = (call != NO_CALL) & ~is_inside & ~is_of_optimizer
    return found


def _has_ancestor(parent: Ints, is_one: Flags) -> Flags:
    # The last element is what is above the roots.
    up = np.append(np.where(parent < 0, len(parent), parent), len(parent))
    found: Flags = np.append(is_one, False)[up]
    while (up < len(parent)).any():
        found |= found[up]
        up = up[up]
    return found[:-1]
