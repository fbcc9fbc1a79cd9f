# SPDX-License-Identifier: Apache-2.0
"""A load while the wall clock steps, and one that uses up the ports of its machine."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from gpuprof.load import open_result
from gpuprof.load.figures import latencies_s
from gpuprof.load.requests import RequestStatus

SUPPORT = Path(__file__).parents[1] / "support"
COMPILER = shutil.which("cc") or shutil.which("gcc")
TARGET = """
import time
def respond():
    with open("clock.txt", "a") as file:
        file.write(f"{time.time()}\\n")
"""


@pytest.mark.skipif(COMPILER is None or sys.platform != "linux", reason="no C compiler")
def test_steps_of_the_wall_clock_are_not_in_the_figures(tmp_path: Path) -> None:
    assert COMPILER is not None
    library = tmp_path / "clock_step.so"
    words = [COMPILER, "-shared", "-fPIC", "-o", str(library), str(SUPPORT / "clock_step.c"), "-ldl"]
    subprocess.run(words, check=True)
    (tmp_path / "stepped.py").write_text(TARGET, encoding="utf-8")
    command = [sys.executable, "-m", "gpuprof", "load", "python:stepped:respond", "--scenario", "constant"]
    environment = {**os.environ, "LD_PRELOAD": str(library), "PYTHONPATH": str(tmp_path)}
    done = subprocess.run(
        [*command, "--rate", "500", "--duration", "1s", "--out", "out"],
        cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip
    assert (done.returncode, done.stderr.count("error")) == (0, 0), done.stderr
    readings = [float(line) for line in (tmp_path / "clock.txt").read_text(encoding="ascii").split()]
    assert max(readings) - min(readings) > 7_000, "the wall clock did not step"
    found = open_result(tmp_path / "out")
    assert found.statuses == {RequestStatus.OK: 500}
    assert found.planned_rate == pytest.approx(500)
    latencies = latencies_s(found.rows)
    assert (latencies.min() > 0, latencies.max() < 60) == (True, True)
    assert 0.99 <= (found.run.end_ns - found.run.start_ns) / 1e9 < 60


IN_NAMESPACE = """
ip link set lo up || exit 77
echo "40000 40007" > /proc/sys/net/ipv4/ip_local_port_range || exit 77
exec "$0" "$@"
"""
LOAD = """
import sys
from load_server import hang, serving
from gpuprof.cli.main import execute
with serving({"/": hang}) as server:
    words = ["load", f"http://127.0.0.1:{server.port}/", "--scenario", "constant", "--rate", "60"]
    words += ["--duration", "500ms", "--concurrency", "30", "--timeout", "1", "--drain", "3", "--out", "out"]
    sys.exit(execute(words))
"""


@pytest.mark.skipif(shutil.which("unshare") is None or shutil.which("ip") is None, reason="no unshare, ip")
def test_a_machine_without_free_ports_ends_each_request_once(tmp_path: Path) -> None:
    (tmp_path / "load.py").write_text(LOAD, encoding="utf-8")
    shell = ["unshare", "--map-root-user", "--net", "sh", "-c", IN_NAMESPACE, sys.executable, "load.py"]
    done = subprocess.run(
        shell, cwd=tmp_path, env={**os.environ, "PYTHONPATH": str(SUPPORT)},
        capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip
    if done.returncode == 77 or "unshare:" in done.stderr:
        pytest.skip("no network namespaces for this user")
    assert done.returncode == 1, done.stderr  # every request failed
    found = open_result(tmp_path / "out")
    assert set(found.statuses) == {RequestStatus.TIMEOUT, RequestStatus.NO_PORTS}
    assert sum(found.statuses.values()) == 30
    # One of the eight ports is that of the server.
    assert found.statuses[RequestStatus.TIMEOUT] == 7
    assert "23 no ports" in done.stdout
