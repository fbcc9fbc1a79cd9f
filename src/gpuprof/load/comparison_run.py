# SPDX-License-Identifier: Apache-2.0
"""Runs a comparison under load: the runs of the variants take turns, each into a folder of its own.

What an interrupted comparison has measured is kept: the same command continues it.
"""

from __future__ import annotations

import hashlib
import json
import random
import shutil
from collections.abc import Callable, Iterator
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from gpuprof.bench.compare.plan import Variant
from gpuprof.bench.compare.runner import file_name
from gpuprof.bench.facts import Diagnostic, warning
from gpuprof.bench.gate.result import Thresholds
from gpuprof.bench.results.files import to_json, write_whole
from gpuprof.bench.results.readers import RESULT_NAME
from gpuprof.errors import BenchmarkError, RunError
from gpuprof.load.compared_loads import LoadComparison, Pair, compare_loads, runs_in
from gpuprof.load.comparison_plan import LoadComparisonPlan, LoadTable, is_stored
from gpuprof.load.gate_side import LoadedRun, read_run
from gpuprof.load.run import LoadOptions, run_load
from gpuprof.load.stopping import check_client

_STATE_FILE = "comparison.json"
# Called before each run with the variant, its number, and how many there are.
BeforeLoad = Callable[[str, int, int], None]


def run_load_comparison(
    plan: LoadComparisonPlan,
    folder: Path,
    *,
    fresh: bool = False,
    resume: bool = False,
    before_run: BeforeLoad | None = None,
) -> LoadComparison:
    """Put the load on each variant, and compare. Ctrl-C keeps the runs that ended.

    The round that it interrupts is left out, unless nothing can be compared without it; a variant is then
    compared with the baseline in the rounds in which both have a run.
    Runs of an interrupted comparison in the folder are kept, unless `fresh`; with `resume` those of one that
    was completed too. Raises KeyboardInterrupt where nothing can be compared yet, GpuprofError for what
    cannot work.
    """
    comparison, load = plan.comparison, plan.load
    made = _Made(plan)
    interrupted = False
    if load is not None:
        state = _State(folder, plan, fresh=fresh, resume=resume)
        turns = list(_turns(plan, load))
        number = 0
        try:
            for done, (variant, number) in enumerate(turns):
                place = state.place(variant, number)
                if not (place / RESULT_NAME).exists():
                    if before_run is not None:
                        before_run(variant.name, done + 1, len(turns))
                    _run(variant, number, load, place)
                made.add(variant, number, place)
        except KeyboardInterrupt:
            for variant, later in turns:
                made.add(variant, later, state.place(variant, later))
            if not made.can_compare():
                raise
            interrupted = True
            made.leave_out(number)
        if not interrupted:
            state.complete()
    margin = comparison.margin
    limits = Thresholds(load_margin=max(margin, Thresholds().load_margin))
    return compare_loads(
        made.runs,
        comparison.baseline.name,
        name=comparison.name,
        thresholds=limits,
        interrupted=interrupted,
        pairs=made.pairs if interrupted else None,
        notes=made.notes() if interrupted else (),
    )


class _Made:
    """The runs of each variant: stored ones, or those of each round, by its number."""

    def __init__(self, plan: LoadComparisonPlan) -> None:
        self._plan, self._left_out = plan, 0
        variants = plan.comparison.variants
        self._stored = {each.name: runs_in(Path(each.spec.model)) for each in variants if is_stored(each)}
        self._rounds: dict[str, dict[int, LoadedRun]] = {
            each.name: {} for each in variants if not is_stored(each)
        }

    @property
    def runs(self) -> dict[str, list[LoadedRun]]:
        """The runs by variant, in the order of the plan."""
        return {each.name: self._of(each.name) for each in self._plan.comparison.variants}

    @property
    def pairs(self) -> dict[str, Pair]:
        """The runs of the baseline and of each other variant that are compared."""
        return self._pairs_without(None)

    def add(self, variant: Variant, number: int, place: Path) -> None:
        """Read the run of a round, if it was made."""
        if number not in self._rounds[variant.name] and (place / RESULT_NAME).exists():
            self._rounds[variant.name][number] = read_run(place)

    def can_compare(self, without: int | None = None) -> bool:
        """Whether a variant has a run to compare with one of the baseline."""
        return any(old and new for old, new in self._pairs_without(without).values())

    def leave_out(self, number: int) -> None:
        """Leave out an incomplete round, unless nothing can be compared without it."""
        if all(number in rounds for rounds in self._rounds.values()) or not self.can_compare(number):
            return
        for rounds in self._rounds.values():
            self._left_out += rounds.pop(number, None) is not None

    def notes(self) -> tuple[Diagnostic, ...]:
        """Return how many runs there are, and which variants are compared without some of them."""
        load, baseline, runs = self._plan.load, self._plan.comparison.baseline.name, self.runs
        assert load is not None
        counts = {
            "runs": sum(map(len, self._rounds.values())),
            "planned": load.runs * len(self._rounds),
            "left_out": self._left_out,
        }
        found = [warning("interrupted", unit="run", **counts)]
        for name, (old, new) in self.pairs.items():
            if (len(old), len(new)) != (len(runs[baseline]), len(runs[name])):
                names = {"baseline": baseline, "variant": name}
                # Stored runs have no rounds: all are compared.
                pairs = min(len(old), len(new))
                has = {"of_baseline": len(runs[baseline]), "runs": len(runs[name])}
                found.append(warning("not_paired", unit="run", **names, **has, pairs=pairs))
        return tuple(found)

    def _of(self, name: str) -> list[LoadedRun]:
        stored = self._stored.get(name)
        if stored is not None:
            return stored
        return [run for _, run in sorted(self._rounds[name].items(), key=lambda each: each[0])]

    def _pairs_without(self, without: int | None) -> dict[str, Pair]:
        baseline = self._plan.comparison.baseline.name
        others = [name for name in self.runs if name != baseline]
        return {name: (self._shared(baseline, name, without), self._shared(name, baseline, without))
                for name in others}  # fmt: skip

    def _shared(self, name: str, other: str, without: int | None) -> list[LoadedRun]:
        """Return the runs of the rounds that the other has too; stored runs have no rounds."""
        if name in self._stored:
            return self._stored[name]
        own = self._rounds[name]
        shared = own.keys() & self._rounds.get(other, own).keys()
        return [own[number] for number in sorted(shared) if number != without]


def _turns(plan: LoadComparisonPlan, load: LoadTable) -> Iterator[tuple[Variant, int]]:
    """Yield the runs in random order and then in its reverse: a drift affects all variants equally."""
    measured = [each for each in plan.comparison.variants if not is_stored(each)]
    generator = random.Random(load.seed)  # noqa: S311 - an order, no secret
    order: list[Variant] = []
    for number in range(load.runs):
        order = generator.sample(measured, len(measured)) if number % 2 == 0 else order[::-1]
        yield from ((each, number) for each in order)


def _run(variant: Variant, number: int, load: LoadTable, place: Path) -> None:
    result = run_load(
        variant.spec.model,
        load.settings(variant, number),
        options=LoadOptions(drain_s=load.drain_s, probe=number == 0),
    )
    if result.run.interrupted:
        raise KeyboardInterrupt
    check_client(result)
    draft = place.with_name(f".{place.name}.new")
    shutil.rmtree(draft, ignore_errors=True)
    result.save(draft)
    draft.rename(place)


class _State:
    """Which runs are in a folder, and what they were made of."""

    def __init__(self, folder: Path, plan: LoadComparisonPlan, *, fresh: bool, resume: bool) -> None:
        self._path, self._folder = folder / _STATE_FILE, folder
        self._prints = {
            each.name: _fingerprint(plan, each) for each in plan.comparison.variants if not is_stored(each)
        }
        former = self._former()
        keeps = not fresh and (resume or not former.get("completed", True))
        kept: dict[str, Any] = former.get("fingerprints") or {}
        for name, fingerprint in self._prints.items():
            if not keeps or kept.get(name) != fingerprint:
                self._discard(name, is_ours=name in kept)
        self._write(completed=False)

    def place(self, variant: Variant, number: int) -> Path:
        """Return the folder of a run."""
        return self._folder / f"{file_name(variant.name)}.{number + 1}"

    def complete(self) -> None:
        """Record that all runs were made."""
        self._write(completed=True)

    def _former(self) -> dict[str, Any]:
        try:
            found = json.loads(self._path.read_text(encoding="utf-8"))
        except FileNotFoundError:
            return {}
        except (OSError, ValueError) as error:
            raise RunError(
                "damaged", f"{self._path}: cannot be read ({error})", hint="use another --output-dir"
            ) from error
        return found if isinstance(found, dict) else {}

    def _discard(self, name: str, *, is_ours: bool) -> None:
        """Remove the runs of a variant. Raises BenchmarkError for folders of another origin."""
        prefix = f"{file_name(name)}."
        for each in sorted(self._folder.glob("*")):
            number = each.name.removeprefix(prefix)
            if not (each.name.startswith(prefix) and number.isascii() and number.isdigit()):
                continue
            if not is_ours or each.is_symlink() or not each.is_dir():
                raise BenchmarkError(
                    "not_ours",
                    f"{each} is no run of this comparison, whose run would have this name",
                    hint="use another --output-dir",
                )
            shutil.rmtree(each)

    def _write(self, *, completed: bool) -> None:
        try:
            self._folder.mkdir(parents=True, exist_ok=True)
            plain = {"kind": "load_runs", "fingerprints": self._prints, "completed": completed}
            write_whole(self._path, to_json(plain))
        except OSError as error:
            raise BenchmarkError(
                "cannot_write",
                f"{self._folder}: cannot be written ({error.strerror})",
                hint="use another --output-dir",
            ) from error


def _fingerprint(plan: LoadComparisonPlan, variant: Variant) -> str:
    assert plan.load is not None
    # More runs may be added.
    parts = [plan.comparison.fingerprint(variant), asdict(replace(plan.load, runs=1))]
    return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()[:16]
