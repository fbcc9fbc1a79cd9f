# SPDX-License-Identifier: Apache-2.0
"""The benchmark of instructions subtracts what is not the span's. Valgrind itself is not asked here."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).resolve().parents[2] / "benchmarks" / "instructions.py"
sys.path.append(str(SCRIPT.parents[1]))

from benchmarks import instructions  # noqa: E402 - found only from now on
from benchmarks._instructions_child import LOOPS  # noqa: E402

# A start-up of a million, 200 instructions for a turn of the empty loop, and 500 more for that of any other,
# 100 of them in gpuprof's library.
VALGRIND = '''#!{python}
import sys
out = next(each for each in sys.argv if each.startswith("--callgrind-out-file=")).partition("=")[2]
loop, times = sys.argv[-3], int(sys.argv[-2])
own = times * (0 if loop == "empty" else 100)
rest = 1_000_000 + times * (200 if loop == "empty" else 600)
open(out, "w").write(f"""events: Ir

ob=(1) /home/somebody/gpuprof/.venv/lib/libpython3.so
fl=(1) ceval.c
fn=(1) evaluate
10 {{rest}}
cob=(2) /site-packages/gpuprof/_native.so
cfn=(2) enter
calls=7 +3
* {{own}}
ob=(2)
fn=(2)
-4 {{own}}
totals: {{rest + own}}
""")
'''
BROKEN = """#!{python}
import sys
sys.exit("==1== no module named gpuprof")
"""


def install(folder: Path, text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    valgrind = folder / "valgrind"
    valgrind.write_text(text.format(python=sys.executable))
    valgrind.chmod(0o755)
    monkeypatch.setenv("PATH", str(folder))


def test_start_and_the_empty_loop_are_subtracted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    install(tmp_path, VALGRIND, monkeypatch)
    monkeypatch.setattr(instructions, "describe_code", dict)
    assert instructions.main(["--python", "a", "--python", "b", "--json", "-"]) == 0
    rows = json.loads(capsys.readouterr().out)["rows"]
    found = {row["name"]: (row["instructions"], row["of_gpuprof"]) for row in rows}
    assert found == {loop: ([500, 500], [100, 100]) for loop in LOOPS if loop != "empty"}


def test_a_failure_is_reported_in_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(SystemExit, match="there is no valgrind"):
        instructions.count("python", "empty", 1)
    install(tmp_path, BROKEN, monkeypatch)
    with pytest.raises(SystemExit, match="no module named gpuprof"):
        instructions.count("python", "empty", 1)


@pytest.mark.parametrize("loop", [each for each in LOOPS if "nvtx" not in each])
def test_each_loop_runs_and_ends(tmp_path: Path, loop: str) -> None:
    child = SCRIPT.with_name("_instructions_child.py")
    command = [sys.executable, str(child), loop, "1000", str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=180, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    assert any(tmp_path.iterdir()) == loop.startswith("recorded")
