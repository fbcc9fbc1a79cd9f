# SPDX-License-Identifier: Apache-2.0
"""Counted work, hardware counters and ceilings as tables of a run."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gpuprof.record.first_calls import COUNTER_FACTS, COUNTER_ROWS, INPUT_ROWS, WORK_FACTS, WORK_ROWS
from gpuprof.record.processor import data_caches, usable_processors
from gpuprof.run.damage import Damage, DamageCode
from gpuprof.run.database import connect as connect_database
from gpuprof.run.database import reason_of
from gpuprof.run.format import META_FILE, TABLES, read_json
from gpuprof.run.parts import write_meta
from gpuprof.run.temporary import PlainPath

if TYPE_CHECKING:
    import duckdb


def read_work(
    connection: duckdb.DuckDBPyConnection, segments: Path, origin_ns: int
) -> tuple[duckdb.DuckDBPyRelation | None, dict[str, Any] | None, list[Damage]]:
    """Return the rows of counted work, what is known of them for `meta.json`, and what is damaged.

    `origin_ns` is the run's origin on the monotonic clock.
    """
    keys = ("roots", "threads", "page_faults", "given", "gpu", "signatures", "trace", "padding")
    files = (segments / WORK_FACTS, segments / WORK_ROWS)
    rows, facts, damage = _read(connection, "work", files, keys, DamageCode.WORK)
    if facts is None:
        return rows, None, damage
    return rows, {**facts, "trace": _on_run_clock(facts["trace"], origin_ns), "caches": cache_sizes()}, damage


def _on_run_clock(trace: dict[str, Any] | None, origin_ns: int) -> dict[str, Any] | None:
    """Return the windows with recorded inputs, which are on the monotonic clock, since the run's origin."""
    if trace is None:
        return None
    windows = [
        {**each, "begin_ns": each["begin_ns"] - origin_ns, "end_ns": each["end_ns"] - origin_ns}
        for each in trace["windows"]
    ]
    return {**trace, "windows": windows}


def read_inputs(
    connection: duckdb.DuckDBPyConnection, segments: Path
) -> tuple[duckdb.DuckDBPyRelation | None, list[Damage]]:
    """Return the rows of operators whose inputs were recorded, and what is damaged."""
    files = (segments / WORK_FACTS, segments / INPUT_ROWS)
    if not files[1].exists():
        return None, []
    rows, _, damage = _read(connection, "operator_inputs", files, (), DamageCode.WORK)
    return rows, damage


def read_counters(
    connection: duckdb.DuckDBPyConnection, segments: Path, process_id: int
) -> tuple[duckdb.DuckDBPyRelation | None, dict[str, Any] | None, list[Damage]]:
    """Return the rows of hardware counters, what is known of them for `meta.json`, and what is damaged."""
    keys = ("chip", "cupti_version", "cupti_path", "passes", "metrics")
    files = (segments / COUNTER_FACTS, segments / COUNTER_ROWS)
    rows, facts, damage = _read(connection, "counters", files, keys, DamageCode.COUNTERS)
    of_process = f"* REPLACE ({int(process_id)}::BIGINT AS process_id)"
    return None if rows is None else rows.project(of_process), facts, damage


def _read(
    connection: duckdb.DuckDBPyConnection,
    table: str,
    files: tuple[Path, Path],
    keys: tuple[str, ...],
    code: DamageCode,
) -> tuple[duckdb.DuckDBPyRelation | None, dict[str, Any] | None, list[Damage]]:
    import duckdb

    if not files[0].exists():
        return None, None, []
    plain = PlainPath(files[1].parent)
    try:
        facts = {
            "gpu": None,
            "signatures": {},
            "trace": None,
            "padding": None,
            **json.loads(files[0].read_text(encoding="utf-8")),
        }
        known = {key: facts[key] for key in keys}
        rows = connection.read_json(
            str(plain.path / files[1].name), columns=TABLES[table], format="newline_delimited"
        )
        rows.create(f"read_{table}")  # what is damaged shows here
    except (ValueError, KeyError, TypeError, OSError, duckdb.Error) as error:
        first = next(iter(str(error).splitlines()), "")
        return None, None, [Damage(code, values={"error": first})]
    return connection.table(f"read_{table}"), known, []


def write_ceilings(run: Path, rows: Iterable[dict[str, Any]], facts: dict[str, Any]) -> None:
    """Add ceilings to a finished run, with `facts` about their measurement in `meta.json`. Raises OSError."""
    import duckdb

    listed = list(rows)
    draft = run / "ceilings.jsonl"
    plain = PlainPath(run)
    try:
        draft.write_text("".join(json.dumps(row) + "\n" for row in listed), encoding="utf-8")
        folder = run / "ceilings" / "rank=0"
        folder.mkdir(parents=True, exist_ok=True)
        with connect_database() as connection:
            table = connection.read_json(
                str(plain.path / draft.name), columns=TABLES["ceilings"], format="newline_delimited"
            )
            target = plain.path / "ceilings" / "rank=0" / "part-measured.parquet"
            table.write_parquet(str(target), compression="zstd")
        meta = read_json(run / META_FILE)
        write_meta(run, {**meta, "ceilings": facts})
    except duckdb.Error as error:
        raise OSError(0, reason_of(error)) from error
    finally:
        draft.unlink(missing_ok=True)


def cache_sizes() -> list[dict[str, int]]:
    """Return what this process's processors hold at each level: all together, and one of them."""
    processors = usable_processors()
    sizes: dict[int, list[int]] = {}
    for cache in data_caches(processors):
        sizes.setdefault(cache.level, []).append(cache.bytes)
    return [
        {"level": level, "bytes": sum(found), "one_core_bytes": max(found)}
        for level, found in sorted(sizes.items())
    ]
