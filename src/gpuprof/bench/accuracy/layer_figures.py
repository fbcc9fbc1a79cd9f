# SPDX-License-Identifier: Apache-2.0
"""What is known of each layer of two models, and of all of them."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any, Literal

from gpuprof.bench.accuracy.layer_pairs import Origin, is_above
from gpuprof.bench.accuracy.places import plain

FORMAT = 1
LayerVerdict = Literal["within", "departs", "compensated", "unknown"]


@dataclass(frozen=True, slots=True)
class LayerComparison:
    """One call of a layer, in the order in which the baseline's calls ended; errors are relative, Euclidean.

    `local_error` is that of the optimized layer on the baseline's inputs, `allowed` what its type allows,
    `accumulated_error` that of the optimized model's own run. *departs*: the local error is more than
    allowed; *compensated*: it is, but not that of a module around it, as where layers were fused. None where
    `reason` says why. `is_leaf`: the layer holds no other.
    """

    path: str
    ordinal: int
    type: str
    optimized_type: str
    is_leaf: bool
    dtype: str | None
    local_error: float | None
    allowed: float | None
    accumulated_error: float | None
    verdict: LayerVerdict
    reason: str


@dataclass(frozen=True)
class LayersComparison:
    """What `compare_layers` found.

    `first` is the first layer that departs, None where none does; `worst` are the departing ones, largest
    local error first. `nan` and `infinite` are where the optimized model makes the first NaN and infinity,
    `baseline_nan` and `baseline_infinite` the baseline.
    """

    layers: tuple[LayerComparison, ...]
    only_baseline: tuple[str, ...]
    only_optimized: tuple[str, ...]
    not_called: tuple[str, ...]
    nan: Origin | None
    infinite: Origin | None
    baseline_nan: Origin | None
    baseline_infinite: Origin | None
    notes: tuple[str, ...]

    @property
    def first(self) -> LayerComparison | None:
        """The first layer that departs; a module that merely holds it ends later."""
        return next((each for each in self.layers if each.verdict == "departs"), None)

    @property
    def worst(self) -> tuple[LayerComparison, ...]:
        """The layers that depart and hold no other that does; without a figure first, then the largest."""
        departing = [each for each in self.layers if each.verdict == "departs"]
        paths = [each.path for each in departing]
        own = [each for each in departing if not any(is_above(each.path, path) for path in paths)]
        return tuple(sorted(own, key=lambda each: (each.local_error is not None, -(each.local_error or 0.0))))

    @property
    def findings(self) -> tuple[str, ...]:
        """What speaks against the optimized model, a line each; empty where nothing was found."""
        from gpuprof.bench.accuracy.layers_report import findings_of

        return tuple(findings_of(self))

    def to_dict(self) -> dict[str, Any]:
        """Return plain data for JSON; what is not available is None."""
        found: dict[str, Any] = plain({"format": FORMAT, **asdict(self)})
        found["findings"] = list(self.findings)
        found["first"] = None if self.first is None else plain(asdict(self.first))
        return found

    def __str__(self) -> str:
        from gpuprof.bench.accuracy.layers_report import layers_report

        return layers_report(self)
