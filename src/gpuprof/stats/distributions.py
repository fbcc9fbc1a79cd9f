# SPDX-License-Identifier: Apache-2.0
"""Student's and the binomial distribution, over SciPy's special functions.

SciPy is imported when it is called: its import takes longer than that of gpuprof, and a process that
measures a model must not contain its memory.
"""

from __future__ import annotations

import importlib
import importlib.util
import math
from typing import TYPE_CHECKING, Any

import numpy as np

from gpuprof.errors import UnavailableError

if TYPE_CHECKING:
    from gpuprof.stats.arrays import Floats

# Finite also where the level is 0, so that an error of 0 still gives an interval without width.
_LARGEST_T = 1e12
_SMALLEST = 1e-100


def _no_scipy() -> UnavailableError:
    return UnavailableError(
        "not_installed",
        "statistics need SciPy, which is not installed",
        hint="pip install 'gpuprof-native[bench]'",
    )


def require_scipy() -> None:
    """Raise UnavailableError if SciPy is not installed; imports nothing."""
    if importlib.util.find_spec("scipy") is None:
        raise _no_scipy()


def scipy_module(name: str) -> Any:
    """Import a module of SciPy. Raises UnavailableError."""
    try:
        return importlib.import_module(f"scipy.{name}")
    except ImportError as error:
        raise _no_scipy() from error


def student_p_value(t: Floats, freedom: Floats) -> Floats:
    """Return the two-sided p-value of each t (0 or above)."""
    found: Floats = 2 * scipy_module("special").stdtr(freedom, -t)
    return found


def student_quantile(level: float, freedom: Floats | float) -> Floats:
    """Return the two-sided critical t at `level`, at most 1e12."""
    tail = min(max(level, _SMALLEST), 1.0) / 2
    found: Floats = np.minimum(-scipy_module("special").stdtrit(freedom, tail), _LARGEST_T)
    return found


def approximate_student_quantile(level: float, freedom: int) -> float:
    """Return `student_quantile` without SciPy, within 2% for levels from 0.05 and 4 degrees of freedom on.

    The expansion in the normal quantile: formula 26.7.5 of Abramowitz and Stegun, Handbook of Mathematical
    Functions, 1964.
    """
    from statistics import NormalDist

    z = NormalDist().inv_cdf(1 - level / 2)
    first = (z**3 + z) / (4 * freedom)
    second = (5 * z**5 + 16 * z**3 + 3 * z) / (96 * freedom**2)
    return z + first + second


def mean_half_width(values: Floats, confidence: float) -> float:
    """Return half the width of Student's interval of a mean, of at least five values; needs no SciPy."""
    t = approximate_student_quantile(1 - confidence, len(values) - 1)
    return t * float(values.std(ddof=1)) / math.sqrt(len(values))


def binomial_quantile(count: int, fraction: float, probability: float) -> int:
    """Return the smallest k with P(B(count, fraction) <= k) >= probability."""
    if probability <= 0:
        return 0
    special = scipy_module("special")
    found = float(special.bdtrik(min(probability, 1.0), count, fraction))
    k = min(max(math.ceil(found), 0), count)
    # The inverse is rounded, so check it with the distribution.
    while k > 0 and special.bdtr(k - 1, count, fraction) >= probability:
        k -= 1
    while k < count and special.bdtr(k, count, fraction) < probability:
        k += 1
    return k


def approximate_binomial_quantile(count: int, fraction: float, probability: float) -> int:
    """Return `binomial_quantile` to within one, without SciPy: Cornish-Fisher expansion with skewness.

    Not valid for a count below `samples_needed`, or a probability of 0 or 1.
    """
    from statistics import NormalDist

    z = NormalDist().inv_cdf(min(max(probability, 1e-12), 1 - 1e-12))
    deviation = z * math.sqrt(count * fraction * (1 - fraction))
    found = count * fraction + deviation + (z * z - 1) * (1 - 2 * fraction) / 6 - 0.5
    return min(max(math.ceil(found), 0), count)


def probability_of_at_least(beyond: int, count: int, fraction: float) -> float:
    """Return the probability that at least `beyond` of `count` samples fall into a fraction of all."""
    if beyond <= 0 or beyond > count:
        return 1.0 if beyond <= 0 else 0.0
    return float(scipy_module("special").bdtrc(beyond - 1, count, fraction))
