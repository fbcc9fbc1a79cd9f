# SPDX-License-Identifier: Apache-2.0
"""A training program that records, and runs the commands that it gets line by line."""

from __future__ import annotations

import subprocess
import sys
import textwrap
from pathlib import Path

# Each line of standard input is a command; a line follows each.
PROGRAM = textwrap.dedent("""\
    import sys, threading
    from pathlib import Path
    from gpuprof.record.collector import offer_collector
    offer_collector()
    import torch, gpuprof
    from gpuprof.record.options import RecordingOptions
    from gpuprof.record.recording import Recording
    from gpuprof.record.recording_folder import create_folder
    folder = Path(sys.argv[1])
    create_folder(folder)
    recording = Recording(folder, RecordingOptions(python=False))
    recording.start()
    model = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.ReLU(), torch.nn.Linear(8, 2))
    optimizer = torch.optim.SGD(model.parameters())
    def side():
        for _ in range(20):
            with gpuprof.span("side"):
                torch.ones(3) * 2.0
    def train(count):
        for _ in range(count):
            optimizer.zero_grad()
            model(torch.ones(4, 8)).sum().backward()
            optimizer.step()
    print("ready", flush=True)
    for line in sys.stdin:
        if line == "end\\n":
            recording.stop()
        elif line == "die\\n":
            import os
            os._exit(0)
        else:
            thread = threading.Thread(target=side)
            thread.start()
            train(int(line))
            thread.join()
        print("done", flush=True)
    """)


class Recorded:
    """A program that records, and runs the commands it gets."""

    def __init__(self, folder: Path) -> None:
        self.run = folder / "live.gpuprof"
        script = folder / "program.py"
        script.write_text(PROGRAM)
        self.process = subprocess.Popen(
            [sys.executable, str(script), str(self.run)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        assert self._line() == "ready\n"

    def send(self, command: str) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(f"{command}\n")
        self.process.stdin.flush()
        assert command == "die" or self._line() == "done\n"

    def _line(self) -> str:
        assert self.process.stdout is not None
        return self.process.stdout.readline()

    def close(self) -> int:
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.close()
        code = self.process.wait()
        self.process.stdout.close()
        return code
