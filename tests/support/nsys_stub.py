# SPDX-License-Identifier: Apache-2.0
"""A program with the command line of nsys, which writes down how it was called."""

from __future__ import annotations

import json
import sys
from pathlib import Path

SUPPORT = Path(__file__).resolve().parent
STUB = """#!{python}
import json, os, subprocess, sys
words = sys.argv[1:]
calls = {calls!r}
with open(calls, "a") as log:
    print(json.dumps([words, os.environ.get("NVTX_INJECTION64_PATH")]), file=log)
output = next(word.split("=", 1)[1] for word in words if word.startswith("--output="))
if words[0] == "profile":
    command = words[[word.startswith("-") for word in words[1:]].index(False) + 1:]
    code = subprocess.call(command)
    if {writes}:
        open(output, "w").write("a report")
    sys.exit(code)
print("exporting...")
if {exports}:
    subprocess.check_call([sys.executable, {writer!r}, output])
else:
    print("the report is of a newer version", file=sys.stderr)
sys.exit(0 if {exports} else 3)
"""


class Stub:
    def __init__(self, folder: Path) -> None:
        self.calls_file = folder / "calls"
        self.path = folder / "bin" / "nsys"
        self.path.parent.mkdir()

    def install(self, *, writes: bool = True, exports: bool = True) -> None:
        writer = str(SUPPORT / "nsys_file.py")
        text = STUB.format(
            python=sys.executable, calls=str(self.calls_file), writes=writes, exports=exports, writer=writer
        )
        self.path.write_text(text)
        self.path.chmod(0o755)

    def calls(self) -> list[tuple[list[str], str | None]]:
        return [tuple(json.loads(line)) for line in self.calls_file.read_text().splitlines()]
