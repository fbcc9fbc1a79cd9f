# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import functools
import inspect
import json
import math
import re
import time
from collections.abc import AsyncIterator, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from queues import served
from refusals import refused

import gpuprof
from gpuprof.bench.verdicts import TargetVerdict
from gpuprof.errors import BenchmarkError, GpuprofError
from gpuprof.load import open_result
from gpuprof.load.driver import drive
from gpuprof.load.figures import TargetJudgement
from gpuprof.load.requests import RequestStatus
from gpuprof.load.result import LoadResult, LoadRun, LoadSettings, judgement_text
from gpuprof.load.targets.base import RequestError
from gpuprof.load.targets.finding import find_target
from gpuprof.load.targets.in_process import CallableTarget
from gpuprof.text.messages import code_text


def result_of(rows: Any, **run: Any) -> LoadResult:
    settings = LoadSettings("target", "server", "poisson", 200.0, 5.0, slo="p99<20ms", concurrency=1)
    start_ns = int(rows["planned_ns"][0])
    return LoadResult(settings, LoadRun(start_ns, int(rows["end_ns"].max()), **run), rows)


def even_rows(count: int = 1000, service_ns: int = 1_000_000) -> Any:
    return served(np.arange(count) * 5_000_000, np.full(count, service_ns))


def codes(result: LoadResult) -> set[str]:
    return {each.code for each in result.warnings}


def test_rates_and_verdict_of_an_even_load() -> None:
    found = result_of(even_rows())
    assert found.planned_rate == pytest.approx(200)
    assert found.achieved_rate == pytest.approx(1000 / 4.996)
    assert found.verdict is TargetVerdict.MET
    assert found.warnings == ()


def test_a_result_survives_its_folder(tmp_path: Path) -> None:
    found = result_of(even_rows(), ceiling_per_s=1e6)
    folder = found.save(tmp_path / "a" / "result")
    again = open_result(folder)
    assert again.to_dict() == found.to_dict()
    assert (again.rows == found.rows).all()
    assert json.loads((folder / "result.json").read_text())["latency_s"]["p50"] == pytest.approx(0.001)


def test_folders_without_a_result_are_refused(tmp_path: Path) -> None:
    with refused(GpuprofError, "no_load_result"):
        open_result(tmp_path)
    (tmp_path / "result.json").write_text("{}")
    with refused(GpuprofError, "damaged"):
        open_result(tmp_path)
    (tmp_path / "file").write_text("")
    with refused(GpuprofError, "cannot_write"):
        result_of(even_rows()).save(tmp_path / "file")


def test_a_rate_near_the_ceiling_is_generator_bound() -> None:
    assert "generator_bound" in codes(result_of(even_rows(), ceiling_per_s=300.0))
    assert "generator_bound" not in codes(result_of(even_rows(), ceiling_per_s=500.0))


def test_requests_that_were_sent_late_to_a_free_target_are_reported() -> None:
    rows = even_rows()
    rows["sent_ns"] += 400_000
    rows["end_ns"] += 400_000
    assert "late" in codes(result_of(rows))


def test_failed_and_duplicate_requests_are_reported() -> None:
    rows = even_rows()
    rows["status"][::10] = RequestStatus.FAILED
    found = result_of(rows, duplicates=3, interrupted=True)
    assert {"failed_requests", "duplicate_ends", "interrupted"} <= codes(found)
    assert found.verdict is TargetVerdict.MISSED
    assert found.statuses == {RequestStatus.OK: 900, RequestStatus.FAILED: 100}


def test_an_overloaded_target_is_not_steady() -> None:
    assert "not_steady" in codes(result_of(even_rows(service_ns=10_000_000)))


def test_too_few_requests_for_the_target_are_reported() -> None:
    found = result_of(even_rows(100))
    assert "too_few_requests" in codes(found)
    assert found.verdict is TargetVerdict.INCONCLUSIVE


def test_requests_that_are_too_few_for_a_verdict_are_reported() -> None:
    # The quantile has its 29 requests, and a run is judged from 40 on.
    found = LoadResult(
        LoadSettings("f", "server", rate=200.0, slo="p90<20ms"), result_of(even_rows(35)).run, even_rows(35)
    )
    [warned] = [each for each in found.warnings if each.code == "too_few_requests"]
    assert (found.verdict, warned.values["least"]) == (TargetVerdict.INCONCLUSIVE, 40)


@pytest.mark.texts
@pytest.mark.parametrize(
    ("options", "words"),
    [
        (
            {"rate": 5, "slo": "p99<1s"},
            "at least 299 .*; hint: plan 900 or more .* --duration or .* --rate",
        ),
        (
            {"scenario": "offline", "count": 5, "slo": "p50<1s"},
            "at least 6 .*; hint: plan 40 or .* --count",
        ),
    ],
)
def test_a_refusal_names_requests_that_give_a_verdict(options: dict[str, Any], words: str) -> None:
    with refused(BenchmarkError, "too_few_requests") as caught:
        gpuprof.load(lambda: None, **options)
    assert re.search(words, str(caught.value)), caught.value


@pytest.mark.texts
def test_a_trace_that_is_too_short_has_a_hint_of_its_own(tmp_path: Path) -> None:
    (tmp_path / "trace").write_text("0\n1\n2\n")
    with refused(BenchmarkError, "too_few_requests", "use a longer trace") as caught:
        gpuprof.load(lambda: None, scenario="trace", pattern=str(tmp_path / "trace"), slo="p99<1s")
    assert "--duration" not in str(caught.value)


@pytest.mark.texts
def test_a_verdict_that_its_interval_does_not_explain_has_a_reason() -> None:
    far = TargetJudgement(TargetVerdict.INCONCLUSIVE, 0.097, 0.019, 0.29, is_correlated=True)
    assert "slow requests come together" in judgement_text("p99<50ms", far)
    near = replace(far, is_correlated=False)
    assert judgement_text("p99<50ms", near).startswith("p99<50ms: inconclusive (")


@pytest.mark.texts
def test_every_warning_has_a_text() -> None:
    rows = even_rows(service_ns=10_000_000)
    rows["status"][:5] = RequestStatus.TIMEOUT
    found = result_of(rows, duplicates=1, interrupted=True, ceiling_per_s=300.0)
    assert len(found.warnings) >= 4
    assert all(str(each) != code_text(each.code, each.values) for each in found.warnings)


# --- gpuprof.load --------------------------------------------------------------------------------


def test_the_package_is_the_function_too() -> None:
    seen: list[int] = []
    for _ in range(2):
        found = gpuprof.load(lambda: seen.append(1), rate=500, duration_s=0.1)
    assert len(found.rows) == 50
    assert len(seen) == 100
    assert found.settings.pattern == "poisson"
    assert found.run.ceiling_per_s is not None
    with pytest.raises(AttributeError):
        _ = gpuprof.load.nothing_here


@pytest.mark.parametrize(
    ("options", "count"),
    [
        ({"scenario": "single-stream", "count": 20}, 20),
        ({"scenario": "multi-stream", "count": 20}, 20),
        ({"scenario": "closed-loop", "count": 20, "concurrency": 3}, 20),
        ({"scenario": "offline", "count": 20}, 20),
        ({"scenario": "constant", "rate": 1000, "duration_s": 0.02}, 20),
        ({"scenario": "ramp", "pattern": "ramp:500-1500", "duration_s": 0.02}, 20),
        ({"pattern": "gamma:0.5", "rate": 1000, "duration_s": 0.02}, 20),
    ],
)
def test_every_scenario_sends_its_requests(options: dict[str, Any], count: int) -> None:
    found = gpuprof.load(lambda: None, **options)
    assert found.statuses == {RequestStatus.OK: count}
    assert set(found.rows["units"].tolist()) == {8 if options.get("scenario") == "multi-stream" else 1}
    assert str(found)


def test_a_trace_and_a_folder(tmp_path: Path) -> None:
    (tmp_path / "trace").write_text("0\n0.001\n0.002\n")
    found = gpuprof.load(
        lambda: None, scenario="trace", pattern=str(tmp_path / "trace"), out=str(tmp_path / "out")
    )
    assert len(found.rows) == 3
    assert (open_result(tmp_path / "out").rows == found.rows).all()


def test_targets_that_fail_have_statuses() -> None:
    def refuse(index: int) -> None:
        raise RequestError(RequestStatus.REFUSED)

    found = gpuprof.load(CallableTarget(refuse, with_index=True), rate=1000, duration_s=0.01)
    assert found.statuses == {RequestStatus.REFUSED: 10}


async def respond() -> None:
    """Respond at once."""


def test_coroutine_functions_are_awaited() -> None:
    assert gpuprof.load(respond, rate=1000, duration_s=0.01).statuses == {RequestStatus.OK: 10}
    with refused(BenchmarkError, "closed_loop_of_coroutines"):
        gpuprof.load(respond, scenario="single-stream", count=3)


@pytest.mark.parametrize(
    ("options", "code"),
    [
        ({"rate": 0}, "invalid_schedule"),
        ({"rate": -5}, "invalid_schedule"),
        ({"rate": math.nan}, "invalid_schedule"),
        ({"rate": math.inf}, "invalid_schedule"),
        ({"rate": 5, "duration_s": 0}, "invalid_schedule"),
        ({"rate": 0.1, "duration_s": 1}, "empty_plan"),
        ({}, "invalid_schedule"),
        ({"rate": 5, "slo": "p99<1s"}, "too_few_requests"),
        ({"rate": 5, "slo": "fast"}, "invalid_target"),
        ({"rate": 5, "scenario": "chaos"}, "unknown_scenario"),
        ({"rate": 5, "pattern": "sawtooth"}, "unknown_pattern"),
        ({"rate": 5, "mix": "batch=1"}, "invalid_mix"),
        ({"rate": 5, "mix": "tokens=1:2"}, "invalid_load"),
        ({"rate": 5, "mix": "batch=1:2,2:1"}, "mix_of_callable"),
        ({"rate": 5, "count": 5}, "invalid_load"),
        ({"rate": 5, "concurrency": 0}, "invalid_concurrency"),
        ({"scenario": "single-stream", "rate": 5}, "invalid_load"),
        ({"scenario": "single-stream", "concurrency": 2}, "invalid_load"),
        ({"scenario": "offline", "duration_s": 5}, "invalid_load"),
        ({"scenario": "offline", "count": 0}, "empty_plan"),
        ({"scenario": "ramp", "duration_s": 5}, "invalid_load"),
        ({"scenario": "burst", "rate": 5, "pattern": "poisson"}, "invalid_load"),
        ({"scenario": "trace"}, "invalid_load"),
        ({"scenario": "ramp", "pattern": "ramp:0-50"}, "invalid_schedule"),
        ({"scenario": "single-stream", "count": 5, "slo": "p99<1s"}, "too_few_requests"),
    ],
)
def test_what_cannot_work_is_refused_before_the_first_request(options: dict[str, Any], code: str) -> None:
    seen: list[int] = []
    with refused(BenchmarkError, code):
        gpuprof.load(lambda: seen.append(1), **options)
    assert not seen


@pytest.mark.texts
@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({}, "--scenario server without a rate"),
        ({"scenario": "ramp", "pattern": "ramp:0-50"}, "first rate of the ramp"),
        ({"scenario": "ramp", "rate": 5}, "omit --rate, and set --pattern"),
        ({"scenario": "chaos"}, "soak"),
    ],
)
def test_a_refusal_names_what_was_given_and_all_that_is_missing(options: dict[str, Any], words: str) -> None:
    with pytest.raises(BenchmarkError) as caught:
        gpuprof.load(lambda: None, **options)
    assert words in str(caught.value)


@pytest.mark.parametrize(
    ("target", "code"),
    [
        ("ftp://x", "unknown_scheme"),
        ("python:json", "invalid_target_name"),
        ("python:no_such_module_here:f", "cannot_import"),
        ("python:json:nothing", "invalid_target_name"),
        ("missing.py:build", "no_such_file"),
        (3, "not_callable"),
    ],
)
def test_targets_that_do_not_exist_are_refused(target: Any, code: str) -> None:
    with refused(GpuprofError, code):
        gpuprof.load(target, rate=100)


@pytest.mark.parametrize(
    "source", ["def f(:\n", "raise RuntimeError('planted')\n", "import sys; sys.exit(3)\n"]
)
def test_a_module_whose_import_fails_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, source: str
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "module_that_fails.py").write_text(source, encoding="utf-8")
    with refused(BenchmarkError, "import_failed", "module_that_fails"):
        gpuprof.load("python:module_that_fails:f", rate=100)


class Called:
    def __call__(self) -> None:
        pass


class CalledLater:
    async def __call__(self) -> None:
        pass


def wrapped_with_argument() -> Any:
    def handle(model: int) -> int:
        return model

    @functools.wraps(handle)
    def handle_with_model(*args: Any) -> int:
        return handle(5, *args)

    return handle_with_model


def signed() -> Any:
    def handle(*args: Any) -> None:
        pass

    handle.__signature__ = inspect.signature(lambda x: x)  # type: ignore[attr-defined]
    return handle


async def takes_later(x: int) -> None:
    pass


def generate() -> Iterator[int]:
    yield 1


async def generate_later() -> AsyncIterator[int]:
    yield 1


@pytest.mark.parametrize(
    ("target", "inputs", "code"),
    [
        (lambda x: x, None, "wrong_arguments"),
        (functools.partial(lambda x, y: x, 1), None, "wrong_arguments"),
        (lambda *, x: x, None, "wrong_arguments"),
        (lambda: None, 3, "wrong_arguments"),
        (takes_later, None, "wrong_arguments"),
        (generate, None, "generator_function"),
        (functools.partial(generate), None, "generator_function"),
        (generate_later, None, "generator_function"),
    ],
)
def test_functions_that_cannot_handle_a_request_are_refused(target: Any, inputs: Any, code: str) -> None:
    with refused(BenchmarkError, code):
        find_target(target, inputs, np.ones(1, np.int64))


@pytest.mark.parametrize(
    ("target", "inputs"),
    [
        (lambda x=1: x, None),
        (lambda *args, **named: args, None),
        (lambda x: x, 3),
        (lambda x, y: x, (3, 4)),
        (lambda x: x, {"x": 3}),
        (functools.partial(lambda x: x, 1), None),
        (Called(), None),
        (CalledLater(), None),
        (takes_later, 3),
        (max, (1, 2)),
        (dict.fromkeys, ([],)),
        (time.time, None),
        (wrapped_with_argument(), None),
        (signed(), None),
    ],
)
def test_functions_that_can_handle_a_request_are_not_refused(target: Any, inputs: Any) -> None:
    found = find_target(target, inputs, np.ones(1, np.int64))
    count = drive(found, np.zeros(3, np.int64)).rows["status"].tolist().count(RequestStatus.OK)
    assert count == 3


def test_the_name_of_a_file_as_that_of_a_module_has_its_module_as_hint() -> None:
    with refused(GpuprofError, "cannot_import") as found:
        gpuprof.load("python:some_file.py:f", rate=100)
    assert "python:some_file:f" in found.value.hint


def test_a_function_that_is_no_model_builder_has_its_name_as_a_target_as_hint(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "service.py").write_text("def handle():\n    pass\n", encoding="utf-8")
    with refused(BenchmarkError, "kind_of_model", "NoneType") as found:
        gpuprof.load("service.py:handle", rate=500, duration_s=0.02)
    assert "python:service:handle" in found.value.hint
    found_there = gpuprof.load("python:service:handle", rate=500, duration_s=0.02)
    assert found_there.statuses == {RequestStatus.OK: 10}


def test_a_model_is_called_with_its_mix_of_batch_sizes(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    (tmp_path / "model.py").write_text(
        "import torch\n\n\ndef build():\n"
        "    return torch.nn.Linear(4, 2).eval(), lambda size: torch.ones(size, 4)\n"
    )
    found = gpuprof.load(f"{tmp_path / 'model.py'}:build", rate=500, duration_s=0.1, mix="batch=1:80,8:20")
    assert found.statuses == {RequestStatus.OK: 50}
    assert set(found.rows["units"].tolist()) == {1, 8}


@pytest.mark.parametrize("status", [RequestStatus.NO_FILE_DESCRIPTORS, RequestStatus.NO_PORTS])
def test_a_limit_of_the_machine_is_a_warning(status: RequestStatus) -> None:
    rows = even_rows()
    rows["status"][:3] = status
    (found,) = (each for each in result_of(rows).warnings if each.code == status.name.lower())
    assert found.values == {"requests": 3}
    assert str(found)


def test_a_closed_loop_without_room_for_more_is_a_warning() -> None:
    rows = even_rows()
    run = LoadRun(int(rows["planned_ns"][0]), int(rows["end_ns"].max()), closed=True, is_full=True)
    found = LoadResult(LoadSettings("target", "single-stream", duration_s=60.0), run, rows)
    assert codes(found) == {"full"}
    assert found.planned_duration_s is None
