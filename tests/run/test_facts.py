# SPDX-License-Identifier: Apache-2.0
"""Typed facts: each code has a text, a fact survives JSON, and what cannot be read is shown as it is."""

from __future__ import annotations

import json
from enum import Enum
from pathlib import Path
from typing import Any

import pytest
from refusals import refused

from gpuprof import _native
from gpuprof.errors import RunError
from gpuprof.record.facts import Method, Note, NoteCode, Reason, Severity, SourceStatus
from gpuprof.run import messages as texts
from gpuprof.run.damage import Damage, DamageCode
from gpuprof.run.facts import current_format, damage_in, notes_of, statuses_of
from gpuprof.run.losses import Loss, LossCode, losses
from gpuprof.run.native_messages import HINTS, NATIVE
from gpuprof.text.messages import Messages


@pytest.mark.parametrize(
    ("codes", "written"),
    [
        (Method, texts.METHODS),
        (Reason, texts.REASONS),
        (NoteCode, texts.NOTES),
        (DamageCode, texts.DAMAGE),
        (LossCode, texts.LOSSES),
    ],
)
def test_each_code_has_a_text_and_each_text_a_code(codes: type[Enum], written: Messages) -> None:
    assert {code.value for code in codes} == written.codes


def test_hints_are_for_reasons() -> None:
    assert texts.WORK_HINTS.codes <= {reason.value for reason in Reason}


def test_each_code_of_the_native_core_has_a_text() -> None:
    of_python = {"holder_records", "calls_refused", "no_current_stream"}
    assert NATIVE.codes == {*_native.reason_codes(), *of_python}
    assert HINTS.codes <= NATIVE.codes


FACTS: list[Any] = [
    SourceStatus.on(Method.CUDA_EVENTS, Reason.GPU_REFUSED, detail="error 39"),
    SourceStatus.off(Reason.NOT_WANTED),
    Note(NoteCode.WORK_NO_BACKWARD, {"root": "Net"}, (3, 4)),
    Damage(DamageCode.SEGMENT_CUT_SHORT, "a.segment", 7),
]


@pytest.mark.parametrize("fact", FACTS)
def test_a_fact_survives_json(fact: Any) -> None:
    assert type(fact).from_plain(json.loads(json.dumps(fact.to_plain()))) == fact


@pytest.mark.parametrize("code", list(NoteCode))
def test_a_text_can_be_made_without_the_values_that_it_names(code: NoteCode) -> None:
    assert texts.note_text(Note(code))


@pytest.mark.texts
def test_counts_have_their_noun() -> None:
    one, many = (Damage(DamageCode.RECORDS, "a.samples", count) for count in (1, 2_000))
    assert texts.damage_text(one) == "a.samples: 1 damaged record"
    assert texts.damage_text(many) == "a.samples: 2,000 damaged records"
    assert texts.loss_text(Loss(LossCode.DAMAGED_NAMES, 2)) == "names of 2 processes"


def test_a_note_names_its_processes() -> None:
    for processes, begin in (((7,), "process 7: "), ((7, 8), "2 child processes: ")):
        text = texts.note_text(Note(NoteCode.OTHER_THREAD, processes=processes))
        assert text.startswith(begin)


def test_what_is_unknown_is_shown_as_it_is() -> None:
    meta = {
        "sources": {"new": {"state": "on", "method": "later"}},
        "notes": [{"code": "later"}],
        "damage": [5],
    }
    assert statuses_of(meta)["new"].is_on
    assert "later" in texts.note_text(notes_of(meta)[0])
    assert damage_in(meta) == [Damage(DamageCode.TEXT, values={"text": "5"})]


def test_severities() -> None:
    assert Note(NoteCode.OWN_RECORDING).severity is Severity.NOTE
    assert Note(NoteCode.DISK_FAILED).severity is Severity.WARNING


OLD = {
    "format_version": 1,
    "sources": {
        "spans": "on",
        "layers": "intercepted calls, every module that is called, in processes that it started",
        "samples": "nvml, every 20 ms",
        "kernels": "CUPTI 13.0, /usr/lib/libcupti.so.13",
        "operators": "torch.profiler, at a higher cost: another ITT collector",
        "work": "off: ValueError: broken",
    },
    "notes": ["the disk failed"],
    "damage": [
        "r/1-2.0.segment: cut short, 9 places for events are missing",
        "process 7: 2 segments are missing; the events are lost",
        "r/1-2.names: damaged after 3 names",
        "something else",
    ],
}


def test_facts_of_format_1_are_typed_when_they_are_read(tmp_path: Path) -> None:
    meta = current_format(OLD, tmp_path)
    assert statuses_of(meta) == {
        "spans": SourceStatus.on(Method.RECORDED),
        "layers": SourceStatus.on(Method.INTERCEPTED_CALLS, modules="every", in_children=True),
        "samples": SourceStatus.on(Method.NVML, period_ns=20_000_000),
        "kernels": SourceStatus.on(Method.CUPTI, version="13.0", path="/usr/lib/libcupti.so.13"),
        "operators": SourceStatus.on(Method.TORCH_PROFILER, Reason.TEXT, text="another ITT collector"),
        "work": SourceStatus.off(Reason.TEXT, text="ValueError: broken"),
    }
    assert notes_of(meta) == [Note(NoteCode.TEXT, {"text": "the disk failed"})]
    assert losses(meta) == [
        Loss(LossCode.DAMAGED_SEGMENTS, 1),
        Loss(LossCode.MISSING_SEGMENTS, 2),
        Loss(LossCode.DAMAGED_NAMES, 1),
    ]


def test_a_newer_format_is_refused(tmp_path: Path) -> None:
    with refused(RunError, "newer_format"):
        current_format({"format_version": 3}, tmp_path)
