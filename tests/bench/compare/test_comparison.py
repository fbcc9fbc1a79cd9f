# SPDX-License-Identifier: Apache-2.0
"""Comparisons of variants: verdicts by simulation, figures against raw samples, what follows from them."""

from __future__ import annotations

import dataclasses
import datetime
import json
import math
from collections.abc import Iterable
from typing import Any

import numpy as np
import pytest
from comparisons import comparison_of, runs

from gpuprof.bench.compare import advice
from gpuprof.bench.compare.advice import ComparisonAdvice, runs_needed, variation_of
from gpuprof.bench.compare.document import AccuracyFigures, Recommendation, document_from, plain_document
from gpuprof.bench.compare.figures import MoreFigures, compare_variants, document_of, pareto
from gpuprof.bench.compare.plan import Variant
from gpuprof.bench.compare.traffic_result import ArmRequests, TrafficResult, TrafficRun, TrafficSettings
from gpuprof.bench.config import SystemSpec
from gpuprof.bench.facts import Diagnostic, note
from gpuprof.bench.number_text import points_text, speedup_text
from gpuprof.bench.report.console import document_text as console_text
from gpuprof.bench.results.target import parse_target
from gpuprof.bench.serialization import from_plain
from gpuprof.record.facts import Severity
from gpuprof.stats.ratio_test import compare

AT = datetime.datetime(2026, 2, 3, 12, tzinfo=datetime.timezone.utc)


def document(*given: Any, **options: Any) -> dict[str, Any]:
    """Return the JSON of a comparison; outputs are given as figures, or as the reason why there are none."""
    outputs = {
        name: each if isinstance(each, Diagnostic) else from_plain(each, AccuracyFigures)
        for name, each in options.pop("found", {}).items()
    }
    result = comparison_of(*given, **options.pop("plan", {}))
    found = document_of(result, AT, MoreFigures(accuracy=outputs))
    return json.loads(json.dumps(plain_document(found), allow_nan=False))


def find(plain: dict[str, Any]) -> ComparisonAdvice:
    """Return the advice for a document of known figures."""
    return advice.advise(document_from(plain))


Steps = dict[tuple[str, Any], Diagnostic | None]


def actions(recommendations: Iterable[Recommendation]) -> Steps:
    """Return the reason of what to do next, by its code and the variant or target that it is about."""
    steps = {}
    for each in recommendations:
        values = each.action.values
        steps[each.action.code, values.get("variant", values.get("target"))] = each.reason
    return steps


def steps(plain: dict[str, Any]) -> Steps:
    return actions(document_from(plain).recommendations)


def document_text(plain: dict[str, Any]) -> str:
    return console_text(document_from(plain))


def variant_of(found: dict[str, Any], name: str) -> dict[str, Any]:
    return next(each for each in found["variants"] if each["name"] == name)


def accuracy_of(**changes: Any) -> dict[str, Any]:
    """The accuracy of a variant that is as good as the baseline."""
    return {
        "samples": 1_000, "labelled": True, "accuracy": 0.76, "verdict": "same",
        "change": {"low": -0.004, "value": 0.0, "high": 0.004}, "agreement_top1": 0.99,
        "agreement_top5": 0.99, "cosine": 0.999, "tolerance": "within", "nan": 0, "infinity": 0,
        "findings": [], "metrics": [], "degraded_classes": [], **changes,
    }  # fmt: skip


# --- verdicts ------------------------------------------------------------------------------------


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Leave out the bootstrap, which takes most of the time and which no verdict rests on."""
    monkeypatch.setattr("gpuprof.stats.ratio_test.bootstrap_ratio", lambda *_, **__: (None, 1.0, None))


def verdicts(ratio: float, comparisons: int = 100) -> list[str | None]:
    """Return what comparisons of ten process runs with 1% deviation find of a variant at two batch sizes."""
    found = []
    for seed in range(comparisons):
        old = {size: runs(level, (seed, size, 0), samples=40) for size, level in SIZES.items()}
        new = {size: runs(level * ratio, (seed, size, 1), samples=40) for size, level in SIZES.items()}
        found.append(compare_variants(comparison_of({"old": old, "new": new})).verdict("new"))
    return found


SIZES = {1: 3.0, 8: 11.0}


@pytest.mark.usefixtures("quick")
def test_two_variants_that_differ_by_3_percent_are_found_different() -> None:
    assert verdicts(1.03).count("slower") >= 95


@pytest.mark.usefixtures("quick")
def test_two_variants_that_are_the_same_are_not_found_different() -> None:
    found = verdicts(1.0)
    assert found.count("same") + found.count("inconclusive") >= 95
    assert found.count("same") > 50


@pytest.mark.usefixtures("quick")
def test_many_variants_that_are_the_same_raise_no_alarms() -> None:
    """Eight variants at once: of the differences that are found few may be false, and here all are."""
    alarms = 0
    for seed in range(20):
        given = {f"v{number}": {1: runs(5.0, (seed, number), samples=40)} for number in range(8)}
        found = compare_variants(comparison_of(given))
        alarms += any(found.verdict(name) in ("faster", "slower") for name in given)
    assert alarms <= 3


def test_a_speed_up_over_all_batch_sizes_is_the_geometric_mean() -> None:
    old = {1: [[10.0] * 9, [10.0] * 9], 4: [[20.0] * 9, [20.0] * 9]}
    new = {1: [[5.0] * 9, [5.0] * 9], 4: [[20.0] * 9, [20.0] * 9]}
    found = variant_of(document({"old": old, "new": new}), "new")
    assert found["speedup"]["value"] == pytest.approx(math.sqrt(2))
    assert [each["speedup"]["value"] for each in found["batches"]] == pytest.approx([2.0, 1.0])


def test_faster_at_one_batch_size_and_slower_at_another_is_mixed() -> None:
    old = {1: runs(10.0, 1), 32: runs(90.0, 2)}
    new = {1: runs(5.0, 3), 32: runs(150.0, 4)}
    found = document({"old": old, "new": new}, found={"new": accuracy_of()})
    assert variant_of(found, "new")["verdict"] == "mixed"
    assert found["summary"]["choice"] is None
    assert found["summary"]["headline"]["code"] == "by_batch_size"
    assert found["summary"]["by_batch_size"] == {"1": "new", "32": "old"}


# --- figures -------------------------------------------------------------------------------------


def test_every_figure_equals_that_of_the_raw_samples() -> None:
    samples = {size: runs(level, size, count=4) for size, level in ((1, 2.0), (8, 9.0), (32, 31.0))}
    given = {
        f"v{number}": {s: (np.array(found) * (1 + number)).tolist() for s, found in samples.items()}
        for number in range(4)
    }
    found = document(given, plan={"price_per_hour": 3.6})
    for number, variant in enumerate(found["variants"]):
        for batch in variant["batches"]:
            raw = np.round(np.array(given[f"v{number}"][batch["batch_size"]]) * 1e6) / 1e9
            assert batch["samples"] == raw.size
            assert batch["launch_medians_s"] == pytest.approx(np.median(raw, axis=1).tolist())
            assert batch["median_s"]["value"] == pytest.approx(np.median(raw), rel=1e-3)
            assert batch["mean_s"] == pytest.approx(raw.mean())
            assert (batch["min_s"], batch["max_s"]) == pytest.approx((raw.min(), raw.max()))
            rate = batch["batch_size"] / raw.mean()
            assert batch["throughput_per_s"]["value"] == pytest.approx(rate)
            assert batch["cost_per_million"] == pytest.approx(3.6 / 3600 / rate * 1e6)
            if number:
                old = np.array(given["v0"][batch["batch_size"]])
                both = [np.log(np.median(each, axis=1)).mean() for each in (old, raw * 1e3)]
                assert batch["speedup"]["value"] == pytest.approx(math.exp(both[0] - both[1]), rel=1e-4)


def test_what_is_unavailable_is_no_number() -> None:
    found = variant_of(document({"one": {1: [[1.0, 2.0]]}}), "one")
    batch = found["batches"][0]
    assert batch["p99_s"] is None
    assert batch["cost_per_million"] is None
    assert batch["speedup"] is None
    assert found["accuracy"] is None
    assert found["accuracy_unavailable"]


def test_an_aborted_process_run_counts_in_no_comparison() -> None:
    result = comparison_of({"old": {1: runs(5.0, 1)}, "new": {1: runs(5.0, 2)}})
    first = result.of("new").session.batches[0].launches[0]
    assert first.measurement is not None
    object.__setattr__(first.measurement, "stopped_by", "interrupted")
    found = variant_of(plain_document(document_of(result, AT)), "new")
    assert len(found["batches"][0]["launch_medians_s"]) == 9
    assert found["batches"][0]["comparison"]["new_launches"] == 9


# --- the choice ----------------------------------------------------------------------------------

OLD = {1: runs(10.0, 1), 8: runs(40.0, 2)}
FASTER = {1: runs(6.0, 3), 8: runs(24.0, 4)}
FASTEST = {1: runs(3.0, 5), 8: runs(12.0, 6)}


def test_the_fastest_of_those_whose_outputs_are_as_good_is_recommended() -> None:
    lower = accuracy_of(verdict="lower", change={"low": -0.06, "value": -0.05, "high": -0.04})
    found = document(
        {"old": OLD, "faster": FASTER, "fastest": FASTEST},
        found={"old": accuracy_of(), "faster": accuracy_of(), "fastest": lower},
    )
    assert found["summary"]["choice"] == "faster"
    headline = found["summary"]["headline"]
    assert (headline["code"], headline["values"]["variant"]) == ("take_variant", "faster")
    assert headline["values"]["speed"]["values"]["speedup"]["value"] == pytest.approx(1.67, abs=0.05)
    told = steps(found)
    assert ("take", "faster") in told
    reason = told["do_not_take", "fastest"]
    assert reason is not None
    change = {"low": -0.06, "value": -0.05, "high": -0.04}
    assert (reason.code, reason.values["change"]) == ("accuracy_lower", change)


@pytest.mark.parametrize(
    ("found", "choice"),
    [
        (accuracy_of(nan=3), "old"),
        (accuracy_of(verdict=None, labelled=False, tolerance="beyond"), None),
        (accuracy_of(verdict="inconclusive"), None),
        (accuracy_of(verdict=None, labelled=False), "new"),
        (note("no_outputs", reason="the process failed"), None),
        (note("accuracy_not_requested"), "new"),
    ],
    ids=["NaN", "beyond its type", "inconclusive", "within its type", "nothing", "not wanted"],
)
def test_a_faster_variant_is_recommended_only_where_its_outputs_are_as_good(
    found: Any, choice: str | None
) -> None:
    made = document({"old": OLD, "new": FASTER}, found={"old": accuracy_of(), "new": found})
    assert made["summary"]["choice"] == choice


def test_where_nothing_is_faster_the_baseline_stays() -> None:
    found = document({"old": FASTER, "new": OLD}, found={"old": accuracy_of(), "new": accuracy_of()})
    assert found["summary"]["choice"] == "old"
    headline = found["summary"]["headline"]
    assert (headline["code"], headline["values"]["reason"]["code"]) == ("keep_baseline", "none_faster")
    assert ("leave_out", "new") in steps(found)


def test_an_inconclusive_comparison_has_the_required_process_runs() -> None:
    few = {
        "old": {1: runs(10.0, 1, count=3, spread=0.03)},
        "new": {1: runs(9.8, 2, count=3, spread=0.03)},
    }
    found = document(few)
    assert found["summary"]["choice"] is None
    assert found["summary"]["headline"]["code"] == "inconclusive"
    assert ("more_runs", "new") in steps(found)


def test_a_failed_variant_does_not_affect_the_others_and_is_reported() -> None:
    found = document(
        {"old": OLD, "broken": "the factory raised ValueError", "new": FASTER},
        found={"new": accuracy_of()},
    )
    assert found["summary"]["choice"] == "new"
    assert variant_of(found, "broken")["status"] == "failed"
    failure = variant_of(found, "broken")["failure"]
    assert failure["values"] == {
        "failure": "failed",
        "message": "the factory raised ValueError",
        "hint": "",
        "failed_runs": 10,
    }
    assert "the factory raised ValueError" in document_text(found)
    assert ("fix_or_leave_out", "broken") in steps(found)


def test_process_runs_of_different_rounds_have_no_ratio() -> None:
    result = comparison_of({"old": {1: runs(10, 1)}, "new": {1: runs(8, 2)}})
    (batch,) = result.of("new").session.batches
    batch.launches[:] = [dataclasses.replace(each, position=each.position + 9) for each in batch.launches]
    result.is_paired = True
    (compared,) = (each for (_, size), each in compare_variants(result).comparisons.items() if size == 1)
    assert (compared.old_launches, compared.new_launches) == (1, 1)
    batch.launches[:] = [dataclasses.replace(each, position=each.position + 9) for each in batch.launches]
    assert compare_variants(result).comparisons == {}
    found = document_of(result, AT, MoreFigures(interrupted=True))
    assert found.variants[1].speedup is None
    assert found.summary.choice is None
    (told,) = [each for each in found.notes if each.code == "not_paired"]
    assert told.values["pairs"] == 0
    assert "the two are not compared" in console_text(found).replace("\n", " ")


def test_a_failed_baseline_leaves_nothing_to_compare() -> None:
    found = document({"old": "it is gone", "new": FASTER})
    assert found["summary"]["choice"] is None
    assert found["summary"]["headline"]["code"] == "no_baseline"
    assert "it is gone" in document_text(found)


def test_all_of_it_failed() -> None:
    found = document({"old": "it is gone", "new": "this too"})
    headline = found["summary"]["headline"]
    values = {"variant": "old", "is_missing": False}
    assert (headline["code"], headline["values"]) == ("no_baseline", values)
    assert document_text(found)


def test_a_target_limits_the_batch_size_that_is_advised() -> None:
    found = document(
        {"old": OLD, "new": FASTER},
        found={"new": accuracy_of()},
        plan={"target": parse_target("p50<10ms")},
    )
    assert [each["target"] for each in variant_of(found, "new")["batches"]] == ["met", "missed"]
    missed = document(
        {"old": OLD, "new": FASTER}, found={"new": accuracy_of()}, plan={"target": parse_target("p50<1ms")}
    )
    assert ("do_not_promise", "p50<1ms") in steps(missed)


def test_the_front_has_the_variants_that_none_beats_in_both() -> None:
    found = document(
        {"old": OLD, "good": FASTER, "bad": FASTER, "fast": FASTEST},
        found={
            "old": accuracy_of(accuracy=0.8),
            "good": accuracy_of(accuracy=0.79),
            "bad": accuracy_of(accuracy=0.7),
            "fast": accuracy_of(accuracy=0.6),
        },
    )
    assert found["quality"]["measure"] == "accuracy"
    assert {each["variant"]: each["on_front"] for each in found["pareto"]} == {
        "old": True, "good": True, "bad": False, "fast": True,
    }  # fmt: skip
    assert pareto(document_from(found).variants, None) == ()


def conclusive(
    speedups: dict[str, tuple[str, float, float, float]], of: dict[str, Any], **more: Any
) -> dict[str, Any]:
    """Return a document of variants with the verdicts and speed-ups that are given."""
    names = {"old": OLD, **dict.fromkeys(speedups, FASTER)}
    made = document(names, found={"old": accuracy_of(), **of}, **more)
    for name, (verdict, low, value, high) in speedups.items():
        each = variant_of(made, name)
        each["verdict"], each["speedup"] = verdict, {"low": low, "value": value, "high": high}
        for batch in each["batches"]:
            batch["comparison"]["verdict"] = "inconclusive"
    return made


def test_an_inconclusive_speed_is_reported_for_its_variant() -> None:
    found = find(
        conclusive(
            {"equal": ("same", 0.998, 1.001, 1.004), "noisy": ("inconclusive", 0.9, 0.99, 1.1)},
            {"equal": accuracy_of(), "noisy": accuracy_of()},
        )
    )
    assert found.choice is None
    assert (found.headline.code, found.headline.values["variant"]) == ("inconclusive", "noisy")
    speed = found.headline.values["speed"]["values"]["speedup"]
    assert speed == {"low": 0.9, "value": 0.99, "high": 1.1}


def test_an_unsuitable_variant_leaves_nothing_inconclusive() -> None:
    found = find(conclusive({"noisy": ("inconclusive", 0.9, 1.1, 1.3)}, {"noisy": accuracy_of(nan=3)}))
    assert found.choice == "old"
    assert (found.headline.code, found.headline.values["variant"]) == ("keep_baseline", "old")
    why = found.headline.values["reason"]
    assert (why["code"], why["values"]["variant"]) == ("inconclusive_and_unfit", "noisy")
    assert why["values"]["reason"]["code"] == "outputs_not_finite"
    assert why["values"]["reason"]["values"]["nan"] == 3


def test_an_inconclusive_variant_stays_so_next_to_a_broken_one() -> None:
    made = conclusive(
        {"broken": ("faster", 1.9, 2.0, 2.1), "noisy": ("inconclusive", 0.99, 1.1, 1.3)},
        {"broken": accuracy_of(nan=3), "noisy": accuracy_of()},
    )
    assert find(made).choice is None
    headline = find(made).headline
    assert (headline.code, headline.values["variant"]) == ("inconclusive", "noisy")


def test_a_tight_interval_of_a_mixed_variant_is_not_called_wide() -> None:
    unsure = accuracy_of(verdict="inconclusive")
    found = find(conclusive({"mixed": ("mixed", 1.1, 1.2, 1.3)}, {"mixed": unsure}))
    assert found.headline.values["reason"]["code"] == "mixed_speed"


def test_a_mean_over_fewer_batch_sizes_does_not_win_over_a_whole_one() -> None:
    """At batch size 1 the whole one is faster too; its mean is lower for the sizes that the other lacks."""
    partly = {1: FASTER[1]}
    whole = {1: runs(5.0, 8), 8: runs(38.0, 9)}
    found = document(
        {"old": OLD, "whole": whole, "partly": partly},
        found={"whole": accuracy_of(), "partly": accuracy_of()},
    )
    speedups = {each["name"]: (each["speedup"] or {}).get("value") for each in found["variants"]}
    assert speedups["partly"] > speedups["whole"]
    assert found["summary"]["choice"] == "whole"
    alone = document({"old": OLD, "partly": {1: FASTEST[1]}}, found={"partly": accuracy_of()})
    speed = alone["summary"]["headline"]["values"]["speed"]["values"]
    assert (speed["baseline"], speed["sizes"], speed["left_out"]) == ("old", [1], [8])


def test_a_difference_that_is_claimed_is_one_that_can_be_read() -> None:
    assert speedup_text({"low": 1.0004, "value": 1.0012, "high": 1.002}) == "1.0012x (1.0004 to 1.0020)"
    assert speedup_text({"low": 0.999, "value": 1.0012, "high": 1.002}) == "1.00x (1.00 to 1.00)"
    lower = {"low": -0.00009, "value": -0.00005, "high": -0.00001}
    assert points_text(lower, is_loss=True) == "0.005 points (0.001 to 0.009)"
    assert points_text({"low": -0.01, "value": -0.00001, "high": 0.01}) == "+0.00 points (-1.00 to +1.00)"
    assert points_text({"low": None, "value": 0.0, "high": None}, is_loss=True) == "0.00 points"


def test_a_baseline_with_broken_outputs_is_reported() -> None:
    found = document(
        {"old": OLD, "new": FASTER}, found={"old": accuracy_of(nan=7), "new": accuracy_of(nan=7)}
    )
    reason = steps(found)["fix_variant", "old"]
    assert reason is not None
    assert (reason.code, reason.values["nan"]) == ("outputs_not_finite", 7)


def test_nan_that_the_baseline_has_too_is_not_blamed_on_the_variant() -> None:
    broken = {"old": accuracy_of(nan=7), "new": accuracy_of(nan=7, new_not_finite=0)}
    found = document({"old": OLD, "new": FASTER}, found=broken)
    assert found["summary"]["choice"] is None
    headline = found["summary"]["headline"]
    assert headline["code"] == "quality_unknown"
    assert headline["values"]["reason"]["code"] == "baseline_not_finite_too"
    advised = {
        (each["action"]["code"], each["action"]["values"].get("variant")) for each in found["recommendations"]
    }
    assert ("fix_variant", "old") in advised
    assert not advised & {("compare_labelled", "new"), ("do_not_take", "new"), ("leave_out", "new")}
    worse = document(
        {"old": OLD, "new": FASTER}, found={**broken, "new": accuracy_of(nan=8, new_not_finite=1)}
    )
    assert worse["summary"]["choice"] is None  # the baseline computes NaN too
    assert worse["summary"]["headline"]["code"] == "baseline_not_recommended"


def advised_for(found: dict[str, Any] | None, *codes: str) -> set[str]:
    """The codes of the advice on a faster variant with an accuracy, in a comparison with notes."""
    made = conclusive({"new": ("faster", 1.5, 1.6, 1.7)}, {} if found is None else {"new": found})
    made["notes"] = [note(code, variant="new").to_dict() for code in codes]
    return {code for code, _ in actions(find(made).recommendations)}


def test_advice_that_is_followed_is_not_given() -> None:
    unlabelled = accuracy_of(verdict=None, change=None, labelled=False, tolerance="beyond")
    assert "compare_labelled" in advised_for(unlabelled)
    # The data set has labels, and no output is scores of classes.
    given = advised_for(unlabelled, "labels_not_used")
    assert "compare_labelled" not in given
    assert "judge_by_metric" in given
    few = advised_for(accuracy_of(verdict="inconclusive"))
    assert "compare_labelled" not in few
    assert "more_labelled_samples" in few


def test_traffic_does_not_roll_out_wrong_outputs() -> None:
    made = conclusive({"new": ("faster", 1.5, 1.6, 1.7)}, {"new": accuracy_of(nan=3)})
    arm = ArmRequests([10_000_000] * 400)
    runs_made = tuple(TrafficRun(number, (arm, arm)) for number in range(10))
    traffic = TrafficResult(("old", "new"), TrafficSettings((0.5, 0.5)), runs_made).to_dict()
    assert traffic["advice"]["action"] == "roll out"
    made["traffic"] = json.loads(json.dumps(traffic))
    advised = actions(find(made).recommendations)
    assert "roll_out" not in {code for code, _ in advised}
    assert ("do_not_roll_out", "new") in advised


def test_who_meets_the_target_where_the_choice_does_not_is_named() -> None:
    found = conclusive({"new": ("slower", 0.7, 0.8, 0.9)}, {"new": accuracy_of()})
    found["method"]["target"] = "p99<1ms"
    for each in found["variants"]:
        for batch in each["batches"]:
            batch["target"] = "met" if each["name"] == "new" and batch["batch_size"] == 1 else "missed"
    advised = actions(find(found).recommendations)
    reason = advised["do_not_promise", "p99<1ms"]
    assert reason is not None
    assert reason.values["others"] == {"new": [1]}
    assert ("leave_out", "new") not in advised


@pytest.mark.usefixtures("quick")
def test_the_required_process_runs_are_enough_in_simulations() -> None:
    """Of a change of 2% with a margin of 1% and 1.5% deviation, in at least 7 of 10 comparisons."""
    random = np.random.default_rng(0)
    few = compare(random.normal(1, 0.015, 10).tolist(), random.normal(1.03, 0.015, 10).tolist())
    assert variation_of(few) == pytest.approx(0.015, rel=0.5)
    needed = runs_needed(dataclasses.replace(few, ratio=1.03, low=1.03 / 1.014, high=1.03 * 1.014), 0.01)
    assert needed is not None
    settled = 0
    for _ in range(100):
        old, new = random.normal(1, 0.015, needed), random.normal(1.03, 0.015, needed)
        settled += compare(old.tolist(), new.tolist()).verdict == "slower"
    assert settled >= 70


def test_what_the_variants_do_not_have_in_common_is_reported() -> None:
    result = comparison_of({"old": OLD, "new": FASTER})
    new = result.variants[1]
    for batch in new.session.batches:
        batch.description = dataclasses.replace(
            batch.description, input_shape=(3, 8, 8), device="another", details={"tf32": "matmul True"}
        )
    for batch in result.baseline.session.batches:
        batch.description = dataclasses.replace(
            batch.description, input_shape=(3, 4, 4), details={"tf32": "matmul False"}
        )
    variants = (result.plan.variants[0], Variant("new", SystemSpec("m.py:f", data="more.npz", seed=1)))
    new.variant = variants[1]
    result.plan = dataclasses.replace(result.plan, variants=variants)
    notes = [each.values for each in document_of(result, AT).notes if each.code == "different_settings"]
    different = {each["setting"]: each["different"] for each in notes}
    assert different.keys() == {"input_shape", "device", "tf32", "data", "seed"}
    assert different["input_shape"] == ["3x4x4", "3x8x8"]
    assert (different["data"], different["seed"]) == (["more.npz", "synthetic"], ["0", "1"])


def test_what_was_not_measured_is_not_reported_as_failed() -> None:
    result = comparison_of({"old": OLD, "cut": {1: FASTER[1]}, "none": "x"})
    result.variants[2].session.failure = None
    document = document_of(result, AT)
    text = console_text(document)
    assert "None" not in text
    failure = document.variants[2].failure
    assert failure is not None
    assert failure.code == "not_measured"
    codes = [each.action.code for each in document.recommendations]
    assert "continue_measuring" in codes
    assert "fix_or_leave_out" not in codes


def test_calibration_with_the_judged_data_is_reported() -> None:
    made = conclusive({"new": ("faster", 1.5, 1.6, 1.7)}, {"new": accuracy_of()})
    made["method"]["dataset"] = "data/test"
    details = {"calibration": "64 samples of data/test"}
    variant_of(made, "new").update(recipe="int8-static:64:data/test", details=details)
    assert ("calibrate_with_others", "new") in actions(find(made).recommendations)


def test_more_process_runs_are_advised_than_were_made() -> None:
    one = compare([1.0] * 10, [1.1])
    assert runs_needed(one, 0.01) == 11


@pytest.mark.parametrize(("low", "high"), [(1e-300, 1e300), (5e-324, 1.5e308), (0.0, 1.5e308), (0.0, 2.0)])
def test_an_unbounded_interval_has_no_required_process_runs(low: float, high: float) -> None:
    """Two process runs of each side may leave one, where a machine is disturbed."""
    one = dataclasses.replace(compare([1.0, 1.1], [1.0, 1.2]), low=low, high=high)
    assert runs_needed(one, 0.01) is None


def test_what_is_worse_in_the_outputs_of_the_choice_is_named() -> None:
    worse = accuracy_of(
        metrics=[
            {"name": "loss", "value": 0.5, "baseline": 0.4, "better": "lower"},
            {"name": "gain", "value": 0.5, "baseline": 0.4, "better": "higher"},
        ],
        degraded_classes=[{"name": "cat"}, {"name": "dog"}],
    )
    found = document({"old": OLD, "new": FASTER}, found={"old": accuracy_of(), "new": worse})
    assert ("check_classes", "new") in steps(found)
    judged = [each["action"] for each in found["recommendations"] if each["action"]["code"] == "judge_metric"]
    assert [each["values"] for each in judged] == [{"variant": "new", "metric": "loss", "value": 0.5}]


# --- on a terminal -------------------------------------------------------------------------------


def test_no_name_moves_the_cursor() -> None:
    name = "\x1b[2Jnew"
    found = document(
        {"old": OLD, name: FASTER},
        found={name: accuracy_of(findings=[note("finding", text="\x1b[A")] * 9)},
    )
    assert "\x1b" not in document_text(found)


def test_the_text_is_at_most_100_columns_and_complete() -> None:
    long = "a variant with a name that is far too long for a table of this width, and unlikely"
    found = document({long: OLD, "new": FASTER, "broken": "why " * 60}, found={"new": accuracy_of()})
    text = document_text(found)
    assert max(map(len, text.splitlines())) <= 100
    assert text.startswith(found["summary"]["headline"]["text"][:20])
    assert "faster" in text


def test_a_target_and_own_metrics_are_below_the_table() -> None:
    told = accuracy_of(metrics=[{"name": "loss", "value": 0.25, "baseline": 0.2, "better": "lower"}])
    plan = {"target": parse_target("p50<10ms")}
    text = document_text(document({"old": OLD, "new": FASTER}, found={"new": told}, plan=plan))
    assert "p50<10ms: new: met at batch size 1, missed at batch size 8" in text
    assert "loss: new 0.25" in text


def test_a_busy_machine_is_reported_first(monkeypatch: pytest.MonkeyPatch) -> None:
    flag = Diagnostic("background_cpu_load", Severity.WARNING, {"busy_cpus": 1.1, "cpus": 2})
    for place in ("results.result", "compare.figures"):
        monkeypatch.setattr(f"gpuprof.bench.{place}.warnings_of", lambda *_: (flag,))
    found = document({"old": OLD, "new": FASTER}, found={"new": accuracy_of()})
    assert found["summary"]["headline"]["code"] == "machine_was_busy"
    first = found["recommendations"][0]
    assert (first["action"]["code"], first["action"]["values"]) == ("quieter_machine", {"has_threads": True})
    assert first["reason"]["values"]["disturbed"] == first["reason"]["values"]["runs"] == 40


def test_one_disturbed_process_run_of_ten_is_no_busy_machine() -> None:
    found = document({"old": OLD, "new": FASTER}, found={"new": accuracy_of()})
    for each in found["variants"]:
        for batch in each["batches"]:
            batch["disturbed_launches"] = 1
    assert find(found).headline.code != "machine_was_busy"


def test_a_speed_up_that_its_medians_do_not_give_is_explained() -> None:
    """One process run of three that takes ten times as long moves the mean and not the median."""
    new = [[5.0] * 20, [5.0] * 20, [50.0] * 20]
    found = document({"old": {1: [[10.0] * 20] * 3}, "new": {1: new}})
    first = found["notes"][0]
    assert (first["code"], first["values"]["variant"], first["values"]["batch_size"]) == (
        "runs_differ",
        "new",
        1,
    )
    assert first["values"]["pooled"] == pytest.approx(2)
    assert first["values"]["by_run"] == pytest.approx(0.928, abs=0.001)
