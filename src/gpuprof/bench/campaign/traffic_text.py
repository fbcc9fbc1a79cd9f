# SPDX-License-Identifier: Apache-2.0
"""A traffic split's result as text for a terminal."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gpuprof.analyze.text_table import Column, format_count, text_table, wrapped
from gpuprof.bench.gate_table import interval_text, time_text

if TYPE_CHECKING:
    from gpuprof.bench.campaign.traffic_figures import Traffic


def traffic_text(traffic: Traffic) -> str:
    """Return both variants, their ratios, the advice with its reason, and notes; 100 columns at most."""
    first, second = traffic.names
    shares = " to ".join(f"{share:.4g}" for share in (100 * each for each in traffic.split))
    count = sum(total for _, total in traffic.failed.arms)
    launches = len(traffic.launches)
    head = f"traffic {shares} between {first} and {second}: {count:,} requests in {launches} launches"
    advice = traffic.advice
    lines = [
        wrapped(head),
        "",
        _arms_table(traffic),
        "",
        _figures_table(traffic),
        "",
        wrapped(f"advice: {advice.text}"),
        wrapped(f"  because {advice.because}", indent="    "),
        *(wrapped(f"note: {note}") for note in traffic.notes),
    ]
    return "\n".join(lines)


def _arms_table(traffic: Traffic) -> str:
    columns = [
        Column("variant", right=False),
        *map(Column, ("requests", "failed", "95% interval", "p50", "p95", "p99")),
    ]
    rows = []
    for each in traffic.to_dict()["arms"]:
        share = each["failed_share"]
        ends = "-" if share is None else f"{share['low']:.2%} to {share['high']:.2%}"
        times = [
            time_text(found and found["value"]) for found in (each[f"{q}_s"] for q in ("p50", "p95", "p99"))
        ]
        rows.append(
            (each["variant"], format_count(each["requests"]), format_count(each["failed"]), ends, *times)
        )
    return text_table(columns, rows)


def _figures_table(traffic: Traffic) -> str:
    columns = [
        Column("second over first", right=False),
        *map(Column, ("ratio", "its interval", "margin", "launches")),
        Column("verdict", right=False),
    ]
    rows = []
    for each in traffic.figures:
        judged = each.judgement
        ratio = "-" if each.ratio is None else f"{each.ratio:.3f}"
        verdict = judged.verdict if each.ratio is not None else "insufficient"
        ends = interval_text(judged.low, judged.high)
        rows.append((each.name, ratio, ends, f"{judged.margin:.1%}", str(each.launches), verdict))
    return text_table(columns, rows)
