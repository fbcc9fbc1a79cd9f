# SPDX-License-Identifier: Apache-2.0
"""The runs of two sides, brought into the rows of one tree."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import numpy as np

from gpuprof.analyze.call_tree import CallTree, on_gpu
from gpuprof.analyze.calls import Blocks, cut_into_blocks, load_calls, load_gpu_calls, repeated_node
from gpuprof.analyze.difference import Sample
from gpuprof.analyze.phases import Phases, read_phases
from gpuprof.run.facts import program_of, statuses_of
from gpuprof.run.format import KINDS
from gpuprof.text.units import format_duration, format_share

if TYPE_CHECKING:
    import numpy.typing as npt

    from gpuprof.run.folder import RunFolder

    Ints = npt.NDArray[np.int64]

TimeWeight = Literal["cpu", "gpu"]
_PYTHON = KINDS.index("python")
# Of a frame, as `train (train.py:12)`: an edit above a function moves it.
_LINE_OF_DEFINITION = re.compile(r":\d+\)$")


def without_line(frame: str) -> str:
    """Return the name of a function without the line of its definition."""
    return _LINE_OF_DEFINITION.sub(")", frame)


def script_of(meta: Mapping[str, Any]) -> str:
    """Return the name of the recorded script's file as frames have it; empty if it was none."""
    name = program_of(meta)
    return name if name.endswith(".py") else ""


def same_function(frame: str, script: str) -> str:
    """Return what a function is compared by: without its line, and of a script without the file's name.

    A changed copy of a script has the same functions.
    """
    name = without_line(frame)
    return (
        f"{name.removesuffix(f'({script})')}(<script>)" if script and name.endswith(f" ({script})") else name
    )


@dataclass(frozen=True, slots=True)
class ComparedRuns:
    """The samples of all runs on the nodes of `tree`; `repeated` is the node that blocks were cut by."""

    tree: CallTree
    new: list[Sample]
    old: list[Sample]
    repeated: int | None

    @property
    def repeated_name(self) -> str | None:
        """The name of what all runs repeat."""
        return None if self.repeated is None else self.tree.names[int(self.tree.name[self.repeated])]


def load_compared(
    new: Sequence[tuple[RunFolder, CallTree]],
    old: Sequence[tuple[RunFolder, CallTree]],
    weight: TimeWeight = "cpu",
) -> ComparedRuns:
    """Bring runs, each with its call tree, into the rows of one tree. Raises what reading them raises."""
    runs = [*new, *old]
    union, places = union_of([tree for _, tree in runs], [script_of(folder.meta) for folder, _ in runs])
    placed = [(tree, place) for (_, tree), place in zip(runs, places, strict=True)]
    repeated = repeated_node(placed, len(union))
    samples = [
        _sample(folder, tree, place, len(union), repeated, weight)
        for (folder, tree), place in zip(runs, places, strict=True)
    ]
    return ComparedRuns(union, samples[: len(new)], samples[len(new) :], repeated)


def _sample(
    folder: RunFolder, tree: CallTree, place: Ints, rows: int, repeated: int | None, weight: TimeWeight
) -> Sample:
    weighed = on_gpu(tree) if weight == "gpu" else tree
    here = None if repeated is None else np.flatnonzero(place == repeated)
    blocks = None if here is None else _blocks(folder, tree, here, weight)

    def in_union(values: npt.NDArray[Any]) -> npt.NDArray[Any]:
        # Nodes of one name below one node, as layers of two models may be, share a place.
        moved = np.zeros((rows, *values.shape[1:]), dtype=values.dtype)
        np.add.at(moved, place, values)
        return moved

    return Sample(
        total_ns=in_union(weighed.total_ns.astype(np.float64)),
        own_ns=in_union(np.maximum(weighed.own_ns, 0).astype(np.float64)),
        calls=in_union(tree.calls),
        exists=in_union(np.ones(len(tree), dtype=np.bool_)),
        repetitions=None if here is None else int(tree.calls[here].sum()),
        whole_ns=float(np.maximum(weighed.own_ns, 0).sum()),
        blocks=None
        if blocks is None
        else Blocks(in_union(blocks.total_ns), in_union(blocks.own_ns), in_union(blocks.is_regular)),
    )


def _blocks(folder: RunFolder, tree: CallTree, repeated: Ints, weight: TimeWeight) -> Blocks | None:
    calls = load_calls(folder, tree)
    timed = load_gpu_calls(folder) if weight == "gpu" else calls
    if calls is None or timed is None:
        return None
    return cut_into_blocks(tree, timed, calls, repeated)


def method_text(new: Sequence[object], old: Sequence[object], repeated: str | None) -> str:
    """Return a short description of the data for the intervals."""
    if len(new) > 1 and len(old) > 1:
        return f"the variation between {len(new)} new and {len(old)} old runs"
    if repeated is None:
        return "nothing: no call was repeated often enough in every run"
    return f"the variation within the runs, in blocks of “{repeated}”"


def single_run_note(new: Sequence[object], old: Sequence[object]) -> list[str]:
    """Return a note of the limits of a comparison of single runs."""
    if len(new) > 1 and len(old) > 1:
        return []
    return [
        "One run on a side: what differs from one start of a program to the next is not in the intervals. "
        "Record several runs of each side to have it there."
    ]


@dataclass(frozen=True, slots=True)
class WallChange:
    """The wall time of the runs of both sides and that of a step: means over the runs, of a step of means.

    The times of a step are None unless all runs have steps.
    """

    old_ns: float
    new_ns: float
    old_step_ns: float | None
    new_step_ns: float | None

    def __str__(self) -> str:
        text = f"wall time {before_and_now(self.old_ns, self.new_ns)}"
        if self.old_step_ns is None or self.new_step_ns is None:
            return text
        return f"{text}; mean step {before_and_now(self.old_step_ns, self.new_step_ns)}"


def before_and_now(old_ns: float, new_ns: float) -> str:
    """Return two times as text."""
    return f"{format_duration(old_ns)} before, {format_duration(new_ns)} now"


class ComparedSide(NamedTuple):
    """The runs of one side: their meta data, and their phases, None for an imported run without steps."""

    metas: Sequence[Mapping[str, Any]]
    phases: Sequence[Phases | None]

    @classmethod
    def of(cls, folders: Sequence[RunFolder]) -> ComparedSide:
        """Read them. Raises RunError for tables that cannot be read."""
        return cls([each.meta for each in folders], [read_phases(each) for each in folders])


def wall_change(new: ComparedSide, old: ComparedSide) -> WallChange | None:
    """Return how the wall time changed; None where a run has none."""
    sides = old.phases, new.phases
    old_ns, new_ns = (_mean([None if each is None else each.wall_ns for each in side]) for side in sides)
    steps = [_mean([None if each is None else _mean_step_ns(each) for each in side]) for side in sides]
    return None if old_ns is None or new_ns is None else WallChange(old_ns, new_ns, *steps)


def _mean_step_ns(phases: Phases) -> float | None:
    """Return the mean step of the main process, or of all ranks."""
    if phases.steps is not None:
        return phases.steps.mean_ns
    return _mean([each.steps.mean_ns for each in phases.ranks]) if phases.ranks else None


def _mean(values: Sequence[float | None]) -> float | None:
    """Return the mean; None where a value is unknown."""
    known = [each for each in values if each is not None]
    return float(np.mean(known)) if len(known) == len(values) else None


def comparison_notes(new: ComparedSide, old: ComparedSide) -> list[str]:
    """Return what a reader of a comparison must know: what is not alike, and which runs were disturbed."""
    return [*warnings_of(new.metas, old.metas), *_disturbances(new, old)]


def _disturbances(new: ComparedSide, old: ComparedSide) -> list[str]:
    """Return a line if threads waited for a processor, which changes times as a changed program does."""
    found = []
    for side, when in ((old, "before"), (new, "now")):
        waits = [each.processor_waits for each in side.phases if each is not None]
        shares = [each.fraction for each in waits if each is not None and each.contention is not None]
        if shares:
            found.append(f"{format_share(max(shares))} of the time {when}")
    if not found:
        return []
    return [f"Threads waited for a processor ({', '.join(found)}): times may differ for this reason alone."]


def warnings_of(new: Sequence[Mapping[str, Any]], old: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return a line for what is not alike between the sides, by their meta data."""
    told = [
        _difference("script", new, old, script_of),
        _layers_difference(new, old),
        _difference("machine", new, old, _machine),
        _difference("Python and torch", new, old, lambda meta: _words((meta.get("versions") or {}).items())),
        _difference("threads of PyTorch", new, old, _threads),
        _sources_difference(new, old),
    ]
    unlike = [line for line in told if line]
    return [f"The runs are not alike: {'; '.join(unlike)}."] if unlike else []


def _difference(what: str, new: Any, old: Any, fact: Any) -> str:
    new_facts, old_facts = ({fact(meta) for meta in metas} - {""} for metas in (new, old))
    if not new_facts or not old_facts or (new_facts == old_facts and len(new_facts) == 1):
        return ""
    return f"{what} {' or '.join(sorted(old_facts))} before, {' or '.join(sorted(new_facts))} now"


def _layers_difference(new: Sequence[Mapping[str, Any]], old: Sequence[Mapping[str, Any]]) -> str:
    """Return the classes of the outermost modules if the sides have none in common."""
    now, before = ({name for meta in side for name in meta.get("layer_types") or {}} for side in (new, old))
    return "" if not now or not before or now & before else f"models {_list(before)} before, {_list(now)} now"


def _list(names: Iterable[str]) -> str:
    return ", ".join(sorted(names))


def _sources_difference(new: Sequence[Mapping[str, Any]], old: Sequence[Mapping[str, Any]]) -> str:
    """Return the sources that one side alone recorded; all of them if runs of one side differ."""
    sides = [{_recorded(meta) for meta in metas if meta.get("sources")} for metas in (new, old)]
    if not all(len(side) == 1 for side in sides):
        return _difference("sources", new, old, _sources)
    (now,), (before,) = sides
    alone = [(sorted(before - now), "before"), (sorted(now - before), "now")]
    return "; ".join(f"{', '.join(names)} recorded {when} only" for names, when in alone if names)


def _machine(meta: Mapping[str, Any]) -> str:
    machine = meta.get("machine") or {}
    words = [machine.get("processor") or machine.get("architecture")]
    words += [f"{machine['cores']} cores"] if machine.get("cores") else []
    return ", ".join(str(word) for word in words if word)


def _words(pairs: Any) -> str:
    return ", ".join(f"{name} {value}" for name, value in pairs if value)


def _threads(meta: Mapping[str, Any]) -> str:
    return str((meta.get("work") or {}).get("threads") or "")


def _sources(meta: Mapping[str, Any]) -> str:
    return ", ".join(sorted(_recorded(meta))) or ("none" if meta.get("sources") else "")


def _recorded(meta: Mapping[str, Any]) -> frozenset[str]:
    return frozenset(name for name, status in statuses_of(meta).items() if status.is_on)


_Step = tuple[int, str]


# ---- several call trees as one: nodes with the same path of kinds and names are one node ----


def union_of(trees: Sequence[CallTree], scripts: Sequence[str] = ()) -> tuple[CallTree, list[Ints]]:
    """Return a tree that has every path of `trees`, and for each of them where its nodes are in it.

    Python's functions are compared as `same_function` has them, with the script of each tree in `scripts`.
    The order of siblings is that of the first tree that has them. Processes are matched by their order, since
    their ids and names change from run to run. Calls, times and threads of the union are 0; its process ids
    are those of the first tree that has the process.
    """
    grown = _Grown()
    of_trees = scripts or [""] * len(trees)
    places = [grown.add(tree, script) for tree, script in zip(trees, of_trees, strict=True)]
    tree, order = grown.finish()
    return tree, [order[place] for place in places]


class _Grown:
    def __init__(self) -> None:
        self.parent: list[int] = []
        self.kind: list[int] = []
        self.name: list[int] = []
        self.process_id: list[int] = []
        self.names: dict[str, int] = {}
        self._found: dict[tuple[int, _Step], int] = {}

    def add(self, tree: CallTree, script: str) -> Ints:
        """Take in a tree; returns the number of each of its nodes."""
        numbers: list[int] = []
        processes = 0
        columns = (tree.parent, tree.kind, tree.name, tree.process_id)
        for parent, kind, name, process in zip(*(column.tolist() for column in columns), strict=True):
            text = tree.names[name]
            same = same_function(text, script) if kind == _PYTHON else text
            step = (kind, same) if parent >= 0 else (kind, str(processes))
            processes += parent < 0
            key = (numbers[parent] if parent >= 0 else -1, step)
            number = self._found.setdefault(key, len(self.parent))
            if number == len(self.parent):
                self.parent.append(key[0])
                self.kind.append(kind)
                self.name.append(self.names.setdefault(text, len(self.names)))
                self.process_id.append(process)
            numbers.append(number)
        return np.array(numbers, dtype=np.int64)

    def finish(self) -> tuple[CallTree, Ints]:
        """Return the tree in pre-order, and the place of each number in it."""
        children: list[list[int]] = [[] for _ in self.parent]
        roots: list[int] = []
        for number, parent in enumerate(self.parent):
            (children[parent] if parent >= 0 else roots).append(number)
        order, waiting = [], roots[::-1]
        while waiting:
            order.append(waiting.pop())
            waiting += reversed(children[order[-1]])
        place = np.empty(len(order), dtype=np.int64)
        place[order] = np.arange(len(order))
        above = np.array(self.parent, dtype=np.int64)[order]
        nothing = np.zeros(len(order), dtype=np.int64)
        tree = CallTree(
            parent=np.where(above < 0, -1, place[above] if len(place) else above).astype(np.int32),
            kind=np.array(self.kind, dtype=np.uint8)[order],
            name=np.array(self.name, dtype=np.int32)[order],
            calls=nothing,
            total_ns=nothing,
            own_ns=nothing,
            threads=nothing.astype(np.int32),
            process_id=np.array(self.process_id, dtype=np.int64)[order],
            names=list(self.names),
        )
        return tree, place
