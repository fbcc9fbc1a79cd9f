# SPDX-License-Identifier: Apache-2.0
"""Imports by what the program imports itself, and by the functions that it calls."""

from __future__ import annotations

from pathlib import Path

import duckdb
import pytest
from simulated_gpu import write_table
from simulated_program import PROCESS
from simulated_training import MS, Planted, TrainingHost, settings, train

import gpuprof
from gpuprof.analyze.import_causes import ImportByFunction, ImportedPackage
from gpuprof.analyze.phases import Phases
from gpuprof.render.phases import phase_lines

SGD = "SGD.__init__ (torch/optim/sgd.py:29)"
ROWS = [
    ("torch", "start-up", 2_400, "torch", "torch", None),
    ("sympy", "start-up", 600, "torch", "torch", None),
    ("numpy", "start-up", 20, "torch", "torch", None),
    ("torch", "start-up", 500, "torch", "torch._dynamo", SGD),
    ("sympy", "start-up", 100, "torch", "torch._dynamo", SGD),
    ("plots", "start-up", 40, "plots", "plots", None),
    ("scipy", "first step", 70, "scipy", "scipy.linalg", "solve (train.py:5)"),
    ("plots", "later", 30, "plots", "plots.extra", None),
]


def phases_with(folder: Path, rows: list[tuple[str, str, int, str | None, str | None, str | None]]) -> Phases:
    host = train(TrainingHost(settings=settings()), Planted())
    path = host.write(folder / "r.gpuprof")
    names = ("package", "phase", "duration_ns", "importer", "module", "caller")
    table = [
        {"process_id": PROCESS, **dict(zip(names, (a, b, ms * MS, *rest), strict=True))}
        for a, b, ms, *rest in rows
    ]
    with duckdb.connect() as connection:
        write_table(connection, path, "imports", table)
    phases = gpuprof.open(path).phases()
    assert phases is not None
    return phases


def test_what_a_package_imports_is_a_part_of_it(tmp_path: Path) -> None:
    causes = phases_with(tmp_path, ROWS).import_causes
    assert causes is not None
    torch, plots = causes.packages
    assert torch == ImportedPackage("torch", 3_620 * MS, {"sympy": 700 * MS, "numpy": 20 * MS})
    assert plots == ImportedPackage("plots", 40 * MS, {})


def test_imports_of_functions_and_after_the_start_up_have_their_caller_and_phase(tmp_path: Path) -> None:
    causes = phases_with(tmp_path, ROWS).import_causes
    assert causes is not None
    assert causes.functions == (
        ImportByFunction(SGD, "start-up", 600 * MS, {"torch._dynamo": 600 * MS}),
        ImportByFunction("solve (train.py:5)", "first step", 70 * MS, {"scipy.linalg": 70 * MS}),
        ImportByFunction(None, "later", 30 * MS, {"plots.extra": 30 * MS}),
    )


def test_the_lines_name_the_importing_package_and_function(tmp_path: Path) -> None:
    lines = dict(phase_lines(phases_with(tmp_path, ROWS)))
    assert "torch 3.62 s (including sympy 700 ms), plots 40.0 ms" in lines["wall time"]
    assert lines["imports"] == (
        f"600 ms of the start-up in {SGD}: torch._dynamo 600 ms; "
        "70.0 ms in solve (train.py:5), the first step: scipy.linalg 70.0 ms"
    )


@pytest.mark.parametrize("column", ["importer", "module"])
def test_in_runs_of_older_versions_each_package_is_its_own_importer(column: str, tmp_path: Path) -> None:
    rows = [(package, phase, ms, None, None, None) for package, phase, ms, *_ in ROWS[:3]]
    phases = phases_with(tmp_path, rows)
    (part,) = (tmp_path / "r.gpuprof" / "imports").rglob("*.parquet")
    with duckdb.connect() as connection:
        connection.execute(
            f"CREATE TABLE old AS SELECT * EXCLUDE ({column}, caller) FROM read_parquet('{part}')"
        )
        connection.execute(f"COPY old TO '{part}' (FORMAT parquet)")
    assert gpuprof.open(tmp_path / "r.gpuprof").phases() == phases
    assert phases.import_causes is not None
    assert [each.package for each in phases.import_causes.packages] == ["torch", "sympy", "numpy"]
    assert phases.import_causes.functions == ()
