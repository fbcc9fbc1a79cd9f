# SPDX-License-Identifier: Apache-2.0
"""Formulas of queues with several servers: a check next to a simulation."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from gpuprof.stats.arrays import Floats

_POINTS = 20_000
_MOST_SERVERS = 100_000


def erlang_c(servers: int, load: float) -> float:
    """Return the probability that a request waits in an M/M/k queue; `load` is rate times service time.

    Erlang B by its recursion, B_i = a B / (i + a B), then C = k B / (k - a (1 - B)).
    """
    if load >= servers:
        return 1.0
    blocked = 1.0
    for server in range(1, servers + 1):
        blocked = load * blocked / (server + load * blocked)
    return servers * blocked / (servers - load * (1 - blocked))


def mean_wait_s(servers: int, rate: float, services_s: Floats, arrival_variation: float = 1.0) -> float:
    """Return the mean wait in a G/G/k queue (Kingman 1961; Allen and Cunneen).

    (Ca^2 + Cs^2) / 2 times C(k, a) / (k mu - lambda); `arrival_variation` is Ca^2, 1 for a Poisson process.
    """
    service_s = float(services_s.mean())
    capacity = servers / service_s
    if rate >= capacity:
        return math.inf
    variation = float(services_s.var()) / service_s**2
    return (arrival_variation + variation) / 2 * erlang_c(servers, rate * service_s) / (capacity - rate)


def latency_quantile_s(servers: int, rate: float, services_s: Floats, share: float) -> float:
    """Return a quantile of wait and service: a wait is exponential with the probability of Erlang C."""
    wait_s, waits = mean_wait_s(servers, rate, services_s), erlang_c(servers, rate * float(services_s.mean()))
    if not math.isfinite(wait_s):
        return math.inf
    # Evenly spaced points of both distributions, in an order that makes them independent.
    generator = np.random.default_rng(0)
    of_wait = (np.arange(_POINTS) + 0.5) / _POINTS
    delays = np.where(
        of_wait < waits, -np.log(of_wait / max(waits, 1e-300)) * wait_s / max(waits, 1e-300), 0.0
    )
    services = np.quantile(services_s, generator.permutation(of_wait))
    return float(np.quantile(delays + services, share))


def formula_machines(
    services_s: Floats,
    rate: float,
    share: float,
    limit_s: float,
    *,
    replicas: int = 1,
    is_shared: bool = True,
) -> int | None:
    """Return the fewest machines that meet a target by the formulas; None where no number of them does.

    `is_shared` is one queue for all machines; otherwise each has its own and gets an equal part of the rate.
    """
    if float(np.quantile(services_s, share)) >= limit_s:
        return None

    def is_met(machines: int) -> bool:
        servers, own_rate = (machines * replicas, rate) if is_shared else (replicas, rate / machines)
        return latency_quantile_s(servers, own_rate, services_s, share) < limit_s

    low, high = 0, max(1, math.floor(rate * float(services_s.mean()) / replicas))
    while not is_met(high):
        low, high = high, 2 * high
        if high > _MOST_SERVERS:
            return None
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if is_met(middle) else (middle, high)
    return high
