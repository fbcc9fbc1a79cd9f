# SPDX-License-Identifier: Apache-2.0
"""The nodes of a call tree with Python's frames in it, and the sampled time of the frames.

Needs no NumPy, whose import takes longer than the tree of a short program.
"""

from __future__ import annotations

import itertools
from collections import defaultdict
from collections.abc import Container, Mapping
from typing import Any

from gpuprof.run.format import KINDS
from gpuprof.run.span_boundaries import MOST_KEPT, NOTHING, FrameKinds
from gpuprof.run.stack_placement import FrameGroups, FrameTimes, Placement
from gpuprof.run.stacks import Frames, Stacks

PYTHON, WAITING = (KINDS.index(kind) for kind in ("python", "waiting"))
UNCOUNTED = -1  # calls of a frame
# What a new node has in place of a row of the old tree.
FRAME, WAIT = -1, -2
IDLE_THREADS = "idle threads"
NO_SPANS: Mapping[int, int] = {}
UNKNOWN_WAIT = "(waiting)"  # of which the function that waits is not known


def with_last_samples(decoded: dict[str, Any], stacks: Stacks) -> None:
    """Have a process that was never closed last until its main thread's last sample."""
    tree = decoded["tree"]
    for process in decoded["processes"]:
        process_id = process["process_id"]
        mains = [each for each in stacks.threads if each.process_id == each.thread_id == process_id]
        longer_ns = max((each.t_ns[-1] for each in mains if len(each)), default=0) - process["end_ns"]
        if process["closed"] or longer_ns <= 0:
            continue
        rows = enumerate(zip(tree["parent"], tree["process_id"], strict=True))
        roots = [row for row, (parent, of_process) in rows if parent < 0 and of_process == process_id]
        if len(roots) == 1:
            process["end_ns"] += longer_ns
            tree["own_ns"][roots[0]] += longer_ns
            tree["total_ns"][roots[0]] += longer_ns


class FrameTree:
    """A new node is a parent, and a row of the old tree or a frame; it is made before its children.

    `roots` are the rows of the processes.
    """

    def __init__(self, stacks: Stacks, roots: Mapping[int, int]) -> None:
        self.groups = FrameGroups([()], {(): 0})
        self.kinds = FrameKinds.of(stacks.texts)
        self.texts = [*stacks.texts, UNKNOWN_WAIT, IDLE_THREADS]
        self.parent: list[int] = []
        self.row: list[int] = []
        self.frame: list[int] = []
        self.sums: dict[str, list[int]] = {name: [] for name in ("calls", "total_ns", "own_ns", "gpu_ns")}
        self.thread_ids: defaultdict[int, set[int]] = defaultdict(set)
        self._unknown_wait, self._idle_threads = len(stacks.texts), len(stacks.texts) + 1
        self._roots = roots
        self._children: dict[tuple[int, int, int], int] = {}
        for row in sorted(roots.values()):
            self.child(-1, row, -1)

    def root(self, process_id: int) -> int:
        """Return the node of a process."""
        return self.child(-1, self._roots[process_id], -1)

    def child(self, parent: int, row: int, frame: int) -> int:
        """Return a node, which is made if it is new."""
        key = (parent, row, frame)
        node = self._children.get(key)
        if node is None:
            node = self._children[key] = len(self.parent)
            self.parent.append(parent)
            self.row.append(row)
            self.frame.append(frame)
            for column in self.sums.values():
                column.append(0)
        return node

    def add_frame_times(
        self,
        process_id: int,
        thread_id: int,
        placement: Placement,
        node_of_span: Mapping[int, int] = NO_SPANS,
    ) -> None:
        """Move the time of a thread's samples from the spans and processes above to the frames."""
        root = self.root(process_id)
        is_main = thread_id == process_id
        idle = None
        if not is_main and placement.is_idle():
            idle = self._wait_below(root, self._idle_threads, thread_id)
        own, frames = self.sums["own_ns"], self.groups.frames
        innermost: dict[tuple[int, int, bool], tuple[int, int]] = {}
        times = FrameTimes()

        def holder_of(key: int) -> int:
            return root if key == NOTHING else node_of_span[key]

        decided = (each for sample in placement.samples() for each in times.of(sample, holder_of))
        for holder, group, time_ns, waited in itertools.chain(decided, times.rest()):
            if not frames[group]:
                continue
            if holder != root or is_main:
                # The process has the untracked time of its main thread, and no other's.
                time_ns = min(time_ns, max(own[holder], 0))
                own[holder] -= time_ns
            if not time_ns:
                continue
            nodes = innermost.get((holder, group, waited > 0))
            if nodes is None:
                if len(innermost) >= MOST_KEPT:
                    innermost.clear()
                nodes = self._sampled_nodes(holder, frames[group], thread_id, idle, waits=waited > 0)
                innermost[holder, group, waited > 0] = nodes
            waited = min(waited, time_ns)
            own[nodes[0]] += time_ns - waited
            own[nodes[1]] += waited

    def _sampled_nodes(
        self, holder: int, frames: Frames, thread_id: int, idle: int | None, *, waits: bool
    ) -> tuple[int, int]:
        """Return the nodes of a sample's time: of that in which the thread ran, and of its wait."""
        if not waits:
            node = self._frames_below(holder, frames, thread_id)
            return node, node
        is_named = frames[-1] in self.kinds.builtins
        node = self._frames_below(holder, frames[:-1] if is_named else frames, thread_id)
        if idle is not None:
            return node, idle
        return node, self._wait_below(node, frames[-1] if is_named else self._unknown_wait, thread_id)

    def _wait_below(self, node: int, text: int, thread_id: int) -> int:
        wait = self.child(node, WAIT, text)
        self.thread_ids[wait].add(thread_id)
        return wait

    def _frames_below(self, node: int, frames: Frames, thread_id: int) -> int:
        for frame in frames:
            node = self.child(node, FRAME, frame)
            self.thread_ids[node].add(thread_id)
        return node

    def sum_up(self, groups: Container[int] = ()) -> None:
        """Sum what has no duration of its own: frames, processes, and the rows that are split `groups`."""
        total, own = self.sums["total_ns"], self.sums["own_ns"]
        inside = [0] * len(self.parent)
        for node in range(len(self.parent) - 1, -1, -1):
            row, parent = self.row[node], self.parent[node]
            if row < 0 or parent < 0 or row in groups:
                total[node] = own[node] + inside[node]
            if parent >= 0:
                inside[parent] += total[node]
                if self.row[parent] < 0:
                    self.thread_ids[parent] |= self.thread_ids[node]

    def preorder(self) -> list[int]:
        """Return the nodes in pre-order."""
        children: defaultdict[int, list[int]] = defaultdict(list)
        for node, parent in enumerate(self.parent):
            children[parent].append(node)
        order: list[int] = []
        waiting = children[-1][::-1]
        while waiting:
            node = waiting.pop()
            order.append(node)
            waiting += children[node][::-1]
        return order
