# SPDX-License-Identifier: Apache-2.0
"""The recorded spans as the counting pass would see them: operators by root call and layer, or backward."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from gpuprof.analyze.roofline.counted import COMPILED, plain_name
from gpuprof.analyze.roofline.device_work import Execution, Piece, executions_of, load_pieces

if TYPE_CHECKING:
    from gpuprof.run.folder import RunFolder

OUTSIDE = ""


@dataclass(slots=True)
class Span:
    """One recorded span with what encloses it. `layer` is the nearest layer, `root` the outermost one."""

    kind: str
    name: str
    start_ns: int
    duration_ns: int
    root: str = OUTSIDE
    layer: str = OUTSIDE
    root_call: int | None = None
    in_backward: bool = False
    in_operator: bool = False
    taken: bool = False  # a candidate, or inside of one
    is_candidate: bool = False
    inner_ns: int = 0  # of the outermost operators: time in candidates
    inner_on_gpu: bool = False  # and whether any of these had work done on a GPU
    outermost: Span | None = None  # the outermost operator around a candidate
    # What it had done on GPUs, also through the operators inside of it that have no row of their own.
    pieces: Sequence[Piece] = ()
    owner: Span | None = None  # whose row its pieces are in: the candidate or outermost operator around it

    @property
    def on_gpu(self) -> bool:
        """Whether anything of it ran on a GPU."""
        return bool(self.pieces)

    @property
    def executions(self) -> list[Execution]:
        """What it had done on GPUs, by device and replay."""
        return executions_of(self.pieces)


@dataclass(slots=True)
class Timed:
    """What was timed. Operators are those that the counting pass has names for, outermost first."""

    # For each call of a root: its name, and the operators of each layer in order.
    root_calls: dict[int, tuple[str, dict[str, list[Span]]]] = field(default_factory=dict)
    # In order of time: calls of roots (by number), and backward operators.
    events: list[tuple[int, int | Span]] = field(default_factory=list)
    # The outermost operators that nothing was counted for in whole.
    uncounted: list[Span] = field(default_factory=list)
    # Own time of each layer, (root, layer) -> ns in each call of the root, by its number.
    layer_own_ns: dict[tuple[str, str], Counter[int]] = field(default_factory=dict)
    total_ns: int = 0
    # What ran on GPUs in no operator, with the innermost span around its launch.
    stray: list[tuple[Span | None, Piece]] = field(default_factory=list)
    # All time on each GPU; and by (root, layer, device) what no row has, in each call of the root.
    device_ns: Counter[str] = field(default_factory=Counter)
    layer_rest_ns: dict[tuple[str, str, str], Counter[int]] = field(default_factory=dict)


def load_timed(
    folder: RunFolder, process_id: int, forward: Collection[tuple[str, str]], backward: Collection[str]
) -> Timed:
    """Read the spans of a process. `forward` are counted (root, operator), `backward` operators."""
    timed = Timed()
    spans: dict[int, tuple[Span, int | None]] = {}
    query = f"""
        SELECT span_id, parent_id, kind, name, start_ns, duration_ns FROM spans
        WHERE process_id = {int(process_id)} ORDER BY span_id
    """  # noqa: S608 - a whole number
    for span_id, parent_id, kind, name, start_ns, duration_ns in folder.sql(query).fetchall():
        span = Span(kind, name, start_ns, duration_ns)
        above = spans.get(parent_id, (None, None))[0]
        spans[span_id] = span, parent_id
        _place(span, above, span_id)
        _choose(span, forward, backward)
        _file(timed, span, above, spans, parent_id)
    timed.events.sort(key=lambda event: event[0])
    for launcher, piece in load_pieces(folder, process_id):
        _give(timed, spans[launcher][0] if launcher in spans else None, piece)
    return timed


def _give(timed: Timed, span: Span | None, piece: Piece) -> None:
    """Put what ran on a GPU where its operator is."""
    timed.device_ns[piece.device] += piece.duration_ns
    owner = None if span is None else span.owner
    if owner is None:
        timed.stray.append((span, piece))
    else:
        if isinstance(owner.pieces, list):
            owner.pieces.append(piece)
        else:
            owner.pieces = [piece]  # most spans have none
        if owner.outermost is not None:
            owner.outermost.inner_on_gpu = True
    if span is None or span.in_backward or span.root_call is None or (owner and owner.is_candidate):
        return
    rest = timed.layer_rest_ns.setdefault((span.root, span.layer, piece.device), Counter())
    rest[span.root_call] += piece.duration_ns


def _place(span: Span, above: Span | None, span_id: int) -> None:
    """Say what a span is inside of."""
    if above is not None:
        span.root, span.layer, span.root_call = above.root, above.layer, above.root_call
        span.in_backward = above.in_backward
        span.in_operator = above.in_operator or above.kind == "operator"
        span.taken = above.taken
        span.owner = above.owner
    if span.kind == "backward":
        span.in_backward = True
    elif span.kind == "layer":
        span.layer = span.name
        if span.root_call is None:
            span.root, span.root_call = span.name, span_id


def _choose(span: Span, forward: Collection[tuple[str, str]], backward: Collection[str]) -> None:
    """Make the outermost span that the counting pass has a name for a candidate."""
    if span.taken:
        return
    if span.kind == "layer":
        wanted = (span.root, f"{COMPILED}{span.name}") in forward
    elif span.kind != "operator":
        wanted = False
    elif span.in_backward:
        wanted = plain_name(span.name) in backward
    else:
        wanted = (span.root, plain_name(span.name)) in forward
    span.taken = span.is_candidate = wanted
    if wanted or (span.kind == "operator" and not span.in_operator):
        span.owner = span


def _file(
    timed: Timed,
    span: Span,
    above: Span | None,
    spans: dict[int, tuple[Span, int | None]],
    parent_id: int | None,
) -> None:
    """Put a span where it belongs."""
    if above is None:
        timed.total_ns += span.duration_ns
    if span.kind == "layer" and not span.in_backward and span.root_call is not None:
        own = timed.layer_own_ns.setdefault((span.root, span.layer), Counter())
        own[span.root_call] += span.duration_ns
        if above is not None and above.root_call is not None:
            timed.layer_own_ns[above.root, above.layer][span.root_call] -= span.duration_ns
        else:
            timed.root_calls[span.root_call] = span.root, {}
            timed.events.append((span.start_ns, span.root_call))
    if span.is_candidate:
        if span.in_backward:
            timed.events.append((span.start_ns, span))
        elif span.root_call is not None:
            timed.root_calls[span.root_call][1].setdefault(span.layer, []).append(span)
        _credit(span, spans, parent_id)
    elif span.kind == "operator" and not span.in_operator and not span.taken:
        timed.uncounted.append(span)


def _credit(span: Span, spans: dict[int, tuple[Span, int | None]], parent_id: int | None) -> None:
    """Tell the outermost operator around a candidate that a part of its time is counted."""
    outermost = None
    while parent_id is not None and parent_id in spans:
        above, parent_id = spans[parent_id]
        if above.kind == "operator":
            outermost = above
    if outermost is not None:
        outermost.inner_ns += span.duration_ns
        span.outermost = outermost
