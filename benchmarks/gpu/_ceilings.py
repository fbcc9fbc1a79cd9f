# SPDX-License-Identifier: Apache-2.0
"""Measures the ceilings of the GPUs, not of the processors: `python -m benchmarks.gpu._ceilings`."""

from __future__ import annotations

import json
import sys
from dataclasses import asdict

from gpuprof.analyze.ceilings.cache import load_gpu_ceilings
from gpuprof.analyze.ceilings.text import ceiling_note_text


def main() -> int:
    """Print them as a line of JSON; 1 where there are none."""
    found, notes = load_gpu_ceilings(refresh=True)
    gpus = [{"device": each.device, **each.ceilings.as_dict()} for each in found]
    print(json.dumps({"gpus": gpus, "notes": [asdict(note) for note in notes]}))
    if not found:
        print(
            "no ceilings of a GPU: " + ("; ".join(map(ceiling_note_text, notes)) or "no driver was found"),
            file=sys.stderr,
        )
    return 0 if found else 1


if __name__ == "__main__":
    sys.exit(main())
