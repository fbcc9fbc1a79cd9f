# SPDX-License-Identifier: Apache-2.0
"""The dashboard in a real Chromium: a folder of many runs and results, a training run, an hour of updates.

    python benchmarks/dashboard.py [--entries 1000] [--hour 3600]

Prints the first paint, the time until all entries are read, memory and CPU of server and page, and how much
the page's memory grows over the updates of an hour, which a simulated feed sends at a high rate.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "tests" / "support"))

TRAINING = """
import sys, time, torch
model = torch.nn.Sequential(torch.nn.Linear(256, 512), torch.nn.ReLU(), torch.nn.Linear(512, 10))
optimizer = torch.optim.SGD(model.parameters(), 0.01)
end = time.monotonic() + float(sys.argv[1])
while time.monotonic() < end:
    model(torch.randn(64, 256)).pow(2).mean().backward()
    optimizer.step()
    optimizer.zero_grad()
"""
TICKS = 1.0 / os.sysconf("SC_CLK_TCK")


def children_of(process_id: int) -> list[int]:
    """Return a process and all processes below it."""
    found = [process_id]
    for each in found:
        with contextlib.suppress(OSError):
            found += [int(word) for word in Path(f"/proc/{each}/task/{each}/children").read_text().split()]
    return found


def usage_of(process_ids: list[int]) -> tuple[float, float]:
    """Return seconds of processor time and resident megabytes, summed."""
    seconds = megabytes = 0.0
    for each in process_ids:
        with contextlib.suppress(OSError):
            fields = Path(f"/proc/{each}/stat").read_text().rpartition(")")[2].split()
            seconds += (int(fields[11]) + int(fields[12])) * TICKS
            megabytes += int(fields[21]) * os.sysconf("SC_PAGE_SIZE") / 1e6
    return seconds, megabytes


@contextlib.contextmanager
def command_serving(folder: Path) -> Iterator[tuple[str, int]]:
    """Run the command, and yield its address and process id."""
    command = [sys.executable, "-m", "gpuprof", "dashboard", str(folder), "--port", "0"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as server:
        assert server.stdout is not None
        try:
            yield server.stdout.readline().strip(), server.pid
        finally:
            server.terminate()


def measured_page(browser: Any, address: str) -> tuple[Any, float, float]:
    """Open the page; returns it, and the milliseconds of its first paint and until it can be used."""
    page = browser.new_page(viewport={"width": 1280, "height": 900})
    page.goto(address)
    page.locator("html[data-ready]").wait_for(state="attached")
    paint = page.evaluate("performance.getEntriesByName('first-contentful-paint')[0].startTime")
    return page, paint, page.evaluate("window.__gpuprof.readyAt")


def heap_mb(page: Any) -> float:
    """Return the page's JavaScript heap after a collection, and the DOM's nodes are part of what is held."""
    session = page.context.new_cdp_session(page)
    session.send("HeapProfiler.collectGarbage")
    used: float = session.send("Runtime.getHeapUsage")["usedSize"]
    return used / 1e6


def dom_nodes(page: Any) -> int:
    """Return how many nodes the page has."""
    session = page.context.new_cdp_session(page)
    session.send("HeapProfiler.collectGarbage")
    return int(session.send("Memory.getDOMCounters")["nodes"])


def wait_for(page: Any, expression: str, limit_s: float = 300) -> float:
    """Wait until an expression of the page is true; returns the seconds."""
    begin = time.monotonic()
    while not page.evaluate(expression):
        if time.monotonic() > begin + limit_s:
            raise TimeoutError(expression)
        time.sleep(0.1)
    return time.monotonic() - begin


def cost_over(page: Any, server: int, browser: list[int], seconds: float) -> str:
    """Return the processor time of server and browser over some seconds, and their memory."""
    before = usage_of(children_of(server))[0], usage_of(browser)[0]
    time.sleep(seconds)
    served, shown = usage_of(children_of(server)), usage_of(browser)
    cores = (served[0] - before[0]) / seconds, (shown[0] - before[1]) / seconds
    return (
        f"server {cores[0]:.1%} of a core and {served[1]:.0f} MB with its worker, "
        f"browser {cores[1]:.1%} of a core and {shown[1]:.0f} MB, JavaScript heap {heap_mb(page):.1f} MB"
    )


def browser_processes() -> list[int]:
    """Return the browser's processes: all children of this process but Python ones."""
    names = {each: Path(f"/proc/{each}/comm").read_text() for each in children_of(os.getpid())[1:]}
    return [each for each, name in names.items() if "chrom" in name]


def many_entries(browser: Any, folder: Path, entries: int) -> None:
    from dashboard_folders import write_many  # type: ignore[import-not-found]

    write_many(folder, entries // 2, entries // 2)
    with command_serving(folder) as (address, server):
        page, paint, ready = measured_page(browser, address)
        read_s = wait_for(page, f"window.__gpuprof.entries >= {entries} && window.__gpuprof.pending === 0")
        history_s = wait_for(page, "window.__gpuprof.history?.series.length > 0")
        print(f"{entries} entries, server just started: first paint {paint:.0f} ms, usable {ready:.0f} ms,")
        print(f"  all entries read after {read_s:.1f} s more, history {history_s:.1f} s")
        page.close()
        page, paint, ready = measured_page(browser, address)
        print(f"{entries} entries, server running: first paint {paint:.0f} ms, usable {ready:.0f} ms")
        wait_for(page, "window.__gpuprof.history?.series.length > 0")
        print("  nothing recorded:", cost_over(page, server, browser_processes(), 15))
        page.close()


def training(browser: Any, folder: Path) -> None:
    program = folder / "train.py"
    program.write_text(TRAINING)
    record = [sys.executable, "-m", "gpuprof", "run", "--no-python", "--out", str(folder / "live.gpuprof")]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    with command_serving(folder) as (address, server):
        with subprocess.Popen(
            [*record, str(program), "45"], env=environment, stderr=subprocess.DEVNULL
        ) as trained:
            page, _, _ = measured_page(browser, address)
            wait_for(page, "window.__gpuprof.runs > 0")
            print("a training run:", cost_over(page, server, browser_processes(), 20))
            trained.wait()
        page.close()


def an_hour(browser: Any, folder: Path, intervals: int) -> None:
    """Send the points of an hour as fast as the page takes them, and print what they leave."""
    from dashboard_server import serving  # type: ignore[import-not-found]
    from simulated_feed import SimulatedFeed  # type: ignore[import-not-found]

    from gpuprof.live.dashboard.live_runs import LiveRuns

    class Simulated(LiveRuns):
        def poll(self, _recording: Any) -> dict[str, Any]:
            return super().poll({str(each): f"run-{each}.gpuprof" for each in range(4)})

    live = Simulated(folder, lambda _path: SimulatedFeed())
    with serving(folder, live=live, interval_s=0.01) as served:
        page, _, _ = measured_page(browser, served.address)
        marks = []
        for part in (0.2, 0.6, 1.0):
            wait_for(page, f"window.__gpuprof.ticks >= {int(intervals * part)}", 900)
            marks.append((page.evaluate("window.__gpuprof.ticks"), heap_mb(page), dom_nodes(page)))
        for ticks, heap, nodes in marks:
            print(f"  after {ticks} updates: JavaScript heap {heap:.2f} MB, {nodes} nodes")
        page.close()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--entries", type=int, default=1000)
    parser.add_argument("--hour", type=int, default=3600, help="updates of the simulated hour")
    options = parser.parse_args()
    from playwright.sync_api import sync_playwright

    path = shutil.which("chromium-headless-shell") or shutil.which("chromium")
    with tempfile.TemporaryDirectory() as temporary, sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=path, args=["--no-sandbox", "--disable-gpu"])
        for name in ("many", "training", "hour"):
            (Path(temporary) / name).mkdir()
        many_entries(browser, Path(temporary) / "many", options.entries)
        training(browser, Path(temporary) / "training")
        print(f"{options.hour} updates with 4 runs, as of an hour:")
        an_hour(browser, Path(temporary) / "hour", options.hour)
        browser.close()


if __name__ == "__main__":
    main()
