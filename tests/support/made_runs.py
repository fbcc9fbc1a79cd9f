# SPDX-License-Identifier: Apache-2.0
"""Runs of a known truth: a model of layers whose calls take times that a seed draws."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np

from gpuprof.analyze.call_tree import CallTree
from gpuprof.analyze.calls import Calls, cut_into_blocks
from gpuprof.analyze.difference import Sample
from gpuprof.run.format import KINDS

LAYER_NS = 100_000.0
# Rows of the tree: process, step, model, then a layer and its operator by turns.
PROCESS, STEP, MODEL, FIRST_LAYER = range(4)


@dataclass(frozen=True)
class Truth:
    """What a run's times are drawn from; `slower` gives factors of layers, by their number."""

    layers: int = 50
    steps: int = 100
    spread: float = 0.05
    correlation: float = 0.0  # of a call with the call before it
    start_spread: float = 0.0  # of whole runs
    slower: Mapping[int, float] = field(default_factory=dict)


def layer_row(layer: int) -> int:
    return FIRST_LAYER + 2 * layer


def operator_row(layer: int) -> int:
    return layer_row(layer) + 1


def durations(truth: Truth, random: np.random.Generator) -> np.ndarray:
    """Times of the operators, steps x layers, and in the layers around them."""
    shape = (truth.steps, truth.layers)
    noise = random.standard_normal(shape)
    for step in range(1, truth.steps):
        kept = truth.correlation
        noise[step] = kept * noise[step - 1] + np.sqrt(1 - kept**2) * noise[step]
    factor = np.ones(truth.layers)
    for layer, times in truth.slower.items():
        factor[layer] = times
    run_factor = np.exp(truth.start_spread * random.standard_normal(truth.layers))
    return LAYER_NS * factor * run_factor * np.exp(truth.spread * noise)


def make_tree(truth: Truth, operators: np.ndarray, overhead: np.ndarray) -> CallTree:
    rows = 3 + 2 * truth.layers
    parent = np.array([-1, PROCESS, STEP] + [MODEL, 0] * truth.layers, dtype=np.int32)
    parent[4::2] = np.arange(3, rows, 2)
    kinds = ["process", "span", "layer"] + ["layer", "operator"] * truth.layers
    layers = [name for layer in range(truth.layers) for name in (f"layers.{layer}", "aten::mm")]
    names = list(dict.fromkeys(["python train.py", "step", "Model", *layers]))
    texts = ["python train.py", "step", "Model", *layers]
    own = np.zeros(rows)
    own[3::2], own[4::2] = overhead.sum(axis=0), operators.sum(axis=0)
    total = own.copy()
    for row in range(rows - 1, 0, -1):
        total[parent[row]] += total[row]
    return CallTree(
        parent=parent,
        kind=np.array([KINDS.index(kind) for kind in kinds], dtype=np.uint8),
        name=np.array([names.index(text) for text in texts], dtype=np.int32),
        calls=np.array([0] + [truth.steps] * (rows - 1), dtype=np.int64),
        total_ns=total.astype(np.int64),
        own_ns=own.astype(np.int64),
        threads=np.ones(rows, dtype=np.int32),
        process_id=np.ones(rows, dtype=np.int64),
        names=names,
    )


def make_calls(truth: Truth, operators: np.ndarray, overhead: np.ndarray) -> Calls:
    """All calls; each step begins a second after the one before."""
    rows = 3 + 2 * truth.layers
    own = np.zeros((truth.steps, rows))
    own[:, 3::2], own[:, 4::2] = overhead, operators
    total = own.copy()
    total[:, 3::2] += operators
    total[:, STEP] = total[:, MODEL] = total[:, 3::2].sum(axis=1)
    start = np.arange(truth.steps)[:, None] * 10**9 + np.arange(rows)[None, :]
    node = np.broadcast_to(np.arange(rows), own.shape)
    columns = [each[:, 1:].reshape(-1) for each in (node, start, total, own)]
    node_ids, starts, durations_ns = (each.astype(np.int64) for each in columns[:3])
    return Calls(node_ids, starts, durations_ns, columns[3], np.ones(len(node_ids), dtype=np.bool_))


def make_sample(truth: Truth, seed: int | tuple[int, ...]) -> Sample:
    """One run as the comparison sees it."""
    random = np.random.default_rng(seed)
    operators = durations(truth, random)
    overhead = 0.05 * LAYER_NS * np.exp(truth.spread * random.standard_normal(operators.shape))
    tree = make_tree(truth, operators, overhead)
    calls = make_calls(truth, operators, overhead)
    return Sample(
        total_ns=tree.total_ns.astype(np.float64),
        own_ns=tree.own_ns.astype(np.float64),
        calls=tree.calls,
        exists=np.ones(len(tree), dtype=np.bool_),
        repetitions=truth.steps,
        whole_ns=float(tree.own_ns.sum()),
        blocks=cut_into_blocks(tree, calls, calls, STEP),
    )
