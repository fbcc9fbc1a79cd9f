# SPDX-License-Identifier: Apache-2.0
"""Comparisons in real processes: a failure does not affect the rest, and what was cut off continues."""

from __future__ import annotations

import dataclasses
import json
import os
import signal
from collections import Counter
from pathlib import Path
from typing import Any

import click
import numpy as np
import pytest
from batches import batch_of
from comparison_documents import typed
from refusals import refused

from gpuprof.bench.compare.document import ComparisonDocument, ComparisonSummary
from gpuprof.bench.compare.plan import AccuracyPlan, ComparisonPlan, Variant
from gpuprof.bench.compare.run import Finished, carry_out, run_comparison
from gpuprof.bench.compare.runner import ComparisonRun, Entry, Journal, file_name, mark_finished
from gpuprof.bench.config import JobSettings, Settings, SystemSpec
from gpuprof.bench.facts import note
from gpuprof.bench.verdicts import TargetVerdict
from gpuprof.bench.workers.events import Described, State
from gpuprof.bench.workers.schedule import RunEvent
from gpuprof.bench.workers.session import Session
from gpuprof.cli.compare import _exit as exit_for
from gpuprof.cli.main import execute
from gpuprof.errors import BenchmarkError

MODELS = Path(__file__).parents[2] / "support" / "bench_models.py"
QUICK = Settings(iterations=20, warmup=1)


def variant(name: str, factory: str = "doubled") -> Variant:
    return Variant(name, SystemSpec(f"{MODELS}:{factory}", input_shape=(3,)))


def plan(*variants: Variant, **options: Any) -> ComparisonPlan:
    return ComparisonPlan(variants, **{"launches": 2, "measuring": QUICK, "accuracy": None, **options})


class Watch:
    """Counts the process runs that were made, and interrupts after the last one that is allowed."""

    def __init__(self, most: int = 1_000) -> None:
        self.ended: list[str] = []
        self._most = most

    def __call__(self, seen: RunEvent) -> None:
        if seen.event.state is State.ENDED:
            self.ended.append(seen.name)
            if len(self.ended) == self._most:
                raise KeyboardInterrupt


def statuses(finished: Finished) -> dict[str, str]:
    return {each.name: each.status for each in finished.document.variants}


def test_what_fails_to_load_or_crashes_leaves_the_others_be(tmp_path: Path) -> None:
    watch = Watch()
    wanted = plan(
        variant("good"),
        variant("raising", "raising"),
        variant("crashing", "crashing"),
        variant("partly", "too_large_at_two"),
        batch_sizes=(1, 2),
    )
    finished = carry_out(wanted, tmp_path, watch=watch)
    assert statuses(finished) == {
        "good": "measured",
        "raising": "failed",
        "crashing": "failed",
        "partly": "partly",
    }
    told = {each.name: str(each.failure) for each in finished.document.variants}
    assert "no weights" in told["raising"]
    assert "SIGSEGV" in told["crashing"]
    assert "2" in told["partly"]
    assert [each.batch_size for each in finished.document.variants[3].batches] == [1]
    assert Counter(watch.ended) == dict.fromkeys(told, 2)


def test_a_variant_that_fails_in_each_process_run_is_reported_once_with_their_number(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    # It loads in the first process run only, so that later ones are tried.
    (tmp_path / "model.py").write_text(
        "from pathlib import Path\n"
        "def build():\n"
        "    Path(__file__ + '.loaded').touch(exist_ok=False)\n"
        "    return lambda batch: batch * 2\n"
    )
    words = [f"good:{MODELS}:doubled,bad:{tmp_path / 'model.py'}:build", "--input-shape", "3"]
    words += ["--batch-sizes", "1", "--launches", "3", "--iterations", "20", "--warmup", "1", "--no-accuracy"]
    assert execute(["compare", *words, "--output-dir", str(tmp_path / "out")]) == 2
    printed = capfd.readouterr()
    assert [text.count("FileExistsError") for text in (printed.out, printed.err)] == [1, 1]
    (failure,) = [
        each["failure"]
        for each in json.loads((tmp_path / "out" / "report.json").read_text())["variants"]
        if each["failure"] is not None
    ]
    assert failure["values"]["failed_runs"] == 2


def test_a_failed_profile_run_is_not_among_the_failed_process_runs(tmp_path: Path) -> None:
    # The third process is that of the profile.
    (tmp_path / "model.py").write_text(
        "from pathlib import Path\n"
        "def build():\n"
        "    seen = Path(__file__ + '.seen')\n"
        "    count = int(seen.read_text()) + 1 if seen.exists() else 1\n"
        "    seen.write_text(str(count))\n"
        "    assert count < 3\n"
        "    return lambda batch: batch * 2\n"
    )
    spec = SystemSpec(f"{tmp_path / 'model.py'}:build", input_shape=(3,))
    comparison = ComparisonRun(plan(Variant("one", spec), profile=True), tmp_path / "out")
    with Journal(tmp_path / "out").opened() as journal:
        found = comparison.run(journal).of("one")
    assert found.run_unavailable is not None
    assert (found.session.failure, found.session.failed_runs) == (None, 0)


def test_a_fixed_number_of_calls_fills_all_quantiles_with_a_warning(tmp_path: Path) -> None:
    (one, _) = carry_out(plan(variant("one"), variant("two")), tmp_path).document.variants
    (batch,) = one.batches
    assert batch.p99_s is not None
    assert batch.median_s is not None
    assert (batch.p99_s.low, batch.p99_s.high) == (None, None)
    assert batch.p99_s.value >= batch.median_s.value
    assert "unreliable_quantiles" in {each.code for each in batch.warnings}


def test_a_comparison_that_was_cut_off_continues_without_repeating(tmp_path: Path) -> None:
    wanted = plan(variant("one"), variant("two"))
    first = Watch(most=3)
    cut_off = carry_out(wanted, tmp_path, watch=first)
    assert cut_off.interrupted
    assert "interrupted" in [each.code for each in cut_off.document.notes]
    before = {each.name: each.batches[0].launch_medians_s for each in cut_off.document.variants}
    second = Watch()
    finished = carry_out(wanted, tmp_path, watch=second)
    assert Counter(first.ended + second.ended) == {"one": 2, "two": 2}
    assert not finished.interrupted
    for each in finished.document.variants:
        medians = each.batches[0].launch_medians_s
        assert len(medians) == 2
        assert set(before[each.name]) <= set(medians)
    assert note("restored_runs", restored=3, runs=4) in finished.document.notes


class CutOff(Watch):
    """Interrupts the last of four process runs, once its first batch size is measured."""

    def __call__(self, seen: RunEvent) -> None:
        super().__call__(seen)
        if len(self.ended) == 3 and seen.event.state is State.MEASURED:
            self.ended.append("interrupted")
            raise KeyboardInterrupt


def test_headline_and_rows_of_an_interrupted_comparison_are_of_the_same_rounds(tmp_path: Path) -> None:
    wanted = plan(variant("one"), variant("two"), batch_sizes=(1, 2))
    cut_off = carry_out(wanted, tmp_path, watch=CutOff()).document
    other = cut_off.variants[1]
    assert [[each.launches for each in variant.batches] for variant in cut_off.variants] == [[1, 1], [1, 1]]
    compared = [other.comparison, *(each.comparison for each in other.batches)]
    assert [each and (each.old_launches, each.new_launches) for each in compared] == [(1, 1)] * 3
    ratios = [each.comparison.ratio for each in other.batches if each.comparison is not None]
    assert other.comparison is not None
    assert other.comparison.ratio == pytest.approx(np.sqrt(np.prod(ratios)))
    assert cut_off.method.launches_done == 2
    facts = {each.code: each.values for each in cut_off.notes}
    assert facts["interrupted"] == {"runs": 2, "planned": 4, "left_out": 1}
    assert cut_off.summary.headline.code == "headline_interrupted"
    # The one that is left out is kept: one is missing.
    watch = Watch()
    finished = carry_out(wanted, tmp_path, watch=watch).document
    assert len(watch.ended) == 1
    assert [[each.launches for each in variant.batches] for variant in finished.variants] == [[2, 2], [2, 2]]


class CutOffIn(Watch):
    """Interrupts a process run of a variant."""

    def __init__(self, name: str, number: int) -> None:
        super().__init__()
        self._where = name, number

    def __call__(self, seen: RunEvent) -> None:
        super().__call__(seen)
        if (seen.name, seen.number) == self._where and seen.event.state is State.MEASURED:
            raise KeyboardInterrupt


def launches_of(document: ComparisonDocument) -> dict[str, int]:
    return {each.name: each.batches[0].launches if each.batches else 0 for each in document.variants}


def compared_of(document: ComparisonDocument) -> dict[str, tuple[int, int]]:
    found = {each.name: each.comparison for each in document.variants}
    return {name: (each.old_launches, each.new_launches) for name, each in found.items() if each is not None}


def test_an_interrupt_leaves_out_its_own_round_only(tmp_path: Path) -> None:
    old = plan(variant("one"), variant("two"), launches=3)
    carry_out(old, tmp_path)
    wanted = dataclasses.replace(old, variants=(*old.variants, variant("added")))
    found = carry_out(wanted, tmp_path, watch=CutOffIn("added", 2), resume=True).document
    assert launches_of(found) == {"one": 2, "two": 2, "added": 1}
    assert compared_of(found) == {"two": (2, 2), "added": (1, 1)}
    assert (found.method.launches_done, found.method.launches_kept) == (5, 4)
    facts = {each.code: each.values for each in found.notes}
    assert facts["interrupted"] == {"runs": 5, "planned": 9, "left_out": 2}
    pairs = {"baseline": "one", "variant": "added", "of_baseline": 2, "runs": 1, "pairs": 1}
    assert [each.values for each in found.notes if each.code == "not_paired"] == [pairs]


def test_an_interrupt_leaves_out_nothing_for_a_variant_that_fails_again(tmp_path: Path) -> None:
    wanted = plan(variant("one"), variant("two"), variant("raising", "raising"), launches=3)
    carry_out(wanted, tmp_path)
    found = carry_out(wanted, tmp_path, watch=Watch(most=1)).document
    assert launches_of(found) == {"one": 3, "two": 3, "raising": 0}
    assert compared_of(found) == {"two": (3, 3)}


def test_one_that_had_completed_begins_again_unless_resumed(tmp_path: Path) -> None:
    wanted = plan(variant("one"), launches=1)
    counts = []
    for options in ({}, {}, {"resume": True}, {"fresh": True}):
        watch = Watch()
        carry_out(wanted, tmp_path, watch=watch, **options)
        mark_finished(tmp_path)
        counts.append(len(watch.ended))
    assert counts == [1, 1, 0, 1]


def test_one_whose_report_was_not_written_is_not_complete(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: Any) -> None:
        raise BenchmarkError("cannot_write", "the disk is full", hint="free disk space")

    wanted = plan(variant("one"), launches=1)
    with refused(BenchmarkError, "unknown_format"):
        run_comparison(wanted, tmp_path, report=("docx",))
    assert not list(tmp_path.iterdir())
    with monkeypatch.context() as patch:
        patch.setattr("gpuprof.bench.report.write_report", fail)
        with refused(BenchmarkError, "cannot_write"):
            run_comparison(wanted, tmp_path)
    kept = run_comparison(wanted, tmp_path)
    assert kept["method"]["launches_kept"] == 1
    anew = run_comparison(wanted, tmp_path)
    assert anew["method"]["launches_kept"] == 0


def test_a_file_that_changes_while_it_is_measured_ends_it_and_keeps_the_rest(tmp_path: Path) -> None:
    """Else the process runs of two programs would be one variant."""
    model = tmp_path / "model.py"
    text = "def build():\n    return lambda batch: batch * 2\n"
    model.write_text(text, encoding="utf-8")
    wanted = plan(Variant("own", SystemSpec(f"{model}:build", input_shape=(3,))), variant("other"))

    def edit(seen: RunEvent) -> None:
        if seen.event.state is State.ENDED and seen.done == 2:
            model.write_text(text.replace("2", "3"), encoding="utf-8")

    with refused(BenchmarkError, "model_changed", "own", "model.py"):
        carry_out(wanted, tmp_path, watch=edit)
    watch = Watch()
    found = carry_out(wanted, tmp_path, watch=watch)
    assert watch.ended.count("own") == 2
    assert statuses(found) == {"own": "measured", "other": "measured"}


def test_variants_of_different_times_are_reported(tmp_path: Path) -> None:
    one, two = variant("one"), variant("two")
    carry_out(plan(one), tmp_path)
    found = carry_out(plan(one, two), tmp_path).document
    (told,) = [each.values for each in found.notes if each.code == "not_interleaved"]
    assert told == {"baseline": "one", "variant": "two", "restored_of_baseline": 2, "restored": 0}


def test_what_is_raised_while_it_is_measured_is_not_blamed_on_the_journal(tmp_path: Path) -> None:
    def fail(*_: Any) -> None:
        raise OSError(5, "of the watcher")

    with pytest.raises(OSError, match="of the watcher"):
        carry_out(plan(variant("one")), tmp_path, watch=fail)


def test_a_metric_that_prints_leaves_standard_output_alone(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    metric = tmp_path / "loud.py"
    metric.write_text(
        "print('imported')\ndef loud(outputs, labels):\n    print('computed')\n    return 1.0\n",
        encoding="utf-8",
    )
    accuracy = AccuracyPlan(samples=4, metrics=(f"{metric}:loud",))
    found = carry_out(plan(variant("one"), launches=1, accuracy=accuracy), tmp_path).document
    assert found.variants[0].accuracy.metrics[0].value == 1.0
    assert capsys.readouterr().out == ""


def test_what_cannot_be_compared_does_not_take_the_measurements_with_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: Any, **__: Any) -> None:
        raise BenchmarkError("the data set is gone")

    monkeypatch.setattr("gpuprof.bench.compare.run.compare_accuracy", fail)
    found = carry_out(plan(variant("one"), launches=1, accuracy=AccuracyPlan()), tmp_path).document
    assert found.variants[0].status == "measured"
    assert found.variants[0].accuracy_unavailable == note("no_outputs", reason="the data set is gone")


def test_a_process_run_that_fails_before_its_first_batch_blames_no_batch_size(tmp_path: Path) -> None:
    """Its second process run cannot be loaded; the third one measures what the first one did."""
    model = tmp_path / "model.py"
    model.write_text(
        f"""
import pathlib
def build():
    count = pathlib.Path({str(tmp_path / "count")!r})
    launches = len(count.read_text()) if count.exists() else 0
    count.write_text("x" * (launches + 1))
    if launches == 1:
        raise RuntimeError("the drive is not mounted")
    return lambda batch: batch * 2
""",
        encoding="utf-8",
    )
    own = Variant("own", SystemSpec(f"{model}:build", input_shape=(3,)))
    found = carry_out(plan(own, launches=3), tmp_path / "results").document
    assert len(found.variants[0].batches[0].launch_medians_s) == 2


def test_a_process_run_on_another_device_is_none_of_the_same_system() -> None:
    """Where `auto` finds the GPU gone, the figures of a CPU must not join those of the GPU."""
    session = Session(SystemSpec("m"), JobSettings())
    session.result.batches.append(batch_of([1.0, 1.0], batch_size=1))
    described = session.result.batches[0].description
    session.take(2, Described(description=described))
    with refused(BenchmarkError, "runs_differ", "device"):
        session.take(3, Described(description=dataclasses.replace(described, device="another")))


def test_a_name_of_nothing_is_a_folder_of_its_own() -> None:
    assert file_name("") not in ("", ".", "..")


# --- the command ---------------------------------------------------------------------------------


def command(*words: str) -> list[str]:
    variants = f"one:{MODELS}:doubled,two:{MODELS}:doubled"
    return ["compare", variants, "--input-shape", "3", "--launches", "1", "--iterations", "20",
            "--warmup", "1", "--no-accuracy", *words]  # fmt: skip


def test_the_report_is_written_though_standard_output_is_closed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def closed(message: object = None, *, err: bool = False, **_: Any) -> None:
        if not err:
            raise BrokenPipeError

    monkeypatch.setattr("gpuprof.cli.compare.click.echo", closed)
    monkeypatch.setattr("gpuprof.cli.main._forget_standard_output", lambda: None)
    assert execute(command("--output-dir", str(tmp_path))) != 0
    assert (tmp_path / "report.json").exists()


def test_a_termination_while_the_report_is_written_can_be_resumed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def killed(*_: Any) -> None:
        os.kill(os.getpid(), signal.SIGTERM)

    monkeypatch.setattr("gpuprof.bench.report.write_report", killed)
    before = signal.getsignal(signal.SIGTERM)
    assert execute(command("--output-dir", str(tmp_path))) == 143
    assert signal.getsignal(signal.SIGTERM) is before
    monkeypatch.undo()
    # Two equal variants are the same, or one process run shows nothing.
    assert execute(command("--output-dir", str(tmp_path))) in (0, 3)
    document = json.loads((tmp_path / "report.json").read_text(encoding="utf-8"))
    assert document["method"]["launches_kept"] == 2


@pytest.mark.parametrize(
    ("words", "why"),
    [
        (("--batch-sizes", "auto"), "auto"),
        (("--batch-sizes", "9" * 5_000), "--batch-sizes"),
        (("--seed", "-1"), "seed"),
        (("--price-per-hour", "-1"), "price"),
    ],
)
def test_what_cannot_be_measured_is_refused_before(
    words: tuple[str, ...], why: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert execute(command(*words, "--output-dir", str(tmp_path))) == 2
    error = capsys.readouterr().err
    assert why in error
    assert "process run 1" not in error


def test_a_choice_by_batch_size_that_misses_the_target_ends_with_1() -> None:
    verdicts = {1: TargetVerdict.MET, 8: TargetVerdict.MISSED}
    found = typed(("original", "int8"), (1, 8))
    variants = tuple(
        dataclasses.replace(
            each,
            name=name,
            batches=tuple(
                dataclasses.replace(batch, target=verdicts[batch.batch_size]) for batch in each.batches
            ),
        )
        for name, each in zip(("old", "new"), found.variants, strict=True)
    )

    def code(by_size: dict[int, str]) -> int:
        summary = ComparisonSummary(note("by_batch_size"), None, by_size)
        try:
            with click.Context(click.Command("compare")):
                exit_for(dataclasses.replace(found, variants=variants, summary=summary))
        except click.exceptions.Exit as end:
            return end.exit_code
        return 0

    assert code({1: "old", 8: "new"}) == 1
    assert code({1: "old"}) == 0


def test_another_model_under_the_same_name_is_measured_again(tmp_path: Path) -> None:
    model = tmp_path / "model.py"
    model.write_text("def build():\n    return lambda batch: batch * 2\n", encoding="utf-8")
    own = Variant("own", SystemSpec(f"{model}:build", input_shape=(3,)))
    before = plan(own).fingerprint(own)
    assert plan(own).fingerprint(own) == before
    assert plan(own, batch_sizes=(1, 2)).fingerprint(own) != before
    model.write_text("def build():\n    return lambda batch: batch * 3\n", encoding="utf-8")
    assert plan(own).fingerprint(own) != before


# --- the journal ---------------------------------------------------------------------------------


def entry(run: int) -> Entry:
    return Entry("abc", "one", {"launch": run, "batches": []}, 1.0)


def test_a_line_that_was_cut_off_is_measured_again(tmp_path: Path) -> None:
    with Journal(tmp_path).opened() as journal:
        journal.add(entry(1))
        journal.add(entry(2))
    path = tmp_path / "journal.jsonl"
    path.write_bytes(path.read_bytes()[:-10])
    with Journal(tmp_path).opened() as journal:
        assert set(journal.entries) == {("abc", 1)}
        journal.add(entry(2))
    with Journal(tmp_path).opened() as journal:
        assert set(journal.entries) == {("abc", 1), ("abc", 2)}


@pytest.mark.parametrize(
    ("line", "why"),
    [(b"{", "damaged"), (b"[]", "damaged"), (b'{"fingerprint": 1}', "damaged")],
)
def test_a_damaged_line_is_named(tmp_path: Path, line: bytes, why: str) -> None:
    with Journal(tmp_path).opened() as journal:
        journal.add(entry(1))
    path = tmp_path / "journal.jsonl"
    head, rest = path.read_bytes().split(b"\n", 1)
    path.write_bytes(head + b"\n" + line + b"\n" + rest)
    with refused(BenchmarkError, why), Journal(tmp_path).opened():
        pass
    with Journal(tmp_path, fresh=True).opened() as journal:
        assert not journal.entries


def test_a_process_run_that_lacks_something_is_named(tmp_path: Path) -> None:
    wanted = plan(variant("one"), launches=1)
    with Journal(tmp_path).opened() as journal:
        journal.add(Entry(wanted.fingerprint(wanted.baseline), "one", {"launch": 1, "batches": [{}]}, 1.0))
    with refused(BenchmarkError, "damaged", "1", "one", "--fresh"):
        carry_out(wanted, tmp_path)


def test_samples_are_not_kept_twice(tmp_path: Path) -> None:
    carry_out(plan(variant("one"), launches=1), tmp_path)
    with Journal(tmp_path).opened() as journal:
        (found,) = journal.entries.values()
        samples = found.noted["batches"][0]["launch"]["measurement"]["samples_ns"]
        assert samples.nbytes == 8 * len(samples)
        ComparisonRun(plan(variant("one"), launches=1), tmp_path).run(journal)
        assert [set(each.noted) for each in journal.entries.values()] == [{"launch"}]


def test_a_journal_of_another_machine_is_refused(tmp_path: Path) -> None:
    with Journal(tmp_path).opened() as journal:
        journal.add(entry(1))
    path = tmp_path / "journal.jsonl"
    head, rest = path.read_bytes().split(b"\n", 1)
    changed = json.loads(head)
    changed["machine"]["processor"] = "another"
    path.write_bytes(json.dumps(changed).encode() + b"\n" + rest)
    refusal = refused(BenchmarkError, "other_machine", "processor")
    with refusal, Journal(tmp_path).opened():
        pass


def test_two_at_once_are_refused(tmp_path: Path) -> None:
    refusal = refused(BenchmarkError, "journal_locked")
    with Journal(tmp_path).opened(), refusal, Journal(tmp_path).opened():
        pass


def test_a_folder_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("", encoding="utf-8")
    with refused(BenchmarkError, "cannot_write"), Journal(tmp_path / "file").opened():
        pass


def test_the_data_set_has_the_shape_of_a_sample(tmp_path: Path) -> None:
    np.savez(tmp_path / "data.npz", inputs=np.ones((6, 3), np.float32))
    accuracy = AccuracyPlan(dataset=str(tmp_path / "data.npz"))
    own = Variant("own", SystemSpec(f"{MODELS}:doubled"))
    finished = carry_out(plan(own, launches=1, accuracy=accuracy), tmp_path)
    assert statuses(finished) == {"own": "measured"}
    assert finished.document.variants[0].accuracy.samples == 6


def test_process_runs_after_a_failure_are_reported_as_skipped(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    models = f"good:{MODELS}:doubled,bad:{MODELS}:raising"
    words = ["--launches", "4", "--iterations", "5", "--warmup", "1", "--input-shape", "3", "--no-accuracy"]
    code = execute(["compare", models, *words, "--report", "md", "--output-dir", str(tmp_path / "out")])
    assert code == 2
    told = capfd.readouterr().err
    assert told.count(": failed: ") == 1
    assert told.count("bad: skipped") == 1
    assert "1 of 2 variants failed (bad)" in told
