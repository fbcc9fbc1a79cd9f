# SPDX-License-Identifier: Apache-2.0
"""Queues with known quantiles: one server, Poisson arrivals, and a mean service time of 1."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

# p99 of the time in an M/D/1 queue by its load: the root of Erlang's series of the waiting time.
MD1_P99 = {0.5: 4.336, 0.8: 11.356, 0.9: 22.898}


def mm1_quantile(load: float, quantile: float) -> float:
    """Return a quantile of the time in an M/M/1 queue, which is exponential with rate 1 - load."""
    return -math.log(1 - quantile) / (1 - load)


def waits(gaps: Any, services: Any) -> Any:
    """Return the wait of each request by Lindley's recursion, from an empty queue."""
    steps = np.concatenate(([0.0], np.cumsum(services[:-1] - gaps[1:])))
    return steps - np.minimum.accumulate(np.minimum(steps, 0))


def times_in_queue(load: float, requests: int, generator: Any, *, is_fixed: bool = False) -> Any:
    """Return the time of each request in an M/M/1 queue, or in an M/D/1 queue with `is_fixed`."""
    services = np.ones(requests) if is_fixed else generator.exponential(1.0, requests)
    return waits(generator.exponential(1 / load, requests), services) + services
