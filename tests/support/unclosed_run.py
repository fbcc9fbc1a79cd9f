# SPDX-License-Identifier: Apache-2.0
"""A run whose program ended before its recording: threads, nested spans, a few names."""

from __future__ import annotations

from pathlib import Path

UNCLOSED = """
import gpuprof, os, threading
profile = gpuprof.profile(out="r.gpuprof", layers=False, operators=False)
profile.__enter__()
def work():
    for number in range(700):
        with gpuprof.span(f"outer {number % 5}"):
            with gpuprof.span("inner"): pass
for _ in range(3):
    thread = threading.Thread(target=work); thread.start(); thread.join()
work()
os._exit(0)
"""
SPANS_WRITTEN = 4 * 700 * 2


def the_file(run: Path, ending: str) -> Path:
    """Return the one file of an unclosed run's segments that ends so."""
    (file,) = (run / "segments").glob(f"*{ending}")
    return file
