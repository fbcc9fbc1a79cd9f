# SPDX-License-Identifier: Apache-2.0
"""Programs of known spans and stacks, without a recording."""

from __future__ import annotations

from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np

from gpuprof.record.frame_text import MODULE_CALL
from gpuprof.run.format import KINDS
from gpuprof.run.python_tree import with_python_frames
from gpuprof.run.stacks import Stacks, ThreadStacks
from gpuprof.run.stored_spans import StoredSpans

CALL_IMPL = "Module._call_impl (torch/nn/modules/module.py:1779)"
ENTER = (MODULE_CALL, CALL_IMPL)
PROCESS, SPAN, LAYER, OPERATOR, PYTHON, WAITING = (
    KINDS.index(kind) for kind in ("process", "span", "layer", "operator", "python", "waiting")
)
DURATION = 1000


class Program:
    """Spans and samples of process 7; times are whole numbers from 0 to `duration`."""

    def __init__(self, duration: int = DURATION) -> None:
        self.duration = duration
        self.nodes = [(-1, PROCESS, "prog", 0, 0, 0)]
        self.spans: list[tuple[int, int, int, int, int, int, int]] = []
        self.stacks = Stacks()
        self.thread = 7

    def span(self, parent: int, kind: int, name: str, start: int, end: int) -> int:
        """Add one call; returns its number. Parents come before their children."""
        up = self.spans[parent][3] if parent >= 0 else 0
        key = (up, kind, name)
        known = [node[:3] for node in self.nodes]
        node = known.index(key) if key in known else len(self.nodes)
        if node == len(known):
            self.nodes.append((*key, 0, 0, 0))
        self.spans.append((len(self.spans), parent, self.thread, node, start, end - start, end - start))
        return len(self.spans) - 1

    def end(self, span: int, end: int) -> None:
        """Set the end of a span that was added before it was known."""
        duration = end - self.spans[span][4]
        self.spans[span] = (*self.spans[span][:5], duration, duration)

    def sample(self, taken: int, since: int, *frames: str, cpu_ns: int = -1, queued_ns: int = -1) -> None:
        numbers = []
        for frame in frames:
            if frame not in self.stacks.texts:
                self.stacks.texts.append(frame)
            numbers.append(self.stacks.texts.index(frame))
        threads = {thread.thread_id: thread for thread in self.stacks.threads}
        if self.thread not in threads:
            self.stacks.threads.append(ThreadStacks(7, self.thread, 10))
            threads[self.thread] = self.stacks.threads[-1]
        threads[self.thread].add((taken, taken - since, cpu_ns, queued_ns, -1), tuple(numbers))

    def tree(self) -> tuple[dict[str, np.ndarray], list[str], np.ndarray, dict[str, np.ndarray]]:
        """Return the plain tree in pre-order and the spans, as the decoder gives them.

        Spans have ids by thread and begin, outer ones first.
        """
        own = {span: duration for span, *_, duration in self.spans}
        for _, parent, thread, _, _, duration, _ in self.spans:
            if parent >= 0 and self.spans[parent][2] == thread:
                own[parent] -= duration
        calls = [0] * len(self.nodes)
        total, own_of = list(calls), list(calls)
        for span, _, _, node, _, duration, _ in self.spans:
            calls[node] += 1
            total[node] += duration
            own_of[node] += own[span]
        top = sum(s[5] for s in self.spans if s[1] < 0 and s[2] == 7)
        own_of[0], total[0] = self.duration - top, self.duration
        order: list[int] = []
        waiting = [0]
        while waiting:
            node = waiting.pop()
            order.append(node)
            waiting += [child for child, each in enumerate(self.nodes) if each[0] == node and child][::-1]
        place = {node: row for row, node in enumerate(order)}
        names = [self.nodes[node][2] for node in order]

        def column(values: list[int]) -> np.ndarray:
            return np.array([values[node] for node in order], dtype=np.int64)

        columns = {
            "parent": np.array([place.get(self.nodes[node][0], -1) if node else -1 for node in order]),
            "kind": column([node[1] for node in self.nodes]).astype(np.uint8),
            "name": np.arange(len(order), dtype=np.int32),
            "calls": column(calls),
            "total_ns": column(total),
            "own_ns": column(own_of),
            "threads": np.ones(len(order), dtype=np.int32),
            "process_id": np.full(len(order), 7),
            "gpu_ns": np.full(len(order), -1),
        }
        ids = ("span_id", "parent_id", "thread_id", "path_id", "start_ns", "duration_ns")
        spans = {
            name: np.array([span[at] for span in self.spans], dtype=np.int64) for at, name in enumerate(ids)
        }
        spans["own_ns"] = np.array([own[span[0]] for span in self.spans], dtype=np.int64)
        by_begin = np.lexsort(
            (spans["span_id"], -spans["duration_ns"], spans["start_ns"], spans["thread_id"])
        )
        new_id = np.empty(len(by_begin) + 1, dtype=np.int64)
        new_id[-1] = -1
        new_id[by_begin] = np.arange(len(by_begin))
        spans = {name: column[by_begin] for name, column in spans.items()}
        spans["span_id"], spans["parent_id"] = np.arange(len(by_begin)), new_id[spans["parent_id"]]
        return columns, names, np.array(order), spans

    def with_frames(self) -> tuple[dict[str, np.ndarray], list[str], np.ndarray]:
        """Return columns and names of the tree with Python's frames, and the number of each span."""
        *tree, spans = self.tree()
        with TemporaryDirectory() as folder, StoredSpans(Path(folder)) as stored:
            # Spans come as they end.
            order = np.argsort(spans["start_ns"] + spans["duration_ns"], kind="stable")
            for part in np.array_split(order, 3):
                if len(part):
                    stored.append(7, {name: column[part] for name, column in spans.items()})
            batches: list[dict[str, np.ndarray]] = [{"path_id": np.empty(0, dtype=np.int64)}]
            columns, names = with_python_frames(*tree, stored, self.stacks, batches.append)
        return columns, names, np.concatenate([each["path_id"] for each in batches])

    def merged(self) -> dict[str, tuple[int, int, int]]:
        """Return calls, total and self time by path."""
        tree, names, _ = self.with_frames()
        paths: list[str] = []
        for parent, name in zip(tree["parent"].tolist(), tree["name"].tolist(), strict=True):
            paths.append(f"{paths[parent]}/{names[name]}" if parent >= 0 else names[name])
        assert len(set(paths)) == len(paths)
        rows = zip(*(tree[key].tolist() for key in ("calls", "total_ns", "own_ns")), strict=True)
        return dict(zip(paths, rows, strict=True))
