# SPDX-License-Identifier: Apache-2.0
"""What the runs of programs.py must hold. On a GPU and in the rehearsal without one, the same."""

from __future__ import annotations

from collections import Counter

from attribution import Placed, layers_of_spans, placed_kernels
from known_layers import BLOCKS, LABELS, LAYERS, OPERATORS, is_known

import gpuprof


def rows(run: gpuprof.Run, query: str) -> list[tuple[object, ...]]:
    return run.sql(query).fetchall()


def is_whole(run: gpuprof.Run) -> None:
    """Nothing is missing, and the run is marked complete."""
    gpu = run.meta["gpu"]
    assert run.sources["kernels"].method == "cupti", run.sources
    counts = ("dropped", "unfinished", "unknown", "truncated", "lost_records", "outside")
    unwanted = {key: gpu[key] for key in counts}
    assert not any(unwanted.values()), unwanted
    assert rows(run, "SELECT name FROM kernels WHERE launch_ns IS NULL") == []
    assert run.meta["complete"], run.meta["notes"]


def launches_come_before_kernels(run: gpuprof.Run) -> None:
    error_ns = run.meta["gpu"]["clock_error_ns"]
    late = rows(
        run, f"SELECT name, start_ns - launch_ns FROM kernels WHERE start_ns < launch_ns - {error_ns}"
    )
    assert not late


def known(placed: dict[str, list[Placed]]) -> dict[str, list[Placed]]:
    """Return the test's own kernels of those in the call tree."""
    return {name: places for name, places in placed.items() if is_known(name)}


def known_in_order(run: gpuprof.Run) -> list[tuple[str, str | None]]:
    """Return the test's own kernels with their layers, in the order of their begin."""
    return [(name, layer) for name, layer in layers_of_spans(run) if is_known(name)]


def operators(run: gpuprof.Run, passes: int, *, of_graphs: bool = False) -> None:
    """Each layer of one operator launched one kernel in each pass: another one than the other layers."""
    is_whole(run)
    launches_come_before_kernels(run)
    condition = "graph_node_id IS NOT NULL" if of_graphs else "TRUE"
    names = [
        str(name) for (name,) in rows(run, f"SELECT name FROM kernels WHERE {condition} ORDER BY start_ns")
    ]
    placed = placed_kernels(run)
    assert names == names[: len(OPERATORS)] * passes
    assert len(set(names)) == len(OPERATORS)
    for operator, name in zip(OPERATORS, names, strict=False):
        assert placed[name] == [Placed(operator, False, passes)]


def network(run: gpuprof.Run, layers: list[str]) -> None:
    """Whatever kernels the libraries take: each has its launch and is in a layer, and each layer has some."""
    is_whole(run)
    launches_come_before_kernels(run)
    found = layers_of_spans(run)
    assert {layer for _, layer in found} == set(layers)


def forward(run: gpuprof.Run, passes: int = 2) -> None:
    is_whole(run)
    expected = [(f"forward_{label}", LAYERS[label]) for label in LABELS] * passes
    assert layers_of_spans(run) == expected
    places = {name: [Placed(layer, False, passes)] for name, layer in expected}
    assert placed_kernels(run) == places
    launches_come_before_kernels(run)


def grids(run: gpuprof.Run) -> None:
    found = rows(run, "SELECT DISTINCT name, grid_x, grid_y, block_x FROM kernels ORDER BY name")
    assert found == [(f"forward_{label}", BLOCKS[label], 1, 32) for label in sorted(LABELS)]


def backward(run: gpuprof.Run) -> None:
    is_whole(run)
    expected = {}
    for label in LABELS:
        expected[f"forward_{label}"] = [Placed(LAYERS[label], False, 1)]
        expected[f"backward_{label}"] = [Placed(LAYERS[label], True, 1)]
    assert known(placed_kernels(run)) == expected
    there = [f"forward_{label}" for label in LABELS]
    back = [f"backward_{label}" for label in reversed(LABELS)]
    assert [name for name, _ in known_in_order(run)] == there + back


def graph(run: gpuprof.Run) -> None:
    is_whole(run)
    assert known_in_order(run) == [(f"forward_{label}", LAYERS[label]) for label in LABELS] * 3
    expected = {f"forward_{label}": [Placed(LAYERS[label], False, 3)] for label in LABELS}
    assert known(placed_kernels(run)) == expected
    without = rows(run, "SELECT DISTINCT name FROM kernels WHERE graph_node_id IS NULL")
    assert not [name for (name,) in without if is_known(str(name))]


def begun_in_a_capture(run: gpuprof.Run) -> None:
    """What was captured after the recording began is in its layers; what came before cannot be."""
    assert "gpu_began_in_capture" in [note.code for note in run.notes]
    replayed = rows(run, "SELECT count(*) FROM kernels WHERE graph_node_id IS NOT NULL")
    assert replayed == [(len(LABELS) + 1,)]
    expected = {f"forward_{label}": LAYERS[label] for label in LABELS[1:]}
    assert expected.items() <= dict(known_in_order(run)).items()


def graph_from_before(run: gpuprof.Run) -> None:
    is_whole(run)
    assert rows(run, "SELECT count(*) FROM kernels WHERE graph_node_id IS NOT NULL") == [(3 * len(LABELS),)]
    units = {name: place for name, place in placed_kernels(run).items() if name.startswith("CUDA graph ")}
    assert list(units.values()) == [[Placed(None, False, 3)]]
    (name,) = units
    above = rows(
        run,
        "SELECT parent.name FROM call_tree JOIN call_tree AS parent ON parent.node_id = call_tree.parent_id "
        f"WHERE call_tree.kind = 'kernel' AND call_tree.name = '{name}'",
    )
    assert above == [("replays",)]
    (note,) = [note for note in run.notes if note.code == "foreign_graphs"]
    assert [f"CUDA graph {number}" for number in note.values["graphs"]] == [name]


def restarts(runs: list[gpuprof.Run]) -> None:
    for number, run in enumerate(runs):
        is_whole(run)
        names = [name for (name,) in rows(run, "SELECT name FROM kernels ORDER BY start_ns")]
        assert names == [f"forward_{LABELS[place % len(LABELS)]}" for place in range(number)]


def killed(run: gpuprof.Run, launched: int, early: int) -> None:
    assert not run.meta["complete"]
    ((count,),) = rows(run, "SELECT count(*) FROM kernels")
    assert early > 0
    assert isinstance(count, int)
    assert early <= count <= launched


def forked(run: gpuprof.Run, child: int) -> None:
    assert child == 0
    is_whole(run)
    assert rows(run, "SELECT count(*) FROM kernels") == [(20,)]
    assert rows(run, "SELECT count(*) FROM spans WHERE name = 'in the child'") == [(1,)]


def without_gpu(run: gpuprof.Run) -> None:
    assert run.sources["kernels"].reason == "not_wanted"
    assert run.meta["gpu"] is None
    assert rows(run, "SELECT count(*) FROM kernels") == [(0,)]
    assert rows(run, "SELECT count(*) FROM samples") == [(0,)]


def threads(run: gpuprof.Run) -> None:
    is_whole(run)
    found = rows(
        run,
        "SELECT kernels.name, spans.name, count(*) FROM kernels JOIN spans USING (span_id) "
        "GROUP BY ALL ORDER BY 1",
    )
    assert found == [(f"forward_{label}", f"thread {label}", 20) for label in LABELS[:3]]
    waits = rows(
        run,
        "SELECT DISTINCT spans.name FROM synchronizations JOIN spans USING (span_id) "
        "WHERE type = 'context' ORDER BY 1",
    )
    assert waits == [(f"thread {label}",) for label in LABELS[:3]]


def streams(run: gpuprof.Run) -> None:
    is_whole(run)
    expected = Counter({(f"forward_{label}", LAYERS[label]): 3 for label in LABELS})
    assert Counter(layers_of_spans(run)) == expected
    found = rows(run, "SELECT stream, list(name ORDER BY start_ns) FROM kernels GROUP BY stream")
    assert len(found) == 3
    assert all(names == [f"forward_{label}" for label in LABELS] for _, names in found)


def long_run(run: gpuprof.Run, launched: int, recording_bytes: int) -> None:
    """What was not recorded is counted, and the memory does not grow with the number of kernels."""
    gpu = run.meta["gpu"]
    ((count,),) = rows(run, "SELECT count(*) FROM kernels")
    assert count == gpu["kernels"]
    missing = gpu["dropped"] + gpu["unfinished"] + gpu["lost_records"]
    assert gpu["kernels"] + missing == launched
    assert run.meta["complete"] == (missing == 0)
    assert recording_bytes < 200_000_000


def device_samples(run: gpuprof.Run) -> None:
    """The device was busy for some seconds."""
    assert run.sources["samples"].method == "nvml", run.sources
    query = "SELECT metric, list(value ORDER BY t_ns) FROM samples WHERE device = 0 GROUP BY metric"
    found: dict[str, list[float]] = dict(run.sql(query).fetchall())
    assert max(found["utilization_percent"]) > 50
    assert found["energy_j"] == sorted(found["energy_j"])
    assert found["energy_j"][-1] > 10
    assert max(found["memory_used_bytes"]) > 64 * 2**20
    assert max(found["power_w"]) > 10
    assert max(found["sm_clock_hz"]) > 100e6
