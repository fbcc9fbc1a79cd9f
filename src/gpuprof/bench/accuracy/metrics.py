# SPDX-License-Identifier: Apache-2.0
"""Measures of quality that the user writes: a function of outputs and labels, or a subclass of Metric."""

from __future__ import annotations

import contextlib
import math
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from gpuprof.bench.facts import Diagnostic, warning
from gpuprof.bench.failures import place_of, reason_of
from gpuprof.bench.models.importing import find_named
from gpuprof.errors import BenchmarkError

if TYPE_CHECKING:
    from gpuprof.bench.compare.stored_outputs import StoredOutputs


Better = Literal["higher", "lower"]


class Metric:
    """One figure of a variant's outputs. Fill `name`, `better` and `compute`."""

    name: str = ""
    better: Better = "higher"

    def compute(self, outputs: Any, labels: Any) -> float:
        """Return the figure.

        `outputs` is the array of all samples' outputs, or a dictionary of arrays where the model has several;
        `labels` is the data set's array, None where it has none. Neither may be written to.
        """
        raise NotImplementedError


class _FunctionMetric(Metric):
    def __init__(self, function: Callable[[Any, Any], Any], better: Better) -> None:
        self._function = function
        self.name, self.better = function.__name__, better

    def compute(self, outputs: Any, labels: Any) -> float:
        found: float = self._function(outputs, labels)
        return found


@dataclass(frozen=True, slots=True)
class MetricValue:
    """A metric of a variant and of the baseline. None is a missing value; then there is a `problem`."""

    name: str
    value: float | None
    baseline: float | None
    better: Better
    problem: Diagnostic | None = None


def _quiet() -> contextlib.AbstractContextManager[Any]:
    """Send what a metric prints to standard error: standard output may be somebody's JSON."""
    return contextlib.redirect_stdout(sys.stderr)


def load_metric(text: str) -> Metric:
    """Return the metric that `file.py:name` or `package.module:name` names. Raises BenchmarkError.

    A function, whose attribute `better` may be "lower", a subclass of Metric, or an object of one.
    """
    try:
        with _quiet():
            found = find_named(text)
            if isinstance(found, type) and issubclass(found, Metric):
                found = found()
    except BenchmarkError:
        raise
    except (Exception, SystemExit) as error:
        raise BenchmarkError(
            "metric_raised",
            f"the metric {text} raised {reason_of(error)} at {place_of(error)}",
            hint="fix it first",
        ) from error
    return as_metric(found, text)


def as_metric(found: Any, text: str = "") -> Metric:
    """Return an object as a metric: itself, or a function of outputs and labels. Raises BenchmarkError."""
    where = text or str(getattr(found, "__name__", type(found).__name__))
    metric = found
    if not isinstance(found, Metric):
        if not callable(found) or isinstance(found, type):
            raise BenchmarkError(
                "invalid_metric",
                f"the metric {where} is {type(found).__name__}",
                hint="use a function of outputs and labels, or a subclass of gpuprof.bench.Metric",
            )
        metric = _FunctionMetric(found, getattr(found, "better", "higher"))
    if metric.better not in ("higher", "lower"):
        raise BenchmarkError(
            "invalid_better",
            f"the metric {where}: better is {metric.better!r}",
            hint="write 'higher' or 'lower'",
        )
    if not metric.name:
        metric.name = type(metric).__name__
    return metric  # type: ignore[no-any-return]


def evaluate_metrics(
    metrics: Sequence[Metric], baseline: StoredOutputs, variant: StoredOutputs
) -> tuple[MetricValue, ...]:
    """Return each metric of both. One that raises, or gives no number, has a problem and is no exception."""
    return tuple(_evaluated(metric, baseline, variant) for metric in metrics)


def _evaluated(metric: Metric, baseline: StoredOutputs, variant: StoredOutputs) -> MetricValue:
    old, problem = _figure(metric, baseline)
    new, new_problem = (old, problem) if baseline is variant else _figure(metric, variant)
    return MetricValue(metric.name, new, old, metric.better, new_problem or problem)


def _figure(metric: Metric, stored: StoredOutputs) -> tuple[float | None, Diagnostic | None]:
    where = {"metric": metric.name, "variant": stored.name}
    try:
        outputs, labels = stored.arrays(), stored.labels
        for each in (*outputs.values(), labels):
            if each is not None:
                each.flags.writeable = False
        only = next(iter(outputs.values())) if len(outputs) == 1 else outputs
        with _quiet():
            found = float(metric.compute(only, labels))
    except (Exception, SystemExit) as error:
        return None, warning("metric_raised", **where, error=reason_of(error), place=place_of(error))
    if not math.isfinite(found):
        return None, warning("metric_not_finite", **where, value=str(found))
    return found, None
