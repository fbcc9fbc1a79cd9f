# SPDX-License-Identifier: Apache-2.0
"""The profile that is cut out of a run while it is recorded, against the same run when it is closed."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from live_program import Recorded
from refusals import refused

import gpuprof
from gpuprof.errors import RunError
from gpuprof.live.cut import cut_run
from gpuprof.live.view import ProfileCut


@pytest.fixture
def recorded(tmp_path: Path) -> Iterator[Recorded]:
    program = Recorded(tmp_path)
    yield program
    program.close()


def test_a_cut_has_the_spans_of_its_interval_clipped_to_it(recorded: Recorded, tmp_path: Path) -> None:
    recorded.send("3")
    begin_ns = time.monotonic_ns()
    recorded.send("5")
    end_ns = time.monotonic_ns()
    recorded.send("2")
    page = cut_run(recorded.run, tmp_path / "cut.gpuprof", begin_ns, end_ns)
    assert page == tmp_path / "cut.html"
    assert "<script" in page.read_text()
    cut = gpuprof.open(tmp_path / "cut.gpuprof")
    recorded.send("1")  # the recording continues
    recorded.send("end")
    counts = (
        "SELECT kind, name, count(*) FROM spans WHERE kind IN ('layer', 'operator', 'span') {} GROUP BY ALL"
    )
    closed = gpuprof.open(recorded.run)
    # Of 11 equal steps the cut has five, and of the side thread's spans those of its own.
    whole = {(kind, name): count for kind, name, count in closed.sql(counts.format("")).fetchall()}
    found = {(kind, name): count for kind, name, count in cut.sql(counts.format("")).fetchall()}
    layers = {key: count for key, count in found.items() if key[0] == "layer"}
    assert layers == {key: whole[key] * 5 // 11 for key in layers}
    assert layers
    assert found["span", "side"] == 20
    first, last = cut.sql("SELECT min(start_ns), max(start_ns + duration_ns) FROM spans").fetchall()[0]
    assert 0 <= first < last <= end_ns - begin_ns


def test_an_open_span_is_clipped_at_both_ends_and_samples_are_within(tmp_path: Path) -> None:
    run = tmp_path / "r.gpuprof"
    with gpuprof.profile(out=run, python=True), gpuprof.span("outer"):
        time.sleep(0.02)
        begin_ns = time.monotonic_ns()
        with gpuprof.span("inner"):
            inside_ns = time.monotonic_ns()
            busy(0.1)
            inside_ns = time.monotonic_ns() - inside_ns
        end_ns = time.monotonic_ns()
        busy(0.05)
        cut_run(run, tmp_path / "cut.gpuprof", begin_ns, end_ns)
    cut = gpuprof.open(tmp_path / "cut.gpuprof")
    spans = dict(cut.sql("SELECT name, duration_ns FROM spans WHERE kind = 'span'").fetchall())
    # The clock of ticks is compared once more when a recording ends.
    assert spans["outer"] == pytest.approx(end_ns - begin_ns, rel=0.01)
    # A busy machine may take a thread off its processor between two lines.
    assert 0.99 * inside_ns <= spans["inner"] <= 1.01 * spans["outer"]
    rows = cut.sql(
        "SELECT min(t_ns), max(t_ns), count(*) FROM stacks WHERE process_id = thread_id"
    ).fetchall()
    earliest, latest, count = rows[0]
    assert count > 10
    assert -2_000_000 <= earliest < latest <= end_ns - begin_ns
    assert any(row.name.startswith("busy ") for row in cut.summary(by="python").rows)


def busy(seconds: float) -> None:
    """Use the processor for so long, however long that takes."""
    until = time.thread_time() + seconds
    while time.thread_time() < until:
        pass


def test_a_program_without_spans_has_its_functions(tmp_path: Path) -> None:
    run = tmp_path / "r.gpuprof"
    with gpuprof.profile(out=run, python=True, layers=False, operators=False):
        begin_ns = time.monotonic_ns()
        busy(0.1)
        with gpuprof.span("later"):
            end_ns = time.monotonic_ns()
            busy(0.01)
            cut_run(run, tmp_path / "cut.gpuprof", begin_ns, end_ns - 1_000_000)
    cut = gpuprof.open(tmp_path / "cut.gpuprof")
    assert any(row.name.startswith("busy ") for row in cut.summary(by="python").rows)


def test_what_cannot_be_cut_is_refused(recorded: Recorded, tmp_path: Path) -> None:
    recorded.send("1")
    recorded.send("end")
    gpuprof.open(recorded.run)
    with refused(RunError, "not_recording"):
        cut_run(recorded.run, tmp_path / "cut.gpuprof", 0, 1)
    assert not (tmp_path / "cut.gpuprof").exists()
    words = [str(recorded.run), str(tmp_path / "cut.gpuprof"), "0", "1"]
    done = subprocess.run(
        [sys.executable, "-m", "gpuprof.live.cut", *words], capture_output=True, text=True, check=False
    )
    assert (done.returncode, list(json.loads(done.stdout))) == (2, ["error"])


def test_a_view_gets_the_page_of_the_process_that_cuts(recorded: Recorded, tmp_path: Path) -> None:
    recorded.send("3")
    cut = ProfileCut(recorded.run, tmp_path / "p.gpuprof", time.monotonic_ns())
    cut._process.wait()
    assert cut.result() == {"run": str(tmp_path / "p.gpuprof"), "page": str(tmp_path / "p.html")}
    cut.end()
