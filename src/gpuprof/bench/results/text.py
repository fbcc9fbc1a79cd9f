# SPDX-License-Identifier: Apache-2.0
"""Results as text: a table of at most 100 columns, notes, and Markdown."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from gpuprof.bench.facts import Diagnostic, note
from gpuprof.bench.measure.scaling import SATURATED, LargestBatch, saturation_point
from gpuprof.bench.messages import title
from gpuprof.bench.models.data import shape_text
from gpuprof.bench.number_text import time_text
from gpuprof.bench.results.target import QUANTILES
from gpuprof.stats.quantiles import samples_needed
from gpuprof.text.table import Column, text_table
from gpuprof.text.units import duration_parts, format_bytes, format_quantity

if TYPE_CHECKING:
    from gpuprof.bench.results.batch import BatchResult, Stamp
    from gpuprof.bench.results.session import BenchFinding, SessionResult, Startup
    from gpuprof.stats.quantiles import Estimate


UNAVAILABLE = "unavailable"
_PARTS = {"compile_s": "inputs and compiling"}


def title_of(session: SessionResult) -> str:
    """Return what was measured, and where, on one line."""
    system = session.batches[0].description
    shape = "" if system.input_shape is None else f", inputs of {shape_text(system.input_shape)}"
    size = "" if system.parameters is None else f", {format_quantity(system.parameters)} parameters"
    where = f"{system.device} ({system.device_type})"
    technique = "" if "technique" not in system.details else f", {system.details['technique']}"
    return f"{system.model} in {system.framework}: {system.dtype}{technique}{shape}{size}, on {where}"


def results_table(batches: Sequence[BatchResult]) -> str:
    """Return one line for each batch size. `-` is no figure: too few samples, or nothing to be had."""
    titles, rows = _cells(batches)
    return text_table([Column(title) for title in titles], rows)


def _cells(batches: Sequence[BatchResult]) -> tuple[list[str], list[list[str]]]:
    """Return the titles, and the cells of each batch size; a column without any figure is left out."""
    rows = [_figures(batch) for batch in batches]
    titles = [title for title in rows[0] if title != "compile" or any(row[title] != "-" for row in rows)]
    return titles, [[row[title] for title in titles] for row in rows]


def _figures(batch: BatchResult) -> dict[str, str]:
    result, summary = batch.result, batch.result.summary
    memory = batch.largest("memory", "allocator_peak_bytes") or batch.host_own[0] or batch.host_peak[0]
    return {
        "batch": str(batch.batch_size),
        "p50": time_text(batch.latency_s(0.5)),
        "p50 95% CI": _interval(result.estimate(0.5)),
        "p90": time_text(batch.latency_s(0.9)),
        "p95": time_text(batch.latency_s(0.95)),
        "p99": time_text(batch.latency_s(0.99)),
        "mean": time_text(None if summary is None else summary.mean),
        "samples/s": format_quantity(batch.items_per_s),
        "memory": "-" if memory is None else format_bytes(memory),
        "compile": time_text(batch.middle("compile_s")),
        "n": f"{len(result.samples):,}",
    }


def _interval(found: Estimate | None) -> str:
    """Return both ends, with the unit once where it is the same."""
    if found is None or found.low is None or found.high is None:
        return "-"
    low, high = duration_parts(found.low * 1e9), duration_parts(found.high * 1e9)
    return f"{low[0] if low[1] == high[1] else ' '.join(low)}-{' '.join(high)}"


def notes_of(session: SessionResult) -> list[str]:
    """Return the lines below the table: start-up, saturation point, missing figures, warnings."""
    if not session.batches:
        return []
    notes = _startup_notes(session.startups)
    notes += _saturation_notes(session.throughputs)
    notes += _device_notes(session.batches)
    notes += _memory_notes(session.batches)
    notes += _loading_notes(session.batches)
    notes += [f"energy: {line}" for line in energy_notes(session.batches)]
    notes += _sample_count_notes(session.batches)
    return list(dict.fromkeys([*notes, *warning_notes(session.batches)]))


def warning_notes(batches: Sequence[BatchResult]) -> Iterator[str]:
    """Yield each warning once, with its first evidence; the JSON has all of them."""
    kinds: dict[str, list[tuple[int, str]]] = {}
    for batch in batches:
        for each in batch.warnings:
            kinds.setdefault(each.code, []).append((batch.batch_size, str(each)))
    for name, found in kinds.items():
        size, line = found[0]
        more = f" (and {len(found) - 1} more)" if len(found) > 1 else ""
        yield f"! {title(name)}: batch size {size}: {line}{more}"


def _startup_notes(startups: Sequence[Startup]) -> list[str]:
    if not startups:
        return []
    middle = sorted(startups, key=lambda each: each.total_s)[len(startups) // 2]
    of = f" (median of {len(startups)})" if len(startups) > 1 else ""
    return [f"start to first inference{of}: {startup_text(middle)}"]


def startup_text(startup: Startup) -> str:
    """Return a start-up on one line, with its parts."""
    parts = startup.to_dict()
    total = parts.pop("total_s")
    shown = ", ".join(
        f"{_PARTS.get(name, name.removesuffix('_s').replace('_', ' '))} {time_text(value)}"
        for name, value in parts.items()
    )
    return f"{time_text(total)} ({shown})"


def _saturation_notes(rates: dict[int, float]) -> list[str]:
    found = saturation_point(rates)
    if found is None and len(rates) < 3:
        return []
    if found is None:
        return [f"saturation point: none within the sizes measured: batch size {max(rates)} still gives more"]
    return [f"saturation point: batch size {found}, the smallest with {SATURATED:.0%} of the best throughput"]


def _memory_notes(batches: Sequence[BatchResult]) -> Iterator[str]:
    """Yield what the host's memory of the largest batch consists of: the model's own, and the framework."""
    batch = batches[-1]
    own, calls = batch.host_own[0], batch.largest("memory", "host_calls_bytes")
    baseline, process = batch.largest("memory", "host_baseline_bytes"), batch.host_peak[0]
    if own is None or calls is None or batch.description.device_type != "cpu":
        return
    text = f"memory at batch size {batch.batch_size}: {format_bytes(own)} of the model, of which calls add "
    text += format_bytes(calls)
    if baseline is not None and process is not None:
        text += f"; the process fills {format_bytes(process)}, "
        text += f"{format_bytes(baseline)} before the model is loaded"
    yield text


def _loading_notes(batches: Sequence[BatchResult]) -> Iterator[str]:
    """Yield for each batch size that was streamed what the loader took, and the waiting for disks."""
    from gpuprof.bench.results.loading import loading_row

    for batch in batches:
        measured = batch.result.measurements
        if not any(each.loading is not None for each in measured):
            continue
        row = loading_row(measured)
        fraction, waiting = row["data_loading_share"], row["io_wait_share"]
        p50_ms, samples = row["data_loading_p50_ms"], row["streamed_samples"]
        text = f"data loading at batch size {batch.batch_size}: "
        text += time_text(None if p50_ms is None else p50_ms / 1e3) + " a batch (median), "
        text += UNAVAILABLE if fraction is None else f"{fraction:.1%}"
        text += " of the wall time; I/O wait "
        text += UNAVAILABLE if waiting is None else f"{waiting:.1%}"
        yield f"{text}; {samples or 0:,.0f} samples in a process run"


def _device_notes(batches: Sequence[BatchResult]) -> Iterator[str]:
    """Yield for each batch size the three times of a call: all of it, the device's, the host's."""
    for batch in batches:
        if batch.description.device_type == "cpu":
            continue
        parts = {"wall": batch.result.quantile(0.5), "device": batch.device_s, "enqueue": batch.enqueue_s}
        shown = ", ".join(
            f"{name} {UNAVAILABLE if value is None else time_text(value)}" for name, value in parts.items()
        )
        yield f"a call at batch size {batch.batch_size}: {shown} (medians)"


def energy_notes(batches: Sequence[BatchResult]) -> list[str]:
    """Return the energy of a sample for each batch size, or once that there is none and why."""
    notes = []
    for batch in batches:
        readings = [run.extra.get("energy") for run in batch.launches]
        told = [each for each in readings if each is not None]
        joules = batch.middle("energy", "energy_per_sample_j")
        if joules is not None:
            notes.append(f"{joules:.3g} J a sample at batch size {batch.batch_size}, idle taken off")
        else:
            why = Diagnostic.from_dict(told[0]["unavailable"]) if told else note("energy_without_counter")
            notes.append(f"{UNAVAILABLE} ({why})")
    return list(dict.fromkeys(notes))


def finding_notes(finding: BenchFinding) -> list[str]:
    """Return what a benchmark found besides its batch sizes: verdicts, the largest batch, start-up, a run."""
    notes = [interrupted_note(finding)] if finding.interrupted else []
    notes += [f"batch size {size}: the target is {verdict}" for size, verdict in finding.verdicts.items()]
    if finding.memory_ended is not None:
        notes.append(f"memory ended: {finding.memory_ended}")
    if finding.largest is not None:
        notes.append(_largest_note(finding.largest))
    for name, startup in finding.startup.items():
        notes.append(f"{name} start: {UNAVAILABLE if startup is None else startup_text(startup)}")
    if finding.session.profile is not None:
        notes.append(f"profile: gpuprof flamegraph {finding.session.profile}")
    return notes


def interrupted_note(finding: BenchFinding) -> str:
    """Return which figures there are of a benchmark that was interrupted."""
    if not finding.session.batches:
        return "interrupted before a call was measured; hint: --warmup N ends the warm-up after N calls"
    return "interrupted: the figures are of what was measured until then"


def _largest_note(found: LargestBatch) -> str:
    size = found.batch_size
    larger = "larger ones" if size else "batch size 1"
    reasons = {
        "missed": f"{larger} missed the target",
        "open": "whether larger ones meet the target is open"
        if size
        else "whether batch size 1 does is open",
        "does not fit": f"{larger} did not fit",
        "failed": f"{larger} failed",
    }
    note = f"largest batch size: {size or 'none'} ({reasons.get(str(found.why), 'no larger one was tried')})"
    open_sizes = ", ".join(map(str, found.open_sizes))
    return f"{note}; open: {open_sizes}, whose intervals lie on both sides of it" if open_sizes else note


def _sample_count_notes(batches: Sequence[BatchResult]) -> list[str]:
    found = []
    for name, share in QUANTILES.items():
        short = [batch for batch in batches if batch.latency_s(share) is None]
        if short:
            counts = ", ".join(str(batch.result.count) for batch in short)
            found.append(f"{name}: too few samples (n={counts}; it needs {samples_needed(share)})")
    return found


def to_markdown(session: SessionResult, stamp: Stamp, more: Sequence[str] = ()) -> str:
    """Return the table and its notes as Markdown."""
    titles, cells = _cells(session.batches)
    rows = [titles, ["---:"] * len(titles), *([escaped_markdown(cell) for cell in row] for row in cells)]
    table = [f"| {' | '.join(row)} |" for row in rows]
    commit = stamp.git_commit or UNAVAILABLE
    notes = [*notes_of(session), *more, f"measured {stamp.timestamp}, git revision {commit}"]
    listed = [f"- {escaped_markdown(note)}" for note in notes]
    return "\n".join([f"# {escaped_markdown(title_of(session))}", "", *table, "", *listed, ""])


def escaped_markdown(text: str) -> str:
    """Return text on one line that Markdown shows as it is."""
    return "".join(f"\\{each}" if each in "\\`*_{}[]<>#|" else each for each in " ".join(text.split()))
