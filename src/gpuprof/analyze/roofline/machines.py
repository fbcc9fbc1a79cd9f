# SPDX-License-Identifier: Apache-2.0
"""The ceilings of a run by what its operators ran on: the processors, and each GPU."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from gpuprof.analyze.ceilings.ceiling import Ceiling, Drift
from gpuprof.analyze.roofline.machine import Machine
from gpuprof.errors import RunError

if TYPE_CHECKING:
    from gpuprof.run.folder import RunFolder


@dataclass(frozen=True)
class Machines:
    """The host, and the GPUs by name. A GPU without ceilings has a machine that knows none."""

    host: Machine
    gpus: dict[str, Machine]

    def of(self, device: str | None) -> Machine:
        """Return the ceilings of a device; None is the host."""
        if device is None:
            return self.host
        return self.gpus.get(device) or Machine((), gpu=device)


def load_machines(folder: RunFolder) -> Machines:
    """Return the run's ceilings. Raises RunError where it holds none."""
    columns = "device, resource, dtype, value, unit, spread, method"
    rows = [Ceiling(*row) for row in folder.sql("FROM ceilings").select(columns).fetchall()]
    facts = folder.meta.get("ceilings") or {}
    if not any(row.is_best for row in rows):
        notes = "; ".join(map(str, facts.get("notes", []))) or "they were not measured"
        raise RunError(f"{folder.path} holds no ceilings ({notes}): record it again when no recording runs")
    work = folder.meta["work"]
    drifts = [Drift(**drift) for drift in facts.get("drift", [])]
    host = Machine(rows, threads=work.get("threads"), caches=work.get("caches") or (), drifts=drifts)
    tf32 = (work.get("gpu") or {}).get("tf32")
    gpus = {gpu["device"]: _gpu(gpu, rows, drifts, tf32) for gpu in facts.get("gpus") or ()}
    return Machines(host, gpus)


def _gpu(gpu: dict[str, Any], rows: list[Ceiling], drifts: list[Drift], tf32: Any) -> Machine:
    size = int(gpu.get("l2_cache_bytes") or 0)
    caches = [{"level": 2, "bytes": size, "one_core_bytes": size}] if size else []
    return Machine(rows, caches=caches, drifts=drifts, gpu=gpu["device"], name=gpu.get("gpu"), tf32=tf32)
