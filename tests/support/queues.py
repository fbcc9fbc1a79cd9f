# SPDX-License-Identifier: Apache-2.0
"""Rows of a simulated server, by Lindley's recursion (Proc. Cambridge Phil. Soc. 48, 1952)."""

from __future__ import annotations

import numpy as np

from gpuprof.load.requests import REQUEST, RequestStatus, Rows


def served(planned_ns: np.ndarray, service_ns: np.ndarray) -> Rows:
    """Return the rows of one server that takes requests in order, on a clock that starts at 1 s."""
    rows = np.zeros(len(planned_ns), REQUEST)
    free_ns = 0
    for index, (planned, service) in enumerate(
        zip((planned_ns + 1_000_000_000).tolist(), service_ns.tolist(), strict=True)
    ):
        sent = max(planned, free_ns)
        free_ns = sent + service
        rows[index] = (planned, sent, 0, free_ns, RequestStatus.OK, 1)
    return rows


def random_queue(load: float, count: int, seed: int, *, fixed_service: bool = False) -> Rows:
    """Return an M/M/1 (or M/D/1) queue with services of 1 ms in the mean, without its first tenth."""
    generator = np.random.default_rng(seed)
    planned = np.cumsum(generator.exponential(1e6 / load, count)).astype(np.int64)
    service = np.full(count, 1e6) if fixed_service else generator.exponential(1e6, count)
    return served(planned, service.astype(np.int64))[count // 10 :]
