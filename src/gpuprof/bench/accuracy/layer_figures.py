# SPDX-License-Identifier: Apache-2.0
"""The figures of each layer of two models and of all of them, and their text."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from gpuprof.bench.accuracy.numerics import NotFinite
from gpuprof.bench.accuracy.outputs_report import figure
from gpuprof.bench.facts import Diagnostic, warning
from gpuprof.bench.serialization import to_finite
from gpuprof.bench.verdicts import LayerVerdict
from gpuprof.text.table import Column, text_table, wrapped

FORMAT = 2
ROOT = "(model)"  # the path of the model itself


def is_above(path: str, other: str) -> bool:
    """Whether the module at `path` holds the one at `other`."""
    return path != other and (path == ROOT or other.startswith(f"{path}."))


@dataclass(frozen=True, slots=True)
class Origin:
    """The first layer of a model that makes NaN, or infinity, from inputs that hold none."""

    path: str
    type: str
    output: str
    found: NotFinite
    parameters: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class LayerComparison:
    """One call of a layer, in the order in which the baseline's calls ended; errors are relative, Euclidean.

    `local_error` is that of the optimized layer on the baseline's inputs, `allowed` what its type allows,
    `accumulated_error` that of the optimized model's own run. *diverges*: the local error is more than
    allowed; *compensated*: it is, but not that of a module around it, as where layers were fused. `reason` is
    why a layer diverges, or why a figure is None. `is_leaf`: the layer holds no other.
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
    reason: Diagnostic | None


@dataclass(frozen=True)
class LayersComparison:
    """What `compare_layers` found.

    `first` is the first layer that diverges, None where none does; `worst` are the diverging ones, largest
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
    notes: tuple[Diagnostic, ...]

    @property
    def first(self) -> LayerComparison | None:
        """The first layer that diverges; a module that merely holds it ends later."""
        return next((each for each in self.layers if each.verdict == LayerVerdict.DIVERGES), None)

    @property
    def worst(self) -> tuple[LayerComparison, ...]:
        """The layers that diverge and hold no other that does; without a figure first, then the largest."""
        diverging = [each for each in self.layers if each.verdict == LayerVerdict.DIVERGES]
        paths = [each.path for each in diverging]
        innermost = [each for each in diverging if not any(is_above(each.path, path) for path in paths)]
        return tuple(
            sorted(innermost, key=lambda each: (each.local_error is not None, -(each.local_error or 0.0)))
        )

    @property
    def findings(self) -> tuple[Diagnostic, ...]:
        """Warnings about the optimized model; empty where nothing was found."""
        return tuple(findings_of(self))

    def to_dict(self) -> dict[str, Any]:
        """Return plain data for JSON; what is not available is None."""
        return {
            "format": FORMAT,
            **to_finite(self),
            "findings": [each.to_dict() for each in self.findings],
            "notes": [each.to_dict() for each in self.notes],
            "first": to_finite(self.first),
        }

    def __str__(self) -> str:
        return layers_report(self)


_MOST_LAYERS = 12
_MOST_NAMES = 8


def layers_report(comparison: LayersComparison) -> str:
    """Return all of it, at most 100 columns wide where names allow it."""
    leaves = sum(each.is_leaf for each in comparison.layers)
    lines = [
        f"{len(comparison.layers):,} calls of layers compared, {leaves:,} of layers that hold no other",
        "",
    ]
    lines += [wrapped(f"! {each}") for each in comparison.findings] or [_nothing_found(comparison)]
    shown = _shown(comparison)
    lines += ["", _table(shown) if shown else "every layer returns the very same values", ""]
    lines.append(
        "local: on the baseline's inputs of the layer; accumulated: in the optimized model's own run"
    )
    lines += map(wrapped, (*_left_out(comparison), *map(str, comparison.notes)))
    return "\n".join(lines)


def _nothing_found(comparison: LayersComparison) -> str:
    unknown = sum(each.verdict == LayerVerdict.UNKNOWN for each in comparison.layers)
    if not unknown:
        return "no layer diverges from its baseline"
    return f"no layer diverges among those that could be compared; {unknown:,} calls could not"


def findings_of(comparison: LayersComparison) -> Iterator[Diagnostic]:
    """Yield the warnings about the optimized model."""
    sides = (
        ("optimized", comparison.nan, comparison.infinite),
        ("baseline", comparison.baseline_nan, comparison.baseline_infinite),
    )
    for side, nan, infinite in sides:
        if nan is not None:
            yield warning("first_nan", side=side, origin=nan)
        if infinite is not None:
            yield warning("first_infinity", side=side, origin=infinite)
    if comparison.first is not None:
        yield warning("first_divergence", layer=comparison.first)
    others = [each for each in comparison.worst if each is not comparison.first]
    if others:
        yield warning("more_divergences", count=len(others), worst=others[0])


def _shown(comparison: LayersComparison) -> Sequence[LayerComparison]:
    """Return the first that diverges, the worst, and the largest of the rest, in the order of calls."""
    first = [] if comparison.first is None else [comparison.first]
    rest = sorted(
        (each for each in comparison.layers if each.is_leaf and each.local_error != 0),
        key=lambda each: -(each.local_error or 0.0),
    )
    shown: dict[tuple[str, int], None] = {}
    for each in (*first, *comparison.worst, *rest):
        if len(shown) < _MOST_LAYERS:
            shown[each.path, each.ordinal] = None
    return [each for each in comparison.layers if (each.path, each.ordinal) in shown]


def _table(layers: Sequence[LayerComparison]) -> str:
    titles = ("type", "computes in", "local", "allowed", "accumulated", "verdict")
    columns = (Column("layer", right=False), *map(Column, titles))
    rows = [
        (
            each.path + (f" call {each.ordinal + 1}" if each.ordinal else ""),
            each.type if each.type == each.optimized_type else f"{each.type} -> {each.optimized_type}",
            each.dtype or "?",
            *map(figure, (each.local_error, each.allowed, each.accumulated_error)),
            each.verdict,
        )
        for each in layers
    ]
    return text_table(columns, rows)


def _left_out(comparison: LayersComparison) -> Iterator[str]:
    hidden = len(comparison.layers) - len(_shown(comparison))
    if hidden:
        yield f"{hidden:,} more calls are in `layers`"
    kinds = (
        ("only in the baseline", comparison.only_baseline),
        ("only in the optimized model", comparison.only_optimized),
        ("never called", comparison.not_called),
    )
    for title, paths in kinds:
        if paths:
            more = f" and {len(paths) - _MOST_NAMES:,} more" if len(paths) > _MOST_NAMES else ""
            yield f"{title}: {', '.join(paths[:_MOST_NAMES])}{more}"
    for each in comparison.layers:
        if each.verdict == LayerVerdict.UNKNOWN and each.reason is not None:
            yield f"{each.path}: {each.reason}"
