# SPDX-License-Identifier: Apache-2.0
"""Comparisons in real processes: what fails leaves the rest be, and what was cut off goes on."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from gpuprof.bench.campaign.campaign import Finished, carry_out
from gpuprof.bench.campaign.journal import Entry, Journal
from gpuprof.bench.campaign.plan import CampaignPlan, Variant
from gpuprof.bench.settings import Settings
from gpuprof.bench.spec import SystemSpec
from gpuprof.errors import BenchmarkError

MODELS = Path(__file__).with_name("bench_models.py")
QUICK = Settings(iterations=20, warmup=1)


def variant(name: str, factory: str = "doubled") -> Variant:
    return Variant(name, SystemSpec(f"{MODELS}:{factory}", input_shape=(3,)))


def plan(*variants: Variant, **options: Any) -> CampaignPlan:
    return CampaignPlan(variants, **{"launches": 2, "measuring": QUICK, "accuracy": None, **options})


class Watch:
    """Counts the launches that were made, and interrupts behind the last one that is allowed."""

    def __init__(self, most: int = 1_000) -> None:
        self.ended: list[str] = []
        self._most = most

    def __call__(self, variant: str, done: int, planned: int, event: dict[str, Any]) -> None:
        if event["event"] == "ended":
            self.ended.append(variant)
            if len(self.ended) == self._most:
                raise KeyboardInterrupt


def statuses(finished: Finished) -> dict[str, str]:
    return {each["name"]: each["status"] for each in finished.document["variants"]}


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
    told = {each["name"]: each["failure"] for each in finished.document["variants"]}
    assert "no weights" in told["raising"]
    assert "SIGSEGV" in told["crashing"]
    assert "batch size 2" in told["partly"]
    assert [each["batch_size"] for each in finished.document["variants"][3]["batches"]] == [1]
    assert Counter(watch.ended) == dict.fromkeys(told, 2)


def test_a_comparison_that_was_cut_off_goes_on_without_repeating(tmp_path: Path) -> None:
    wanted = plan(variant("one"), variant("two"))
    first = Watch(most=3)
    cut_off = carry_out(wanted, tmp_path, watch=first)
    assert cut_off.interrupted
    assert "interrupted before its end" in cut_off.document["notes"]
    before = {each["name"]: each["batches"][0]["launch_medians_s"] for each in cut_off.document["variants"]}
    second = Watch()
    finished = carry_out(wanted, tmp_path, watch=second)
    assert Counter(first.ended + second.ended) == {"one": 2, "two": 2}
    assert not finished.interrupted
    for each in finished.document["variants"]:
        medians = each["batches"][0]["launch_medians_s"]
        assert len(medians) == 2
        assert set(before[each["name"]]) <= set(medians)
    assert "3 of 4 launches are of an earlier time" in finished.document["notes"]


def test_one_that_had_come_to_its_end_begins_anew_unless_told(tmp_path: Path) -> None:
    wanted = plan(variant("one"), launches=1)
    counts = []
    for options in ({}, {}, {"resume": True}, {"fresh": True}):
        watch = Watch()
        carry_out(wanted, tmp_path, watch=watch, **options)
        counts.append(len(watch.ended))
    assert counts == [1, 1, 0, 1]


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


def entry(launch: int) -> Entry:
    return Entry("abc", "one", {"launch": launch, "batches": []}, 1.0)


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
    [(b"{", "line 2: damaged"), (b"[]", "line 2: damaged"), (b'{"fingerprint": 1}', "line 2: damaged")],
)
def test_a_damaged_line_is_named(tmp_path: Path, line: bytes, why: str) -> None:
    with Journal(tmp_path).opened() as journal:
        journal.add(entry(1))
    path = tmp_path / "journal.jsonl"
    head, rest = path.read_bytes().split(b"\n", 1)
    path.write_bytes(head + b"\n" + line + b"\n" + rest)
    with pytest.raises(BenchmarkError, match=why), Journal(tmp_path).opened():
        pass
    with Journal(tmp_path, fresh=True).opened() as journal:
        assert not journal.entries


def test_a_journal_of_another_machine_is_refused(tmp_path: Path) -> None:
    with Journal(tmp_path).opened() as journal:
        journal.add(entry(1))
    path = tmp_path / "journal.jsonl"
    head, rest = path.read_bytes().split(b"\n", 1)
    changed = json.loads(head)
    changed["machine"]["processor"] = "another"
    path.write_bytes(json.dumps(changed).encode() + b"\n" + rest)
    refusal = pytest.raises(BenchmarkError, match=r"another machine or with other versions \(processor\)")
    with refusal, Journal(tmp_path).opened():
        pass


def test_two_at_once_are_refused(tmp_path: Path) -> None:
    refusal = pytest.raises(BenchmarkError, match="being written by another")
    with Journal(tmp_path).opened(), refusal, Journal(tmp_path).opened():
        pass


def test_a_folder_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("", encoding="utf-8")
    with pytest.raises(BenchmarkError, match="--output-dir"), Journal(tmp_path / "file").opened():
        pass
