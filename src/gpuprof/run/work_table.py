# SPDX-License-Identifier: Apache-2.0
"""Counted work, hardware counters and ceilings as tables of a run."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gpuprof.record.facts import Damage, DamageCode
from gpuprof.record.first_calls import COUNTER_FACTS, COUNTER_ROWS, WORK_FACTS, WORK_ROWS
from gpuprof.run.database import connect as connect_database
from gpuprof.run.database import reason_of
from gpuprof.run.format import META_FILE, TABLES, read_json
from gpuprof.run.parts import write_meta
from gpuprof.run.plain_path import PlainPath
from gpuprof.run.processor import data_caches, usable_processors

if TYPE_CHECKING:
    import duckdb


def read_work(
    connection: duckdb.DuckDBPyConnection, segments: Path
) -> tuple[duckdb.DuckDBPyRelation | None, dict[str, Any] | None, list[Damage]]:
    """Return the rows of counted work, what is known of them for `meta.json`, and what is damaged."""
    import duckdb

    if not (segments / WORK_FACTS).exists():
        return None, None, []
    plain = PlainPath(segments)
    try:
        facts = json.loads((segments / WORK_FACTS).read_text(encoding="utf-8"))
        described = {key: facts[key] for key in ("roots", "threads", "page_faults", "given")}
        described["gpu"] = facts.get("gpu")
        rows = connection.read_json(
            str(plain.path / WORK_ROWS), columns=TABLES["work"], format="newline_delimited"
        )
        rows.create("counted_work")  # what is damaged shows here
    except (ValueError, KeyError, TypeError, OSError, duckdb.Error) as error:
        first = next(iter(str(error).splitlines()), "")
        return None, None, [Damage(DamageCode.WORK, values={"error": first})]
    return connection.table("counted_work"), {**described, "caches": cache_sizes()}, []


def read_counters(
    connection: duckdb.DuckDBPyConnection, segments: Path, process_id: int
) -> tuple[duckdb.DuckDBPyRelation | None, dict[str, Any] | None, list[Damage]]:
    """Return the rows of hardware counters, what is known of them for `meta.json`, and what is damaged."""
    import duckdb

    if not (segments / COUNTER_FACTS).exists():
        return None, None, []
    plain = PlainPath(segments)
    columns = {name: kind for name, kind in TABLES["counters"].items() if name != "process_id"}
    try:
        facts = json.loads((segments / COUNTER_FACTS).read_text(encoding="utf-8"))
        described = {key: facts[key] for key in ("chip", "cupti_version", "cupti_path", "passes", "metrics")}
        rows = connection.read_json(
            str(plain.path / COUNTER_ROWS), columns=columns, format="newline_delimited"
        )
        rows.project(f"{int(process_id)}::BIGINT AS process_id, *").create("hardware_counters")
    except (ValueError, KeyError, TypeError, OSError, duckdb.Error) as error:
        first = next(iter(str(error).splitlines()), "")
        return None, None, [Damage(DamageCode.COUNTERS, values={"error": first})]
    return connection.table("hardware_counters"), described, []


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
