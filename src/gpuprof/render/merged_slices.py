# SPDX-License-Identifier: Apache-2.0
"""Which slices of a large run a page has one by one, and the sums of the others.

A page is quick up to a number of slices. Of a larger run it has the longest ones exactly. The shorter ones
are summed up twice: by row in narrow stretches of time, which are drawn as bands, and by name in wide ones,
so that totals stay exact. A slice belongs to the stretch in which it begins.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from gpuprof.render.shown_tree import engine_twins
from gpuprof.render.slices import CATEGORIES, WAITING, SliceSource
from gpuprof.render.tree_shape import OTHER_KIND, name_keys, outermost, subtree_ends
from gpuprof.run.format import KINDS

if TYPE_CHECKING:
    import numpy.typing as npt

    from gpuprof.analyze.call_tree import CallTree

    Ints = npt.NDArray[np.int64]
    Columns = dict[str, npt.NDArray[Any]]

BUDGET = 1_200_000  # slices and different paths of them that a page has one by one
MOST_NAME_BYTES = 4 << 20  # of names of slices that a page has one by one
MOST_MERGED_NAMES = 20_000  # that no slice has which a page has one by one
MOST_BANDS = 200_000
MOST_SUMS = 250_000
_BANDS_ACROSS = 16_384  # of the run's time: a screen has a tenth as many pixels
_SUMS_ACROSS = 512
_TRIES = 4
_KEY = 1 << 32  # of names and categories, above it the duration
# A category of a trace is a kind of call; copies and fills are both transfers.
_KIND_NAMES = {"gpu_memcpy": "transfer", "gpu_memset": "transfer", "python_function": "python"}
KIND_OF_CATEGORY = np.array(
    [*(KINDS.index(_KIND_NAMES.get(name, name)) for name in CATEGORIES), KINDS.index("waiting")],
    dtype=np.int64,
)
_SAMPLED = (CATEGORIES.index("python_function"), WAITING)
_NOT_CALLED = ("process", "layer", "backward")  # without calls such a node only groups others

_DURATIONS = """
    SELECT duration_ns, count(*) AS slices FROM (
        SELECT start_ns, duration_ns FROM scratch.placed_cpu
        UNION ALL SELECT start_ns, duration_ns FROM scratch.placed_gpu)
    WHERE {inside} GROUP BY duration_ns ORDER BY duration_ns DESC
"""
_BANDS = """
    SELECT track, lane, level, (start_ns - $begin) // $width AS stretch, count(*) AS slices,
           sum(duration_ns)::BIGINT AS busy_ns,
           (max(duration_ns::HUGEINT * {key} + name_id::BIGINT * 16 + category) % {key})::BIGINT AS longest
    FROM (SELECT track, lane, level, name_id, category, start_ns, duration_ns FROM scratch.placed_cpu
          UNION ALL SELECT track, lane, level, name_id, category, start_ns, duration_ns
          FROM scratch.placed_gpu)
    WHERE duration_ns < $least AND {inside} GROUP BY ALL ORDER BY track, lane, level, stretch
"""
_OF_PATHS = """
    SELECT (start_ns - $begin) // $width AS stretch, path, count(*) AS slices,
           sum(duration_ns)::BIGINT AS total_ns
    FROM scratch.placed_cpu WHERE path >= 0 AND duration_ns < $least AND {inside} GROUP BY ALL ORDER BY ALL
"""
_OF_SAMPLES = """
    SELECT (start_ns - $begin) // $width AS stretch, cpu.name_id AS name_id, category,
           coalesce(around.name_id, -1) AS above,
           is_outermost, count(*) AS slices, sum(duration_ns)::BIGINT AS total_ns
    FROM (SELECT cpu.*, above, is_outermost FROM scratch.placed_cpu AS cpu
          JOIN (SELECT id, above, is_outermost FROM scratch.stack_slices) USING (id)) AS cpu
    LEFT JOIN (SELECT name_id, name FROM scratch.names) AS around ON around.name = cpu.above
    WHERE duration_ns < $least AND {inside} GROUP BY ALL ORDER BY ALL
"""
_OF_OTHERS = """
    SELECT (start_ns - $begin) // $width AS stretch, name_id, category, count(*) AS slices,
           sum(duration_ns)::BIGINT AS total_ns
    FROM (SELECT name_id, category, start_ns, duration_ns FROM scratch.placed_gpu
          UNION ALL SELECT name_id, category, start_ns, duration_ns FROM scratch.placed_cpu
          WHERE path < 0 AND category NOT IN {sampled})
    WHERE duration_ns < $least AND {inside} GROUP BY ALL ORDER BY ALL
"""
# Calls with these names that are in none with another of them on their lane.
_OUTERMOST = """
    SELECT (start_ns - $begin) // $width AS stretch, sum(duration_ns)::BIGINT AS total_ns
    FROM (SELECT start_ns, duration_ns, max(start_ns + duration_ns) OVER (
              PARTITION BY track, lane ORDER BY start_ns, level
              ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING) AS open_until
          FROM (SELECT track, lane, level, name_id, start_ns, duration_ns FROM scratch.placed_cpu
                UNION ALL SELECT track, lane, level, name_id, start_ns, duration_ns FROM scratch.placed_gpu)
          WHERE duration_ns < $least AND {inside} AND name_id IN (SELECT unnest($names)))
    WHERE open_until IS NULL OR start_ns >= open_until GROUP BY ALL ORDER BY ALL
"""


@dataclass(frozen=True, slots=True)
class Choice:
    """Slices of at least `least_ns` are in a page one by one; of these only those that meet the window."""

    slices: int  # all that meet the window
    shown: int
    least_ns: int
    window: tuple[int, int] | None = None

    @property
    def inside(self) -> str:
        """A condition of SQL for the slices that meet the window."""
        if self.window is None:
            return "true"
        low, high = self.window
        return f"(start_ns < {high:d} AND start_ns + duration_ns > {low:d})"


@dataclass(frozen=True, slots=True)
class Merged:
    """Sums of the slices shorter than `below_ns`.

    `bands` has for each row (track, lane, level) and stretch of `band_ns` slices, busy_ns, and name and kind
    of the longest one. `sums` has for each stretch of `sum_ns`, name and kind: slices, total_ns, outermost_ns
    (without calls inside calls of the same name and kind) and own_ns. The latter is what these slices add to
    the self time of the name: a slice takes its time from the name around it, which can be negative. Of more
    names than a page has, those with the least time are one row of `sums`, of a kind of its own, and
    `names_left_out` is how many they are. Only names that no slice has which is shown one by one are among
    them.
    """

    below_ns: int
    slices: int
    begin_ns: int
    names: list[str]
    band_ns: int
    bands: Columns
    sum_ns: int
    sums: Columns
    names_left_out: int = 0


def choose(source: SliceSource, window: tuple[int, int] | None, *, is_full: bool, budget: int) -> Choice:
    """Return which slices a page has one by one: the longest ones that fit, or all with `is_full`."""
    every = Choice(0, 0, 0, window)
    found = source.ask(_DURATIONS.format(inside=every.inside))
    counts = np.cumsum(found["slices"].astype(np.int64))
    slices = int(counts[-1]) if len(counts) else 0
    wanted = slices if is_full else min(slices, budget)
    for _ in range(_TRIES):
        fitting = int(np.searchsorted(counts, wanted, side="right"))
        shown = int(counts[fitting - 1]) if fitting else 0
        least = int(found["duration_ns"][fitting]) + 1 if fitting < len(counts) else 0
        choice = Choice(slices, shown, least, window)
        if is_full or not shown or not source.has_paths:
            break
        paths, name_bytes = _distinct(source, choice)
        fraction = min(budget / (shown + paths), MOST_NAME_BYTES / max(name_bytes, 1))
        if fraction >= 1:
            break
        wanted = int(shown * fraction)
    return choice


def _distinct(source: SliceSource, choice: Choice) -> tuple[int, int]:
    """Return how many paths the slices have that a page has one by one, and the bytes of their names."""
    condition = f"duration_ns >= {choice.least_ns:d} AND {choice.inside}"
    query = f"""
        SELECT (SELECT count(DISTINCT path) FROM scratch.placed_cpu WHERE {condition}) AS paths,
               coalesce(sum(strlen(name)), 0)::BIGINT AS bytes
        FROM scratch.names SEMI JOIN (
            SELECT name_id FROM scratch.placed_cpu WHERE {condition}
            UNION ALL SELECT name_id FROM scratch.placed_gpu WHERE {condition}) USING (name_id)
    """  # noqa: S608
    found = source.ask(query)
    return int(found["paths"][0]), int(found["bytes"][0])


def merge(source: SliceSource, choice: Choice, tree: CallTree, node_of_path: Ints) -> Merged:
    """Sum up the slices that are not shown. `tree` is that of the run."""
    begin, end = _extent(source, choice)
    names: dict[str, int] = {}
    texts = np.array([names.setdefault(name, len(names)) for name in source.names], dtype=np.int64)
    band_ns, bands = _grouped(source, _BANDS, choice, begin, end, _BANDS_ACROSS, MOST_BANDS)
    longest = bands.pop("longest")
    bands["name"], bands["kind"] = texts[longest >> 4], KIND_OF_CATEGORY[longest & 15]
    sum_ns, of_paths = _grouped(source, _OF_PATHS, choice, begin, end, _SUMS_ACROSS, MOST_SUMS)
    parts = [*_sums_of_paths(of_paths, tree, node_of_path, names)]
    for query in (_OF_SAMPLES, _OF_OTHERS):
        found = source.ask(_filled(query, choice), begin=begin, width=sum_ns, least=choice.least_ns)
        parts += _sums_of_names({key: np.asarray(column) for key, column in found.items()}, texts)
    merged = Merged(
        below_ns=choice.least_ns,
        slices=choice.slices - choice.shown,
        begin_ns=begin,
        names=list(names),
        band_ns=band_ns,
        bands=bands,
        sum_ns=sum_ns,
        sums=_added_up(parts),
    )
    used = np.unique(np.concatenate([merged.sums["name"], merged.bands["name"]]))
    if len(used) <= MOST_MERGED_NAMES:
        return merged
    shown = _names_shown(source, choice, texts)
    is_left_out = _names_left_out(merged, np.setdiff1d(used, shown))
    if not is_left_out.any():
        return merged
    values = {"begin": begin, "width": sum_ns, "least": choice.least_ns}
    left_out = np.flatnonzero(is_left_out[texts]).tolist()
    found = source.ask(_filled(_OUTERMOST, choice), **values, names=left_out)
    return _with_few_names(merged, is_left_out, found)


def _names_shown(source: SliceSource, choice: Choice, texts: Ints) -> Ints:
    """Return the names of the slices that a page has one by one."""
    query = f"""
        SELECT name_id FROM scratch.placed_cpu WHERE duration_ns >= $least AND {choice.inside}
        UNION SELECT name_id FROM scratch.placed_gpu WHERE duration_ns >= $least AND {choice.inside}
    """  # noqa: S608
    return np.asarray(texts[source.ask(query, least=choice.least_ns)["name_id"].astype(np.int64)])


def _names_left_out(merged: Merged, others: Ints) -> npt.NDArray[np.bool_]:
    """Mark those of `others` that are one row, as they have the least time, if there are very many.

    What short slices take from one that is shown has to stay with its name: the page subtracts it there.
    """
    marks = np.zeros(len(merged.names), dtype=np.bool_)
    if len(others) > MOST_MERGED_NAMES:
        time = np.bincount(merged.sums["name"], merged.sums["total_ns"], minlength=len(merged.names))
        marks[others[np.argpartition(-time[others], MOST_MERGED_NAMES)[MOST_MERGED_NAMES:]]] = True
    return marks


def _with_few_names(merged: Merged, is_left_out: npt.NDArray[np.bool_], outermost_ns: Columns) -> Merged:
    """Return the sums with one row for the names that are left out, of these outermost times."""
    count = int(is_left_out.sum())
    new_name = np.where(is_left_out, len(is_left_out), np.arange(len(is_left_out)))
    bands, sums = ({**each, "name": new_name[each["name"]]} for each in (merged.bands, merged.sums))
    sums["kind"] = np.where(sums["name"] == len(is_left_out), OTHER_KIND, sums["kind"])
    sums = _added_up([sums])
    rows = np.flatnonzero(sums["kind"] == OTHER_KIND)
    known = dict(zip(*(outermost_ns[key].tolist() for key in ("stretch", "total_ns")), strict=True))
    sums["outermost_ns"][rows] = [known.get(stretch, 0) for stretch in sums["stretch"][rows].tolist()]
    names = [*merged.names, f"{count:,} other names"]
    return replace(merged, names=names, bands=bands, sums=sums, names_left_out=count)


def _extent(source: SliceSource, choice: Choice) -> tuple[int, int]:
    query = f"""
        SELECT min(start_ns) AS low, max(start_ns + duration_ns) AS high FROM (
            SELECT start_ns, duration_ns FROM scratch.placed_cpu
            UNION ALL SELECT start_ns, duration_ns FROM scratch.placed_gpu)
        WHERE {choice.inside}
    """  # noqa: S608
    found = source.ask(query)
    return int(found["low"][0]), int(found["high"][0])


def _filled(query: str, choice: Choice) -> str:
    return query.format(inside=choice.inside, key=_KEY, sampled=_SAMPLED)


def _grouped(
    source: SliceSource, query: str, choice: Choice, begin: int, end: int, across: int, most: int
) -> tuple[int, Columns]:
    """Return the width of the stretches, and the groups: wider ones where there would be too many."""
    # No stretch is shorter than a slice that belongs to it.
    width = max((end - begin) // across + 1, choice.least_ns)
    for _ in range(_TRIES):
        found = source.ask(_filled(query, choice), begin=begin, width=width, least=choice.least_ns)
        count = len(found["slices"])
        if count <= most or width > end - begin:
            break
        width *= -(-2 * count // most)
    return width, {key: np.asarray(column, dtype=np.int64) for key, column in found.items()}


# ---- by name -------------------------------------------------------------------------------------


def _sums_of_paths(
    found: Columns, tree: CallTree, node_of_path: Ints, names: dict[str, int]
) -> list[Columns]:
    """Return what spans add to their names, and what they take from the names around them."""
    node = np.append(node_of_path, -1)[np.minimum(found["path"], len(node_of_path))]
    known = node >= 0
    found, node = {key: column[known] for key, column in found.items()}, node[known]
    texts = np.array([names.setdefault(name, len(names)) for name in tree.names], dtype=np.int64)
    twins = engine_twins(tree)
    around = _around(tree, twins)[node]
    own = np.where(twins[node], 0, found["total_ns"])
    is_outer = outermost(name_keys(tree), subtree_ends(tree.parent))[node]
    name, kind = texts[tree.name], tree.kind.astype(np.int64)
    taken = (around >= 0) & ~twins[node]
    return [
        _part(found, name[node], kind[node], own, is_outer),
        _taken(found["stretch"][taken], name[around[taken]], kind[around[taken]], found["total_ns"][taken]),
    ]


def _around(tree: CallTree, twins: npt.NDArray[np.bool_]) -> Ints:
    """Return for each node the call on its thread from whose self time it takes its own; -1 for none."""
    skipped = np.isin(tree.kind, [KINDS.index("python"), KINDS.index("waiting")]) | twins
    skipped |= (tree.calls == 0) & np.isin(tree.kind, [KINDS.index(kind) for kind in _NOT_CALLED])
    is_skipped = skipped.tolist()
    around: list[int] = []
    for up in tree.parent.tolist():
        around.append(-1 if up < 0 else around[up] if is_skipped[up] else up)
    return np.array(around, dtype=np.int64)


def _sums_of_names(found: Columns, texts: Ints) -> list[Columns]:
    kind = KIND_OF_CATEGORY[found["category"].astype(np.int64)]
    name = texts[found["name_id"].astype(np.int64)] if len(texts) else found["name_id"].astype(np.int64)
    total = found["total_ns"].astype(np.int64)
    is_outer = found.get("is_outermost", np.ones(len(total), dtype=np.bool_)).astype(np.bool_)
    parts = [_part(found, name, kind, total, is_outer)]
    if "above" in found:
        above = found["above"].astype(np.int64)
        taken = above >= 0
        python = np.full(int(taken.sum()), KINDS.index("python"), dtype=np.int64)
        parts.append(_taken(found["stretch"][taken], texts[above[taken]], python, total[taken]))
    return parts


def _part(found: Columns, name: Ints, kind: Ints, own: Ints, is_outer: npt.NDArray[np.bool_]) -> Columns:
    total = found["total_ns"].astype(np.int64)
    columns = {"stretch": found["stretch"], "name": name, "kind": kind, "slices": found["slices"]}
    return columns | {"total_ns": total, "own_ns": own, "outermost_ns": np.where(is_outer, total, 0)}


def _taken(stretch: Ints, name: Ints, kind: Ints, time: Ints) -> Columns:
    none = np.zeros(len(stretch), dtype=np.int64)
    columns = {"stretch": stretch, "name": name, "kind": kind, "slices": none}
    return columns | {"total_ns": none, "own_ns": -time, "outermost_ns": none}


def _added_up(parts: list[Columns]) -> Columns:
    columns = {key: np.concatenate([part[key] for part in parts]).astype(np.int64) for key in parts[0]}
    keys = [columns.pop(key) for key in ("stretch", "name", "kind")]
    order = np.lexsort(keys[::-1])
    keys = [key[order] for key in keys]
    changes = np.logical_or.reduce([np.diff(key, prepend=-1) != 0 for key in keys])
    first = np.flatnonzero(changes)
    found = {name: key[first] for name, key in zip(("stretch", "name", "kind"), keys, strict=True)}
    if not len(first):
        return found | columns
    return found | {key: np.add.reduceat(column[order], first) for key, column in columns.items()}
