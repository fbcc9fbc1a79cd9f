# SPDX-License-Identifier: Apache-2.0
"""A live feed of a program that does not exist: steps, layers and operators of a seed."""

from __future__ import annotations

import random

from gpuprof.live.snapshot import (
    LiveCallFigures,
    LiveLayerFigures,
    LiveStepFigures,
    MachineFigures,
    ProcessFigures,
    RunState,
    Snapshot,
)

SECOND_NS = 1_000_000_000


class SimulatedFeed:
    """Each poll is a second later; names of layers change, as in a program that builds new ones."""

    def __init__(self, seed: int = 0, *, has_steps: bool = True) -> None:
        self._has_steps = has_steps
        self._random = random.Random(seed)
        self._number = 0
        self.is_over = False

    def close(self) -> None:
        pass

    def poll(self) -> Snapshot:
        self._number += 1
        draw = self._random.random
        steps = tuple(int(1e7 * (1 + 0.2 * draw())) for _ in range(50))
        layers = tuple(
            LiveLayerFigures(f"layers.{(self._number + each) % 997}.mlp", 50, int(1e6 * draw()))
            for each in range(40)
        )
        calls = tuple(
            LiveCallFigures("operator", f"aten::op{each}", 50, 10**6, int(1e6 * draw())) for each in range(40)
        )
        machine = MachineFigures(
            2, draw(), draw() / 10, int(4e9 * draw()), 8 << 30, 1.0, 1e6 * draw(), 1e5 * draw()
        )
        process = ProcessFigures(
            1, 0, "python", True, 4, int(1e9 * draw()), draw(), 1e6 * draw(), 1e6 * draw(), 4000
        )
        return Snapshot(
            unix_ns=1_800_000_000 * SECOND_NS + self._number * SECOND_NS,
            interval_ns=SECOND_NS,
            machine=machine,
            processes=(process,),
            run="run",
            state=RunState.RECORDING,
            steps=(LiveStepFigures(1, "optimizer", steps),) if self._has_steps else (),
            layers=layers,
            calls=calls,
            operators=None,
        )
