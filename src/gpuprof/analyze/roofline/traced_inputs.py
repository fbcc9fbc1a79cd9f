# SPDX-License-Identifier: Apache-2.0
"""The operators of a run whose inputs were recorded: the table `operator_inputs`, and its windows."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from gpuprof.analyze.roofline.counted import CountedRow, plain_name
from gpuprof.analyze.roofline.similar_calls import signature_numbers
from gpuprof.record.work.rows import Reuse

if TYPE_CHECKING:
    from gpuprof.run.folder import RunFolder


@dataclass(frozen=True, slots=True)
class InputWindow:
    """A stretch of time in which inputs were recorded; `root` is "" before the first call of a model.

    `call` is the number of the call among those of the root on its thread.
    """

    root: str
    call: int
    thread_id: int
    begin_ns: int
    end_ns: int


@dataclass(frozen=True, slots=True)
class SignatureSizes:
    """A signature of a root's inputs: those of equal structure differ in the sizes of tensors alone."""

    structure: str
    elements: int


@dataclass(frozen=True, slots=True)
class TracedInputs:
    """What was recorded of inputs. `rows` are in the order of their begins, windows one after the other.

    A row is None for an operator inside of one that was counted as a whole. `names` are those of all rows.
    `numbers` are the signatures of root calls by span, `signatures` their sizes by root and number.
    """

    names: list[str]
    rows: list[CountedRow | None]
    windows: list[InputWindow]
    numbers: dict[int, int]
    signatures: dict[str, list[SignatureSizes]]


_ROWS = """
    SELECT operator, flops, bytes, exactness, dtype, input_shapes, reuse_distance_bytes, reuse_bytes,
           reuse_written
    FROM operator_inputs WHERE runs_backward OR thread = (
        SELECT thread FROM operator_inputs GROUP BY thread ORDER BY count(*) DESC, thread LIMIT 1)
    ORDER BY position
"""


def load_inputs(folder: RunFolder, process_id: int) -> TracedInputs | None:
    """Return what the run has of inputs, None for one without: those of earlier versions have none."""
    work = folder.meta.get("work")
    trace = work.get("trace") if isinstance(work, dict) else None
    if not isinstance(work, dict) or not isinstance(trace, dict) or "operator_inputs" not in folder.tables:
        return None
    try:
        windows = [InputWindow(**each) for each in trace["windows"]]
        signatures = {
            root: [SignatureSizes(structure, elements) for structure, elements in found]
            for root, found in work["signatures"].items()
        }
    except (KeyError, TypeError, ValueError):  # damaged
        return None
    names, rows = [], []
    for values in folder.sql(_ROWS).fetchall():
        names.append(plain_name(values[0]))
        rows.append(None if values[3] is None else _row(values))
    return TracedInputs(names, rows, windows, signature_numbers(folder, process_id), signatures)


def _row(values: tuple[Any, ...]) -> CountedRow:
    operator, flops, moved, exactness, dtype, shapes, *reuse = values
    pieces = tuple(map(Reuse, *(part or () for part in reuse)))
    return CountedRow("", "", 0, operator, "forward", flops, moved, exactness, dtype, shapes, None, pieces)
