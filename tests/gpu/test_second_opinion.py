# SPDX-License-Identifier: Apache-2.0
"""GPU: the same work as NVIDIA's packages cupti-python and nvtx see it. Both are optional."""

from __future__ import annotations

import importlib.util
import statistics
from collections import Counter, defaultdict
from collections.abc import Iterable
from typing import Any

import pytest
from expectations import is_whole, rows
from second_opinion import cupti_for_nvtx, why_no_cupti_python
from start_program import start_program


@pytest.fixture(scope="module")
def opinions(cuda: str, tmp_path_factory: pytest.TempPathFactory) -> Any:
    """Return cupti-python's facts and gpuprof's run of the same work, each of a process of its own."""
    if (reason := why_no_cupti_python()) is not None:
        pytest.skip(reason)
    library = cupti_for_nvtx()
    variables = {} if library is None else {"NVTX_INJECTION64_PATH": library}
    folder = tmp_path_factory.mktemp("second-opinion")
    theirs = start_program("second_opinion", folder, "cupti-python", **variables).facts
    run = start_program("second_opinion", folder, "gpuprof").run
    is_whole(run)
    return theirs, run


def plain(name: str) -> str:
    """Return a name without blanks, which demanglers set differently."""
    return name.replace(" ", "")


def medians(kernels: Iterable[tuple[str, float]]) -> dict[str, float]:
    durations = defaultdict(list)
    for name, duration_ns in kernels:
        durations[plain(name)].append(duration_ns)
    return {name: statistics.median(values) for name, values in durations.items()}


def test_kernels_have_the_same_names_and_counts(opinions: Any) -> None:
    theirs, run = opinions
    ours = rows(run, "SELECT name FROM kernels")
    assert len(ours) > 50
    assert Counter(plain(str(name)) for (name,) in ours) == Counter(plain(n) for n, _ in theirs["kernels"])


def test_kernels_are_in_the_same_order(opinions: Any) -> None:
    theirs, run = opinions
    ours = rows(run, "SELECT name FROM kernels ORDER BY start_ns, correlation_id")
    assert [plain(str(name)) for (name,) in ours] == [plain(name) for name, _ in theirs["kernels"]]


def test_kernels_last_as_long(opinions: Any) -> None:
    """Two runs of the same work: the sum of each kernel's median differs by the GPU's clock alone."""
    theirs, run = opinions
    ours = medians(rows(run, "SELECT name, duration_ns FROM kernels"))  # type: ignore[arg-type]
    assert sum(ours.values()) == pytest.approx(sum(medians(theirs["kernels"]).values()), rel=0.05)


def test_copies_have_the_same_bytes(opinions: Any) -> None:
    theirs, run = opinions
    ours = rows(run, "SELECT bytes FROM transfers WHERE kind = 'copy' ORDER BY start_ns")
    assert [size for (size,) in ours] == [size for size, _ in theirs["copies"]]


def test_ranges_are_seen_by_both(opinions: Any) -> None:
    """Those of the package nvtx, which gpuprof records, and gpuprof's spans, which it announces."""
    if importlib.util.find_spec("nvtx") is None:
        pytest.skip("nvtx is not installed: pip install nvtx")
    theirs, run = opinions
    ours = rows(
        run, "SELECT name FROM spans WHERE name LIKE 'round %' OR name = 'training' ORDER BY start_ns"
    )
    expected = {"training"} | {f"round {number}" for number in range(5)}
    seen = [name for (name,) in theirs["ranges"] if name in expected]
    assert [name for (name,) in ours] == seen
    assert Counter(seen) == Counter({"training": 5, **{f"round {number}": 1 for number in range(5)}})
