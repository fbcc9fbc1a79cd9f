# SPDX-License-Identifier: Apache-2.0
"""Takes the place of the processes that measure: sends events with known samples, and measures nothing.

It reads the job on standard input and writes events to the descriptor in its last argument, as the worker of
the package does. The model's name after the colon chooses what it sends; how often a model was asked before
is counted in files of the current folder. Jobs that do not measure times run in the real worker.
"""

from __future__ import annotations

import json
import os
import random
import shutil
import sys
from pathlib import Path
from typing import Any

_MS = 1_000_000
SAMPLES = 40
# Milliseconds of a call, and of each sample in it.
_LEVELS = {
    "float32": (2.0, 1.5),
    "int8": (1.4, 0.8),
    "same": (2.004, 1.502),
    "degraded": (1.1, 0.6),
    "noisy": (2.1, 1.6),
    "partly": (1.8, 1.2),
    "on_gpu": (0.4, 0.05),
}
_NOISE = {"noisy": (0.15, 0.2)}  # between process runs, between calls
_USUAL_NOISE = (0.006, 0.012)
_MACHINE = {
    "elapsed_s": 1.0,
    "processors": 8,
    "involuntary_switches": 2,
    "others_cpus": 0.1,
    "stolen_share": 0.0,
    "frequency_before_mhz": 3000.0,
    "frequency_after_mhz": 3000.0,
}
_BUSY = {"involuntary_switches": 900, "others_cpus": 3.5, "stolen_share": 0.04, "frequency_after_mhz": 2400.0}


def main() -> None:
    """Send the recorded responses of one job."""
    descriptor = int(sys.argv[-1])
    line = sys.stdin.buffer.readline()
    envelope = json.loads(line)
    kind, job = envelope["kind"].rpartition(":")[2], envelope["values"]
    if kind in ("OutputsJob", "LayersJob"):
        _run_really(line)
    with os.fdopen(descriptor, "w", encoding="utf-8") as file:

        def send(state: str, at_ms: float = 0, **values: Any) -> None:
            print(json.dumps({"state": state, "t_ns": round(at_ms * _MS), **values}), file=file, flush=True)

        if kind == "TrafficJob":
            _traffic(job, send)
        else:
            _measure(job, send)


def _run_really(line: bytes) -> None:
    """Become the real worker, with the job on its standard input again."""
    read_end, write_end = os.pipe()
    os.write(write_end, line)
    os.set_inheritable(write_end, True)
    os.dup2(read_end, 0)
    python = os.environ["GOLDEN_PYTHON"]
    os.execv(python, [python, *sys.argv[1:]])


def _measure(job: dict[str, Any], send: Any) -> None:
    name = job["spec"]["model"].rpartition(":")[2]
    settings = job["settings"]
    send("up", 40)
    if name == "failing":
        message = "models.py:failing: ValueError: no weights at models.py:9"
        send("failed", failure={"code": "failed", "message": message})
        return
    run = _count(name)
    send("imported", 300)
    send("loaded", 420)
    for number, size in enumerate(settings["batch_sizes"]):
        send("preparing", 430, batch_size=size)
        if name == "partly" and size >= 8:
            message = f"models.py:partly: batch size {size} does not fit in memory"
            failure = {"code": "out of memory", "message": message, "hint": "use smaller --batch-sizes"}
            send("failed", failure=failure)
            return
        send("prepared", 500, batch_size=size)
        send("described", 530, batch_size=size, description=_description(name, job["spec"]))
        if settings["profile"] is None and not settings["only_first_answer"]:
            after_larger = max(settings["batch_sizes"][: number + 1]) > size
            extra = _extra(name, size, after_larger=after_larger)
            measured = _measurement(name, run, size, settings["measuring"])
            send("measured", 1500, batch_size=size, measurement=measured, extra=extra)
    if settings["profile"] is not None:
        _copy_run(Path(settings["profile"]))
        send("found", 1600, value=settings["profile"])
    send("done", 1700)


def _copy_run(folder: Path) -> None:
    """Copy the recorded run. Without counted work: else this machine's ceilings would be measured."""
    shutil.copytree(os.environ["GOLDEN_RUN"], folder)
    file = folder / "meta.json"
    meta = json.loads(file.read_text(encoding="utf-8"))
    file.write_text(json.dumps({**meta, "work": None}), encoding="utf-8")


def _count(name: str) -> int:
    file = Path(f".runs-of-{name}")
    run = int(file.read_text(encoding="ascii")) + 1 if file.exists() else 1
    file.write_text(str(run), encoding="ascii")
    return run


def _normal(source: random.Random) -> float:
    """Return a number from about the standard normal distribution, the same on all versions of Python."""
    return sum(source.random() for _ in range(12)) - 6


def samples_ns(name: str, run: int, size: int, count: int = SAMPLES) -> list[int]:
    """Return the samples of one process run."""
    source = random.Random(f"{name}/{run}/{size}")
    call_ms, each_ms = _LEVELS[name]
    between, within = _NOISE.get(name, _USUAL_NOISE)
    level = (call_ms + each_ms * size) * max(0.3, 1 + between * _normal(source))
    return [round(_MS * level * max(0.3, 1 + within * _normal(source))) for _ in range(count)]


def _measurement(name: str, run: int, size: int, settings: dict[str, Any]) -> dict[str, Any]:
    wall = samples_ns(name, run, size, settings["iterations"] or SAMPLES)
    is_noisy = name == "noisy"
    warmup = {"calls": 24, "elapsed_s": 0.25, "first_call_s": 0.03}
    warmup |= {"settled": not is_noisy, "settled_after": None if is_noisy else 12, "drift": 0.004}
    return {
        "settings": settings,
        "samples_ns": wall,
        "enqueue_ns": [each // 4 for each in wall] if name == "on_gpu" else None,
        "calls_per_sample": 1,
        "warmup": warmup,
        "stopped_by": "precision",
        "stop_values": {"quantile": 0.5, "width": 0.008},
        "failure": None,
        "timer_ns": 42.0,
        "elapsed_s": sum(wall) / 1e9,
        "machine": {**_MACHINE, **(_BUSY if is_noisy else {})},
    }


def _description(name: str, spec: dict[str, Any]) -> dict[str, Any]:
    on_gpu = name == "on_gpu"
    shape = spec["input_shape"]
    return {
        "framework": "pytorch" if on_gpu else "python",
        "model": f"models:{name}",
        "device": "Invented GPU" if on_gpu else "Invented processor",
        "device_type": "cuda" if on_gpu else "cpu",
        "dtype": "int8" if name == "int8" else "float32",
        "input_shape": shape,
        "model_bytes": 1_024_000 if name == "int8" else 4_096_000,
        "parameters": 1_024_000,
        "details": {"threads": "4", "technique": name},
    }


def _extra(name: str, size: int, *, after_larger: bool) -> dict[str, Any]:
    on_gpu = name == "on_gpu"
    energy = {
        "energy_per_sample_j": 0.0125 / size, "energy_j": 12.5, "idle_w": 60.0, "power_mean_w": 240.0,
        "window_s": 1.5, "samples": 30, "method": "total energy counter", "unavailable": None,
        "warning": None, "utilization_mean_percent": 87.5, "utilization_percent": [], "throttled": {},
    }  # fmt: skip
    return {
        "load_s": 0.12,
        "after_larger": after_larger,
        "prepare_s": 0.07,
        "first_call_s": 0.03,
        "compile_s": 1.75 if on_gpu else None,
        "memory": {
            "allocator_peak_bytes": 50_000_000 + 1_000_000 * size if on_gpu else None,
            "device_used_bytes": 900_000_000 if on_gpu else None,
            "host_resident_bytes": 200_000_000 + 2_000_000 * size,
        },
        "usage": {"wall_s": 1.0, "cpu_share": 0.98, "read_bytes": 4096, "written_bytes": 0},
        "energy": energy if on_gpu else None,
        "device_time_s": [0.0003 + 0.00004 * size] * 5 if on_gpu else None,
    }


def _traffic(asked: dict[str, Any], send: Any) -> None:
    send("up", 40)
    for state in ("imported", "loaded"):
        send(state, 300)
    arms = []
    for variant, fraction in zip(asked["variants"], asked["settings"]["split"], strict=True):
        name = variant["spec"]["model"].rpartition(":")[2]
        # With a slow request now and then.
        times = samples_ns(name, 100 + asked["number"], 1, round(800 * fraction))
        times = [each * 3 if number % 50 == 49 else each for number, each in enumerate(times)]
        compared = round(len(times) * (1 - fraction) / fraction) if fraction > 0.5 else None
        arms.append({"wall_ns": times, "compared": compared, "failed": 0, "first_failure": None})
    send("found", 1500, value=arms)
    send("done", 1700)


if __name__ == "__main__":
    main()
