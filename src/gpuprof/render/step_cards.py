# SPDX-License-Identifier: Apache-2.0
"""What the cards above the flame graph count in a run with steps: the names with most self time in them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from gpuprof.render.tree_shape import name_keys
from gpuprof.run.format import KINDS

if TYPE_CHECKING:
    from collections.abc import Mapping

    import numpy.typing as npt

    from gpuprof.analyze.metrics import WeightName
    from gpuprof.analyze.step_times import StepSelfTimes
    from gpuprof.render.shown_tree import Shown

_CARDS = 5
_WITHOUT_CARD = [KINDS.index(kind) for kind in ("process", "waiting")]


@dataclass(frozen=True, slots=True)
class StepCards:
    """By weight: the whole, and name (in the tree's names), kind and self time of the largest names."""

    text: str  # such as "23 steps"
    whole_ns: Mapping[WeightName, float]
    largest: Mapping[WeightName, list[tuple[int, int, int]]]

    def facts(self, used_names: npt.NDArray[np.int64]) -> dict[str, Any]:
        """Return what the page reads; names are places in `used_names`."""
        views = {}
        for weight, rows in self.largest.items():
            places = np.searchsorted(used_names, [name for name, *_ in rows]).tolist()
            named = [[place, *rest] for place, (_, *rest) in zip(places, rows, strict=True)]
            views[weight] = {"whole": self.whole_ns[weight], "rows": named}
        return {"text": self.text, "views": views}


def step_cards(whole: Shown, times: StepSelfTimes, text: str) -> StepCards | None:
    """Return the cards by weight, on the tree `whole` of all paths; None where the steps have no time."""
    keys = name_keys(whole.tree)
    counted = ~np.isin(whole.tree.kind, _WITHOUT_CARD)
    used, group = np.unique(keys[counted], return_inverse=True)
    largest: dict[WeightName, list[tuple[int, int, int]]] = {}
    for weight, own in times.own_ns.items():
        sums = np.bincount(group.reshape(-1), whole.own(own)[counted], minlength=len(used))
        order = [at for at in np.argsort(-sums, kind="stable")[:_CARDS].tolist() if sums[at] > 0]
        rows = [(*divmod(int(used[at]), len(KINDS)), round(float(sums[at]))) for at in order]
        if rows:
            largest[weight] = rows
    return StepCards(text, times.whole_ns, largest) if largest else None
