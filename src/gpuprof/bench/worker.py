# SPDX-License-Identifier: Apache-2.0
"""The process that loads and measures one system: `python -m gpuprof.bench.worker FILE_DESCRIPTOR JOB`.

It tells what it does as lines of JSON on the descriptor, so that its model may print what it likes. The
process is one launch: what it imports, compiles and warms up is its own. `job.py` says what the lines hold.
"""

from __future__ import annotations

import time

_UP_NS = time.monotonic_ns()  # before anything else is imported

import json  # noqa: E402
import os  # noqa: E402
import sys  # noqa: E402
from typing import Any  # noqa: E402

from gpuprof.errors import GpuprofError  # noqa: E402


class Events:
    """Lines of JSON to the process that asked."""

    def __init__(self, descriptor: int) -> None:
        os.set_inheritable(descriptor, False)
        self._file = os.fdopen(descriptor, "w", encoding="utf-8")

    def send(self, event: str, **values: Any) -> None:
        """Say what happened, and when on the clock that all processes share."""
        line = {"event": event, "t_ns": time.monotonic_ns(), **values}
        self._file.write(json.dumps(line, default=str) + "\n")
        self._file.flush()


def main() -> int:
    """Do the job of the command line; failures that a user can mend are an event, not a traceback."""
    events = Events(int(sys.argv[1]))
    events.send("up", up_ns=_UP_NS)
    try:
        from gpuprof.bench.job import run_job
        from gpuprof.bench.launch import leave_no_collector

        job = json.loads(sys.argv[2])
        if job["settings"]["profile"] is None:
            leave_no_collector()
        run_job(job, events.send)
        events.send("done")
    except GpuprofError as error:
        events.send("error", kind=type(error).__name__, message=str(error))
    except KeyboardInterrupt:
        return 130
    except BaseException as error:
        message = " ".join(f"{type(error).__name__}: {error}".split())
        events.send("error", kind="unexpected", message=f"the model's process failed: {message}")
    # Frameworks may crash while they tear down: nobody waits for that.
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0)


if __name__ == "__main__":
    sys.exit(main())
