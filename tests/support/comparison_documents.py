# SPDX-License-Identifier: Apache-2.0
"""Comparison documents with known figures, in format 1 as earlier versions wrote them."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import Any

from gpuprof.bench.compare.document import ComparisonDocument, document_from

Document = dict[str, Any]

HOSTILE = "</script><img src=x onerror=alert(1)>"
TECHNIQUES = {
    "original": "float32 eager",
    "compiled": "torch.compile",
    "bfloat16": "bfloat16",
    "int8": "dynamic INT8",
    "onnx": "ONNX Runtime",
    "pruned": "pruned 50%",
}
# How much faster than the first each variant is, and its change of accuracy.
SPEEDUPS = {
    "original": 1.0,
    "compiled": 1.412,
    "bfloat16": 1.187,
    "int8": 2.306,
    "onnx": 1.853,
    "pruned": 0.971,
}
CHANGES = {
    "original": 0.0,
    "compiled": 0.0,
    "bfloat16": -0.0012,
    "int8": -0.0041,
    "onnx": 0.0,
    "pruned": -0.0312,
}
PRICE_PER_HOUR = 1.2
FORKLIFT = {
    "class": "forklift", "label": 7, "samples": 40, "baseline": 0.81, "accuracy": 0.524, "p_value": 0.001,
    "becomes": "tractor",
}  # fmt: skip
CALIBRATION = {"name": "calibration error", "baseline": 0.0312, "better": "lower"}


def interval(value: float, fraction: float = 0.012) -> dict[str, float]:
    """An interval of a fraction of its value on both sides."""
    return {"low": value * (1 - fraction), "value": value, "high": value * (1 + fraction * 1.2)}


def _batch(name: str, size: int, speedup: float, seed: int) -> Document:
    median = (0.004137 + 0.002913 * size) / speedup * (1 + 0.0031 * seed)
    rate = size / median
    is_base = name == "original"
    # A reader must not be able to guess one figure from another.
    return {
        "batch_size": size,
        "launches": 10,
        "samples": 2_000 + size,
        "median_s": interval(median, 0.008),
        "p90_s": interval(median * 1.0731),
        "p95_s": interval(median * 1.1279),
        "p99_s": None if size > 8 else interval(median * 1.3113),
        "mean_s": median * 1.0177,
        "std_s": median * 0.0619,
        "min_s": median * 0.9571,
        "max_s": median * 1.9313,
        "spread": 0.01913,
        "throughput_per_s": interval(rate, 0.008),
        "host_peak_bytes": int((412_345_678 + 9_876_543 * size) / (1 + 0.2 * (speedup - 1))),
        "device_peak_bytes": None,
        "energy_per_sample_j": None,
        "launch_medians_s": [median * (1 + 0.002 * (launch - 4.5)) for launch in range(10)],
        "flags": [{"name": "spread", "line": "the middle half spans 1.9%"}] if size == 8 else [],
        "speedup": None if is_base else interval(speedup * (1 + 0.002 * size % 0.01)),
        "comparison": None if is_base else _comparison(speedup),
        "cost_per_million": PRICE_PER_HOUR / 3600 * median / size * 1e6,
    }  # fmt: skip


def _comparison(speedup: float) -> Document:
    return {
        "verdict": "faster" if speedup > 1 else "slower", "reason": "the interval is beyond the margin",
        "margin": 0.01, "old_launches": 10, "new_launches": 10, "ratio": 1 / speedup, "low": 0.99 / speedup,
        "high": 1.01 / speedup, "level": 0.05, "p_value": 0.001, "same_p_value": 0.9,
        "ratio_of_medians": [None, 1 / speedup, None], "hedges_g": None, "cliffs_delta": 1.0,
    }  # fmt: skip


def accuracy_of(change: float) -> Document:
    """The accuracy of a variant that changed by this much."""
    value = 0.76130 + change
    return {
        "samples": 10_000,
        "labelled": True,
        "baseline": {"accuracy": 0.76130},
        "accuracy": value,
        "precision": value - 0.0021,
        "recall": value - 0.0033,
        "f1": value - 0.0027,
        "change": {"low": change - 0.0029, "value": change, "high": change + 0.0031},
        "verdict": "lower" if change < -0.01 else "same",
        "agreement_top1": 1.0 if change == 0 else 0.9731 + change,
        "agreement_top5": 1.0 if change == 0 else 0.9957 + change / 2,
        "cosine": 0.99987 + change / 10,
        "relative_error": abs(change) / 7 + 1e-6,
        "max_absolute_error": abs(change) * 11.3 + 2.3e-6,
        "tolerance": "within" if change > -0.01 else "beyond",
        "nan": 0,
        "infinity": 0,
        "findings": ["class 7 (forklift) is now taken for class 9 (tractor)"] if change < -0.01 else [],
        "degraded_classes": [FORKLIFT] if change < -0.01 else [],
        "metrics": [CALIBRATION | {"value": 0.0312 - change}],
    }  # fmt: skip


def layers_of(speedup: float) -> list[Document]:
    """The top layers of a variant."""
    rows = [
        ("layer4.1.conv2", "Conv2d", 0.231, "compute"),
        ("layer1.0.conv1", "Conv2d", 0.174, "memory (dram)"),
    ]
    rows += [("fc", "Linear", 0.091, "memory (l2)"), ("bn1", "BatchNorm2d", 0.052, "latency")]
    rows += [("avgpool", "AdaptiveAvgPool2d", 0.017, None)]
    return [
        {"name": name, "type": kind, "self_s": share * 0.01 / speedup, "share": share, "bound": bound}
        for name, kind, share, bound in rows
    ]  # fmt: skip


def variant(
    name: str, sizes: Sequence[int], *, speedup: float = 1.0, change: float = 0.0, seed: int = 0
) -> Document:
    """A variant that was measured."""
    is_base = name == "original"
    return {
        "name": name,
        "status": "measured",
        "failure": None,
        "model": f"models/{name}.pt2",
        "framework": "pytorch",
        "dtype": "float32",
        "recipe": None,
        "technique": TECHNIQUES.get(name, f"recipe of {name}"),
        "device": "a processor",
        "device_type": "cpu",
        "model_bytes": int(102_470_000 / (4 if name == "int8" else 1)),
        "parameters": 25_557_032,
        "startup_s": 2.871 + seed,
        "compile_s": 18.25 if name == "compiled" else None,
        "speedup": None if is_base else interval(speedup),
        "verdict": "baseline" if is_base else "faster" if speedup > 1 else "slower",
        "batches": [_batch(name, size, speedup, seed) for size in sizes],
        "accuracy": accuracy_of(change),
        "accuracy_unavailable": None,
        "layers": layers_of(speedup) if name in ("original", "int8") else None,
        "run": f"results/{name}.gpuprof" if is_base else None,
    }  # fmt: skip


def failed(name: str, reason: str) -> Document:
    """A variant of which nothing was measured."""
    empty = variant(name, ())
    return {
        **empty, "status": "failed", "failure": reason, "speedup": None, "verdict": None, "accuracy": None,
        "accuracy_unavailable": "it failed", "layers": None, "run": None, "framework": None,
        "model_bytes": None, "parameters": None, "startup_s": None, "compile_s": None,
    }  # fmt: skip


def document(
    names: Sequence[str] = tuple(SPEEDUPS), sizes: Sequence[int] = (1, 8, 32), **more: Any
) -> Document:
    """A comparison of variants; names that are not known get figures of their own."""
    variants = []
    for seed, name in enumerate(names):
        speedup = SPEEDUPS.get(name, 1.05 + 0.13 * seed)
        change = CHANGES.get(name, -0.0017 * seed)
        variants.append(variant(name, sizes, speedup=speedup, change=change, seed=seed))
    found: Document = {
        "format": 1,
        "kind": "comparison",
        "name": "resnet50: which one to ship",
        "timestamp": "2026-11-21T17:00:00+00:00",
        "git_commit": "0123456789abcdef0123456789abcdef01234567",
        "environment": {
            "processor": "A processor of 8 cores", "cores": 8, "usable_cores": 4, "python": "3.11.9",
            "versions": {"torch": "2.13.0", "numpy": "2.1.0"}, "governor": None, "changed_files": True,
        },
        "method": {
            "launches": 10, "order": "random within each round", "confidence": 0.95, "margin": 0.01,
            "accuracy_margin": 0.01, "seed": 0, "batch_sizes": list(sizes), "data": "data/test",
            "device": "cpu", "measured_s": 1834.5, "price_per_hour": PRICE_PER_HOUR, "currency": "USD",
        },
        "baseline": names[0] if names else None,
        "variants": variants,
        "pareto": _pareto(variants),
        "quality": {"name": "accuracy", "rests_on": "10,000 labeled samples of data/test"},
        "summary": _summary(variants),
        "recommendations": [
            {"text": "Ship int8.", "because": "it is 2.306 times as fast and as accurate within 1 pp."},
            {"text": "Leave pruned out.", "because": "it loses 3.12 pp of accuracy and is slower."},
        ],
        "traffic": None,
        "notes": ["energy was not measured: no device with a counter"],
    }  # fmt: skip
    return copy.deepcopy(found | more)


def _summary(variants: Sequence[Document]) -> Document:
    best = max(variants[1:], key=lambda each: each["speedup"]["value"], default=None)
    if best is None:
        return {"headline": "There is one variant: nothing to choose from.", "lines": [], "choice": None}
    ratio = best["speedup"]["value"]
    return {
        "headline": f"Ship {best['name']}: {ratio:.2f} times as fast as {variants[0]['name']}, as accurate.",
        "lines": [
            "Its interval lies wholly beyond the practical margin of 1%.",
            "10 process runs of each variant.",
        ],
        "choice": best["name"],
    }


def _pareto(variants: Sequence[Document]) -> list[Document]:
    points = [
        {
            "variant": each["name"], "batch_size": None, "accuracy": each["accuracy"]["accuracy"],
            "speedup": 1.0 if each["speedup"] is None else each["speedup"]["value"],
        }
        for each in variants
    ]  # fmt: skip
    for point in points:
        point["on_front"] = not any(
            other["speedup"] >= point["speedup"] and other["accuracy"] >= point["accuracy"] and other != point
            and (other["speedup"], other["accuracy"]) != (point["speedup"], point["accuracy"])
            for other in points
        )  # fmt: skip
    return points


def typed(*names: Any, **more: Any) -> ComparisonDocument:
    """The same document as typed values."""
    return document_from(document(*names, **more))


def everything_failed() -> Document:
    """A comparison in which no variant could be measured."""
    names = ("original", "int8")
    return document(
        ("original",),
        variants=[
            failed(name, f"models/{name}.pt2 cannot be read; hint: specify an existing file")
            for name in names
        ],
        pareto=[],
        quality={"name": None, "rests_on": "nothing was measured"},
        summary={"headline": "Nothing to choose from: both variants failed.", "lines": [], "choice": None},
        recommendations=[{"text": "Fix the paths.", "because": "no file was found."}],
    )
