# SPDX-License-Identifier: Apache-2.0
"""Rules on simulated programs: each finds its cause, predicts the repaired program, and is silent on it."""

from __future__ import annotations

import json
import re
from pathlib import Path

import duckdb
import pytest
from refusals import refused
from run_edits import change_meta, forget_parts, parquet_of
from simulated_gpu import write_table
from simulated_program import PROCESS
from simulated_training import ADAMW_NS, MS, SAMPLE_NS, Planted, TrainingHost, settings, train

import gpuprof
from gpuprof.analyze.findings.engine import Findings
from gpuprof.analyze.findings.finding import Finding, GainKind, Missing, Rule, Verdict
from gpuprof.analyze.findings.messages import FACTORS, FIXES, MEANINGS_OF_FACTORS, RULES, TITLES
from gpuprof.analyze.findings.text import explanation, repair, short_lines, title, uncertainty
from gpuprof.analyze.whatif.step_gain import REPLAY_ERROR
from gpuprof.errors import RunError
from gpuprof.record.facts import Reason, SourceStatus
from gpuprof.text.messages import Messages

CLEAN = Planted()
STEPS = 12
WARM = STEPS - 1


def findings_of(folder: Path, planted: Planted, **values: object) -> Findings:
    host = TrainingHost(**{"settings": settings(), **values})  # type: ignore[arg-type]
    return gpuprof.open(train(host, planted, STEPS).write(folder / "r.gpuprof")).findings()


def only(found: Findings) -> Finding:
    (finding,) = found
    return finding


def wall_ns(planted: Planted) -> int:
    return train(TrainingHost(), planted, STEPS).now_ns


CAUSES = {
    Rule.COLLECTIONS: Planted(collect=20),
    Rule.LOGGING: Planted(log=12, values=50),
    Rule.WAITING: Planted(sleep=9),
}
SAMPLED = (Rule.LOGGING, Rule.WAITING)  # their time is that of samples


@pytest.mark.parametrize(("rule", "planted"), CAUSES.items())
def test_a_planted_cause_is_the_only_finding(rule: Rule, planted: Planted, tmp_path: Path) -> None:
    finding = only(findings_of(tmp_path, planted))
    assert finding.rule is rule
    assert finding.gain.kind is GainKind.REPLAYED
    assert 0 < finding.confidence <= 0.9


@pytest.mark.parametrize("planted", CAUSES.values())
def test_the_repaired_program_gains_what_is_predicted(planted: Planted, tmp_path: Path) -> None:
    finding = only(findings_of(tmp_path, planted))
    real_ns = wall_ns(planted) - wall_ns(CLEAN)
    assert finding.gain.run.low_ns <= 1.01 * real_ns
    assert finding.gain.run.high_ns >= 0.99 * real_ns
    assert finding.gain.run.high_ns <= 1.2 * real_ns
    assert finding.gain.step is not None
    # Steps of equal length vary by nothing: what remains is the error of replays.
    low_ns, high_ns = (end / STEPS for end in (finding.gain.run.low_ns, finding.gain.run.high_ns))
    assert finding.gain.step.low_ns == pytest.approx((1 - REPLAY_ERROR) * low_ns, rel=0.02)
    assert finding.cost_step_ns is not None
    # Samples show the begin and the end of a function to half an interval.
    most_ns = finding.cost_step_ns + (SAMPLE_NS if finding.rule in SAMPLED else 0)
    assert finding.gain.step.high_ns == pytest.approx(min((1 + REPLAY_ERROR) * high_ns, most_ns))


@pytest.mark.parametrize("steps", [2, 5, 12])
def test_no_gain_is_below_zero_or_above_the_cost(steps: int, tmp_path: Path) -> None:
    run = gpuprof.open(train(TrainingHost(settings=settings()), ALL, steps).write(tmp_path / "r.gpuprof"))
    found = run.findings()
    assert len(found) > 2
    for each in (*found, *found.unlisted):
        missed_ns = SAMPLE_NS if each.rule in SAMPLED else 0  # in each step
        assert 0 <= each.gain.run.low_ns <= each.gain.run.high_ns <= each.cost_run_ns + steps * missed_ns
        if each.gain.step is not None:
            assert each.cost_step_ns is not None
            assert 0 <= each.gain.step.low_ns <= each.gain.step.high_ns <= each.cost_step_ns + missed_ns


@pytest.mark.parametrize(("steps", "factor"), [(1, 0.2), (2, 0.4), (4, 0.8), (5, None)])
def test_few_steps_lower_the_confidence(steps: int, factor: float | None, tmp_path: Path) -> None:
    run = train(TrainingHost(settings=settings()), Planted(collect=20), steps).write(tmp_path / "r.gpuprof")
    finding = only(gpuprof.open(run).findings())
    assert finding.factors.get("steps") == factor
    assert (finding.gain.kind is GainKind.BOUND) == (steps == 1)
    assert finding.gain.step is not None
    assert (finding.gain.step.low_ns == 0) == (steps == 1)


def test_a_clean_program_has_no_finding(tmp_path: Path) -> None:
    found = findings_of(tmp_path, CLEAN, settings=settings(fused=True))
    assert list(found) == []
    assert {each.verdict for each in found.results} <= {Verdict.NOT_FOUND, Verdict.UNKNOWN}


def test_the_collections_before_the_first_step_are_no_cause(tmp_path: Path) -> None:
    host = TrainingHost(settings=settings())
    with host.span("generation 1", "gc"):
        host.work(300 * MS)
    run = gpuprof.open(train(host, CLEAN).write(tmp_path / "r.gpuprof"))
    assert list(run.findings()) == []


@pytest.mark.parametrize("in_import", [True, False])
def test_without_steps_collections_during_imports_are_no_cause(in_import: bool, tmp_path: Path) -> None:
    host = TrainingHost()
    host.work(50 * MS)
    frame = "<module> (torch/__init__.py)" if in_import else "parse (train.py:5)"
    with host.function(frame):
        host.work(100 * MS)
        with host.span("generation 2", "gc"):
            host.work(100 * MS)
    host.work(100 * MS)
    found = gpuprof.open(host.write(tmp_path / "r.gpuprof")).findings()
    of_rule = [each for each in found if each.rule is Rule.COLLECTIONS]
    assert [each.evidence[0].value for each in of_rule] == ([] if in_import else [100 * MS])
    assert [each.evidence[1].value for each in of_rule] == ([] if in_import else [1])


def test_without_steps_and_stacks_collections_are_unknown(tmp_path: Path) -> None:
    host = TrainingHost()
    with host.span("generation 2", "gc"):
        host.work(100 * MS)
    host.samples.clear()
    results = gpuprof.open(host.write(tmp_path / "r.gpuprof")).findings().results
    assert {each.rule: each.missing for each in results}[Rule.COLLECTIONS] is Missing.STACKS


# ---- loader ------------------------------------------------------------------------------------------------


def test_a_loader_in_the_main_process_is_replayed_with_workers(tmp_path: Path) -> None:
    finding = only(findings_of(tmp_path, Planted(load=20, load_sleeps=True)))
    assert finding.rule is Rule.LOADER
    assert finding.values["suggested"] == 1
    assert finding.values["dataset"] == "Samples"
    # A worker fetches during the 30 ms of a step; only the first batch is waited for.
    assert finding.gain.run.low_ns == pytest.approx((STEPS - 1) * 20 * MS, rel=0.01)
    assert finding.gain.run.low_ns <= finding.gain.run.high_ns


def test_a_loader_that_takes_longer_than_the_step_needs_two_workers(tmp_path: Path) -> None:
    finding = only(findings_of(tmp_path, Planted(load=50, load_sleeps=True)))
    assert finding.values["suggested"] == 2
    assert finding.gain.step is not None
    assert (finding.gain.step.low_ns + finding.gain.step.high_ns) / 2 <= 50 * MS


def test_waits_in_the_loader_are_its_symptom(tmp_path: Path) -> None:
    found = findings_of(tmp_path, Planted(load=20, load_sleeps=True, sleep=9))
    assert [each.rule for each in found] == [Rule.LOADER, Rule.WAITING]
    assert found[1].values["caller"] == "poll (train.py:60)"


@pytest.mark.parametrize(("load", "workers"), [(20, 1), (50, 2), (110, 4), (400, 4)])
def test_workers_that_wait_may_be_more_than_the_processors(load: int, workers: int, tmp_path: Path) -> None:
    slow = Planted(load=load, load_sleeps=True)
    finding = only(findings_of(tmp_path, slow, cores=1, settings=one_processor()))
    assert finding.values["suggested"] == workers


def test_a_loader_that_computes_gains_nothing_by_workers_on_one_processor(tmp_path: Path) -> None:
    finding = only(findings_of(tmp_path, Planted(load=50), cores=1, settings=one_processor()))
    assert finding.values["suggested"] is None
    assert title(finding).endswith("workers would take its processors")
    assert finding.gain.kind is GainKind.BOUND
    assert finding.gain.run.low_ns == 0


def test_workers_on_a_machine_of_unknown_size_are_a_fix(tmp_path: Path) -> None:
    path = train(TrainingHost(), Planted(load=50), STEPS).write(tmp_path / "r.gpuprof")
    change_meta(path, machine={}, imported="trace.json")
    finding = only(gpuprof.open(path).findings())
    assert finding.values["suggested"] == 1
    assert finding.gain.kind is GainKind.BOUND
    assert title(finding).endswith("the DataLoader has no workers")


@pytest.mark.parametrize(
    ("collect", "rules"), [(4, [Rule.LOADER, Rule.COLLECTIONS]), (9, [Rule.COLLECTIONS, Rule.LOADER])]
)
def test_a_large_bound_is_before_a_small_gain(collect: int, rules: list[Rule], tmp_path: Path) -> None:
    found = findings_of(tmp_path, Planted(load=50, collect=collect), cores=1, settings=one_processor())
    assert [each.rule for each in found] == rules


def one_processor() -> dict[str, object]:
    found = settings()
    found["threads"] = {"intra_op": 1, "inter_op": 1, "usable_processors": 1.0}
    return found


# ---- optimizer ---------------------------------------------------------------------------------------------


def test_a_loop_over_parameters_is_found_with_the_gain_of_the_fused_step(tmp_path: Path) -> None:
    finding = only(findings_of(tmp_path, Planted(is_fused=False)))
    assert finding.rule is Rule.OPTIMIZER
    real_ns = wall_ns(Planted(is_fused=False)) - wall_ns(CLEAN)
    assert finding.gain.run.low_ns <= real_ns <= finding.gain.run.high_ns
    whole = sum(ADAMW_NS.values()) + len(ADAMW_NS) * 500_000
    low = whole - sum(ADAMW_NS[name] for name in ("aten::lerp_", "aten::addcdiv_", "aten::sqrt"))
    high = whole - 0.8 * sum(ADAMW_NS[name] for name in ("aten::lerp_", "aten::addcdiv_"))
    assert finding.gain.run.low_ns == pytest.approx(STEPS * low, rel=1e-6)
    assert finding.gain.run.high_ns == pytest.approx(STEPS * high, rel=1e-6)


@pytest.mark.parametrize("change", [{"fused": True}, {"foreach": True}, {"can_be_fused": False}])
def test_an_optimizer_that_is_fused_or_cannot_be_is_no_cause(change: dict[str, bool], tmp_path: Path) -> None:
    own = settings()
    own["optimizers"][0].update(change)
    assert list(findings_of(tmp_path, Planted(is_fused=False), settings=own)) == []


# ---- start-up, threads -------------------------------------------------------------------------------------


def test_an_import_that_is_not_used_is_found_with_its_self_time_as_the_low_end(tmp_path: Path) -> None:
    finding = only(findings_of(tmp_path, Planted(import_=200)))
    assert (finding.rule, finding.values["package"]) == (Rule.UNUSED_IMPORT, "plots")
    assert finding.gain.kind is GainKind.BOUND
    assert finding.gain.step is None
    assert finding.gain.run.high_ns == pytest.approx(200 * MS, rel=0.01)


def test_pytorch_is_used_where_there_are_operators(tmp_path: Path) -> None:
    for kind, expected in (("operator", []), ("span", ["torch"])):
        host = TrainingHost(settings=settings())
        with host.function("<module> (torch/__init__.py)"):
            host.work(200 * MS)
        with host.span("aten::mm", kind):
            host.work(300 * MS)
        found = gpuprof.open(host.write(tmp_path / f"{kind}.gpuprof")).findings()
        assert [each.values["package"] for each in found] == expected


def test_a_package_that_is_imported_last_is_no_cause(tmp_path: Path) -> None:
    host = train(TrainingHost(settings=settings()), CLEAN)
    with host.function("<module> (plots/__init__.py)"):
        host.work(200 * MS)
    host.work(20 * MS)
    assert list(gpuprof.open(host.write(tmp_path / "r.gpuprof")).findings()) == []


def test_an_import_that_is_used_is_no_cause(tmp_path: Path) -> None:
    host = train(TrainingHost(settings=settings()), Planted(import_=200))
    with host.function("draw (plots/draw.py:3)"):
        host.work(3 * MS)
    assert list(gpuprof.open(host.write(tmp_path / "r.gpuprof")).findings()) == []


def test_a_slow_start_is_bounded_by_the_time_of_its_function(tmp_path: Path) -> None:
    finding = only(findings_of(tmp_path, Planted(startup=300)))
    assert (finding.rule, finding.values["function"]) == (Rule.STARTUP, "read_vocabulary (train.py:77)")
    assert finding.gain.run.low_ns == 0
    assert finding.gain.run.high_ns == pytest.approx(300 * MS, rel=0.01)


# ---- what rules lack ---------------------------------------------------------------------------------------


def test_a_rule_names_what_was_not_recorded(tmp_path: Path) -> None:
    found = findings_of(tmp_path, CLEAN, settings=None, sources=())
    missing = {each.rule: each.missing for each in found.results}
    assert missing[Rule.LOADER] is Missing.OPERATORS
    assert missing[Rule.COLLECTIONS] is Missing.COLLECTIONS
    assert missing[Rule.LOGGING] is Missing.OPERATORS
    assert missing[Rule.OPTIMIZER] is Missing.SETTINGS
    assert missing[Rule.WAITING] is Missing.STACKS
    assert missing[Rule.UNUSED_IMPORT] is Missing.STACKS


def test_without_the_native_sampler_another_one_is_named(tmp_path: Path) -> None:
    host = train(TrainingHost(settings=settings()), CLEAN, STEPS)
    host.samples.clear()
    path = host.write(tmp_path / "r.gpuprof")
    meta = json.loads((path / "meta.json").read_text(encoding="utf-8"))
    off = SourceStatus.off(Reason.INTERPRETER_UNKNOWN).to_plain()
    change_meta(path, sources={**meta["sources"], "python": off}, stacks=None)
    found = gpuprof.open(path).findings()
    assert missing(found, Rule.WAITING) is missing(found, Rule.UNUSED_IMPORT) is Missing.NATIVE_SAMPLER
    with refused(RunError, "no_stacks", "gpuprof run --python"):
        gpuprof.open(path).whatif(remove="python:f")


def test_a_program_without_steps_can_have_findings_of_the_whole_run(tmp_path: Path) -> None:
    host = TrainingHost(settings=settings())
    host.work(50 * MS)
    with host.span("generation 2", "gc"):
        host.work(40 * MS)
    finding = only(gpuprof.open(host.write(tmp_path / "r.gpuprof")).findings())
    assert (finding.rule, finding.gain.step) == (Rule.COLLECTIONS, None)
    assert finding.gain.run.high_ns == 40 * MS


def test_a_cause_below_a_hundredth_of_the_step_is_not_significant(tmp_path: Path) -> None:
    found = findings_of(tmp_path, Planted(collect=0.2))
    assert list(found) == []
    (result,) = [each for each in found.results if each.rule is Rule.COLLECTIONS]
    assert result.verdict is Verdict.NOT_SIGNIFICANT
    assert result.largest_ns == pytest.approx(0.2 * MS, rel=0.01)
    assert result.least_ns is not None
    assert result.largest_ns is not None
    assert result.largest_ns < result.least_ns


def test_a_gain_below_the_variation_of_steps_is_not_significant(tmp_path: Path) -> None:
    host = TrainingHost(settings=settings())
    for index in range(STEPS):
        with host.step():
            with host.span("model", "layer"):
                host.operator("aten::mm", (20 + 10 * (index % 3)) * MS)
            with host.span("generation 2", "gc"):
                host.work(MS)
    found = gpuprof.open(host.write(tmp_path / "r.gpuprof")).findings()
    assert list(found) == []
    assert uncertainty(found) is None  # it would be 3% of a step


def test_a_large_gain_that_the_steps_vary_too_much_for_is_in_the_first_lines(tmp_path: Path) -> None:
    host = TrainingHost(settings=settings())
    for index in range(STEPS):
        with host.step():
            with host.span("model", "layer"):
                host.operator("aten::mm", (20 + 60 * (index % 3)) * MS)
            with host.span("generation 2", "gc"):
                host.work(10 * MS)
    found = gpuprof.open(host.write(tmp_path / "r.gpuprof")).findings()
    assert list(found) == []
    (first, (label, text)) = short_lines(found, 3, "r.gpuprof")
    assert first[1].startswith("no cause of lost time is certain (")
    assert label == "uncertain"
    assert text.startswith("garbage collections: at most 1")
    assert "but the steps vary by" in text
    explained = " ".join(explanation(found, "r").split())
    assert re.search(
        r"no cause of lost time is certain \(\d+ of 27 rules searched\); garbage coll", explained
    )


@pytest.mark.parametrize(("own_ms", "span"), [(4, "log"), (30, None)])
def test_a_function_that_is_most_of_a_span_has_the_place_and_time_of_the_span(
    own_ms: int, span: str | None, tmp_path: Path
) -> None:
    host = TrainingHost(settings=settings())
    for _ in range(STEPS):
        with host.step():
            with host.span("model", "layer"):
                host.operator("aten::mm", 20 * MS)
            with host.span("log"):
                with host.function("Tensor.norm (torch/_tensor.py:888)"):
                    for _ in range(5):
                        host.operator("aten::item", MS)
                host.work(own_ms * MS)
    found = gpuprof.open(host.write(tmp_path / "r.gpuprof")).findings()
    finding = next(each for each in found if each.values["function"].startswith("Tensor.norm"))
    assert (finding.rule, finding.values["span"]) == (Rule.LOGGING, span)
    assert finding.cost_run_ns == pytest.approx(STEPS * (5 + (own_ms if span else 0)) * MS, rel=0.05)


def logging_function(path: Path, read_ns: int) -> tuple[Findings, Finding]:
    """Record a function of a library that takes 10 ms a step, of which it reads a value for `read_ns`."""
    host = TrainingHost(settings=settings())
    for _ in range(STEPS):
        with host.step(), host.function("training_step (train.py:5)"):
            with host.span("model", "layer"):
                host.operator("aten::mm", 20 * MS)
            with host.function("Module.log (lightning/module.py:386)"):
                host.operator("aten::item", read_ns)
                if read_ns < 10 * MS:
                    host.work(10 * MS - read_ns)
    found = gpuprof.open(host.write(path)).findings()
    return found, next(each for each in found if each.rule is Rule.LOGGING)


def test_a_function_of_a_library_is_found_with_the_function_that_calls_it(tmp_path: Path) -> None:
    found, finding = logging_function(tmp_path / "r.gpuprof", read_ns=10 * MS)
    assert finding.values["function"] == "Module.log (lightning/module.py:386)"
    assert finding.values["caller"] == "training_step (train.py:5)"
    assert "training_step (train.py:5)" in explanation(found, "r.gpuprof")


@pytest.mark.texts
@pytest.mark.parametrize(("read_us", "is_cost"), [(10, False), (9_000, True)])
def test_short_reads_are_not_the_cause_of_a_function_that_logs(
    read_us: int, is_cost: bool, tmp_path: Path
) -> None:
    """Short reads of the caller are in the time of a sample whose end is in the function that logs."""
    _, finding = logging_function(tmp_path / "r.gpuprof", read_ns=read_us * 1_000)
    assert finding.values["read_share"] == pytest.approx(read_us / 10_000, rel=0.01)
    assert ("tolist" in repair(finding)) is is_cost
    assert title(finding).startswith("Each step reads") is is_cost


@pytest.mark.parametrize(("logged_ms", "is_found"), [(0, False), (10, True)])
def test_start_up_that_imports_logging_is_no_function_that_logs(
    logged_ms: int, is_found: bool, tmp_path: Path
) -> None:
    host = TrainingHost(settings=settings())
    with host.function("load (train.py:5)"), host.function("<module> (logging/__init__.py:1)"):
        host.work(50 * MS)
    for _ in range(STEPS):
        with host.step():
            with host.span("model", "layer"):
                host.operator("aten::mm", 20 * MS)
            with host.function("load (train.py:5)"):
                host.work(20 * MS)
                with host.function("Logger.info (logging/__init__.py:1479)"):
                    host.work(logged_ms * MS)
    found = gpuprof.open(host.write(tmp_path / "r.gpuprof")).findings()
    assert any(each.rule is Rule.LOGGING for each in found) is is_found


def with_waited_time(
    path: Path, host: TrainingHost, waited: float, counted_until: float | None = None, steal: float = 0
) -> Findings:
    """Write a run whose main thread waited for so many ms, as the kernel counts it until a time in ms.

    The host of the virtual machine took `steal` ms of it.
    """
    folder = host.write(path)
    end_ns = host.now_ns if counted_until is None else round(counted_until * MS)
    row: dict[str, object] = {"process_id": PROCESS, "thread_id": PROCESS, "name": "main"}
    row |= {"begin_ns": 0, "end_ns": end_ns, "waiting_ns": round(waited * MS)}
    with duckdb.connect() as connection:
        write_table(connection, folder, "threads", [row])
    change_meta(folder, machine_steal_ns=round(steal * MS))
    return gpuprof.open(folder).findings()


def test_waits_that_the_kernel_did_not_count_are_no_cause(tmp_path: Path) -> None:
    """On a busy machine, samples of a thread that is ready look like waits until it runs again."""
    host = train(TrainingHost(settings=settings()), Planted(sleep=9))
    found = with_waited_time(tmp_path / "r.gpuprof", host, 0)
    assert missing(found, Rule.WAITING) is Missing.CERTAIN_WAITS
    host = wait_for_the_lock("torch.relu")
    found = with_waited_time(tmp_path / "lock.gpuprof", host, 0)
    assert missing(found, Rule.INTERPRETER_LOCK) is Missing.CERTAIN_WAITS


def test_waits_after_the_last_count_of_the_kernel_are_unknown(tmp_path: Path) -> None:
    """A program that is killed has no count at its end."""
    host = train(TrainingHost(settings=settings()), Planted(sleep=9))
    found = with_waited_time(tmp_path / "r.gpuprof", host, 0, counted_until=0)
    assert missing(found, Rule.WAITING) is Missing.CERTAIN_WAITS


def test_waits_are_compared_with_the_time_that_the_kernel_counted(tmp_path: Path) -> None:
    host = train(TrainingHost(settings=settings()), Planted(sleep=9))
    of_step_ms = host.now_ns / STEPS / MS
    whole, counted = 9 * STEPS, 9 * (STEPS - 3)
    found = with_waited_time(tmp_path / "r.gpuprof", host, counted, of_step_ms * (STEPS - 3))
    assert only(found).rule is Rule.WAITING
    assert only(found).gain.run.low_ns == pytest.approx(whole * MS, rel=0.05)


@pytest.mark.parametrize(
    ("call", "every", "is_found"),
    [
        ("torch.ones_like", 5, False),  # the machine keeps a call from its processor now and then
        ("torch.ones_like", 1, True),
        ("time.sleep", 5, True),
    ],
)
def test_waits_of_calls_that_do_not_wait_by_themselves_are_in_many_steps(
    call: str, every: int, is_found: bool, tmp_path: Path
) -> None:
    host = TrainingHost(settings=settings(fused=True))
    for step in range(STEPS):
        with host.step():
            with host.span("model", "layer"):
                host.work(20 * MS)
            if step % every == every - 1:
                with host.function(f"{call} (built-in)"):
                    host._pass(30 * MS, on_processor=False)
    found = gpuprof.open(host.write(tmp_path / "r.gpuprof")).findings()
    assert [each.rule for each in found] == [Rule.WAITING] * is_found


@pytest.mark.parametrize("steal", [0.3, 0.7])
def test_what_the_host_of_a_virtual_machine_took_is_no_wait(steal: float, tmp_path: Path) -> None:
    host = train(TrainingHost(settings=settings()), Planted(sleep=9))
    found = with_waited_time(tmp_path / "r.gpuprof", host, STEPS * 9, steal=steal * STEPS * 9)
    if steal > 0.5:
        assert missing(found, Rule.WAITING) is Missing.CERTAIN_WAITS
    else:
        low_ns = only(found).gain.run.low_ns
        assert low_ns == pytest.approx((1 - steal) * STEPS * 9 * MS, rel=0.05)


def test_steps_with_few_samples_do_not_show_waits(tmp_path: Path) -> None:
    host = wait_for_the_lock("torch.relu")
    del host.samples[::3], host.samples[::2]
    found = gpuprof.open(host.write(tmp_path / "r.gpuprof")).findings()
    assert missing(found, Rule.INTERPRETER_LOCK) is Missing.SAMPLES_OF_STEPS
    assert missing(found, Rule.WAITING) is Missing.SAMPLES_OF_STEPS


def missing(found: Findings, rule: Rule) -> Missing | None:
    return {each.rule: each.missing for each in found.results}[rule]


def test_the_low_end_of_a_wait_is_what_the_kernel_counted(tmp_path: Path) -> None:
    host = train(TrainingHost(settings=settings()), Planted(sleep=9))
    finding = only(with_waited_time(tmp_path / "r.gpuprof", host, 0.75 * STEPS * 9))
    assert finding.rule is Rule.WAITING
    assert finding.gain.run.low_ns == pytest.approx(0.75 * STEPS * 9 * MS, rel=0.05)
    assert finding.gain.run.high_ns == pytest.approx(STEPS * 9 * MS, rel=0.05)


# ---- evidence ----------------------------------------------------------------------------------------------

ALL = Planted(load=20, log=12, values=50, collect=20, sleep=9, import_=100, startup=300, is_fused=False)


def test_each_figure_is_what_its_query_returns(tmp_path: Path) -> None:
    host = train(TrainingHost(settings=settings()), ALL)
    run = gpuprof.open(host.write(tmp_path / "r.gpuprof"))
    found = run.findings()
    assert len(found) >= 6
    for finding in found:
        assert finding.evidence
        for figure in finding.evidence:
            ((value,),) = run.sql(figure.sql).fetchall()
            assert figure.value == pytest.approx(float(value)), figure.sql


def test_findings_are_in_order_of_the_low_end_of_their_gain(tmp_path: Path) -> None:
    lows = [each.gain.run.low_ns for each in findings_of(tmp_path, ALL)]
    assert lows == sorted(lows, reverse=True)


def test_no_gain_exceeds_its_cost(tmp_path: Path) -> None:
    for finding in findings_of(tmp_path, ALL):
        assert finding.gain.run.high_ns <= 1.05 * finding.cost_run_ns


def test_a_run_without_times_of_samples_has_rules_without_a_result(tmp_path: Path) -> None:
    path = train(TrainingHost(settings=settings()), Planted(sleep=9), STEPS).write(tmp_path / "r.gpuprof")
    run = gpuprof.open(path)
    target = parquet_of(path, "stacks")
    run.sql("SELECT * EXCLUDE (cpu_ns, queued_ns, line) FROM stacks").write_parquet(str(target) + ".new")
    Path(str(target) + ".new").replace(target)
    forget_parts(path)
    found = gpuprof.open(path).findings()
    assert Rule.WAITING not in {each.rule for each in found}
    assert {each.rule for each in found.results} == set(Rule) - {Rule.ATTENTION, Rule.SUBNORMALS}
    missing = {each.rule: each.missing for each in found.results}
    assert missing[Rule.WAITING] is missing[Rule.INTERPRETER_LOCK] is Missing.THREAD_STATES


# ---- steps whose begin is unknown --------------------------------------------------------------------------


@pytest.mark.parametrize(("source", "is_left_out"), [("optimizer", True), ("span", False)])
def test_a_first_step_whose_begin_was_not_recorded_is_left_out(
    source: str, is_left_out: bool, tmp_path: Path
) -> None:
    """The recording begins before the optimizer's step of 5 ms; all others take 50 ms."""
    host = TrainingHost(settings=settings(fused=True), source_of_steps=source)
    with host.step():
        host.operator("aten::_fused_adamw_", 5 * MS)
    found = gpuprof.open(train(host, Planted(collect=20), STEPS).write(tmp_path / "r.gpuprof")).findings()
    finding = only(found)
    assert found.mean_step_ns == pytest.approx(
        50 * MS if is_left_out else (5 + STEPS * 50) * MS / (STEPS + 1)
    )
    assert finding.cost_step_ns == pytest.approx(20 * MS * (1 if is_left_out else STEPS / (STEPS + 1)))


def test_of_few_steps_the_first_one_remains(tmp_path: Path) -> None:
    host = TrainingHost(settings=settings(fused=True), source_of_steps="optimizer")
    with host.step():
        host.operator("aten::_fused_adamw_", 5 * MS)
    found = gpuprof.open(train(host, Planted(collect=20), 4).write(tmp_path / "r.gpuprof")).findings()
    assert found.mean_step_ns == pytest.approx((5 + 4 * 50) * MS / 5)


# ---- texts -------------------------------------------------------------------------------------------------


def test_each_factor_of_a_confidence_is_explained_once(tmp_path: Path) -> None:
    found = findings_of(tmp_path, ALL)
    lines = explanation(found, "r.gpuprof").splitlines()
    for name in {name for each in found for name in each.factors}:
        assert sum(line.startswith(f"   {FACTORS.text(name, {})}: ") for line in lines) == 1
    assert {name for each in found for name in each.factors} >= {
        "replayed",
        "explained",
        "steadiness",
        "bound",
    }
    assert MEANINGS_OF_FACTORS.codes == FACTORS.codes


@pytest.mark.parametrize("texts", [TITLES, FIXES, RULES])
def test_each_rule_has_its_texts(texts: Messages) -> None:
    assert texts.codes == {rule.value for rule in Rule}


def test_a_name_adds_no_line_to_a_fix() -> None:
    fix = FIXES.text("slow_rank", {"rank": 1, "others": 1, "function": "load (a\nrm.py:3)"})
    assert "\n" not in fix


def test_values_that_are_read_elsewhere_are_not_those_of_the_function() -> None:
    values = {"function": "log (a.py:1)", "line": None, "span": None, "reads": 3.0, "logs": False}
    assert TITLES.text("logging", {**values, "all_reads": 3.0}) == TITLES.text("logging", values)
    assert "6 values" in TITLES.text("logging", {**values, "all_reads": 6.0})
    assert "6 values" not in TITLES.text("logging", values)


# ---- compilations, gradients ------------------------------------------------------------------------------


def compile_in_steps(steps: tuple[int, ...], *, compiles: bool = True) -> TrainingHost:
    """Compile for 200 ms in some steps, for 300 ms in the last of them."""
    host = TrainingHost(settings=settings(), sources=("operators", "python", "gc", "compilations"))
    for index in range(STEPS):
        with host.step(), host.span("model", "layer"):
            if index in steps and (compiles or index == 0):
                with host.span(f"compilation {index}", "compile"):
                    host.work((300 if index == steps[-1] else 200) * MS)
            host.operator("aten::mm", 30 * MS)
    return host


def test_compilations_after_the_warm_up_are_replayed_without(tmp_path: Path) -> None:
    host = compile_in_steps((0, 4, 6, 8))
    finding = only(gpuprof.open(host.write(tmp_path / "r.gpuprof")).findings())
    assert (finding.rule, finding.values["compilations"]) == (Rule.RECOMPILATIONS, 3)
    real_ns = host.now_ns - compile_in_steps((0, 4, 6, 8), compiles=False).now_ns
    assert finding.gain.run.high_ns == pytest.approx(real_ns, rel=0.01)
    assert finding.gain.run.low_ns == pytest.approx(real_ns - 300 * MS, rel=0.01)


def test_a_compilation_in_the_first_step_is_no_cause(tmp_path: Path) -> None:
    run = gpuprof.open(compile_in_steps((0,)).write(tmp_path / "r.gpuprof"))
    assert list(run.findings()) == []


def test_a_collection_in_a_compilation_is_its_symptom(tmp_path: Path) -> None:
    host = compile_in_steps((0,))
    with host.step(), host.span("compilation 9", "compile"), host.span("generation 2", "gc"):
        host.work(200 * MS)
    finding = only(gpuprof.open(host.write(tmp_path / "r.gpuprof")).findings())
    assert (finding.rule, finding.symptoms) == (Rule.RECOMPILATIONS, (Rule.COLLECTIONS,))


def set_to_zero(*, zeroes: bool) -> TrainingHost:
    host = TrainingHost(settings=settings(fused=True))
    for _ in range(STEPS):
        with host.step():
            with host.span("Optimizer.zero_grad#AdamW.zero_grad"):
                if zeroes:
                    host.operator("aten::zero_", 2 * MS)
            with host.span("model", "layer"):
                host.operator("aten::mm", 20 * MS)
            with (
                host.span("AccumulateGrad", "backward"),
                host.span("torch::autograd::AccumulateGrad", "operator"),
            ):
                host.operator("aten::add_" if zeroes else "aten::detach", 3 * MS if zeroes else 0)
            with host.span("Optimizer.step#AdamW.step"):
                host.operator("aten::_fused_adamw_", 5 * MS)
    return host


def test_gradients_set_to_zero_gain_up_to_the_additions(tmp_path: Path) -> None:
    finding = only(gpuprof.open(set_to_zero(zeroes=True).write(tmp_path / "r.gpuprof")).findings())
    assert finding.rule is Rule.ZEROING
    assert finding.gain.run.low_ns == pytest.approx(STEPS * 2 * MS)
    assert finding.gain.run.high_ns == set_to_zero(zeroes=True).now_ns - set_to_zero(zeroes=False).now_ns


def test_gradients_that_are_released_are_no_cause(tmp_path: Path) -> None:
    found = gpuprof.open(set_to_zero(zeroes=False).write(tmp_path / "r.gpuprof")).findings()
    assert list(found) == []
    assert {each.rule: each.verdict for each in found.results}[Rule.ZEROING] is Verdict.NOT_FOUND


# ---- interpreter lock --------------------------------------------------------------------------------------


def wait_for_the_lock(call: str, *, computes: bool = True) -> TrainingHost:
    """Wait for 12 ms in an operator of each step, while another thread computes or waits."""
    host = TrainingHost(settings=settings(fused=True))
    for _ in range(STEPS):
        with host.step(), host.span("model", "layer"), host.function("Model.forward (model.py:3)"):
            host.operator("aten::mm", 20 * MS)
            with host.function(f"{call} (built-in)"):
                host._pass(12 * MS, on_processor=False)
    other = {"thread_id": PROCESS + 1, "frames": ["prepare (data.py:7)"], "cpu_ns": MS if computes else 0}
    host.samples += [{**each, **other} for each in host.samples]
    # It computes outside of the steps, for longer.
    busy = {"thread_id": PROCESS + 2, "frames": ["preload (data.py:70)"], "cpu_ns": MS}
    last_ns = max(each["t_ns"] for each in host.samples)
    count = 2 * len(host.samples)
    host.samples += [{**host.samples[0], **busy, "t_ns": last_ns + number * MS} for number in range(1, count)]
    return host


def test_waits_while_another_thread_executes_python_are_bounded(tmp_path: Path) -> None:
    run = gpuprof.open(wait_for_the_lock("torch.relu").write(tmp_path / "r.gpuprof"))
    finding = only(run.findings())
    assert finding.rule is Rule.INTERPRETER_LOCK
    assert finding.values == {"thread": PROCESS + 1, "function": "prepare (data.py:7)"}
    assert (finding.gain.kind, finding.gain.run.low_ns) == (GainKind.BOUND, 0)
    assert finding.gain.run.high_ns == pytest.approx(STEPS * 12 * MS, rel=0.1)
    for figure in finding.evidence:
        assert run.sql(figure.sql).fetchall() == [(figure.value,)]


@pytest.mark.parametrize(
    ("call", "computes"), [("torch.relu", False), ("queue.get", True), ("self._lock.acquire", True)]
)
def test_waits_for_something_else_are_not_for_the_interpreter_lock(
    call: str, computes: bool, tmp_path: Path
) -> None:
    run = gpuprof.open(wait_for_the_lock(call, computes=computes).write(tmp_path / "r.gpuprof"))
    (result,) = [each for each in run.findings().results if each.rule is Rule.INTERPRETER_LOCK]
    assert result.verdict is Verdict.NOT_FOUND
