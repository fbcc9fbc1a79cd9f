# SPDX-License-Identifier: Apache-2.0
"""A comparison document for a terminal: at most 100 columns."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from gpuprof.analyze.text_table import (
    Column,
    format_bytes,
    format_duration,
    format_quantity,
    text_table,
    wrapped,
)

Plain = dict[str, Any]
_SHOWN_FINDINGS = 6
_COLUMNS = (
    Column("variant", right=False),
    Column("batch"),
    Column("p50"),
    Column("p99"),
    Column("samples/s"),
    Column("speed-up"),
    Column("its interval"),
    Column("verdict", right=False),
    Column("memory"),
)


def document_text(document: Plain) -> str:
    """Return the headline, the table, what to do next, and what to doubt."""
    rows = [_cells(each, batch, document) for each in document["variants"] for batch in each["batches"]]
    lines = [wrapped(document["summary"]["headline"])]
    if rows:
        lines += ["", text_table(_COLUMNS, rows)]
    lines += ["", *(wrapped(line) for line in document["summary"]["lines"])]
    lines += [wrapped(line) for line in _targets(document)]
    answers = list(_answers(document))
    lines += ["", "what the answers show:", *answers] if answers else []
    advice = [wrapped(f"- {each['text']}: {each['because']}") for each in document["recommendations"]]
    lines += ["", "what to do next:", *advice] if advice else []
    notes = (f"note: {each}" for each in document["notes"])
    doubts = [wrapped(line) for line in (*_doubts(document), *notes)]
    return "\n".join([*lines, "", *doubts]).rstrip() if doubts else "\n".join(lines)


def _cells(variant: Plain, batch: Plain, document: Plain) -> tuple[str, ...]:
    is_baseline = variant["name"] == document["baseline"]
    verdict = "baseline" if is_baseline else (batch["comparison"] or {}).get("verdict", "-")
    speedup = batch["speedup"] or {}
    memory = batch["device_peak_bytes"] or batch["host_peak_bytes"]
    throughput = batch["throughput_per_s"]
    return (
        variant["name"],
        str(batch["batch_size"]),
        _time(batch["median_s"]),
        _time(batch["p99_s"]),
        "-" if throughput is None else format_quantity(throughput["value"]),
        f"{speedup['value']:.3f}" if speedup else "-",
        f"{speedup['low']:.3f}-{speedup['high']:.3f}" if speedup and speedup["low"] is not None else "-",
        str(verdict),
        "-" if memory is None else format_bytes(memory),
    )


def _time(found: Plain | None) -> str:
    return "-" if found is None else format_duration(found["value"] * 1e9)


def _targets(document: Plain) -> Iterator[str]:
    """Yield who meets the target at which batch sizes, and what metrics of the user's own are."""
    target = document["method"]["target"]
    for variant in document["variants"] if target is not None else ():
        told = [f"{batch['target']} at batch size {batch['batch_size']}" for batch in variant["batches"]]
        yield f"{target}: {variant['name']}: {', '.join(told) or 'not measured'}"
    values: dict[str, list[str]] = {}
    for variant in document["variants"]:
        for metric in (variant["accuracy"] or {}).get("metrics", []):
            value = "unavailable" if metric["value"] is None else f"{metric['value']:.4g}"
            values.setdefault(metric["name"], []).append(f"{variant['name']} {value}")
    for name, found in values.items():
        yield f"{name}: {', '.join(found)}"


def _answers(document: Plain) -> Iterator[str]:
    """Yield what speaks against a variant's answers; the report has all of it."""
    for variant in document["variants"]:
        found = (variant["accuracy"] or {}).get("findings", [])
        yield from (wrapped(f"- {variant['name']}: {line}") for line in found[:_SHOWN_FINDINGS])
        if len(found) > _SHOWN_FINDINGS:
            yield wrapped(f"- {variant['name']}: {len(found) - _SHOWN_FINDINGS} more in the report")


def _doubts(document: Plain) -> Iterator[str]:
    """Yield each kind of flag once, with its first evidence; the report has all of them."""
    kinds: dict[str, list[str]] = {}
    for variant in document["variants"]:
        for batch in variant["batches"]:
            for flag in batch["flags"]:
                where = f"{variant['name']}, batch size {batch['batch_size']}"
                kinds.setdefault(flag["name"], []).append(f"{where}: {flag['line']}")
    for name, found in kinds.items():
        more = f" (and {len(found) - 1} more)" if len(found) > 1 else ""
        yield f"! {name}: {found[0]}{more}"
