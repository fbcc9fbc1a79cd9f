# SPDX-License-Identifier: Apache-2.0
"""Ends the processes of a call whose own process has ended without ending them, as when it was killed.

    python -m benchmarks.gpu._keeper MARK JOURNAL

A process in a session of its own. It waits for the end of its standard input, whose other end the call holds.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

from benchmarks.gpu._journal import Entry, Journal
from benchmarks.gpu._processes import MARK, REPOSITORY, end_marked

_DONE = b"done"


@contextlib.contextmanager
def keeper(journal: Path) -> Iterator[None]:
    """Have everything that is started inside the block end with it, however this process ends."""
    mark = f"/{os.getpid()}"
    words = [sys.executable, "-m", "benchmarks.gpu._keeper", mark, str(journal.resolve())]
    outer = {name: value for name, value in os.environ.items() if name != MARK}
    process = subprocess.Popen(
        words,
        cwd=REPOSITORY,
        env=outer,
        stdin=subprocess.PIPE,
        start_new_session=True,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    os.environ[MARK] = mark
    try:
        yield
    finally:
        os.environ.pop(MARK, None)
        end_marked(mark)
        with contextlib.suppress(OSError):
            process.communicate(_DONE)


def main(mark: str, journal: str) -> None:
    """Wait, and end what is left."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    if sys.stdin.buffer.read() == _DONE:
        return
    count = end_marked(mark)
    Journal(Path(journal)).add(
        Entry("call", "end", "killed", problem=f"the call was killed, and {count} of its processes with it")
    )


if __name__ == "__main__":
    main(*sys.argv[1:])
