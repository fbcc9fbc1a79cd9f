# SPDX-License-Identifier: Apache-2.0
"""The comparison document as typed values; whatever is of the wrong kind in it is an error here."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

FORMAT_VERSION = 1
KIND = "comparison"
STATUSES = ("measured", "partly", "failed")


@dataclass(frozen=True, slots=True)
class Interval:
    """A figure between the ends of its interval; None where too little was measured for an end."""

    low: float | None
    value: float
    high: float | None


@dataclass(frozen=True, slots=True)
class Batch:
    """One variant at one batch size; times in seconds."""

    batch_size: int
    launches: int
    samples: int
    quantiles: dict[str, Interval | None]
    mean_s: float | None
    std_s: float | None
    min_s: float | None
    max_s: float | None
    spread: float | None
    throughput: Interval | None
    host_peak_bytes: int | None
    device_peak_bytes: int | None
    energy_per_sample_j: float | None
    launch_medians_s: tuple[float, ...]
    flags: tuple[tuple[str, str], ...]
    speedup: Interval | None
    verdict: str | None
    cost_per_million: float | None
    target: str | None

    @property
    def median(self) -> Interval | None:
        """The median time of a call."""
        return self.quantiles["p50"]


@dataclass(frozen=True, slots=True)
class Metric:
    """A figure of the user's own."""

    name: str
    value: float | None
    baseline: float | None
    better: str | None


@dataclass(frozen=True, slots=True)
class Accuracy:
    """What a variant answers, beside what the baseline answers."""

    samples: int
    labelled: bool
    baseline: float | None
    figures: dict[str, float | None]
    change: Interval | None
    verdict: str | None
    tolerance: str | None
    nan: int
    infinity: int
    findings: tuple[str, ...]
    degraded: tuple[str, ...]
    metrics: tuple[Metric, ...]


@dataclass(frozen=True, slots=True)
class Layer:
    """One of the layers in which a variant spends its time."""

    name: str
    kind: str | None
    self_s: float | None
    share: float | None
    bound: str | None
    bound_share: float | None
    evidence: str | None


@dataclass(frozen=True, slots=True)
class Variant:
    """One of the compared systems."""

    name: str
    status: str
    failure: str | None
    model: str | None
    framework: str | None
    dtype: str | None
    recipe: str | None
    technique: str
    device: str | None
    device_type: str | None
    model_bytes: int | None
    parameters: int | None
    startup_s: float | None
    compile_s: float | None
    speedup: Interval | None
    verdict: str | None
    batches: tuple[Batch, ...]
    accuracy: Accuracy | None
    accuracy_unavailable: str | None
    layers: tuple[Layer, ...] | None
    run: str | None
    run_unavailable: str | None

    def batch(self, batch_size: int) -> Batch | None:
        """Return what was measured of a batch size."""
        return next((each for each in self.batches if each.batch_size == batch_size), None)


@dataclass(frozen=True, slots=True)
class ParetoPoint:
    """A variant where speed-up and quality meet; `batch_size` None is over all batch sizes."""

    variant: str
    batch_size: int | None
    speedup: float
    quality: float
    on_front: bool


@dataclass(frozen=True, slots=True)
class Report:
    """The whole document."""

    name: str
    timestamp: str
    git_commit: str | None
    environment: Plain
    method: Plain
    baseline: str | None
    variants: tuple[Variant, ...]
    pareto: tuple[ParetoPoint, ...]
    quality_name: str | None
    quality_rests_on: str | None
    headline: str
    lines: tuple[str, ...]
    choice: str | None
    recommendations: tuple[tuple[str, str], ...]
    traffic: Plain | None
    notes: tuple[str, ...]

    def variant(self, name: str | None) -> Variant | None:
        """Return a variant by its name."""
        return next((each for each in self.variants if each.name == name), None)

    @property
    def measured(self) -> tuple[Variant, ...]:
        """The variants with any figure."""
        return tuple(each for each in self.variants if each.batches)

    @property
    def batch_sizes(self) -> tuple[int, ...]:
        """The batch sizes that any variant was measured at."""
        return tuple(sorted({each.batch_size for variant in self.variants for each in variant.batches}))

    @property
    def is_priced(self) -> bool:
        """Say whether an hour has a price, without which nothing has a cost."""
        return self.method.get("price_per_hour") is not None

    @property
    def currency(self) -> str:
        """What costs are told in."""
        return text(self.method.get("currency")) or "USD"


def report_of(document: Plain) -> Report:
    """Read a document. Raises KeyError, TypeError or ValueError, which name what is wrong in it."""
    summary, quality = mapping(document.get("summary")), mapping(document.get("quality"))
    variants = each_of(document["variants"], _variant)
    names = [each.name for each in variants]
    if len(set(names)) < len(names):
        raise ValueError("two variants have the same name")
    return Report(
        name=word(document["name"]),
        timestamp=word(document["timestamp"]),
        git_commit=text(document.get("git_commit")),
        environment=mapping(document.get("environment")),
        method=mapping(document.get("method")),
        baseline=text(document.get("baseline")),
        variants=variants,
        pareto=tuple(each for each in each_of(document.get("pareto"), _pareto) if each is not None),
        quality_name=text(quality.get("name")),
        quality_rests_on=text(quality.get("rests_on")),
        headline=text(summary.get("headline")) or "",
        lines=each_of(summary.get("lines"), word),
        choice=text(summary.get("choice")),
        recommendations=each_of(document.get("recommendations"), _recommendation),
        traffic=None if document.get("traffic") is None else mapping(document["traffic"]),
        notes=each_of(document.get("notes"), word),
    )


def _variant(plain: Plain) -> Variant:
    status = word(plain["status"])
    if status not in STATUSES:
        raise ValueError(f"the status {status!r} is none of {', '.join(STATUSES)}")
    accuracy, layers = plain.get("accuracy"), plain.get("layers")
    return Variant(
        name=word(plain["name"]),
        status=status,
        technique=text(plain.get("technique")) or text(plain.get("recipe")) or "as it is",
        model_bytes=whole(plain.get("model_bytes")),
        parameters=whole(plain.get("parameters")),
        startup_s=number(plain.get("startup_s")),
        compile_s=number(plain.get("compile_s")),
        speedup=interval_of(plain.get("speedup")),
        batches=tuple(sorted(each_of(plain.get("batches"), _batch), key=lambda each: each.batch_size)),
        accuracy=None if accuracy is None else _accuracy(mapping(accuracy)),
        layers=None if layers is None else each_of(layers, _layer),
        **{name: text(plain.get(name)) for name in _VARIANT_TEXTS},
    )


_VARIANT_TEXTS = (
    "failure", "model", "framework", "dtype", "recipe", "device", "device_type", "verdict",
    "accuracy_unavailable", "run", "run_unavailable",
)  # fmt: skip
_QUANTILE_KEYS = {"p50": "median_s", "p90": "p90_s", "p95": "p95_s", "p99": "p99_s"}
_BATCH_NUMBERS = ("mean_s", "std_s", "min_s", "max_s", "spread", "energy_per_sample_j", "cost_per_million")
_ACCURACY_NUMBERS = (
    "accuracy", "precision", "recall", "f1", "agreement_top1", "agreement_top5", "cosine",
    "relative_error", "max_absolute_error",
)  # fmt: skip


def _batch(plain: Plain) -> Batch:
    comparison = plain.get("comparison")
    return Batch(
        batch_size=batch_size_of(plain["batch_size"]),
        launches=count(plain["launches"]),
        samples=count(plain["samples"]),
        quantiles={name: interval_of(plain.get(key)) for name, key in _QUANTILE_KEYS.items()},
        throughput=interval_of(plain.get("throughput_per_s")),
        host_peak_bytes=whole(plain.get("host_peak_bytes")),
        device_peak_bytes=whole(plain.get("device_peak_bytes")),
        launch_medians_s=each_of(plain.get("launch_medians_s"), real),
        flags=each_of(plain.get("flags"), lambda flag: (word(flag["name"]), word(flag["line"]))),
        speedup=interval_of(plain.get("speedup")),
        verdict=None if comparison is None else text(mapping(comparison).get("verdict")),
        target=text(plain.get("target")),
        **{name: number(plain.get(name)) for name in _BATCH_NUMBERS},
    )


def _accuracy(plain: Plain) -> Accuracy:
    baseline = plain.get("baseline")
    return Accuracy(
        samples=count(plain["samples"]),
        labelled=bool(plain.get("labelled")),
        baseline=None if baseline is None else number(mapping(baseline).get("accuracy")),
        figures={name: number(plain.get(name)) for name in _ACCURACY_NUMBERS},
        change=interval_of(plain.get("change")),
        verdict=text(plain.get("verdict")),
        tolerance=text(plain.get("tolerance")),
        nan=whole(plain.get("nan")) or 0,
        infinity=whole(plain.get("infinity")) or 0,
        findings=findings_of(plain),
        degraded=each_of(plain.get("degraded_classes"), degraded_class),
        metrics=each_of(plain.get("metrics"), _metric),
    )


def _metric(plain: Plain) -> Metric:
    value, baseline = number(plain.get("value")), number(plain.get("baseline"))
    return Metric(word(plain["name"]), value, baseline, text(plain.get("better")))


def _layer(plain: Plain) -> Layer:
    return Layer(
        name=word(plain["name"]),
        kind=text(plain.get("type")),
        self_s=number(plain.get("self_s")),
        share=number(plain.get("share")),
        bound=text(plain.get("bound")),
        bound_share=number(plain.get("bound_share")),
        evidence=text(plain.get("evidence")),
    )


def _pareto(plain: Plain) -> ParetoPoint | None:
    """Return a point; None for one that lacks a figure on either axis."""
    told = (number(plain.get(key)) for key in ("quality", "accuracy", "agreement", "cosine"))
    quality = next((each for each in told if each is not None), None)
    told_speedup = plain.get("speedup")
    speedup = told_speedup.get("value") if isinstance(told_speedup, Mapping) else told_speedup
    if quality is None or speedup is None:
        return None
    size = whole(plain.get("batch_size"))
    return ParetoPoint(word(plain["variant"]), size, real(speedup), quality, bool(plain.get("on_front")))


def _recommendation(plain: Plain) -> tuple[str, str]:
    return word(plain["text"]), text(plain.get("because")) or ""


def interval_of(value: Any) -> Interval | None:
    """Return a figure with its interval; None where there is none."""
    if value is None:
        return None
    plain = mapping(value)
    middle = number(plain.get("value"))
    return None if middle is None else Interval(number(plain.get("low")), middle, number(plain.get("high")))


Plain = Mapping[str, Any]
Value = TypeVar("Value")


def mapping(value: Any) -> Plain:
    """Return a table, empty for None."""
    if value is None:
        return {}
    if not isinstance(value, Mapping):
        raise TypeError(f"{_shown(value)} stands where a table is expected")
    return value


def each_of(value: Any, read: Callable[[Any], Value]) -> tuple[Value, ...]:
    """Return a list with each entry read, empty for None."""
    if value is None:
        return ()
    if isinstance(value, str) or not isinstance(value, Sequence):
        raise TypeError(f"{_shown(value)} stands where a list is expected")
    return tuple(read(each) for each in value)


def word(value: Any) -> str:
    """Return a text."""
    if not isinstance(value, str):
        raise TypeError(f"{_shown(value)} stands where a text is expected")
    return value


def text(value: Any) -> str | None:
    """Return a text or None."""
    return None if value is None else word(value)


def real(value: Any) -> float:
    """Return a number."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        raise TypeError(f"{_shown(value)} stands where a number is expected")
    return float(value)


def number(value: Any) -> float | None:
    """Return a number or None."""
    return None if value is None else real(value)


def whole(value: Any) -> int | None:
    """Return a whole number or None."""
    return None if value is None else int(real(value))


def count(value: Any) -> int:
    """Return a whole number."""
    return int(real(value))


def batch_size_of(value: Any) -> int:
    """Return a whole number from 1."""
    size = count(value)
    if size < 1:
        raise ValueError(f"{size} stands where a batch size is expected")
    return size


def _shown(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 40 else f"{text[:37]}..."


_MORE_CLASSES = re.compile(r"\d+ more classes degrade")


def findings_of(plain: Plain) -> tuple[str, ...]:
    """Return what was found in answers, without the classes that got worse, which `degraded_class` tells."""
    told = [_class_figures(each).get("class") for each in plain.get("degraded_classes") or ()]
    beginnings = tuple(f"class {name} degrades:" for name in told)
    return tuple(
        line
        for line in each_of(plain.get("findings"), word)
        if not (line.startswith(beginnings) or (told and _MORE_CLASSES.fullmatch(line)))
    )


def _class_figures(value: object) -> Plain:
    """Return the figures of a class, which may come as its name alone."""
    return value if isinstance(value, Mapping) else {"class": value}


def degraded_class(value: object) -> str:
    """Return a class that got worse as words, whether it comes as its name or with its figures."""
    plain = _class_figures(value)
    before, after = number(plain.get("baseline")), number(plain.get("accuracy"))
    line = str(plain.get("class"))
    if before is not None and after is not None:
        line += f" from {before:.2%} to {after:.2%}"
    if plain.get("samples") is not None:
        line += f" of {count(plain['samples']):,} samples"
    if plain.get("p_value") is not None:
        line += f" (p={real(plain['p_value']):.2g})"
    taken_for = plain.get("becomes")
    return line if taken_for is None else f"{line}, mostly taken for {taken_for}"
