# SPDX-License-Identifier: Apache-2.0
"""Warnings about a load result as typed values; their texts are here and nowhere else."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from gpuprof.bench.messages import fact_text
from gpuprof.text.messages import Messages

_MESSAGES = Messages(
    {
        "generator_bound": "the rate of {rate:rate} is above {limit:.0%} of what the generator reaches on "
        "a target that does nothing, {ceiling:rate}: the figures may be those of the generator",
        "late": "requests that found the target free were sent late: {lateness_s:time} at p99, next to a "
        "median service time of {service_s:time}",
        "not_steady": "the queue is not in a steady state: {in_system:.4g} requests were in the system, and "
        "rate times latency is {rate_times_latency:.4g}",
        "too_few_requests": "too few requests for p{percent:g} (n={requests:,}, needs at least {least:,})",
        "undecided": "{target} is inconclusive: the interval of the fraction above it contains {limit:.3%}; "
        "about {requests:,} requests are needed",
        "short_run": "waiting requests delay the ones after them for longer than a twentieth of the run: "
        "its p{percent:g} has no reliable verdict; run longer",
        "failed_requests": "{failed:,} of {requests:#request} failed or had no response; failed ones count "
        "as late",
        "no_file_descriptors": "{requests:#request} found no free file descriptor, a limit of this "
        "machine and not of the server: raise it (ulimit -n), or use a lower --concurrency",
        "no_ports": "{requests:#request} found no free port, a limit of this machine and not of the server: "
        "use a lower --concurrency, or a server that keeps its connections open",
        "first_exception": "first exception of the target: {type}: {message}",
        "duplicate_ends": "the target reported the end of {duplicates:#request} twice",
        "unrequested_responses": "the server sent {responses:#response} that no request asked for",
        "no_profile": "the requests were measured, and their profile was not written: {error}",
        "full": "the run ended after {seconds:.3g} s, since it has room for {requests:#request}",
        "client_ended": "incomplete: the client's process ended before the load did ({cause}); the figures "
        "are of {requests:#request} that had to be sent until then, and those under way count as failed",
        "interrupted": "interrupted: the figures are of {requests:#request} that had to be sent until then",
    }
)


@dataclass(frozen=True, slots=True)
class LoadWarning:
    """What a reader must know to judge a result: a code and plain values in SI units."""

    code: str
    values: Mapping[str, Any] = field(default_factory=dict)

    def __str__(self) -> str:
        if self.code in _MESSAGES.codes:
            return _MESSAGES.text(self.code, self.values)
        return fact_text(self.code, self.values)  # about the machine, as of a benchmark

    def to_dict(self) -> dict[str, Any]:
        """Return plain data for JSON, with the text for people."""
        return {"code": self.code, "values": dict(self.values), "text": str(self)}


def load_warning(code: str, **values: Any) -> LoadWarning:
    """Return a warning with its values."""
    return LoadWarning(code, values)
