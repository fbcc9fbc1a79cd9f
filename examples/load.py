# SPDX-License-Identifier: Apache-2.0
"""Load on a function: Poisson arrivals, then bursts of which each queues behind the one before.

    python examples/load.py

The service takes 2 ms. At 200 requests per second it is busy for 40% of the time; a burst of five times the
rate is more than it can handle.
"""

from __future__ import annotations

import time

import gpuprof


def handle() -> None:
    """Handle a request."""
    time.sleep(0.002)


def main() -> None:
    """Print both results."""
    print(gpuprof.load(handle, rate=200, duration_s=5, slo="p99<20ms"), "\n")
    print(gpuprof.load(handle, rate=200, duration_s=5, pattern="burst:5x,500ms,every=2s", slo="p99<20ms"))


if __name__ == "__main__":
    main()
