# SPDX-License-Identifier: Apache-2.0
"""A comparison of layers as text for people: the first that departs, the worst, what was left out."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from gpuprof.analyze.text_table import Column, text_table
from gpuprof.bench.accuracy.outputs_report import WIDTH, figure, wrapped

if TYPE_CHECKING:
    from gpuprof.bench.accuracy.layer_figures import LayerComparison, LayersComparison

_MOST_LAYERS = 12
_MOST_NAMES = 8


def layers_report(comparison: LayersComparison) -> str:
    """Return all of it, at most 100 columns wide where names allow it."""
    leaves = sum(each.is_leaf for each in comparison.layers)
    lines = [
        f"{len(comparison.layers):,} calls of layers compared, {leaves:,} of layers that hold no other",
        "",
    ]
    lines += wrapped("! ", comparison.findings) or [_nothing_found(comparison)]
    shown = _shown(comparison)
    lines += ["", _table(shown) if shown else "every layer returns the very same values", ""]
    lines.append(
        "local: on the baseline's inputs of the layer; accumulated: in the optimized model's own run"
    )
    lines += wrapped("", [*_left_out(comparison), *comparison.notes])
    return "\n".join(lines)


def _nothing_found(comparison: LayersComparison) -> str:
    unknown = sum(each.verdict == "unknown" for each in comparison.layers)
    if not unknown:
        return "no layer departs from its baseline"
    return f"no layer departs among those that could be compared; {unknown:,} calls could not"


def findings_of(comparison: LayersComparison) -> Iterator[str]:
    """Yield what speaks against the optimized model, a line each."""
    sides = (
        ("optimized", comparison.nan, comparison.infinite),
        ("baseline", comparison.baseline_nan, comparison.baseline_infinite),
    )
    for side, nan, infinite in sides:
        if nan is not None:
            yield f"{side}: the first NaN: {nan}"
        if infinite is not None:
            yield f"{side}: the first infinity: {infinite}"
    if comparison.first is not None:
        yield f"the first layer that departs is {_described(comparison.first)}"
    others = [each for each in comparison.worst if each is not comparison.first]
    if others:
        yield f"{len(others):,} more depart, the worst is {_described(others[0])}"


def _described(layer: LayerComparison) -> str:
    call = f", call {layer.ordinal + 1}" if layer.ordinal else ""
    error = "" if layer.local_error is None else f": local error {layer.local_error:.2g}"
    allowed = "" if layer.allowed is None or layer.local_error is None else f" of {layer.allowed:.2g} allowed"
    reason = "" if error or not layer.reason else f": {layer.reason}"
    return f"{layer.path} ({layer.type}{call}){error}{allowed}{reason}"


def _shown(comparison: LayersComparison) -> Sequence[LayerComparison]:
    """Return the first that departs, the worst, and what is largest among the rest, in the order of calls."""
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
    return text_table(columns, rows, WIDTH)


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
        if each.verdict == "unknown":
            yield f"{each.path}: {each.reason}"
