# SPDX-License-Identifier: Apache-2.0
"""Load on a function: Poisson arrivals, then bursts of which each queues behind the one before.

    python examples/load.py

The service takes 2 ms. At 200 requests per second it is busy for 40% of the time; a burst of five times the
rate is more than it can handle.
"""

from __future__ import annotations

import argparse
import time

import gpuprof


def handle() -> None:
    """Handle a request."""
    time.sleep(0.002)


def main() -> None:
    """Print both results."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--seconds", type=float, default=5.0)
    seconds = parser.parse_args().seconds
    print(gpuprof.load(handle, rate=200, duration_s=seconds, slo="p50<20ms"), "\n")
    print(
        gpuprof.load(handle, rate=200, duration_s=seconds, pattern="burst:5x,200ms,every=1s", slo="p50<20ms")
    )


if __name__ == "__main__":
    main()
