# SPDX-License-Identifier: Apache-2.0
"""Where the time of requests went, against times that the run was made of."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from refusals import refused
from simulated_load import (
    MODULE_CALL,
    MS,
    OTHER,
    OUTSIDE_NS,
    Part,
    SimulatedLoad,
    layer,
    operator,
    python,
    wait,
    with_rare,
)

from gpuprof import open as open_run
from gpuprof.analyze.requests.slow_request import TimePart
from gpuprof.analyze.requests.slowest import ProfiledRequests
from gpuprof.errors import RunError
from gpuprof.load.figures import distribution_of
from gpuprof.run.folder import RunFolder

HANDLE, RARE = "handle (app.py:3)", "rare (app.py:9)"


def profiled(load: SimulatedLoad, path: Path) -> ProfiledRequests:
    return ProfiledRequests(RunFolder(load.write(path / "profile.gpuprof")))


def parts_ms(requests: ProfiledRequests, index: int = 0) -> dict[str, float]:
    (found,) = [each for each in requests.slowest(1000) if each.index == index]
    assert found.parts_ns is not None
    in_service = sum(time for part, time in found.parts_ns.items() if part is not TimePart.PARALLEL)
    assert in_service == found.service_ns
    return {str(part): time / MS for part, time in found.parts_ns.items() if time}


def test_parts_are_what_the_request_was_made_of(tmp_path: Path) -> None:
    load = SimulatedLoad()
    load.serve(
        layer("net", 3, operator("aten::addmm", 2), operator("aten::relu", 1)),
        python(4, HANDLE),
        wait(5, HANDLE, "lock.acquire (built-in)"),
        Part("gc", "generation 2", 7),
        Part("compile", "compilation 0/0", 6),
        Part("span", "user's", 0.5),
    )
    assert parts_ms(profiled(load, tmp_path)) == {
        "layers": 3,
        "operators": 3,
        "python": 4.5,
        "waiting": 5,
        "gc": 7,
        "compilation": 6,
        "outside": 2 * OUTSIDE_NS / MS,
    }


def test_functions_are_below_the_innermost_span(tmp_path: Path) -> None:
    load = SimulatedLoad()
    inside = (HANDLE, MODULE_CALL, "Net.forward (net.py:1)", "scale (net.py:9)")
    net = Part("layer", "net", 0, (python(2, *inside), operator("aten::mul", 1)))
    load.serve(net, python(1, HANDLE))
    requests = profiled(load, tmp_path)
    tree = requests.tree(requests.known)
    (times,) = tree.of.values()
    found = {
        "/".join(tree.name[node] for node in tree.path(node)[1:]): own
        for node, own in times.own_ns.items()
        if own
    }
    assert found == {
        "request/net/scale (net.py:9)": 2 * MS,
        "request/net/aten::mul": MS,
        f"request/{HANDLE}": MS,
    }


def test_a_sample_of_the_next_request_is_not_of_this_one(tmp_path: Path) -> None:
    load = SimulatedLoad()
    load.serve(Part("span", "first", 1))
    load.serve(python(1, HANDLE))
    # It lasts from the middle of the first request to that of the second.
    load.stacks[0]["duration_ns"] = 3 * MS // 2
    requests = profiled(load, tmp_path)
    assert parts_ms(requests, 0) == {"python": 1, "outside": 2 * OUTSIDE_NS / MS}
    first = requests.times(requests.known[0] if requests.known[0].place == 0 else requests.known[1])
    assert first is not None
    assert {requests.tree([]).kind[node] for node, own in first.own_ns.items() if own} == {"span"}


def test_spans_on_other_threads_are_counted_apart(tmp_path: Path) -> None:
    load = SimulatedLoad()
    load.serve(Part("span", "waits", 0, (Part("backward", "node", 3, thread_id=OTHER),)), operator("a::b", 4))
    found = parts_ms(profiled(load, tmp_path))
    assert (found["parallel"], found["operators"]) == (3, 4)


def test_turns_of_a_task_are_divided_from_its_waits(tmp_path: Path) -> None:
    load = SimulatedLoad()
    step = Part(
        "span",
        "running",
        1,
        (python(1, "main (app.py:1)", "Handle._run (python3.11/asyncio/events.py:78)", HANDLE),),
    )
    load.serve(step, python(5, "select (python3.11/selectors.py:4)"), step)
    requests = profiled(load, tmp_path)
    # What the thread did between the turns is another task's.
    assert parts_ms(requests) == {"python": 4, "waiting": 5, "outside": 2 * OUTSIDE_NS / MS}
    tree = requests.tree([])
    assert {tree.name[node] for node, kind in enumerate(tree.kind) if kind == "python"} == {HANDLE}


@pytest.mark.parametrize(
    ("rare", "cause"),
    [
        (wait(20, RARE, "time.sleep (built-in)"), ("waiting", "time.sleep (built-in)", RARE)),
        (wait(20, RARE), ("waiting", "(waiting)", RARE)),
        (wait(20, RARE, "lock.acquire (built-in)"), ("waiting", "lock.acquire (built-in)", RARE)),
        (layer("net.rare", 1, operator("aten::addmm", 19)), ("operator", "aten::addmm", "net.rare")),
        (layer("net.rare", 20), ("layer", "net.rare", "")),
        (Part("gc", "generation 2", 20), ("gc", "generation 2", "")),
        (python(20, HANDLE, RARE), ("python", RARE, HANDLE)),
    ],
)
def test_the_planted_cause_is_found(tmp_path: Path, rare: Part, cause: tuple[str, str, str]) -> None:
    requests = profiled(with_rare([rare]), tmp_path)
    first, second, third = requests.slowest(3)
    assert {first.index, second.index} == {49, 99}
    for each in (first, second):
        assert each.cause is not None
        assert (each.cause.kind, each.cause.name, each.cause.inside) == cause
        assert each.cause.typical_ns == 0
        assert each.cause.own_ns >= 19 * MS
    assert third.cause is None


def test_what_a_request_waited_for(tmp_path: Path) -> None:
    load = SimulatedLoad()
    for index, ms in enumerate((1, 20, 1, 2)):
        load.serve(operator("aten::mm", ms), planned_ns=index * 5 * MS)
    requests = profiled(load, tmp_path)
    by_latency = requests.slowest(4, "latency")
    # 1 is sent at 5 ms and takes 20; 2 and 3, planned at 10 and 15, wait for it.
    assert [(each.index, each.waited_for) for each in by_latency] == [(1, None), (2, 1), (3, 1), (0, None)]
    end_of_1 = 25 * MS + 2 * OUTSIDE_NS
    assert [each.queued_ns for each in by_latency] == [
        0,
        end_of_1 - 10 * MS,
        end_of_1 + MS + 2 * OUTSIDE_NS - 15 * MS,
        0,
    ]
    assert [each.index for each in requests.slowest(2)] == [1, 3]
    wait_of_tail = requests.tail_wait()
    assert wait_of_tail is not None
    assert (wait_of_tail.requests, wait_of_tail.queued_fraction) == (1, 0)
    assert (wait_of_tail.latency_ns, wait_of_tail.is_maximum) == (by_latency[0].latency_ns, True)
    with refused(RunError, "unknown_order", "'size'"):
        requests.slowest(1, "size")  # type: ignore[arg-type]


def test_p99_of_many_requests_is_below_their_maximum(tmp_path: Path) -> None:
    load = SimulatedLoad()
    for index in range(200):
        load.serve(operator("aten::mm", 2 if index < 198 else index - 180))
    requests = profiled(load, tmp_path)
    wait = requests.tail_wait()
    assert wait is not None
    assert (wait.requests, wait.latency_ns // MS, wait.is_maximum) == (2, 2, False)
    latencies_s = np.array([each.latency_ns for each in requests.slowest(200)]) / 1e9
    assert wait.latency_ns / 1e9 == distribution_of(latencies_s).p99


def test_a_batch_is_one_row_with_its_size(tmp_path: Path) -> None:
    load = SimulatedLoad()
    load.serve(operator("aten::mm", 8), batch=4)
    load.serve(operator("aten::mm", 1))
    requests = profiled(load, tmp_path)
    batch, single = requests.slowest()
    assert (batch.batch_size, batch.service_ns, single.batch_size) == (4, 8 * MS + 2 * OUTSIDE_NS, 1)
    assert len(requests) == 5
    rows = requests.folder.sql("SELECT index, count(*) FROM request_spans GROUP BY 1 ORDER BY 1").fetchall()
    assert rows == [(0, 2), (1, 2), (2, 2), (3, 2), (4, 2)]


def test_requests_without_spans_have_no_parts(tmp_path: Path) -> None:
    load = SimulatedLoad()
    load.serve(operator("aten::mm", 8))
    load.serve(operator("aten::mm", 1), status="timeout")
    load.requests[1]["span_id"] = None
    load.requests.append({**load.requests[1], "index": 2, "sent_ns": None, "status": "not_sent"})
    requests = profiled(load, tmp_path)
    with_span, without = requests.slowest()
    assert with_span.parts_ns is not None
    assert (without.parts_ns, without.cause, without.span_id, without.status) == (None, None, None, "timeout")
    assert not requests.has_tail()


def test_a_run_of_something_else_is_refused(tmp_path: Path) -> None:
    load = SimulatedLoad()
    load.serve(operator("aten::mm", 8))
    load.requests.clear()
    run = open_run(load.write(tmp_path / "other.gpuprof"))
    with refused(RunError, "no_requests", "other.gpuprof"):
        run.requests()


def test_tail_and_median_are_chosen_by_service(tmp_path: Path) -> None:
    load = SimulatedLoad()
    order = np.random.default_rng(1).permutation(1000)
    for rank in order.tolist():
        load.serve(operator("aten::mm", 1 + rank / 100))
    requests = profiled(load, tmp_path)
    ranks = [sorted(order[each.place] for each in side) for side in (requests.tail(), requests.median())]
    assert ranks == [[*range(990, 1000)], [*range(400, 600)]]
    sampled = requests.sampled(requests.known)
    assert len(sampled) == 200
    places = [each.place for each in sampled]
    assert (places[0], places[-1]) == (0, 999)
    assert places == sorted(set(places))
