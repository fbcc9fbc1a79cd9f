# SPDX-License-Identifier: Apache-2.0
"""Settings of the program in a run's meta data: written, read, joined, damaged, missing."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from refusals import refused

import gpuprof
from gpuprof.errors import RunError
from gpuprof.record.program_settings import (
    LoaderSettings,
    OptimizerSettings,
    ParameterShape,
    ProgramSettings,
    ThreadSettings,
)
from gpuprof.run.child_facts import with_child_facts
from gpuprof.run.folder import RunFolder
from gpuprof.run.program_settings import settings_of

LOADER = LoaderSettings("Images", 2, 4, pin_memory=True, persistent_workers=False, batch_size=None)
OPTIMIZER = OptimizerSettings(
    *("AdamW", None, False, True, 12, 3_000, ("cpu", "cuda:0")),
    shapes=(ParameterShape((), "float32", 2), ParameterShape((64, 3), "bfloat16", 10)),
    options=(("weight_decay", 0.01), ("amsgrad", False)),
)
SETTINGS = ProgramSettings((LOADER,), (OPTIMIZER,), ThreadSettings(8, 2, 1.5))


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("settings") / "run.gpuprof"
    with gpuprof.profile(out=path, layers=False, operators=False, gpu=False), gpuprof.span("a"):
        pass
    return path


def opened_with(written: Path, settings: Any) -> RunFolder:
    meta = json.loads((written / "meta.json").read_bytes())
    meta["settings"] = settings
    (written / "meta.json").write_text(json.dumps(meta))
    return RunFolder(written)


def test_settings_survive_json() -> None:
    assert ProgramSettings.from_plain(json.loads(json.dumps(SETTINGS.to_plain()))) == SETTINGS


def test_the_settings_of_a_run_are_read(written: Path) -> None:
    assert settings_of(opened_with(written, SETTINGS.to_plain())) == SETTINGS


def test_what_a_later_version_adds_is_left_out(written: Path) -> None:
    plain = json.loads(json.dumps(SETTINGS.to_plain()))
    plain["loaders"][0]["later"] = plain["later"] = 1
    assert settings_of(opened_with(written, plain)) == SETTINGS


def test_shapes_and_options_are_missing_in_older_runs(written: Path) -> None:
    plain = json.loads(json.dumps(SETTINGS.to_plain()))
    del plain["optimizers"][0]["shapes"], plain["optimizers"][0]["options"]
    found = settings_of(opened_with(written, plain))
    assert found is not None
    assert found.optimizers == (replace(OPTIMIZER, shapes=None, options=()),)


def test_a_run_without_settings_has_none(written: Path) -> None:
    assert settings_of(opened_with(written, None)) is None
    meta = json.loads((written / "meta.json").read_bytes())
    del meta["settings"]
    (written / "meta.json").write_text(json.dumps(meta))
    assert settings_of(RunFolder(written)) is None


@pytest.mark.parametrize(
    "damaged",
    [
        {},
        {**SETTINGS.to_plain(), "loaders": 7},
        {**SETTINGS.to_plain(), "loaders": [{"dataset": "Images"}]},
        {**SETTINGS.to_plain(), "optimizers": [{**SETTINGS.to_plain()["optimizers"][0], "elements": "many"}]},
        {**SETTINGS.to_plain(), "optimizers": [{**SETTINGS.to_plain()["optimizers"][0], "shapes": [[7]]}]},
        {
            **SETTINGS.to_plain(),
            "optimizers": [{**SETTINGS.to_plain()["optimizers"][0], "options": [["a", "b"]]}],
        },
        {**SETTINGS.to_plain(), "threads": [1, 2]},
    ],
)
def test_damaged_settings_are_refused(written: Path, damaged: Any) -> None:
    with refused(RunError, "damaged"):
        settings_of(opened_with(written, damaged))


def test_the_settings_of_all_processes_are_joined_without_repetition() -> None:
    other = OptimizerSettings("SGD", True, None, True, 1, 10, ("cpu",))
    rank = ProgramSettings((LOADER,), (OPTIMIZER, other), ThreadSettings(4, 4, 2.0))
    children: list[dict[str, Any]] = [
        {"process_id": 2, "settings": rank.to_plain()},
        {"process_id": 3, "settings": {"loaders": "damaged"}},
        {"process_id": 4},
    ]
    decoded = {"processes": [{"process_id": number} for number in (1, 2, 3, 4)]}

    def joined(settings: dict[str, Any] | None) -> ProgramSettings | None:
        facts = {"process_id": 1, "sources": {}, "settings": settings}
        plain = with_child_facts(facts, children, decoded)["settings"]
        return None if plain is None else ProgramSettings.from_plain(plain)

    assert joined(SETTINGS.to_plain()) == ProgramSettings((LOADER,), (OPTIMIZER, other), SETTINGS.threads)
    # The launcher of ranks uses no PyTorch.
    assert joined(None) == joined(ProgramSettings().to_plain()) == rank
    del children[0]
    assert joined(None) is None
