# SPDX-License-Identifier: Apache-2.0
"""The text of every fact, by its code: the only place where facts become sentences.

A template's fields are the values of the fact. Besides `str.format` it knows conversions: `!t` a time in
seconds, `!p` a fraction as a percentage, `!x` a speed-up with its interval, `!o` a change in percentage
points, `!d` another fact, `!n` batch sizes, `!l` a list.
"""

from __future__ import annotations

import string
from collections.abc import Callable, Mapping
from typing import Any

from gpuprof.analyze.text_table import format_duration
from gpuprof.bench.facts import Diagnostic

Values = Mapping[str, Any]
Message = str | Callable[[Values], str]


def message(fact: Diagnostic) -> str:
    """Return a fact as one sentence without a full stop."""
    values = fact.values
    if "text" in values:
        return str(values["text"])
    found = MESSAGES.get(fact.code)
    if found is None:
        return ", ".join([fact.code, *(f"{name} {value}" for name, value in values.items())])
    text = _formatter.format(found, **values) if isinstance(found, str) else found(values)
    if "affected_runs" in values and values["process_runs"] > 1:
        return f"in {values['affected_runs']} of {values['process_runs']} process runs, first: {text}"
    return text


def title(code: str) -> str:
    """Return a code as words."""
    return code.replace("_", " ")


def _message_of_plain(plain: Mapping[str, Any] | Diagnostic) -> str:
    return message(plain if isinstance(plain, Diagnostic) else Diagnostic.from_dict(plain))


def _duration(seconds: float) -> str:
    return format_duration(seconds * 1e9)


_CONVERSIONS: dict[str, Callable[[Any], str]] = {
    "t": _duration,
    "p": lambda fraction: f"{fraction:.1%}",
    "d": _message_of_plain,
    "l": ", ".join,
}


class _Formatter(string.Formatter):
    def convert_field(self, value: Any, conversion: str | None) -> Any:
        known = _CONVERSIONS.get(conversion or "")
        return super().convert_field(value, conversion) if known is None else known(value)  # type: ignore[arg-type]


_formatter = _Formatter()


def _warmup(values: Values) -> str:
    text = f"{values['calls']:,} calls in {values['elapsed_s']:.2f} s did not reach a steady state"
    drift = values["drift"]
    return text if drift is None else f"{text}; the last windows differ by {drift:.1%}"


MESSAGES: dict[str, Message] = {
    # --- warnings of one measurement ---
    "relative_iqr": "the middle half of the samples spans {relative_iqr!p} ({low_s!t} to {high_s!t})",
    "drift": "from the first to the last sample the time changed by {drift:+.1%} ({low:+.1%} to {high:+.1%})",
    "large_drift": "the first tenth of the samples has a median of {first_s!t}, the last tenth {last_s!t}",
    "bimodal": "the samples gather at {first_s!t} and at {second_s!t}: no single figure describes both",
    "involuntary_context_switches": (
        "the process had {switches:,} involuntary context switches in {calls:,} calls"
    ),
    "background_cpu_load": "other processes kept {busy_cpus:.1f} of {cpus} CPUs busy",
    "steal_time": "the hypervisor gave {steal!p} of the CPU time to other machines",
    "cpu_frequency": "the CPU frequency went from {before_mhz:,.0f} to {after_mhz:,.0f} MHz",
    "warmup": _warmup,
    "timer": "reading the clock takes {timer_s!t}, {fraction:.0%} of a sample: use mode='throughput'",
    "enqueue": "a call had returned after {fraction:.0%} of its time: the host sets the pace",
    "recording": "a recording was running: its cost is part of the figures",
    "changed_inputs": "the calls change their inputs: each call computes something else than the one before",
    "failed_process_runs": "{failed} of {process_runs} process runs failed, first: {first}",
    "one_process_run": "one process run does not show how much runs differ: compare with launches=10",
}
