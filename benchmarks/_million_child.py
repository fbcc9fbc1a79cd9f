# SPDX-License-Identifier: Apache-2.0
"""One contestant of the row `million`, in a process of its own: started by _million.py.

    python -m benchmarks._million_child CONTESTANT FORWARDS FOLDER

The contestant "count" prints only the number of operators of a forward. Any other runs the loop bare, writes
a line "measure" when its memory is to be watched from here on, runs the same loop under the contestant,
and prints what it measured as JSON.
"""

from __future__ import annotations

import functools
import gc
import json
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any


def main(contestant: str, forwards: int, folder: str) -> None:
    """Measure one contestant and print the result."""
    if contestant in ("gpuprof", "gpuprof_sampled"):
        import gpuprof  # noqa: F401 - before torch, as `gpuprof run` has it; the others go without
    import torch

    from benchmarks._models import count_operators, tiny_linears

    torch.set_num_threads(1)
    model, inputs = tiny_linears()
    if contestant == "count":
        print(json.dumps({"operators": count_operators(model, inputs)}))
        return

    def loop() -> float:
        begin = time.perf_counter()
        with torch.no_grad():
            for _ in range(forwards):
                model(inputs)
        return time.perf_counter() - begin

    bare_s = loop()
    gc.collect()
    was_reset = _reset_high_water()
    print("measure", flush=True)
    result = _CONTESTANTS[contestant](loop, Path(folder))
    memory = {"memory_high_water_kb": _status("VmHWM"), "high_water_was_reset": was_reset}
    print(json.dumps({**memory, **result, "bare_loop_s": bare_s}))


def _run_bare(loop: Callable[[], float], _folder: Path) -> dict[str, Any]:
    return {"loop_s": loop()}


def _run_gpuprof(loop: Callable[[], float], folder: Path, *, python: bool = False) -> dict[str, Any]:
    import gpuprof

    path = folder / f"million-{python}.gpuprof"
    block = gpuprof.profile(out=path, layers=False, python=python)
    begin = time.perf_counter()
    block.__enter__()
    start_s = time.perf_counter() - begin
    loop_s = loop()
    begin = time.perf_counter()
    block.__exit__(None, None, None)
    stop_s = time.perf_counter() - begin
    summary = block.run.summary(by="operator")
    text = str(summary)
    finish_s = time.perf_counter() - begin
    assert "aten::" in text
    return {
        "start_s": start_s,
        "loop_s": loop_s,
        "stop_s": stop_s,
        "finish_s": finish_s,
        "disk_bytes": sum(each.stat().st_size for each in path.rglob("*") if each.is_file()),
        "recorded": sum(row.calls for row in summary.rows),
    }


def _run_torch_profiler(loop: Callable[[], float], folder: Path) -> dict[str, Any]:
    return _profile(loop, lambda profiler: _export(profiler, folder))


def _run_key_averages(loop: Callable[[], float], _folder: Path) -> dict[str, Any]:
    return _profile(loop, lambda profiler: {"text": len(profiler.key_averages().table())})


def _profile(loop: Callable[[], float], read: Callable[[Any], dict[str, Any]]) -> dict[str, Any]:
    from torch.profiler import ProfilerActivity, profile

    profiler = profile(activities=[ProfilerActivity.CPU])
    begin = time.perf_counter()
    profiler.start()
    start_s = time.perf_counter() - begin
    loop_s = loop()
    begin = time.perf_counter()
    profiler.stop()
    stop_s = time.perf_counter() - begin
    stopped_kb = _status("VmHWM")
    read_result = read(profiler)
    finish_s = time.perf_counter() - begin
    times = {"start_s": start_s, "loop_s": loop_s, "stop_s": stop_s, "finish_s": finish_s}
    return {**times, "memory_when_stopped_kb": stopped_kb, **read_result}


def _export(profiler: Any, folder: Path) -> dict[str, Any]:
    path = folder / "trace.json"
    profiler.export_chrome_trace(str(path))
    return {"disk_bytes": path.stat().st_size}


_CONTESTANTS: dict[str, Callable[[Callable[[], float], Path], dict[str, Any]]] = {
    "bare": _run_bare,
    "gpuprof": _run_gpuprof,
    "gpuprof_sampled": functools.partial(_run_gpuprof, python=True),
    "torch.profiler": _run_torch_profiler,
    "key_averages": _run_key_averages,
}


def _reset_high_water() -> bool:
    """Have the system forget the largest resident size so far, which importing torch may have set."""
    with suppress(OSError):
        Path("/proc/self/clear_refs").write_text("5", encoding="ascii")
        return True
    return False


def _status(field: str) -> int | None:
    """Return a field of /proc/self/status in kB; None where there is none, as on macOS."""
    with suppress(OSError):
        for line in Path("/proc/self/status").read_text(encoding="utf-8").splitlines():
            if line.startswith(field + ":"):
                return int(line.split()[1])
    return None


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), sys.argv[3])
