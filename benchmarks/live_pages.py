# SPDX-License-Identifier: Apache-2.0
"""The dashboard next to the pages of Scalene and TensorBoard, on the same training, in one run.

    python benchmarks/live_pages.py --peers PYTHON [--rounds 3] [--steps 600] [--json FILE|-]

PYTHON is an interpreter with torch, scalene and tensorboard. Each round trains by itself, with gpuprof, with
Scalene and with a SummaryWriter of two scalars a step, in turn. Ratios of steps compare with the training by
itself of the same round. Then the page of each is opened in Chromium: time from the start of its command to
the first response, first paint, bytes, memory and processor time with the page open.
"""

from __future__ import annotations

import argparse
import contextlib
import functools
import http.client
import http.server
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

if __name__ == "__main__":
    sys.path[0] = str(Path(__file__).resolve().parent.parent)

import numpy as np

from benchmarks._output import show_figures
from benchmarks.dashboard import children_of, heap_mb, usage_of

OPEN_S = 15.0
_LONGEST_START_S = 120.0
_WARMUP = 50
_MODES = ("plain", "gpuprof", "scalene", "tensorboard")

_TRAINING = """
import array, os, sys, time
import torch
torch.set_num_threads(1)
folder, steps, mode = sys.argv[1], int(sys.argv[2]), sys.argv[3]
writer = None
if mode == "tensorboard":
    from torch.utils.tensorboard import SummaryWriter
    writer = SummaryWriter(os.path.join(folder, "tensorboard"))
layers = [each for _ in range(4) for each in (torch.nn.Linear(512, 512), torch.nn.ReLU())]
model = torch.nn.Sequential(*layers)
optimizer, values = torch.optim.SGD(model.parameters(), 0.01), torch.randn(64, 512)
times = array.array("q")
for number in range(steps):
    begin, used = time.monotonic_ns(), time.process_time_ns()
    optimizer.zero_grad()
    loss = model(values).square().mean()
    loss.backward()
    optimizer.step()
    if writer is not None:
        writer.add_scalar("loss", loss.item(), number)
        writer.add_scalar("step_s", (time.monotonic_ns() - begin) / 1e9, number)
    times.extend((time.monotonic_ns() - begin, time.process_time_ns() - used))
if writer is not None:
    writer.close()
with open(os.path.join(folder, "times"), "wb") as file:
    file.write(times.tobytes())
"""


def command_of(mode: str, peers: str, folder: Path, scalene: Sequence[str]) -> list[str]:
    """Return the words before the script."""
    out = str(folder / mode)
    return {
        "plain": [sys.executable],
        "gpuprof": [sys.executable, "-m", "gpuprof", "run", "--out", f"{out}.gpuprof"],
        "scalene": [peers, "-m", "scalene", "run", *scalene, "-o", f"{out}.json"],
        "tensorboard": [peers],
    }[mode]


def trained(mode: str, peers: str, folder: Path, steps: int, scalene: Sequence[str]) -> dict[str, float]:
    """Train once; return figures of its steps, of its process and of what it wrote."""
    folder.mkdir()
    (folder / "program.py").write_text(_TRAINING)
    separator = ["---"] if mode == "scalene" else []
    words = [
        *command_of(mode, peers, folder, scalene),
        "program.py",
        *separator,
        str(folder),
        str(steps),
        mode,
    ]
    before = set(folder.rglob("*"))
    begin = time.monotonic()
    with subprocess.Popen(
        words, cwd=folder, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    ) as process:
        _, status, usage = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
    took_s = time.monotonic() - begin
    times = np.frombuffer((folder / "times").read_bytes(), dtype=np.int64).reshape(-1, 2)[_WARMUP:]
    written = [each for each in folder.rglob("*") if each not in before and each.is_file()]
    return {
        "step_ms": float(np.median(times[:, 0])) / 1e6,
        "processor_ms": float(np.median(times[:, 1])) / 1e6,
        "whole_s": took_s,
        "rss_mb": usage.ru_maxrss / 1e3,
        "written_mb": sum(each.stat().st_size for each in written if each.name != "times") / 1e6,
    }


def measure_training(
    peers: str, folder: Path, rounds: int, steps: int, scalene: Sequence[str]
) -> dict[str, Any]:
    """Return each mode's figures; those of steps are ratios to the plain training of the same round."""
    found: dict[str, list[dict[str, float]]] = {mode: [] for mode in _MODES}
    for number in range(rounds):
        for mode in _MODES[number % 4 :] + _MODES[: number % 4]:
            found[mode].append(trained(mode, peers, folder / f"{mode}-{number}", steps, scalene))
    figures: dict[str, Any] = {}
    for mode, rows in found.items():
        figures[mode] = {name: float(np.median([row[name] for row in rows])) for name in rows[0]}
        for name in ("step_ms", "processor_ms"):
            ratios = [row[name] / plain[name] for row, plain in zip(rows, found["plain"], strict=True)]
            figures[mode][name.replace("_ms", "_ratio")] = float(np.median(ratios))
    return figures


# ---- pages ------------------------------------------------------------------------------------------------


def free_port() -> int:
    """Return a port of loopback that was free just now."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return int(free.getsockname()[1])


@contextlib.contextmanager
def served(words: Sequence[str], port: int) -> Iterator[tuple[float, int]]:
    """Start a server; yield the seconds until it responds, and its process id."""
    begin = time.monotonic()
    process = subprocess.Popen(
        words, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True
    )
    try:
        while not _responds(port):
            if process.poll() is not None or time.monotonic() > begin + _LONGEST_START_S:
                raise RuntimeError(f"{words} does not serve")
            time.sleep(0.005)
        yield time.monotonic() - begin, process.pid
    finally:
        os.killpg(process.pid, signal.SIGTERM)
        process.wait()


def _responds(port: int) -> bool:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=10)
    try:
        connection.request("GET", "/")
        return connection.getresponse().status == 200
    except (OSError, http.client.HTTPException):
        return False
    finally:
        connection.close()


def measure_page(browser: Any, address: str, server: int | None) -> dict[str, float | None]:
    """Return what a page and its server cost while it is open."""
    context = browser.new_context(viewport={"width": 1280, "height": 900})
    page = context.new_page()
    received, others = [0], []
    session = context.new_cdp_session(page)
    session.send("Network.enable")
    session.on("Network.dataReceived", lambda got: received.__setitem__(0, received[0] + got["dataLength"]))
    page.on("request", lambda asked: others.append(asked.url) if not _is_own(asked.url) else None)
    page.goto(address, wait_until="load")
    page.wait_for_timeout(3_000)
    paint = page.evaluate("performance.getEntriesByName('first-contentful-paint')[0]?.startTime ?? null")
    before = usage_of(children_of(server))[0] if server is not None else 0.0
    page.wait_for_timeout(OPEN_S * 1e3)
    after, rss_mb = usage_of(children_of(server)) if server is not None else (0.0, 0.0)
    figures = {
        "first_paint_ms": paint,
        "page_mb": received[0] / 1e6,
        "heap_mb": heap_mb(page),
        "requests_to_other_hosts": float(len(others)),
        "server_cpu_percent": None if server is None else 100 * (after - before) / OPEN_S,
        "server_rss_mb": None if server is None else rss_mb,
    }
    context.close()
    return figures


def _is_own(url: str) -> bool:
    return url.startswith(("http://127.0.0.1:", "http://localhost:", "data:", "blob:"))


@contextlib.contextmanager
def static_files(folder: Path) -> Iterator[int]:
    """Serve a folder on loopback in this process."""
    handler = functools.partial(_Quiet, directory=str(folder))
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield int(server.server_address[1])
        server.shutdown()


class _Quiet(http.server.SimpleHTTPRequestHandler):
    def log_message(self, *_words: object) -> None:
        """Print nothing."""


def measure_pages(peers: str, folder: Path) -> dict[str, Any]:
    """Return the figures of each page, of the first round's training."""
    from playwright.sync_api import sync_playwright

    path = shutil.which("chromium-headless-shell") or shutil.which("chromium")
    found: dict[str, Any] = {}
    port = free_port()
    servers = {
        "gpuprof": [sys.executable, "-m", "gpuprof", "dashboard", str(folder / "gpuprof-0")],
        "tensorboard": [peers, "-m", "tensorboard.main", "--logdir", str(folder / "tensorboard-0")],
    }
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=path, args=["--no-sandbox", "--disable-gpu"])
        for name, words in servers.items():
            with served([*words, "--port", str(port)], port) as (start_s, server):
                page = measure_page(browser, f"http://127.0.0.1:{port}/", server)
                found[name] = {"start_s": start_s, **page}
        # Its own server is this one of the standard library, with a page that was made before.
        begin = time.monotonic()
        view = [peers, "-m", "scalene", "view", "--standalone", str(folder / "scalene-0" / "scalene.json")]
        subprocess.run(view, cwd=folder, check=True, capture_output=True)
        start_s = time.monotonic() - begin
        with static_files(folder) as own:
            page = measure_page(browser, f"http://127.0.0.1:{own}/scalene-profile.html", None)
            found["scalene"] = {"start_s": start_s, **page}
        browser.close()
    return found


def main(arguments: list[str] | None = None) -> int:
    """Measure, print, and return the exit code."""
    parser = argparse.ArgumentParser(description="Compare the dashboard with other pages.")
    parser.add_argument("--peers", required=True, metavar="PYTHON", help="with torch, scalene, tensorboard")
    parser.add_argument("--rounds", type=int, default=3, help="trainings of each kind (%(default)s)")
    parser.add_argument("--steps", type=int, default=600, help="of a training (%(default)s)")
    parser.add_argument("--scalene", default="--cpu-only", help="options of scalene run (%(default)s)")
    parser.add_argument("--json", metavar="FILE", help="write JSON; - is standard output")
    options = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory(prefix="gpuprof-live-pages-") as name:
        folder = Path(name)
        words = options.scalene.split()
        training = measure_training(options.peers, folder, options.rounds, options.steps, words)
        show_figures({"training": training, "pages": measure_pages(options.peers, folder)}, options.json)
    return 0


if __name__ == "__main__":
    sys.exit(main())
