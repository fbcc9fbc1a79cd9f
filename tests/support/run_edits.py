# SPDX-License-Identifier: Apache-2.0
"""The files of a closed run, and changes to them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any


def parquet_of(run: Path, table: str) -> Path:
    (file,) = (run / table).rglob("*.parquet")
    return file


def change_meta(run: Path, **values: Any) -> None:
    file = run / "meta.json"
    meta = json.loads(file.read_text(encoding="utf-8"))
    file.write_text(json.dumps({**meta, **values}), encoding="utf-8")


def forget_parts(run: Path) -> None:
    """Remove the entries of the run's files from `meta.json`, as in runs of earlier versions."""
    change_meta(run, parts={})
