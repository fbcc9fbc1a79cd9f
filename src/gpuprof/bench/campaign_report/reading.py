# SPDX-License-Identifier: Apache-2.0
"""The comparison document as typed values; whatever is of the wrong kind in it is an error here."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

FORMAT_VERSION = 1
KIND = "comparison"
STATUSES = ("measured", "partly", "failed")

Plain = Mapping[str, Any]
Value = TypeVar("Value")


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
    def currency(self) -> str:
        """What costs are told in."""
        return _text(self.method.get("currency")) or "USD"


def report_of(document: Plain) -> Report:
    """Read a document. Raises KeyError, TypeError or ValueError, which name what is wrong in it."""
    summary, quality = _mapping(document.get("summary")), _mapping(document.get("quality"))
    variants = _each(document["variants"], _variant)
    names = [each.name for each in variants]
    if len(set(names)) < len(names):
        raise ValueError("two variants have the same name")
    return Report(
        name=_word(document["name"]),
        timestamp=_word(document["timestamp"]),
        git_commit=_text(document.get("git_commit")),
        environment=_mapping(document.get("environment")),
        method=_mapping(document.get("method")),
        baseline=_text(document.get("baseline")),
        variants=variants,
        pareto=tuple(each for each in _each(document.get("pareto"), _pareto) if each is not None),
        quality_name=_text(quality.get("name")),
        quality_rests_on=_text(quality.get("rests_on")),
        headline=_text(summary.get("headline")) or "",
        lines=_each(summary.get("lines"), _word),
        choice=_text(summary.get("choice")),
        recommendations=_each(document.get("recommendations"), _recommendation),
        traffic=None if document.get("traffic") is None else _mapping(document["traffic"]),
        notes=_each(document.get("notes"), _word),
    )


def _variant(plain: Plain) -> Variant:
    status = _word(plain["status"])
    if status not in STATUSES:
        raise ValueError(f"the status {status!r} is none of {', '.join(STATUSES)}")
    accuracy, layers = plain.get("accuracy"), plain.get("layers")
    return Variant(
        name=_word(plain["name"]),
        status=status,
        technique=_text(plain.get("technique")) or _text(plain.get("recipe")) or "as it is",
        model_bytes=_whole(plain.get("model_bytes")),
        parameters=_whole(plain.get("parameters")),
        startup_s=_number(plain.get("startup_s")),
        compile_s=_number(plain.get("compile_s")),
        speedup=_interval(plain.get("speedup")),
        batches=tuple(sorted(_each(plain.get("batches"), _batch), key=lambda each: each.batch_size)),
        accuracy=None if accuracy is None else _accuracy(_mapping(accuracy)),
        layers=None if layers is None else _each(layers, _layer),
        **{name: _text(plain.get(name)) for name in _VARIANT_TEXTS},
    )


_VARIANT_TEXTS = (
    "failure", "model", "framework", "dtype", "recipe", "device", "device_type", "verdict",
    "accuracy_unavailable", "run",
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
        batch_size=_batch_size(plain["batch_size"]),
        launches=_count(plain["launches"]),
        samples=_count(plain["samples"]),
        quantiles={name: _interval(plain.get(key)) for name, key in _QUANTILE_KEYS.items()},
        throughput=_interval(plain.get("throughput_per_s")),
        host_peak_bytes=_whole(plain.get("host_peak_bytes")),
        device_peak_bytes=_whole(plain.get("device_peak_bytes")),
        launch_medians_s=_each(plain.get("launch_medians_s"), _float),
        flags=_each(plain.get("flags"), lambda flag: (_word(flag["name"]), _word(flag["line"]))),
        speedup=_interval(plain.get("speedup")),
        verdict=None if comparison is None else _text(_mapping(comparison).get("verdict")),
        **{name: _number(plain.get(name)) for name in _BATCH_NUMBERS},
    )


def _accuracy(plain: Plain) -> Accuracy:
    baseline = plain.get("baseline")
    return Accuracy(
        samples=_count(plain["samples"]),
        labelled=bool(plain.get("labelled")),
        baseline=None if baseline is None else _number(_mapping(baseline).get("accuracy")),
        figures={name: _number(plain.get(name)) for name in _ACCURACY_NUMBERS},
        change=_interval(plain.get("change")),
        verdict=_text(plain.get("verdict")),
        tolerance=_text(plain.get("tolerance")),
        nan=_whole(plain.get("nan")) or 0,
        infinity=_whole(plain.get("infinity")) or 0,
        findings=_each(plain.get("findings"), _word),
        degraded=_each(plain.get("degraded_classes"), _degraded),
        metrics=_each(plain.get("metrics"), _metric),
    )


def _degraded(value: object) -> str:
    """Return a class as text, whether it comes as its name or with its figures."""
    if isinstance(value, Mapping):
        return ", ".join(f"{key} {_brief(each)}" for key, each in value.items())
    return str(value)


def _brief(value: object) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def _metric(plain: Plain) -> Metric:
    value, baseline = _number(plain.get("value")), _number(plain.get("baseline"))
    return Metric(_word(plain["name"]), value, baseline, _text(plain.get("better")))


def _layer(plain: Plain) -> Layer:
    return Layer(
        name=_word(plain["name"]),
        kind=_text(plain.get("type")),
        self_s=_number(plain.get("self_s")),
        share=_number(plain.get("share")),
        bound=_text(plain.get("bound")),
    )


def _pareto(plain: Plain) -> ParetoPoint | None:
    """Return a point; None for one that lacks a figure on either axis."""
    told = (_number(plain.get(key)) for key in ("quality", "accuracy", "agreement", "cosine"))
    quality = next((each for each in told if each is not None), None)
    told_speedup = plain.get("speedup")
    speedup = told_speedup.get("value") if isinstance(told_speedup, Mapping) else told_speedup
    if quality is None or speedup is None:
        return None
    size = _whole(plain.get("batch_size"))
    return ParetoPoint(_word(plain["variant"]), size, _float(speedup), quality, bool(plain.get("on_front")))


def _recommendation(plain: Plain) -> tuple[str, str]:
    return _word(plain["text"]), _text(plain.get("because")) or ""


# --- values --------------------------------------------------------------------------------------


def _mapping(value: Any) -> Plain:
    if value is None:
        return {}
    if not isinstance(value, Mapping):
        raise TypeError(f"{_shown(value)} stands where a table is expected")
    return value


def _each(value: Any, read: Callable[[Any], Value]) -> tuple[Value, ...]:
    if value is None:
        return ()
    if isinstance(value, str) or not isinstance(value, Sequence):
        raise TypeError(f"{_shown(value)} stands where a list is expected")
    return tuple(read(each) for each in value)


def _word(value: Any) -> str:
    if not isinstance(value, str):
        raise TypeError(f"{_shown(value)} stands where a text is expected")
    return value


def _text(value: Any) -> str | None:
    return None if value is None else _word(value)


def _float(value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        raise TypeError(f"{_shown(value)} stands where a number is expected")
    return float(value)


def _number(value: Any) -> float | None:
    return None if value is None else _float(value)


def _whole(value: Any) -> int | None:
    return None if value is None else int(_float(value))


def _count(value: Any) -> int:
    return int(_float(value))


def _batch_size(value: Any) -> int:
    size = _count(value)
    if size < 1:
        raise ValueError(f"{size} stands where a batch size is expected")
    return size


def _interval(value: Any) -> Interval | None:
    if value is None:
        return None
    plain = _mapping(value)
    middle = _number(plain.get("value"))
    return None if middle is None else Interval(_number(plain.get("low")), middle, _number(plain.get("high")))


def _shown(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 40 else f"{text[:37]}..."
