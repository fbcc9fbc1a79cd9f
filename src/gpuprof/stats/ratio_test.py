# SPDX-License-Identifier: Apache-2.0
"""Whether one configuration is faster than another, with process runs as the sampling unit.

The samples of one process run share its memory layout, background load and clock: 10,000 of them are one
draw, not 10,000. So each process run contributes one figure, usually its median. The figures of process runs
in a random, counterbalanced order are compared.
"""

from __future__ import annotations

import itertools
import math
import warnings
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import asdict, dataclass
from statistics import NormalDist
from typing import TYPE_CHECKING, Any, Literal, TypeVar

import numpy as np

from gpuprof.stats.distributions import scipy_module, student_p_value, student_quantile
from gpuprof.stats.quantiles import CONFIDENCE
from gpuprof.stats.significance import discoveries, plain_means, welch

if TYPE_CHECKING:
    from gpuprof.stats.arrays import Floats


K = TypeVar("K", bound=Hashable)
Verdict = Literal["slower", "faster", "same", "inconclusive"]
# Why a verdict is what it is: where the whole interval lies, "within" by both one-sided tests.
Reason = Literal["above_margin", "below_margin", "within_margin", "across_margin", "too_few_runs"]
MARGIN = 0.01
_RESAMPLES = 4_000
# From here on the normal approximation is that of Student's distribution to within one process run.
_NORMAL_RUNS = 100
_LARGEST_EXPONENT = 700.0  # of a double; two process runs that differ much need more


@dataclass(frozen=True, slots=True)
class Comparison:
    """Comparison of the process runs of a new and an old configuration.

    `ratio` is new time over old time: above 1 is slower. `low` and `high` are the ends of its interval, at a
    confidence of 1 - `level`; `p_value` is that of a ratio of 1. `ratio_of_medians` assumes no normal
    distribution and has a bootstrap interval. A value is None with too few process runs.
    """

    verdict: Verdict
    reason: Reason
    margin: float
    old_launches: int
    new_launches: int
    ratio: float
    low: float | None
    high: float | None
    level: float
    p_value: float | None
    same_p_value: float | None
    ratio_of_medians: tuple[float | None, float, float | None]
    hedges_g: float | None
    cliffs_delta: float

    def to_dict(self) -> dict[str, Any]:
        """Return plain data for JSON."""
        return {**asdict(self), "ratio_of_medians": list(self.ratio_of_medians)}

    def __str__(self) -> str:
        between = "" if self.low is None else f" ({self.low:.4f} to {self.high:.4f})"
        return f"{self.verdict}: {self.ratio:.4f}x{between}"


@dataclass(frozen=True, slots=True)
class LogRatio:
    """An estimated logarithm of new time over old time, its standard error and degrees of freedom."""

    value: float
    error: float
    freedom: float
    p_value: float

    @classmethod
    def of(cls, value: float, error: float, freedom: float) -> LogRatio:
        """Return an estimate with the two-sided p-value of Student's t."""
        exact = 0.0 if value == 0 else math.inf
        t = abs(value) / error if error > 0 else exact
        return cls(value, error, freedom, float(student_p_value(np.float64(t), np.float64(freedom))))

    def interval(self, level: float) -> tuple[float, float]:
        """Return the ends of the ratio's interval, at a confidence of 1 - `level`."""
        half = float(student_quantile(level, self.freedom)) * self.error
        return math.exp(self.value - half), math.exp(min(self.value + half, _LARGEST_EXPONENT))

    def same_p_value(self, margin: float) -> float:
        """Return the larger p-value of the two one-sided tests (Schuirmann, J. Pharmacok. 15, 1987)."""
        edge = math.log1p(margin)
        return max(self._one_sided(edge - self.value), self._one_sided(edge + self.value))

    def _one_sided(self, distance: float) -> float:
        if self.error == 0:
            return 0.0 if distance > 0 else 1.0
        t = distance / self.error
        both = float(student_p_value(np.float64(abs(t)), np.float64(self.freedom)))
        return both / 2 if t > 0 else 1 - both / 2


def geometric_mean(figures: Sequence[float] | Floats) -> float:
    """Return the mean whose ratio is judged: of logarithms, or of the figures if one is not above 0."""
    values = np.asarray(figures, float)
    return float(np.exp(np.log(values).mean())) if values.min() > 0 else float(values.mean())


def compare(
    old: Sequence[float], new: Sequence[float], *, margin: float = MARGIN, confidence: float = CONFIDENCE
) -> Comparison:
    """Compare two configurations by one figure of each process run, in seconds.

    *Slower* and *faster* need the whole interval of the ratio beyond the equivalence margin. *Same* needs
    both one-sided tests to place it inside. Otherwise it is *inconclusive*. Raises ValueError for
    invalid times.
    """
    return compare_many({"": (old, new)}, margin=margin, confidence=confidence)[""]


def compare_many(
    metrics: Mapping[K, tuple[Sequence[float], Sequence[float]]],
    *,
    margin: float | Mapping[K, float] = MARGIN,
    confidence: float = CONFIDENCE,
) -> dict[K, Comparison]:
    """Compare several metrics at once, each as (old, new), with a bounded false discovery rate.

    `margin` is one equivalence margin for all of them, or one for each. Benjamini and Hochberg's procedure
    bounds the rate by 1 - `confidence`. Each interval has the level at which its difference was found
    (Benjamini and Yekutieli).
    """
    margins = margin if isinstance(margin, Mapping) else dict.fromkeys(metrics, margin)
    for each in margins.values():
        if not 0 <= each < 1:
            raise ValueError(
                f"{each} is not an equivalence margin; hint: give a fraction of the time, such as 0.01"
            )
    return compare_with(metrics, margins, {}, confidence=confidence)[0]


def compare_with(
    metrics: Mapping[K, tuple[Sequence[float], Sequence[float]]],
    margins: Mapping[K, float],
    others: Mapping[K, LogRatio],
    *,
    confidence: float = CONFIDENCE,
) -> tuple[dict[K, Comparison], dict[K, Judgement]]:
    """Compare several metrics as `compare_many` does, together with other ratios, which have a judgement."""
    figures = {name: (_times(old), _times(new)) for name, (old, new) in metrics.items()}
    ratios = {name: log_ratio(*pair) for name, pair in figures.items()}
    judged = judge_ratios({**ratios, **others}, margins, confidence=confidence)
    compared = {
        name: _comparison(*pair, ratios[name], judged[name], 1 - confidence) for name, pair in figures.items()
    }
    return compared, {name: judged[name] for name in others}


@dataclass(frozen=True, slots=True)
class Judgement:
    """A verdict on one ratio, with its interval at a confidence of 1 - `level`."""

    verdict: Verdict
    reason: Reason
    margin: float
    low: float | None
    high: float | None
    level: float
    same_p_value: float | None


def judge_ratios(
    ratios: Mapping[K, LogRatio | None], margins: Mapping[K, float], *, confidence: float = CONFIDENCE
) -> dict[K, Judgement]:
    """Judge several ratios at once, each by its equivalence margin; None cannot be judged."""
    known = [name for name, ratio in ratios.items() if ratio is not None]
    p_values = np.array([ratio.p_value for ratio in ratios.values() if ratio is not None])
    stands, level = discoveries(p_values, 1 - confidence)
    different = {name for name, is_so in zip(known, stands, strict=True) if is_so}
    judged = {}
    for name, ratio in ratios.items():
        margin = margins[name]
        low, high = (None, None) if ratio is None else ratio.interval(level)
        same = None if ratio is None else ratio.same_p_value(margin)
        is_same = same is not None and same <= 1 - confidence
        verdict, reason = _judge(low, high, name in different, margin, is_same)
        judged[name] = Judgement(verdict, reason, margin, low, high, level, same)
    return judged


def log_ratio(old: Floats, new: Floats) -> LogRatio | None:
    """Compare logarithms of times by Welch's test; None if a side has fewer than two process runs.

    Logarithms, because disturbances multiply the time of a process run, and because a ratio and its inverse
    then have equal verdicts.
    """
    if min(len(old), len(new)) < 2:
        return None
    found = welch(plain_means(np.log(new)[None, :]), plain_means(np.log(old)[None, :]))
    return LogRatio(
        *(float(part[0]) for part in (found.difference, found.error, found.freedom, found.p_value))
    )


def proportion_ratio(old: tuple[float, int], new: tuple[float, int]) -> LogRatio:
    """Compare two proportions above 0, each with its number of samples: the logarithm of old over new.

    The variance of a logarithm is (1 - p) / (n p), by the delta method (Katz and others, Biometrics 34,
    1978). On the same samples, whose results are correlated, it is too large rather than too small.
    """
    variance = sum((1 - share) / (count * share) for share, count in (old, new))
    return LogRatio.of(math.log(old[0] / new[0]), math.sqrt(variance), float(old[1] + new[1] - 2))


def _times(figures: Sequence[float]) -> Floats:
    times = np.asarray(figures, dtype=np.float64)
    if not len(times):
        raise ValueError("no process run to compare; hint: measure both configurations")
    if not (np.isfinite(times).all() and (times > 0).all()):
        raise ValueError("a figure of a process run is not a time above 0; hint: leave it out")
    return times


def _comparison(
    old: Floats,
    new: Floats,
    ratio: LogRatio | None,
    judged: Judgement,
    same_level: float,
) -> Comparison:
    return Comparison(
        verdict=judged.verdict,
        reason=judged.reason,
        margin=judged.margin,
        old_launches=len(old),
        new_launches=len(new),
        ratio=math.exp(float(np.log(new).mean() - np.log(old).mean())),
        low=judged.low,
        high=judged.high,
        level=judged.level,
        p_value=None if ratio is None else ratio.p_value,
        same_p_value=judged.same_p_value,
        ratio_of_medians=bootstrap_ratio(old, new, confidence=1 - same_level),
        hedges_g=hedges_g(old, new),
        cliffs_delta=cliffs_delta(old, new),
    )


def _judge(
    low: float | None, high: float | None, differs: bool, margin: float, is_same: bool
) -> tuple[Verdict, Reason]:
    if low is None or high is None:
        return "inconclusive", "too_few_runs"
    if differs and low > 1 + margin:
        return "slower", "above_margin"
    if differs and high < 1 / (1 + margin):
        return "faster", "below_margin"
    return ("same", "within_margin") if is_same else ("inconclusive", "across_margin")


def hedges_g(old: Floats, new: Floats) -> float | None:
    """Return the difference of the means in pooled standard deviations; None if those cannot be computed.

    Hedges (J. Educ. Stat. 6, 1981): Cohen's d times 1 - 3 / (4 f - 1), with f = n_old + n_new - 2.
    """
    freedom = len(old) + len(new) - 2
    if min(len(old), len(new)) < 2:
        return None
    squares = old.var(ddof=1) * (len(old) - 1) + new.var(ddof=1) * (len(new) - 1)
    pooled = math.sqrt(squares / freedom)
    return float((new.mean() - old.mean()) / pooled * (1 - 3 / (4 * freedom - 1))) if pooled > 0 else None


def cliffs_delta(old: Floats, new: Floats) -> float:
    """Return how much more often a new process run is slower than an old one than faster, -1 to 1.

    Cliff (Psychol. Bull. 114, 1993): P(new > old) - P(new < old), over all pairs.
    """
    return float(np.sign(new[:, None] - old[None, :]).mean())


def bootstrap_ratio(
    old: Floats, new: Floats, *, confidence: float = CONFIDENCE, resamples: int = _RESAMPLES, seed: int = 0
) -> tuple[float | None, float, float | None]:
    """Return the ratio of the medians with its bias-corrected and accelerated bootstrap interval.

    Efron (JASA 82, 1987), for two samples. The ends are None for fewer than four process runs on a
    side, which are too few for resampling, and if the resamples give no interval.
    """
    value = float(np.median(new) / np.median(old))
    if min(len(old), len(new)) < 4:
        return None, value, None
    if np.ptp(old) == np.ptp(new) == 0:
        return value, value, value
    with warnings.catch_warnings():
        # The result has no interval then.
        warnings.simplefilter("ignore", RuntimeWarning)
        found = scipy_module("stats").bootstrap(
            (new, old),
            _ratio_of_medians,
            n_resamples=resamples,
            confidence_level=confidence,
            method="BCa",
            rng=np.random.default_rng(seed),
        )
    low, high = (float(end) for end in found.confidence_interval)
    if not (math.isfinite(low) and math.isfinite(high)):
        return None, value, None
    return min(low, value), value, max(high, value)


def _ratio_of_medians(new: Floats, old: Floats, axis: int) -> Floats:
    ratio: Floats = np.median(new, axis=axis) / np.median(old, axis=axis)
    return ratio


def launches_needed(
    variation: float, change: float, *, margin: float = 0.0, level: float = 0.05, power: float = 0.8
) -> int:
    """Return the process runs of each configuration that detect a change, with the asked power.

    2 ((z_a + z_b) cv / ln((1 + d) / (1 + m)))^2, where cv is the coefficient of variation between process
    runs, and m the equivalence margin that the whole interval must exceed; plus z_a^2 / 4 for Student's
    distribution (Guenther, American Statistician 35, 1981), 1 at the least. Below 100 process runs it is the
    number by the noncentral t distribution, which at the levels of many comparisons is larger: there `level`
    is that after the correction, 0.05 over their number. Raises ValueError for a change within the margin,
    which no number of process runs detects.
    """
    beyond = math.log1p(change) - math.log1p(margin)
    if beyond <= 0:
        raise ValueError(
            f"a change of {change:.2%} is within the margin of {margin:.2%} and cannot be detected; "
            "hint: use a larger change, or a smaller margin"
        )
    normal = NormalDist()
    z_level = normal.inv_cdf(1 - level / 2)
    runs = _runs_for(z_level, normal.inv_cdf(power), variation / beyond)
    if not 1 < runs < _NORMAL_RUNS:
        return runs
    while runs > 2 and _shown_deviations(runs - 1, level, power) <= beyond / variation:
        runs -= 1
    while _shown_deviations(runs, level, power) > beyond / variation:
        runs += 1
    return runs


def _shown_deviations(runs: int, level: float, power: float) -> float:
    """Return the smallest difference, in deviations, that two groups of `runs` show with `power`."""
    freedom = 2 * (runs - 1)
    critical = student_quantile(level, freedom)
    return float(scipy_module("special").nctdtrinc(freedom, 1 - power, critical)) / math.sqrt(runs / 2)


def _runs_for(z_level: float, z_power: float, relative: float) -> int:
    return math.ceil(2 * ((z_level + z_power) * relative) ** 2 + _student_runs(z_level))


def _student_runs(z_level: float) -> float:
    return max(1.0, z_level**2 / 4)


def required_runs(variation: float, margin: float, *, level: float = 0.05, power: float = 0.8) -> int | None:
    """Return the process runs of each configuration that make a comparison conclusive.

    They show, with this power, both that equal times are *same* (two one-sided tests at 5%, which is not
    corrected for many comparisons, 2 ((z_a + z_(b/2)) cv / ln(1 + m))^2 + 1) and that times beyond twice the
    margin differ, at `level`. None without a margin, because nothing can be *same* then. A ratio near the
    margin needs more.
    """
    if margin <= 0:
        return None
    normal = NormalDist()
    z_same, z_power = normal.inv_cdf(CONFIDENCE), normal.inv_cdf((1 + power) / 2)
    same = _runs_for(z_same, z_power, variation / math.log1p(margin))
    return max(same, launches_needed(variation, 2 * margin, margin=margin, level=level, power=power))


def smallest_change(
    variation: float, runs: int, *, margin: float = 0.0, level: float = 0.05, power: float = 0.8
) -> float:
    """Return the minimum detectable slowdown of so many process runs: the inverse of `launches_needed`."""
    if runs < 2:
        raise ValueError(f"{runs} process runs do not show the variation between runs; hint: use at least 2")
    if runs < _NORMAL_RUNS:
        deviations = _shown_deviations(runs, level, power)
    else:
        normal = NormalDist()
        z_level = normal.inv_cdf(1 - level / 2)
        deviations = (z_level + normal.inv_cdf(power)) * math.sqrt(2 / (runs - _student_runs(z_level)))
    return (1 + margin) * math.exp(deviations * variation) - 1


# With fewer files of a segment, the variance is that of all segments.
ENOUGH_FILES = 8


@dataclass(frozen=True, slots=True)
class Variance:
    """An estimated variance and its degrees of freedom."""

    value: float
    freedom: float


@dataclass(frozen=True, slots=True)
class Levels:
    """A series of files with the logarithms of their process runs, divided at its change points."""

    files: tuple[Floats, ...]
    changes: tuple[int, ...]

    @property
    def segments(self) -> list[tuple[int, int]]:
        """The first file of each segment, and the one after its last."""
        return list(itertools.pairwise([0, *self.changes, len(self.files)]))

    @property
    def figures(self) -> Floats:
        """One figure for each file."""
        return np.array([each.mean() for each in self.files])

    @property
    def last(self) -> tuple[int, int]:
        """The segment that is the baseline."""
        return self.segments[-1]

    def between_files(self, *, of_last: bool = True) -> Variance | None:
        """Return the variance between files of one segment; None with too few files.

        It is that of the last segment if that has enough files, otherwise of all segments.
        """
        begin, end = self.last
        chosen = [self.last] if of_last and end - begin >= ENOUGH_FILES else self.segments
        return _within([self.figures[a:b] for a, b in chosen])

    def change(self, number: int) -> LogRatio | None:
        """Return the change of level between two segments; None if the variance is unknown."""
        spread = self.between_files(of_last=False)
        (a, b), (c, d) = self.segments[number : number + 2]
        if spread is None:
            return None
        figures = self.figures
        error = math.sqrt(spread.value * (1 / (b - a) + 1 / (d - c)))
        return LogRatio.of(float(figures[c:d].mean() - figures[a:b].mean()), error, spread.freedom)

    def against(self, candidates: Sequence[Floats]) -> LogRatio | None:
        """Compare new files with the last segment; None if the variance between files is unknown."""
        spread = _with_candidates(self.between_files(), candidates)
        if spread is None:
            return None
        begin, end = self.last
        new = np.array([each.mean() for each in candidates])
        variance = spread.value * (1 / (end - begin) + 1 / len(new))
        more = self._more(candidates)
        whole = variance + more.value
        parts = variance**2 / spread.freedom + more.value**2 / more.freedom
        freedom = whole**2 / parts if parts > 0 else spread.freedom
        return LogRatio.of(float(new.mean() - self.figures[begin:end].mean()), math.sqrt(whole), freedom)

    def _more(self, candidates: Sequence[Floats]) -> Variance:
        """Return the variance of the candidates' process runs in excess of that of the baseline's files."""
        own = [self.files[place] for place in range(*self.last)]
        usual = _within(own)
        accounted = 0.0 if usual is None else usual.value * float(np.mean([1 / len(each) for each in own]))
        known = [each for each in (usual, _within(candidates)) if each is not None]
        if not known:
            return Variance(0.0, 1.0)
        # A few process runs that agree by chance do not reduce the variance.
        found = max(known, key=lambda each: each.value)
        each_file = [max(0.0, found.value / len(each) - accounted) for each in candidates]
        return Variance(sum(each_file) / len(candidates) ** 2, found.freedom)


def _with_candidates(spread: Variance | None, candidates: Sequence[Floats]) -> Variance | None:
    if len(candidates) < 2 or spread is None:
        return spread
    figures = np.array([each.mean() for each in candidates])
    freedom = spread.freedom + len(figures) - 1
    squares = spread.value * spread.freedom + float(((figures - figures.mean()) ** 2).sum())
    return Variance(squares / freedom, freedom)


def _within(groups: Sequence[Floats]) -> Variance | None:
    """Return the pooled variance within groups; None if no group has two values."""
    freedom = sum(len(each) - 1 for each in groups)
    if not freedom:
        return None
    return Variance(sum(float(((each - each.mean()) ** 2).sum()) for each in groups) / freedom, freedom)


def required_files(
    variation: float, files: int, margin: float, *, level: float = 0.05, power: float = 0.8
) -> int | None:
    """Return the number of candidate files that make a comparison with a level conclusive.

    They show that equal times are *same*. None if no number of them does.
    """
    left = _precision(variation, margin, level, power) - 1 / files
    return max(1, math.ceil(1 / left)) if left > 0 else None


def required_margin(variation: float, files: int, *, level: float = 0.05, power: float = 0.8) -> float:
    """Return the margin within which one candidate file shows that equal times are *same*."""
    normal = NormalDist()
    z = normal.inv_cdf(1 - level) + normal.inv_cdf((1 + power) / 2)
    return math.expm1(z * variation * math.sqrt(1 + 1 / files))


def _precision(variation: float, margin: float, level: float, power: float) -> float:
    normal = NormalDist()
    z = normal.inv_cdf(1 - level) + normal.inv_cdf((1 + power) / 2)
    return (math.log1p(margin) / (z * variation)) ** 2 if variation > 0 else math.inf
