# SPDX-License-Identifier: Apache-2.0
"""A comparison from its plan to its document: launches, answers, runs."""

from __future__ import annotations

import datetime
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gpuprof.bench.campaign.document import document_of
from gpuprof.bench.campaign.journal import Journal
from gpuprof.bench.campaign.plan import CampaignPlan
from gpuprof.bench.campaign.runner import Campaign, CampaignResult, CampaignWatcher, _ignore, file_name
from gpuprof.errors import GpuprofError

__all__ = ["Finished", "carry_out", "file_name"]

Plain = dict[str, Any]
Layers = Callable[[Path], list[Plain]]


@dataclass(frozen=True, slots=True)
class Finished:
    """The document of what was measured, and whether that is all of it."""

    document: Plain
    result: CampaignResult
    interrupted: bool


def carry_out(
    plan: CampaignPlan,
    folder: Path,
    *,
    watch: CampaignWatcher = _ignore,
    fresh: bool = False,
    resume: bool = False,
    layers_of: Layers | None = None,
) -> Finished:
    """Measure a plan into a folder, compare the answers, and return what was found.

    What an earlier time had measured in the folder and was cut off is kept, unless `fresh`; with `resume`
    what had come to its end is kept too. An interrupt ends it with what there is. Raises BenchmarkError where
    the folder cannot be used.
    """
    campaign = Campaign(plan, folder, watch)
    answers: dict[str, Plain | str] = {}
    interrupted = False
    with Journal(folder, fresh=fresh, resume=resume).opened() as journal:
        try:
            campaign.run(journal)
            answers = _answers(campaign.result, folder, watch)
            journal.finish()
        except KeyboardInterrupt:
            interrupted = True
    document = document_of(
        campaign.result,
        datetime.datetime.now().astimezone(),
        answers=answers,
        layers=_layers(campaign.result, layers_of),
        notes=["interrupted before its end"] if interrupted else None,
    )
    return Finished(document, campaign.result, interrupted)


def _answers(result: CampaignResult, folder: Path, watch: CampaignWatcher) -> dict[str, Plain | str]:
    return {}


def _layers(result: CampaignResult, layers_of: Layers | None) -> dict[str, list[Plain]]:
    found: dict[str, list[Plain]] = {}
    for each in result.variants:
        if each.run is not None and layers_of is not None:
            try:
                found[each.variant.name] = layers_of(each.run)
            except GpuprofError as error:
                each.run_unavailable = str(error)
    return found
