# SPDX-License-Identifier: Apache-2.0
"""One model on a GPU: its kernels under Nsight Systems, and the readings of the device while it runs.

Not yet run on a GPU: tested with stubs of nsys and NVML.
"""

from __future__ import annotations

import os
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from gpuprof.analyze.ceilings.of_run import add_ceilings
from gpuprof.analyze.roofline.build import build_roofline
from gpuprof.bench.config import SystemSpec
from gpuprof.bench.frameworks import make_system
from gpuprof.bench.in_process.latency import RecordedModel
from gpuprof.bench.in_process.placement import moved, on_device, without_gradients
from gpuprof.bench.measure.callable import CallableSystem
from gpuprof.bench.models.model_transfer import spec_of_model
from gpuprof.bench.workers.measuring import record_run
from gpuprof.errors import BenchmarkError, RunError, UnavailableError
from gpuprof.record.device_samples import has_driver
from gpuprof.record.options import RecordingOptions
from gpuprof.record.ranges import nsight_range
from gpuprof.record.recording import Recording
from gpuprof.record.recording_folder import create_folder
from gpuprof.run.facts import statuses_of
from gpuprof.run.folder import RunFolder
from gpuprof.run.messages import reason_text
from gpuprof.run.nsys_session import Capture, find_nsys, run_capture
from gpuprof.run.writer import close_run

_PROGRAM = (
    "import sys; from gpuprof.bench.in_process.gpu import call_under_nsight as call; call(*sys.argv[1:])"
)
_WARMUP_CALLS, _CAPTURED_CALLS = 3, 10
_METRICS = ("utilization_percent", "memory_used_bytes", "temperature_c", "power_w")


class GPUProfiler:
    """Profiles a model on a GPU; raises GpuprofError without one, and without the tools that it needs."""

    def __init__(self, device: str = "cuda") -> None:
        self.device = device

    def profile_with_nsight(self, model: Callable[..., Any], inputs: Any) -> dict[str, Any]:
        """Run ten calls in a fresh process under Nsight Systems, and return where their time goes.

        `kernels` are name, calls, total_ms and part of the kernels' time, the longest first. `transfers` are
        copies by source and destination: bytes, total_ms and gb_per_s. `bounds` is the bottleneck of each
        layer by the roofline model, None where it is unknown; it is of a recorded run in this process.
        """
        placed = on_device(model, self.device)
        nsys = find_nsys(os.environ)
        if nsys is None:
            raise UnavailableError(
                "not_installed", "nsys was not found", hint="install Nsight Systems, or add nsys to the PATH"
            )
        spec = spec_of_model("model", (model, GivenInputs(inputs)))
        command = [sys.executable, "-c", _PROGRAM, spec.model, self.device]
        with tempfile.TemporaryDirectory(prefix="gpuprof-gpu-") as folder:
            out = Path(folder) / "nsight.gpuprof"
            code, failure = run_capture(nsys, Capture(command, "cuda"), out)
            if failure is not None or code != 0:
                raise BenchmarkError(
                    "failed",
                    f"the model under nsys ended with {code}{f': {failure.message}' if failure else ''}",
                    hint=failure.hint if failure else "see its output above",
                )
            found = _kernels_and_transfers(RunFolder(out))
            return {**found, "bounds": _bounds(placed, moved(inputs, self.device), Path(folder))}

    def analyze_gpu_utilization(
        self, model: Callable[..., Any], inputs: Any, duration_sec: float = 60
    ) -> dict[str, dict[str, list[float | None]]]:
        """Call the model for a time, and return the readings of each device, by its name.

        Each metric is a list, next to `timestamp` in seconds since the first reading: utilization_percent,
        memory_used_bytes, temperature_c and power_w; None where a reading failed. A metric that the device
        does not report is left out.
        """
        placed, given = on_device(model, self.device), moved(inputs, self.device)
        if not has_driver():
            raise UnavailableError(
                "no_driver", "NVML was not found: no NVIDIA driver is installed", hint="use a GPU machine"
            )
        system = CallableSystem(placed, given)
        with tempfile.TemporaryDirectory(prefix="gpuprof-gpu-") as folder, without_gradients():
            path = Path(folder) / "gpu.gpuprof"
            create_folder(path)
            recording = Recording(path, RecordingOptions(layers=False, operators=False))
            recording.start()
            try:
                _call_for(system, duration_sec)
            finally:
                recording.stop()
            close_run(path)
            return _readings(RunFolder(path))


def _call_for(system: CallableSystem, duration_s: float) -> None:
    end_s = time.monotonic() + duration_s
    while time.monotonic() < end_s:
        system.run()
        system.synchronize()


class GivenInputs:
    """Makes the inputs that it was given, whatever the batch size."""

    def __init__(self, inputs: Any) -> None:
        self._inputs = inputs

    def __call__(self, _batch_size: int) -> Any:
        """Return the inputs."""
        return self._inputs


def call_under_nsight(model: str, device: str) -> None:
    """Call a model in the range that Nsight Systems captures; the program of `profile_with_nsight`."""
    system = make_system(SystemSpec(model, device="auto" if device == "cuda" else device))
    system.import_framework()
    system.load()
    system.prepare(1)
    for _ in range(_WARMUP_CALLS):
        system.run()
    system.synchronize()
    with nsight_range():
        for _ in range(_CAPTURED_CALLS):
            system.run()
        system.synchronize()


def _kernels_and_transfers(run: RunFolder) -> dict[str, list[dict[str, Any]]]:
    kernels = run.sql(
        "SELECT name, count(*), sum(duration_ns) / 1e6, sum(duration_ns) / sum(sum(duration_ns)) OVER () "
        "FROM kernels GROUP BY name ORDER BY 3 DESC, 1"
    ).fetchall()
    transfers = run.sql(
        "SELECT src, dst, sum(bytes), sum(duration_ns) / 1e6, sum(bytes) / nullif(sum(duration_ns), 0) "
        "FROM transfers WHERE kind = 'copy' GROUP BY src, dst ORDER BY 3 DESC, 1, 2"
    ).fetchall()
    of_transfers = ("source", "destination", "bytes", "total_ms", "gb_per_s")
    return {
        "kernels": [dict(zip(("name", "calls", "total_ms", "share"), row, strict=True)) for row in kernels],
        "transfers": [dict(zip(of_transfers, row, strict=True)) for row in transfers],
    }


def _bounds(model: Callable[..., Any], inputs: Any, folder: Path) -> dict[str, str | None]:
    """Return the bottleneck of each layer; nothing where the work of the model cannot be counted."""
    path = folder / "layers.gpuprof"
    with without_gradients():
        record_run(RecordedModel(model, inputs), path, work=True)
    work = RunFolder(path).meta.get("work")
    if not work:
        return {}
    try:
        add_ceilings(path, work)
        layers = build_roofline(RunFolder(path)).layers
    except RunError:
        return {}
    return {row.layer: None if row.bound is None else row.bound.value for row in layers}


def _readings(run: RunFolder) -> dict[str, dict[str, list[float | None]]]:
    status = statuses_of(run.meta)["samples"]
    rows = run.sql("SELECT device, metric, t_ns, value FROM samples ORDER BY t_ns").fetchall()
    if not rows:
        raise UnavailableError(
            "no_readings", f"NVML gave no readings: {reason_text(status)}", hint="see gpuprof doctor"
        )
    names = {each["index"]: each["name"] for each in run.meta["devices"]}
    of_device: dict[int, dict[int, dict[str, float]]] = {}
    for device, metric, t_ns, value in rows:
        of_device.setdefault(device, {}).setdefault(t_ns, {})[metric] = value
    return {
        f"{device}: {names.get(device, 'unknown')}": _series(times, rows[0][2])
        for device, times in of_device.items()
    }


def _series(times: dict[int, dict[str, float]], begin_ns: int) -> dict[str, list[float | None]]:
    reported = {metric for each in times.values() for metric in each}
    return {
        "timestamp": [(t_ns - begin_ns) / 1e9 for t_ns in times],
        **{name: [each.get(name) for each in times.values()] for name in _METRICS if name in reported},
    }
