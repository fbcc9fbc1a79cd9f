# SPDX-License-Identifier: Apache-2.0
"""Pages of runs with more calls or paths than a page draws one by one: what is summed up, and exact sums.

The oracle is the run itself, asked with SQL. The limits are lowered, so that the runs are small.
"""

from __future__ import annotations

import base64
import gzip
import json
import random
import threading
from collections import Counter, defaultdict
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from page_reader import MergedCalls, merged_of, script, timeline_of
from refusals import refused
from test_timeline import write_spans

import gpuprof
from gpuprof.errors import RunError
from gpuprof.render import flame_page, merged_slices, pruned_tree
from gpuprof.render import timeline as timeline_module
from gpuprof.run.format import KINDS

SLICES = 6_000
BUDGET = 1_000


@pytest.fixture(scope="module", name="run")
def many_calls(tmp_path_factory: pytest.TempPathFactory) -> gpuprof.Run:
    """Return a run of nested calls of 30 names, up to 6 deep, of 1 to 100,000 ns."""
    order = random.Random(7)
    starts: list[int] = []
    lengths: list[int] = []
    names: list[str] = []
    opened: list[int] = []
    now = 1_000
    while len(names) < SLICES or opened:
        now += int(10 ** order.uniform(0, 4))
        if len(names) < SLICES and len(opened) < 6 and (not opened or order.random() < 0.6):
            opened.append(len(names))
            names.append(f"call {order.randrange(30)}")
            starts.append(now)
            lengths.append(0)
        else:
            ended = opened.pop()
            lengths[ended] = now - starts[ended]
    return write_spans(tmp_path_factory.mktemp("run") / "large.gpuprof", starts, lengths, names)


@pytest.fixture
def small_budget(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(timeline_module, "BUDGET", BUDGET)
    monkeypatch.setattr(merged_slices, "MOST_BANDS", 500)
    monkeypatch.setattr(merged_slices, "MOST_SUMS", 2_000)


def page_of(run: gpuprof.Run, tmp_path: Path, **options: Any) -> str:
    return run.flamegraph(tmp_path / "page.html", **options).read_text(encoding="utf-8")


def spans_of(run: gpuprof.Run) -> list[tuple[str, int, int]]:
    rows: list[tuple[str, int, int]] = run.sql(
        "SELECT name, start_ns, duration_ns FROM spans ORDER BY duration_ns DESC"
    ).fetchall()
    return rows


# ---- the timeline --------------------------------------------------------------------------------


@pytest.mark.usefixtures("small_budget")
def test_the_longest_calls_are_exact_and_the_others_are_counted(run: gpuprof.Run, tmp_path: Path) -> None:
    page = page_of(run, tmp_path)
    found, merged = timeline_of(page), merged_of(page)
    below = merged.below_ns
    shown = Counter((each.name, each.start_ns, each.duration_ns) for each in found.slices)
    assert shown == Counter(span for span in spans_of(run) if span[2] >= below)
    assert 0 < len(found.slices) < BUDGET
    assert (
        merged.slices == len(spans_of(run)) - len(found.slices) == sum(band.slices for band in merged.bands)
    )
    assert len(merged.bands) <= 500


@pytest.mark.usefixtures("small_budget")
def test_bands_have_the_short_calls_of_their_row_and_time(run: gpuprof.Run, tmp_path: Path) -> None:
    page = page_of(run, tmp_path)
    merged = merged_of(page)
    rows: list[tuple[int, int, int, str]] = run.sql(
        "SELECT depth, start_ns, duration_ns, name FROM spans ORDER BY start_ns"
    ).fetchall()
    wanted: dict[tuple[int, int], list[tuple[int, str]]] = defaultdict(list)
    for depth, start, length, name in rows:
        if length < merged.below_ns:
            wanted[depth, (start - merged.begin_ns) // merged.band_ns].append((length, name))
    found = {
        (band.level, (band.start_ns - merged.begin_ns) // merged.band_ns): (band.slices, band.busy_ns)
        for band in merged.bands
    }
    assert found == {key: (len(calls), sum(length for length, _ in calls)) for key, calls in wanted.items()}
    for band in merged.bands:
        calls = wanted[band.level, (band.start_ns - merged.begin_ns) // merged.band_ns]
        assert band.longest in {name for length, name in calls if length == max(calls)[0]}


@pytest.mark.usefixtures("small_budget")
def test_totals_by_name_are_those_of_the_run(run: gpuprof.Run, tmp_path: Path) -> None:
    page = page_of(run, tmp_path)
    found, merged = timeline_of(page), merged_of(page)
    wanted = {
        name: (calls, total)
        for name, calls, total in run.sql(
            "SELECT name, count(*), sum(duration_ns)::BIGINT FROM spans GROUP BY name"
        ).fetchall()
    }
    totals: dict[str, list[int]] = defaultdict(lambda: [0, 0])
    for each in found.slices:
        totals[each.name][0] += 1
        totals[each.name][1] += each.duration_ns
    for part in merged.sums:
        totals[part.name][0] += part.slices
        totals[part.name][1] += part.total_ns
    assert {name: tuple(sums) for name, sums in totals.items()} == wanted
    own = dict(run.sql("SELECT name, sum(own_ns)::BIGINT FROM call_tree GROUP BY name").fetchall())
    assert self_times(found, merged) == {name: own[name] for name in wanted}


def self_times(found: Any, merged: MergedCalls) -> dict[str, int]:
    """Self times by name: of classes as the page does it, and what the short calls add and take."""
    ns = [0] * len(found.classes)
    for each in found.slices:
        ns[each.class_number] += each.duration_ns
    own = list(ns)
    for number, (_, _, parent, _) in enumerate(found.classes):
        if parent >= 0:
            own[parent] -= ns[number]
    names: dict[str, int] = defaultdict(int)
    for number, (name, kind, _, _) in enumerate(found.classes):
        if KINDS[kind] != "process":
            names[name] += own[number]
    for part in merged.sums:
        names[part.name] += part.own_ns
    return dict(names)


def test_a_recursive_name_counts_its_outermost_calls(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(timeline_module, "BUDGET", 4)
    # a calls b calls a, a hundred times; one call is long.
    start = [at * 100 + more for at in range(100) for more in (0, 10, 20)]
    run = write_spans(
        tmp_path / "r.gpuprof", [*start, 20_000], [60, 40, 5] * 100 + [9_000], [*"aba"] * 100 + ["b"]
    )
    merged = merged_of(page_of(run, tmp_path))
    sums = {part.name: [0, 0, 0, 0] for part in merged.sums}
    for part in merged.sums:
        for at, value in enumerate((part.slices, part.total_ns, part.outermost_ns, part.own_ns)):
            sums[part.name][at] += value
    assert sums == {"a": [200, 6500, 6000, 2500], "b": [100, 4000, 4000, 3500]}


def test_a_full_page_has_every_call(run: gpuprof.Run, tmp_path: Path, small_budget: None) -> None:
    page = page_of(run, tmp_path, full=True)
    assert len(timeline_of(page).slices) == len(spans_of(run))
    head = json.loads(script(page, "timeline-head"))
    assert (head["merged"], head["note"]) == (None, "")


def test_a_range_has_every_call_in_it(run: gpuprof.Run, tmp_path: Path, small_budget: None) -> None:
    low, high = run.sql("SELECT min(start_ns), max(start_ns + duration_ns) FROM spans").fetchall()[0]
    window = (low + (high - low) // 2, low + (high - low) // 2 + (high - low) // 40)
    page = page_of(run, tmp_path, time_range=(window[0] / 1e9, window[1] / 1e9))
    found = timeline_of(page)
    inside = [span for span in spans_of(run) if span[1] < window[1] and span[1] + span[2] > window[0]]
    assert 0 < len(inside) < BUDGET // 2
    assert Counter((each.name, each.start_ns, each.duration_ns) for each in found.slices) == Counter(inside)
    assert found.head["window"] == list(window)
    assert found.head["merged"] is None


def test_a_range_without_time_is_refused(run: gpuprof.Run, tmp_path: Path) -> None:
    with refused(RunError, "invalid_range"):
        run.flamegraph(tmp_path / "page.html", time_range=(2.0, 2.0))


def test_calls_of_equal_length_are_all_bands(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(timeline_module, "BUDGET", 10)
    run = write_spans(tmp_path / "r.gpuprof", [at * 20 for at in range(50)], [7] * 50, ["same"] * 50)
    page = page_of(run, tmp_path)
    assert timeline_of(page).slices == []
    assert sum(part.total_ns for part in merged_of(page).sums) == 350


def test_kernels_keep_what_launched_them(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(timeline_module, "BUDGET", 60)
    events: list[dict[str, Any]] = []

    def event(name: str, ts: float, dur: float, cat: str, tid: int, **args: Any) -> None:
        events.append(
            {"ph": "X", "pid": 7, "tid": tid, "ts": ts, "dur": dur, "name": name, "cat": cat, "args": args}
        )

    for at in range(50):
        event("aten::mm", at * 10, 3, "cpu_op", 1)
        event("cudaLaunchKernel", at * 10 + 1, 1, "cuda_runtime", 1, correlation=at + 1)
        event("gemm", at * 10 + 2, 6, "kernel", 7, correlation=at + 1, device=0, context=1, stream=7)
    path = tmp_path / "gpu.json"
    path.write_text(json.dumps({"traceEvents": events}))
    run = gpuprof.import_trace(path, tmp_path / "gpu.gpuprof")
    page = page_of(run, tmp_path)
    found = timeline_of(page)
    assert [each.name for each in found.slices] == ["gemm"] * 50
    assert {each.launcher for each in found.slices} == {-1}
    (kernel,) = {each.class_number for each in found.slices}
    assert found.classes[found.classes[kernel][2]][0] == "aten::mm"
    sums = [part for part in merged_of(page).sums if part.name == "aten::mm"]
    assert (sum(part.slices for part in sums), sum(part.total_ns for part in sums)) == (50, 150_000)


# ---- waits ---------------------------------------------------------------------------------------


def stack_rows(run: gpuprof.Run, rows: list[tuple[int, int, int, list[str], int, int]]) -> gpuprof.Run:
    """Return the run with these samples: thread, time, duration, frames, on a processor, in the run queue."""
    import duckdb

    process = run.meta["process_id"]
    folder = run.path / "stacks" / "rank=0"
    for old in (run.path / "stacks").rglob("*.parquet"):
        old.unlink()
    folder.mkdir(parents=True, exist_ok=True)
    values = ", ".join(
        f"({t}, {process}, {thread}, {duration}, {frames!r}, {cpu}, {queued}, -1)"
        for thread, t, duration, frames, cpu, queued in rows
    )
    names = "t_ns, process_id, thread_id, duration_ns, frames, cpu_ns, queued_ns, line"
    types = ["BIGINT", "BIGINT", "BIGINT", "BIGINT", "VARCHAR[]", "BIGINT", "BIGINT", "BIGINT"]
    columns = ", ".join(
        f"{name}::{kind} AS {name}" for name, kind in zip(names.split(", "), types, strict=True)
    )
    relation: Any = duckdb.sql(f"SELECT {columns} FROM (VALUES {values}) AS t({names})")
    relation.write_parquet(str(folder / "part.parquet"))
    from run_edits import forget_parts

    forget_parts(run.path)
    return gpuprof.open(run.path)


def test_waits_are_slices_of_their_own_and_idle_threads_one_track(record: Any, tmp_path: Path) -> None:
    def body() -> None:
        with gpuprof.span("work"):
            pass

    run = record(body).run
    main = run.meta["process_id"]
    lock, sleep = "lock.acquire (built-in)", "time.sleep (built-in)"
    found = timeline_of(
        page_of(
            stack_rows(
                run,
                [
                    (main, 10, 10, ["main"], 9, 0),
                    (main, 20, 10, ["main", sleep], 0, 0),  # waits: a wait, not a function
                    (main, 30, 10, ["main", sleep], 1, 2),
                    (main, 40, 10, ["main", sleep], 8, 0),  # on a processor for most of it
                    (main, 50, 10, ["main"], 0, 0),  # waits in an unknown function
                    *((2, t, 10, ["loop", lock], 0, 0) for t in (20, 30, 60)),
                    *((3, t, 10, ["loop", lock], 0, 0) for t in (25, 35)),
                    *((4, t, 10, ["busy"], 10, 0) for t in (20, 30)),
                ],
            ),
            tmp_path,
        )
    )
    slices = sorted(
        (
            each.track.rpartition("/")[2].partition(" ")[0],
            each.level,
            each.name,
            KINDS[each.kind],
            each.start_ns,
            each.duration_ns,
        )
        for each in found.slices
        if each.name != "work"
    )
    of_main = [each[1:] for each in slices if each[2] in ("main", sleep, "(waiting)")]
    assert of_main == [
        (0, "main", "python", 0, 50),
        (1, "(waiting)", "waiting", 40, 10),
        (1, sleep, "python", 30, 10),
        (1, sleep, "waiting", 10, 20),
    ]
    assert [each for each in slices if each[0] == "idle"] == [
        ("idle", 0, "idle threads", "waiting", 10, 25),
        ("idle", 0, "idle threads", "waiting", 50, 10),
    ]
    assert [each[2:] for each in slices if each[2] in ("busy", "loop")] == [("busy", "python", 10, 20)]


def test_an_export_keeps_the_stacks_of_threads_that_wait(record: Any, tmp_path: Path) -> None:
    run = record(lambda: None).run
    lock = "lock.acquire (built-in)"
    run = stack_rows(run, [(2, t, 10, ["loop", lock], 0, 0) for t in (20, 30)])
    trace = json.loads(run.export(tmp_path / "trace.json").read_text())
    names = {event["name"] for event in trace["traceEvents"] if event["ph"] == "X"}
    assert names == {"loop", lock}


@pytest.fixture(scope="module", name="run_of_many_names")
def calls_of_many_names(tmp_path_factory: pytest.TempPathFactory) -> gpuprof.Run:
    """Return a run of 20 long calls with 40 short ones each; no two have the same name."""
    starts, lengths, names = [], [], []
    for at in range(20):
        starts += [at * 10_000, *(at * 10_000 + 200 * child for child in range(40))]
        lengths += [9_000, *(50 + at + child for child in range(40))]
        names += [f"outer {at}", *(f"inner {at}.{child}" for child in range(40))]
    return write_spans(tmp_path_factory.mktemp("names") / "names.gpuprof", starts, lengths, names)


def test_names_with_the_least_time_are_one_name(
    run_of_many_names: gpuprof.Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(timeline_module, "BUDGET", 40)  # 20 slices with their paths
    monkeypatch.setattr(merged_slices, "MOST_MERGED_NAMES", 100)
    page = page_of(run_of_many_names, tmp_path)
    found, merged = timeline_of(page), merged_of(page)
    assert {each.name for each in found.slices} == {f"outer {at}" for at in range(20)}
    # What the short calls take stays with the name that they take it from.
    own = self_times(found, merged)
    assert {at: own[f"outer {at}"] for at in range(20)} == {
        at: 9_000 - sum(50 + at + child for child in range(40)) for at in range(20)
    }
    totals: dict[str, int] = defaultdict(int)
    for part in merged.sums:
        totals[part.name] += part.total_ns
    wanted = {name: length for name, _, length in spans_of(run_of_many_names) if length < merged.below_ns}
    largest = sorted(wanted.values())[-100:]
    others = sum(wanted.values()) - sum(largest)
    assert sorted(total for name, total in totals.items() if name.startswith("inner")) == largest
    assert totals["700 other names"] == own["700 other names"] == others
    assert {band.longest for band in merged.bands} <= set(totals)
    assert "700 names with the least time" in json.loads(script(page, "timeline-head"))["note"]


def test_the_row_of_many_names_counts_nested_calls_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(timeline_module, "BUDGET", 2)
    monkeypatch.setattr(merged_slices, "MOST_MERGED_NAMES", 3)
    events: list[dict[str, Any]] = []

    def event(name: str, cat: str, ts: int, dur: int) -> None:
        events.append({"ph": "X", "pid": 7, "tid": 1, "ts": ts, "dur": dur, "name": name, "cat": cat})

    event("long", "cpu_op", 20_000, 9_000)
    for at in range(10):
        for level in range(8):  # of two kinds in turn
            category = ("user_annotation", "cpu_op")[level % 2]
            event(f"call {level}", category, at * 1_000 + 10 * level, 200 - 22 * level)
    path = tmp_path / "nested.json"
    path.write_text(json.dumps({"traceEvents": events}))
    run = gpuprof.import_trace(path, tmp_path / "nested.gpuprof")
    page = page_of(run, tmp_path)
    rows = [part for part in merged_of(page).sums if part.name == "5 other names"]
    # Those of levels 3 to 7: only the calls of level 3 are in no other of them.
    wanted = {
        level: sum(length for name, _, length in spans_of(run) if name == f"call {level}")
        for level in range(3, 8)
    }
    assert sum(part.total_ns for part in rows) == sum(wanted.values())
    assert sum(part.outermost_ns for part in rows) == wanted[3]
    kinds = json.loads(script(page, "head"))["kinds"]
    assert {kinds[part.kind] for part in rows} == {"other"}


def test_calls_of_very_many_names_are_summed_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(merged_slices, "MOST_NAME_BYTES", 30 * len("request 199"))
    names = [f"request {number}" for number in range(200)]
    starts = [at * 1000 for at in range(200)]
    run = write_spans(tmp_path / "r.gpuprof", starts, [at + 1 for at in range(200)], names)
    page = page_of(run, tmp_path)
    assert {each.name for each in timeline_of(page).slices} == set(names[-30:])
    assert merged_of(page).slices == 170
    full = page_of(run, tmp_path, full=True)
    assert len(timeline_of(full).slices) == 200


# ---- the flame graph -----------------------------------------------------------------------------


def tree_in(page: str) -> tuple[dict[str, Any], dict[str, npt.NDArray[Any]], dict[str, npt.NDArray[Any]]]:
    """Read head, columns of the tree, and columns of hidden names."""
    head = json.loads(script(page, "head"))
    raw = base64.b64decode(script(page, "columns"))
    raw = gzip.decompress(raw) if head["gzip"] else raw

    def columns(at: int, count: int, specs: list[list[str]]) -> dict[str, npt.NDArray[Any]]:
        found = {}
        for name, kind in specs:
            found[name] = np.frombuffer(raw, dtype=kind, count=count, offset=at)
            at += found[name].nbytes
        return found

    hidden = head["hidden"]
    return (
        head,
        columns(0, head["count"], head["columns"]),
        columns(hidden["at"], hidden["count"], hidden["columns"]),
    )


@pytest.fixture
def few_paths(monkeypatch: pytest.MonkeyPatch) -> None:
    small = pruned_tree.pruned
    monkeypatch.setattr(flame_page, "pruned", lambda *parts: small(*parts, most=40))


@pytest.mark.usefixtures("few_paths")
def test_rare_paths_are_cells_whose_sums_are_exact(run: gpuprof.Run, tmp_path: Path) -> None:
    head, tree, hidden = tree_in(page_of(run, tmp_path))
    parents = [at - up if up else -1 for at, up in enumerate(tree["up"].tolist())]
    other = head["kinds"].index("other")
    is_other = tree["kind"] == other
    paths = len(run.call_tree) - int((~is_other).sum())
    assert 0 < int((~is_other).sum()) <= 41
    assert int(tree["paths"].sum()) == paths == int(hidden["paths"].sum())
    own = run.sql("SELECT sum(own_ns)::BIGINT, sum(greatest(calls, 0))::BIGINT FROM call_tree").fetchall()[0]
    assert (int(tree["cpu.own"].sum()), int(tree["calls"].sum())) == own
    # In pre-order, and a cell for many paths is the last child of its caller.
    for at, parent in enumerate(parents):
        assert parent < at
    assert all(parents[at] >= 0 for at in np.flatnonzero(is_other).tolist())
    inside = tree["cpu.own"] + tree["cpu.inside"]
    children = np.zeros(len(parents))
    for at, parent in enumerate(parents):
        if parent >= 0:
            children[parent] += inside[at]
    assert (children == tree["cpu.inside"])[~is_other].all()


@pytest.mark.usefixtures("few_paths")
def test_names_of_rare_paths_have_their_sums(run: gpuprof.Run, tmp_path: Path) -> None:
    head, tree, hidden = tree_in(page_of(run, tmp_path))
    found: dict[tuple[str, str], list[int]] = defaultdict(lambda: [0, 0])
    for columns in (tree, hidden):
        rows = zip(*(columns[key].tolist() for key in ("name", "kind", "calls", "cpu.own")), strict=True)
        for name, kind, calls, own in rows:
            found[head["names"][name], head["kinds"][kind]][0] += int(calls)
            found[head["names"][name], head["kinds"][kind]][1] += int(own)
    wanted = {
        (name, kind): [calls, own]
        for name, kind, calls, own in run.sql(
            "SELECT name, kind, sum(greatest(calls, 0))::BIGINT, sum(own_ns)::BIGINT FROM call_tree "
            "GROUP BY 1, 2"
        ).fetchall()
    }
    assert {key: sums for key, sums in found.items() if key[1] not in ("other", "process")} == {
        key: sums for key, sums in wanted.items() if key[1] != "process"
    }


@pytest.mark.usefixtures("few_paths")
def test_names_with_the_least_time_are_one_row(
    run: gpuprof.Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _, _, every = tree_in(page_of(run, tmp_path))
    monkeypatch.setattr(pruned_tree, "MOST_NAMES", 8)
    page = page_of(run, tmp_path)
    head, _, hidden = tree_in(page)
    left_out = len(every["name"]) - 8
    assert head["names"][hidden["name"][-1]] == f"{left_out} other names"
    assert head["kinds"][hidden["kind"][-1]] == "other"
    own = sorted(every["cpu.own"].tolist(), reverse=True)
    assert sorted(hidden["cpu.own"][:-1].tolist(), reverse=True) == own[:8]
    for key in ("cpu.own", "calls", "paths"):
        assert hidden[key].sum() == every[key].sum()
    assert f"The {left_out} names with the least time are one row." in page


def test_the_row_of_hidden_names_counts_nested_calls_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    small = pruned_tree.pruned
    monkeypatch.setattr(flame_page, "pruned", lambda *parts: small(*parts, most=1))
    monkeypatch.setattr(pruned_tree, "MOST_NAMES", 2)
    lengths = [90_000 - 10 * level - 1_000 * level * (level - 1) // 2 for level in range(12)]
    run = write_spans(tmp_path / "r.gpuprof", list(range(12)), lengths, [f"call {at}" for at in range(12)])
    head, _, hidden = tree_in(page_of(run, tmp_path))
    own = [length - inner for length, inner in zip(lengths, [*lengths[1:], 0], strict=True)]
    left_out = sorted(range(12), key=lambda level: own[level])[:10]
    assert head["names"][hidden["name"][-1]] == "10 other names"
    assert hidden["cpu.own"][-1] == sum(own[level] for level in left_out)
    assert hidden["cpu.total"][-1] == max(lengths[level] for level in left_out) == 90_000


# ---- differences ---------------------------------------------------------------------------------


@pytest.fixture(scope="module", name="other_run")
def changed_calls(run: gpuprof.Run, tmp_path_factory: pytest.TempPathFactory) -> gpuprof.Run:
    """Return a run in which half of the calls have another name, and all take twice as long."""
    rows = run.sql("SELECT name, start_ns, duration_ns FROM spans ORDER BY start_ns").fetchall()
    return write_spans(
        tmp_path_factory.mktemp("other") / "other.gpuprof",
        [2 * start for _, start, _ in rows],
        [2 * length for *_, length in rows],
        [f"new {name}" if at % 2 else name for at, (name, *_) in enumerate(rows)],
    )


@pytest.fixture
def few_compared_paths(monkeypatch: pytest.MonkeyPatch) -> None:
    small = pruned_tree.pruned_sides
    monkeypatch.setattr(flame_page, "pruned_sides", lambda *parts: small(*parts, most=40))


@pytest.mark.usefixtures("few_compared_paths")
def test_rare_paths_of_a_difference_are_cells_whose_sums_are_exact(
    run: gpuprof.Run, other_run: gpuprof.Run, tmp_path: Path
) -> None:
    page = page_of(other_run, tmp_path, against=run)
    head, tree, _ = tree_in(page)
    is_other = tree["kind"] == head["kinds"].index("other")
    assert 0 < int((~is_other).sum()) <= 41
    parents = [at - up if up else -1 for at, up in enumerate(tree["up"].tolist())]
    for side, of in (("old", run), ("new", other_run)):
        own, calls = of.sql(
            "SELECT sum(own_ns)::BIGINT, sum(calls) FILTER (kind <> 'process')::BIGINT FROM call_tree"
        ).fetchall()[0]
        assert tree[f"cpu-none.own.{side}"].sum(dtype=np.float64) == pytest.approx(own, rel=1e-6)
        assert tree[f"cpu-none.calls.{side}"][1:].sum(dtype=np.float64) == calls
        # The calls nest, so a total is the sum of the self times in it, also that of a cell for many.
        sums = tree[f"cpu-none.own.{side}"].astype(np.float64)
        for at in range(len(parents) - 1, 0, -1):
            sums[parents[at]] += sums[at]
        assert tree[f"cpu-none.total.{side}"][1:] == pytest.approx(sums[1:], rel=1e-5, abs=1)
    assert "are summed up in cells" in page
    assert "RUN --full" not in page.partition("<script")[0].rpartition("left-out")[2]


@pytest.mark.usefixtures("few_compared_paths")
@pytest.mark.parametrize("most", [1000, 8])
def test_names_of_rare_paths_of_a_difference_have_their_sums(
    run: gpuprof.Run, other_run: gpuprof.Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, most: int
) -> None:
    monkeypatch.setattr(pruned_tree, "MOST_NAMES", most)
    head, tree, hidden = tree_in(page_of(other_run, tmp_path, against=run))
    kinds = head["kinds"]
    for side, of in (("old", run), ("new", other_run)):
        found: dict[str, float] = defaultdict(float)
        for columns in (tree, hidden):
            rows = zip(columns["name"], columns["kind"], columns[f"cpu-none.own.{side}"], strict=True)
            for name, kind, own in rows:
                if columns is hidden or kinds[kind] != "other":
                    found[head["names"][name]] += float(own)
        wanted = dict(
            of.sql(
                "SELECT name, sum(own_ns)::BIGINT FROM call_tree WHERE kind <> 'process' GROUP BY 1"
            ).fetchall()
        )
        if most == 1000:
            assert {name: found[name] for name in wanted} == pytest.approx(wanted, rel=1e-5)
        assert sum(found.values()) == pytest.approx(
            of.sql("SELECT sum(own_ns)::BIGINT FROM call_tree").fetchall()[0][0], rel=1e-5
        )
    assert len(hidden["name"]) <= most + 1


@pytest.mark.usefixtures("few_paths")
def test_calls_of_rare_paths_lead_to_their_cell(run: gpuprof.Run, tmp_path: Path) -> None:
    page = page_of(run, tmp_path)
    _, tree, _ = tree_in(page)
    found = timeline_of(page)
    calls = Counter(found.classes[each.class_number][3] for each in found.slices)
    wanted = {node: int(count) for node, count in enumerate(tree["calls"].tolist()) if node and count}
    assert calls == wanted


def test_a_small_tree_and_a_full_page_have_every_path(
    run: gpuprof.Run, tmp_path: Path, few_paths: None
) -> None:
    head, _, hidden = tree_in(page_of(run, tmp_path, full=True))
    assert (head["count"], len(hidden)) == (len(run.call_tree), 0)
    assert "other" not in head["kinds"]


def test_threads_that_are_recorded_at_once_stay_apart(
    record: Any, tmp_path: Path, small_budget: None
) -> None:
    def work() -> None:
        for _ in range(700):
            with gpuprof.span("short"):
                pass

    def body() -> None:
        threads = [threading.Thread(target=work) for _ in range(2)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

    run = record(body).run
    page = page_of(run, tmp_path)
    merged = merged_of(page)
    counts: Counter[str] = Counter(each.track for each in timeline_of(page).slices)
    for band in merged.bands:
        counts[band.track] += band.slices
    assert sorted(counts.values()) == [700, 700]
