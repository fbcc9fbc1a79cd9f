# SPDX-License-Identifier: Apache-2.0
"""The result of a load run: its settings, figures, verdict and warnings, and the row of each request.

On disk it is a folder with `result.json` and `requests.parquet`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from gpuprof.bench.config import SystemSpec
from gpuprof.bench.results.target import LatencyTarget, parse_target
from gpuprof.bench.serialization import decode, encode, to_finite
from gpuprof.bench.verdicts import TargetVerdict
from gpuprof.errors import RunError
from gpuprof.load.figures import (
    Distribution,
    LittlesLaw,
    TargetJudgement,
    distribution_of,
    generator_lateness_s,
    judge,
    latencies_s,
    lateness_distribution,
    littles_law,
    quantile,
    requests_judged,
    requests_needed,
    service_distribution,
)
from gpuprof.load.out_folder import SEVERAL_RESULTS, SINGLE_RESULT
from gpuprof.load.probe import GENERATOR_BOUND
from gpuprof.load.requests import RequestStatus, Rows, is_ok, read_requests, write_rows
from gpuprof.load.rule_verdicts import RuleVerdicts, rule_verdicts
from gpuprof.load.targets.base import TargetFailure
from gpuprof.load.targets.client import end_of_process
from gpuprof.load.warnings import LoadWarning, load_warning
from gpuprof.text.sanitize import escape_text
from gpuprof.text.table import Column, text_table
from gpuprof.text.units import counted, format_duration, format_number, format_rate, format_share

if TYPE_CHECKING:
    from gpuprof.analyze.requests.slow_request import SlowRequest
    from gpuprof.analyze.requests.slowest import Order, ProfiledRequests

FORMAT = 1
RESULT_FILE, REQUESTS_FILE = SINGLE_RESULT, "requests.parquet"
PROFILE_FOLDER = "profile.gpuprof"
_MOST_LITTLE_GAP = 0.1
_LIMITS_OF_MACHINE = {
    RequestStatus.NO_FILE_DESCRIPTORS: "no_file_descriptors",
    RequestStatus.NO_PORTS: "no_ports",
}
_MOST_SIZES = 10  # of batches, in a line of text
_MOST_LATE = 0.1  # of the median service time, at p99


@dataclass(frozen=True, slots=True)
class LoadSettings:
    """What was asked for. `rate` and `duration_s` are None where the pattern or a count has them.

    `system` is how a model is run, None for its defaults; other targets have none. `max_batch` requests are
    batched, and the oldest waits `batch_wait_s` for others (None is 0).
    """

    target: str
    scenario: str
    pattern: str | None = None
    rate: float | None = None
    duration_s: float | None = None
    count: int | None = None
    concurrency: int | None = None
    mix: str | None = None
    slo: str | None = None
    seed: int = 0
    system: SystemSpec | None = None
    max_batch: int | None = None
    batch_wait_s: float | None = None


@dataclass(frozen=True, slots=True)
class LoadRun:
    """What was seen besides the rows. `ceiling_per_s` is the generator's own, None without a probe.

    `batch_wait_s` is how long a request waits for others of its batch, None where requests are not batched.
    `profile_warning` is why there is no profile that was asked for. `is_full` is whether a closed loop ended
    before its time, since it has no room for more requests. `client_code` is what the process of a client
    returned that ended before the load, negative for a signal; None of others.
    """

    start_ns: int
    end_ns: int
    closed: bool = False
    interrupted: bool = False
    duplicates: int = 0
    ceiling_per_s: float | None = None
    machine_warnings: tuple[LoadWarning, ...] = ()
    environment: dict[str, Any] = field(default_factory=dict)
    first_failure: TargetFailure | None = None
    batch_wait_s: float | None = None
    profile_warning: LoadWarning | None = None
    is_full: bool = False
    client_code: int | None = None


@dataclass(frozen=True)
class LoadResult:
    """A load run. Latency is from the planned arrival to the end; failed requests count as infinitely late.

    `rows` have the dtype `gpuprof.load.requests.REQUEST`, in the order of the plan. `profile` is the run that
    recorded the requests, None for none.
    """

    settings: LoadSettings
    run: LoadRun
    rows: Rows
    profile: Path | None = field(default=None, kw_only=True)

    @cached_property
    def profiled(self) -> ProfiledRequests:
        """The requests with what ran for each. Raises RunError without a profile."""
        from gpuprof.analyze.requests.slowest import ProfiledRequests
        from gpuprof.run.folder import RunFolder

        if self.profile is None:
            raise RunError(
                "no_profile",
                "the requests of this load were not profiled",
                hint="add --profile, or profile=True",
            )
        return ProfiledRequests(RunFolder(self.profile))

    def slowest(self, count: int = 10, by: Order = "service") -> list[SlowRequest]:
        """Return the slowest requests with what they spent their time on (docs/commands/load.md).

        `by` is "service", the time from sending to the end, or "latency". Raises RunError without a profile.
        """
        return self.profiled.slowest(count, by)

    @property
    def target(self) -> LatencyTarget | None:
        """The latency target, None without one."""
        return None if self.settings.slo is None else parse_target(self.settings.slo)

    @property
    def latency(self) -> Distribution:
        """Seconds from the planned arrival to the end."""
        return distribution_of(latencies_s(self.rows))

    @property
    def service(self) -> Distribution:
        """Seconds from sending to the end, of requests that succeeded."""
        return service_distribution(self.rows)

    @property
    def lateness(self) -> Distribution:
        """Seconds from the planned arrival to sending: the wait for a free worker or connection."""
        return lateness_distribution(self.rows)

    @property
    def planned_rate(self) -> float | None:
        """Planned requests per second, None in a closed loop and where all arrive at once."""
        if self.run.closed or len(self.rows) < 2:
            return None
        span_ns = int(self.rows["planned_ns"][-1] - self.rows["planned_ns"][0])
        return (len(self.rows) - 1) / span_ns * 1e9 if span_ns > 0 else None

    @property
    def achieved_rate(self) -> float:
        """Successful requests per second, until the last one ended."""
        return int(is_ok(self.rows).sum()) / self._elapsed_s

    @property
    def unit(self) -> str:
        """What `units_per_s` counts: tokens of streams, samples of others."""
        return "tokens" if self.settings.target.startswith("openai+") else "samples"

    @property
    def units_per_s(self) -> float:
        """Samples or tokens of successful requests per second."""
        return float(self.rows["units"][is_ok(self.rows)].sum()) / self._elapsed_s

    @property
    def _elapsed_s(self) -> float:
        return max(self.run.end_ns - self.run.start_ns, 1) / 1e9

    @property
    def statuses(self) -> dict[RequestStatus, int]:
        """How many requests ended in which way."""
        values, counts = np.unique(self.rows["status"], return_counts=True)
        return {RequestStatus(int(value)): int(count) for value, count in zip(values, counts, strict=True)}

    @property
    def batch_sizes(self) -> dict[int, int] | None:
        """How many batches had which size; None where requests were not batched."""
        if self.run.batch_wait_s is None:
            return None
        _, sizes = np.unique(self.rows["sent_ns"][self.rows["sent_ns"] > 0], return_counts=True)
        values, counts = np.unique(sizes, return_counts=True)
        return {int(value): int(count) for value, count in zip(values, counts, strict=True)}

    @property
    def littles_law(self) -> LittlesLaw | None:
        """Both sides of Little's law; None where all arrive at once."""
        return littles_law(self.rows)

    @property
    def judgement(self) -> TargetJudgement | None:
        """Whether the latency target is met, and with which confidence; None without a target."""
        return None if self.target is None else judge(self.rows, self.target)

    @property
    def verdict(self) -> TargetVerdict | None:
        """Whether the latency target is met; None without a target."""
        found = self.judgement
        return None if found is None else found.verdict

    @property
    def planned_duration_s(self) -> float | None:
        """For how long requests were sent; None where another thing than the time ended them."""
        run = self.run
        is_cut = run.interrupted or run.is_full or run.client_code is not None
        return None if is_cut or self.settings.count is not None else self.settings.duration_s

    @property
    def rule_verdicts(self) -> RuleVerdicts | None:
        """What the rules of MLPerf give; None of a load in none of its scenarios."""
        settings = self.settings
        return rule_verdicts(
            self.rows,
            scenario=settings.scenario,
            pattern=settings.pattern,
            slo=settings.slo,
            set_s=settings.duration_s,
            sent_s=self.planned_duration_s,
        )

    @property
    def is_failed(self) -> bool:
        """Whether requests were sent, and none succeeded."""
        return len(self.rows) > 0 and not is_ok(self.rows).any()

    @property
    def warnings(self) -> tuple[LoadWarning, ...]:
        """What a reader must know to judge the figures."""
        return (*self._generator_warnings(), *self._row_warnings(), *self.run.machine_warnings)

    def _generator_warnings(self) -> Iterator[LoadWarning]:
        rate, ceiling = self.planned_rate, self.run.ceiling_per_s
        if rate is not None and ceiling is not None and rate > GENERATOR_BOUND * ceiling:
            yield load_warning("generator_bound", rate=rate, ceiling=ceiling, limit=GENERATOR_BOUND)
        if self.run.closed or rate is None:
            return
        late = np.sort(generator_lateness_s(self.rows, self.settings.concurrency or 1))
        p99, service = quantile(late, 0.99) if len(late) >= 100 else 0.0, self.service.p50
        p99 -= self.run.batch_wait_s or 0.0
        if service is not None and p99 > _MOST_LATE * service:
            yield load_warning("late", lateness_s=p99, service_s=service)

    def _row_warnings(self) -> Iterator[LoadWarning]:
        count, failed = len(self.rows), int((~is_ok(self.rows)).sum())
        if self.run.interrupted:
            yield load_warning("interrupted", requests=count)
        if self.run.client_code is not None:
            cause = end_of_process(self.run.client_code)
            yield load_warning("client_ended", cause=cause, requests=count)
        if failed:
            yield load_warning("failed_requests", failed=failed, requests=count)
        for status, code in _LIMITS_OF_MACHINE.items():
            if status in self.statuses:
                yield load_warning(code, requests=self.statuses[status])
        first = self.run.first_failure
        if first is not None:
            yield load_warning("first_exception", type=first.type, message=first.message)
        if self.run.duplicates:
            yield load_warning("duplicate_ends", duplicates=self.run.duplicates)
        found = None if self.run.closed else self.littles_law
        if self.run.is_full:
            yield load_warning("full", requests=count, seconds=self._elapsed_s)
        if self.run.profile_warning is not None:
            yield self.run.profile_warning
        # With fewer in the system, one request at the end decides the difference.
        if found is not None and found.gap > _MOST_LITTLE_GAP and found.gap * found.in_system > 1:
            yield load_warning(
                "not_steady", in_system=found.in_system, rate_times_latency=found.rate_times_latency
            )
        yield from self._target_warnings()

    def _target_warnings(self) -> Iterator[LoadWarning]:
        target, found = self.target, self.judgement
        if target is None or found is None or target.share is None:
            return
        least = requests_judged(target.share)
        if len(self.rows) < least:
            yield load_warning(
                "too_few_requests", percent=100 * target.share, requests=len(self.rows), least=least
            )
        elif found.is_correlated and found.verdict is TargetVerdict.INCONCLUSIVE:
            yield load_warning("short_run", percent=100 * target.share)
        else:
            yield from undecided(target.text, target.share, found, len(self.rows))

    def to_dict(self) -> dict[str, Any]:
        """Return plain data for JSON, without the rows; times are in seconds, and null is unavailable."""
        sizes, rules = self.batch_sizes, self.rule_verdicts
        found: dict[str, Any] = to_finite(
            {
                "kind": "load",
                "format": FORMAT,
                "settings": asdict(self.settings),
                "requests": len(self.rows),
                "statuses": {status.name.lower(): count for status, count in self.statuses.items()},
                "planned_rate": self.planned_rate,
                "achieved_rate": self.achieved_rate,
                "units_per_s": self.units_per_s,
                "latency_s": self.latency,
                "service_s": self.service,
                "lateness_s": self.lateness,
                "batch_sizes": None if sizes is None else {str(size): count for size, count in sizes.items()},
                "littles_law": self.littles_law,
                "judgement": self.judgement,
                "mlperf_style": None if rules is None else rules.to_dict(),
                "warnings": [each.to_dict() for each in self.warnings],
                "run": asdict(self.run),
                "profile": None if self.profile is None else self.profile.name,
                "slowest": None if self.profile is None else [each.to_dict() for each in self.slowest()],
            }
        )
        return found

    def save(self, folder: Path | str) -> Path:
        """Write `result.json` and `requests.parquet` to a folder, which is made. Raises RunError.

        With a profile, `tail.html` compares the slow requests with those around the median.
        """
        path = Path(folder)
        try:
            path.mkdir(parents=True, exist_ok=True)
            write_rows(self.rows, path / REQUESTS_FILE)
            (path / RESULT_FILE).write_bytes(encode(self.to_dict()) + b"\n")
        except OSError as error:
            raise RunError(
                "cannot_write",
                f"{path}: cannot be written ({error.strerror})",
                hint="free disk space, or use another --out",
            ) from error
        if self.profile is not None:
            self._save_tail(path)
        return path

    def _save_tail(self, folder: Path) -> None:
        from gpuprof.render.tail_page import TAIL_PAGE, write_tail_page

        if self.profiled.has_tail():
            write_tail_page(self.profiled, folder / TAIL_PAGE, target=self.settings.target)
        else:
            (folder / TAIL_PAGE).unlink(missing_ok=True)  # of an earlier load

    def __str__(self) -> str:
        return _text(self)


@dataclass(frozen=True, slots=True)
class _Stored:
    """What is read of `result.json`: the figures are computed from the rows again."""

    settings: LoadSettings
    run: LoadRun
    profile: str | None = None


def open_result(folder: Path | str) -> LoadResult:
    """Read a result. Raises RunError for a folder without one, GpuprofError for one that is damaged."""
    path = Path(folder)
    try:
        text = (path / RESULT_FILE).read_bytes()
    except OSError as error:
        raise _no_result(path) from error
    stored = decode(text, _Stored, str(path / RESULT_FILE))
    profile = path / PROFILE_FOLDER if stored.profile is not None else None
    profile = profile if profile is not None and profile.is_dir() else None
    return LoadResult(stored.settings, stored.run, read_requests(path / REQUESTS_FILE), profile=profile)


def _no_result(path: Path) -> RunError:
    for name, option in SEVERAL_RESULTS.items():
        if (path / name).exists():
            return RunError(
                "no_load_result",
                f"{path}: no result of a single load: {name} is of {option}",
                hint="name the --out of gpuprof load without that option",
            )
    return RunError(
        "no_load_result", f"{path}: no result of a load run", hint="name a folder of gpuprof load --out"
    )


# --- text for a terminal --------------------------------------------------------------------------

_COLUMNS = ("", "mean", "p50", "p90", "p95", "p99", "p99.9", "max")


def _four_digits(value: float) -> str:
    return f"{value:,.0f}" if value >= 1000 else f"{value:.4g}"


def _text(result: LoadResult) -> str:
    """Return the figures, the verdict and the warnings."""
    lines = [_head(result), _rates(result), "", _table(result)]
    law = result.littles_law
    if law is not None and not result.run.closed:
        lines += [
            "",
            f"Little's law: {_four_digits(law.in_system)} requests in the system, rate x latency "
            f"{_four_digits(law.rate_times_latency)}",
        ]
    if result.batch_sizes:
        lines.append(f"Batches: {batches_text(result.batch_sizes)}")
    if result.run.ceiling_per_s is not None:
        lines.append(f"Generator's ceiling: {result.run.ceiling_per_s:,.0f} requests/s")
    verdict = verdict_text(result)
    lines += [verdict] if verdict else []
    lines += [] if (rules := result.rule_verdicts) is None else rules.lines()
    lines += [f"warning: {each}" for each in result.warnings]
    return "\n".join(lines)


def _head(result: LoadResult) -> str:
    settings = result.settings
    parts = [settings.scenario, *([settings.pattern] if settings.pattern else [])]
    if settings.concurrency is not None:
        parts.append(f"concurrency {settings.concurrency}")
    return f"{escape_text(settings.target)}: {escape_text(', '.join(parts))}, seed {settings.seed}"


def _rates(result: LoadResult) -> str:
    found = f"{counted(len(result.rows), 'request')}, {format_rate(result.achieved_rate)} achieved"
    if result.planned_rate is not None:
        found += f" of {format_rate(result.planned_rate)} planned"
        asked = result.settings.rate
        if asked is not None and format_rate(asked) != format_rate(result.planned_rate):
            found += f" for a rate of {format_rate(asked)}"
    if result.units_per_s > result.achieved_rate * 1.001:
        found += f", {format_number(result.units_per_s)} {result.unit}/s"
    failed = {status: count for status, count in result.statuses.items() if status.name != "OK"}
    return found + "".join(f", {count:,} {status_text(status)}" for status, count in failed.items())


def _table(result: LoadResult) -> str:
    columns = [Column(name, right=bool(name)) for name in _COLUMNS]
    rows = [("latency from plan", result.latency), ("service", result.service), ("lateness", result.lateness)]
    return text_table(columns, [_cells(name, found) for name, found in rows])


def _cells(name: str, found: Distribution) -> list[str]:
    values = (found.mean, found.p50, found.p90, found.p95, found.p99, found.p999, found.maximum)
    return [name, *("-" if each is None else format_duration(each * 1e9) for each in values)]


def batches_text(sizes: Mapping[int, int]) -> str:
    """Return how many batches there are of each size, with the most frequent sizes."""
    total, requests = sum(sizes.values()), sum(size * count for size, count in sizes.items())
    most = sorted(sorted(sizes, key=lambda size: -sizes[size])[:_MOST_SIZES])
    parts = [f"{size}: {format_share(sizes[size] / total)}" for size in most]
    more = ["..."] if len(sizes) > len(most) else []
    return f"{total:,}, mean size {requests / total:.3g} ({', '.join([*parts, *more])})"


def status_text(status: RequestStatus) -> str:
    """Return how a request ended, in words."""
    return status.name.lower().replace("_", " ")


def verdict_text(result: LoadResult) -> str | None:
    """Return whether the latency target is met, with the fraction above it; None without a target."""
    found, target = result.judgement, result.target
    return None if found is None or target is None else judgement_text(target.text, found)


def judgement_text(target: str, found: TargetJudgement) -> str:
    """Return the verdict on a target, with the fraction above it where that is known."""
    if found.above is None:
        return f"{target}: {found.verdict}"
    verdict = str(found.verdict)
    if found.verdict is TargetVerdict.INCONCLUSIVE and found.is_correlated:
        verdict += ", since slow requests come together and the run is short for them"
    return (
        f"{target}: {verdict} ({format_share(found.above)} of the requests are above, 95% CI "
        f"{format_share(max(found.low or 0.0, 0.0))} to {format_share(found.high)})"
    )


def undecided(target: str, share: float, found: TargetJudgement, count: int) -> Iterator[LoadWarning]:
    """Yield how many requests an inconclusive target needs, if that is known."""
    if found.verdict is TargetVerdict.INCONCLUSIVE and (needed := requests_needed(found, count, share)):
        yield load_warning("undecided", target=target, limit=1 - share, requests=needed)
