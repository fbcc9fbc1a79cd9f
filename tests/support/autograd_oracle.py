# SPDX-License-Identifier: Apache-2.0
"""Which layer made each autograd node, found by hooks that walk the graph and no sequence number."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn
from torch.nn.modules import module as torch_module
from torch.utils._pytree import tree_leaves

import gpuprof

Path = tuple[str, ...]
ENGINE = "autograd::engine::evaluate_function: "
# Nodes that belong to parameters, and are made for no call.
OF_PARAMETERS = "AccumulateGrad"


def graph_of(values: Any) -> Iterator[Any]:
    """Every node that is reached from the tensors in `values`, but those of parameters."""
    tensors = [leaf for leaf in tree_leaves(values) if isinstance(leaf, torch.Tensor)]
    pending = [tensor.grad_fn for tensor in tensors if tensor.grad_fn is not None]
    seen: set[Any] = set()
    while pending:
        node = pending.pop()
        if node in seen or OF_PARAMETERS in node.name():
            continue
        seen.add(node)
        yield node
        pending += [up for up, _ in node.next_functions if up is not None]


class Owners:
    """The layers' paths of the nodes, while `watching` is entered around the forward pass."""

    def __init__(self, *roots: nn.Module) -> None:
        self._names: dict[nn.Module, str] = {}
        for root in reversed(roots):
            self._names.update({m: name or type(root).__name__ for name, m in root.named_modules()})
        self._of_node: dict[Any, Path] = {}
        self._open: list[tuple[str, set[Any]]] = []

    @contextmanager
    def watching(self) -> Iterator[None]:
        handles = [
            torch_module.register_module_forward_pre_hook(self._enter),
            torch_module.register_module_forward_hook(self._leave),
        ]
        try:
            yield
        finally:
            for handle in handles:
                handle.remove()

    def _enter(self, module: nn.Module, inputs: Any) -> None:
        self._open.append((self._names[module], set(graph_of(inputs))))

    def _leave(self, module: nn.Module, inputs: Any, output: Any) -> None:
        path = tuple(name for name, _ in self._open)
        _, before = self._open.pop()
        for node in graph_of(output):
            if node not in before:
                self._of_node.setdefault(node, path)

    def expected(self, *losses: torch.Tensor) -> Counter[tuple[Path, str]]:
        """How often the engine evaluates which node below which layers, in one pass from each loss."""
        return Counter(
            (self._of_node.get(node, ()), node.name()) for loss in losses for node in graph_of(loss)
        )


def evaluations(run: gpuprof.Run, *, of_parameters: bool = False) -> Counter[tuple[Path, str]]:
    """The same from the run: the layers between the group of the backward pass and the node."""
    rows = run.sql("SELECT node_id, parent_id, kind, name, calls FROM call_tree").fetchall()
    nodes = {node_id: row for node_id, *row in rows}

    def layers(node_id: int) -> Path:
        parent, kind, name, calls = nodes[node_id]
        if kind != "layer":
            assert (kind, name, calls) == ("backward", "backward", 0)
            return ()
        assert calls == 0
        return (*layers(parent), name)

    found: Counter[tuple[Path, str]] = Counter()
    for parent, kind, name, calls in nodes.values():
        if kind == "backward" and calls and (OF_PARAMETERS in name) == of_parameters:
            found[layers(parent), name.removeprefix(ENGINE)] += calls
    return found


def times(counts: Counter[Any], factor: int) -> Counter[Any]:
    return Counter({key: count * factor for key, count in counts.items()})


def layers_of(found: Iterable[tuple[Path, str]]) -> set[Path]:
    return {path for path, _ in found}


class Pass:
    """A forward pass that the oracle watches, then as many backward passes as are wanted."""

    def __init__(self, model: nn.Module, inputs: torch.Tensor, backwards: int = 1) -> None:
        self.model, self.inputs, self.backwards = model, inputs, backwards
        self.expected: Counter[Any] = Counter()

    def __call__(self) -> None:
        owners = Owners(self.model)
        with owners.watching():
            loss = self.model(self.inputs).sum()
        self.expected += times(owners.expected(loss), self.backwards)
        for left in reversed(range(self.backwards)):
            loss.backward(retain_graph=left > 0)
