# SPDX-License-Identifier: Apache-2.0
"""Leaving everything as it was: what the counted program writes to is copied before its first write.

Memory that was there before the pass (parameters, buffers, inputs, an optimizer's state) is saved when an
operator is about to write to it, so a pass that writes nothing copies nothing. Of modules and optimizers the
Python side is kept too: attributes, and the contents of lists and dictionaries that are attributes.
"""

from __future__ import annotations

import random
import sys
from collections.abc import Iterable
from typing import Any

import torch

from gpuprof.record.work.call import OperatorCall
from gpuprof.record.work.sizes import storage_key

# They write to running statistics though their schema does not show it.
_HIDDEN_WRITES = frozenset(
    (
        "native_batch_norm",
        "cudnn_batch_norm",
        "miopen_batch_norm",
        "batch_norm_update_stats",
        "batch_norm_gather_stats",
        "batch_norm_gather_stats_with_counts",
    )
)
_HIDDEN_TARGETS = ("running_mean", "running_var")


class Preserved:
    """What has to be put back. `restore` does it, in whatever state the pass ended."""

    def __init__(self) -> None:
        self._saved: dict[int, tuple[torch.UntypedStorage, torch.UntypedStorage]] = {}
        self._own: set[int] = set()
        self._attributes: list[tuple[Any, dict[str, Any]]] = []
        self._containers: list[tuple[Any, Any]] = []
        self._gradients: list[tuple[torch.Tensor, torch.Tensor | None]] = []
        self._generators: dict[torch.Generator, torch.Tensor] = {}
        self._random = _RandomState()

    def keep_module(self, root: torch.nn.Module) -> None:
        """Keep the attributes and gradients of a module and of those inside it."""
        for module in root.modules():
            self._keep_attributes(module)
            self.keep_gradients(p for p in module._parameters.values() if p is not None)

    def keep_optimizer(self, optimizer: Any) -> None:
        """Keep the state and the settings of an optimizer, and the gradients that it uses."""
        self._keep_attributes(optimizer)
        for part in (*optimizer.state.values(), *optimizer.param_groups):
            self._containers.append((part, dict(part)))
        self.keep_gradients(p for group in optimizer.param_groups for p in group["params"])

    def keep_gradients(self, tensors: Iterable[torch.Tensor]) -> None:
        """Keep which gradients tensors have; what is in them is kept when it is written to."""
        self._gradients.extend((tensor, tensor.grad) for tensor in tensors if tensor.is_leaf)

    def before(self, call: OperatorCall) -> None:
        """Save what an operator is about to write to, and the state of a generator that it will draw from."""
        targets = call.written
        if call.base_name in _HIDDEN_WRITES:
            targets = [*targets, *(call[name] for name in _HIDDEN_TARGETS if call.get(name) is not None)]
        for tensor in targets:
            self._save(tensor)
        generator = call.get("generator")
        if generator is not None and generator not in self._generators:
            self._generators[generator] = generator.get_state()

    def after(self, call: OperatorCall) -> None:
        """Note which memory the operator made, so that later writes to it lose no data."""
        taken = {storage_key(tensor) for tensor in call.inputs}
        for tensor in call.outputs:
            key = storage_key(tensor)
            if key is not None and (key not in taken or call.base_name == "lift_fresh"):
                self._own.add(key)

    def restore(self) -> None:
        """Put everything back."""
        for storage, saved in self._saved.values():
            if storage.nbytes() != saved.nbytes():
                storage.resize_(saved.nbytes())
            storage.copy_(saved)
        for owner, attributes in self._attributes:
            _restore_attributes(owner, attributes)
        for container, contents in self._containers:
            _restore_container(container, contents)
        for tensor, gradient in reversed(self._gradients):
            if tensor.grad is not gradient:
                tensor.grad = gradient
        for generator, state in self._generators.items():
            generator.set_state(state)
        self._random.restore()

    def _keep_attributes(self, owner: Any) -> None:
        attributes = dict(vars(owner))
        self._attributes.append((owner, attributes))
        for value in attributes.values():
            if isinstance(value, (dict, list, set)):
                self._containers.append((value, _copy(value)))

    def _save(self, tensor: torch.Tensor) -> None:
        key = storage_key(tensor)
        if key is None or key in self._own or key in self._saved or tensor.is_meta:
            return
        storage = tensor.untyped_storage()
        if storage.nbytes():
            self._saved[key] = (storage, storage.clone())


class _RandomState:
    """The random generators that all code uses."""

    def __init__(self) -> None:
        self._python = random.getstate()
        self._torch = torch.get_rng_state()
        self._cuda = torch.cuda.get_rng_state_all() if torch.cuda.is_initialized() else None
        numpy = sys.modules.get("numpy")
        self._numpy = numpy.random.get_state() if numpy is not None else None

    def restore(self) -> None:
        random.setstate(self._python)
        torch.set_rng_state(self._torch)
        if self._cuda is not None:
            torch.cuda.set_rng_state_all(self._cuda)
        if self._numpy is not None:
            sys.modules["numpy"].random.set_state(self._numpy)


def _copy(value: Any) -> Any:
    # Not copy.copy: a subclass may do more than hold values.
    return dict(value) if isinstance(value, dict) else set(value) if isinstance(value, set) else list(value)


def _restore_container(container: Any, contents: Any) -> None:
    if _same(container, contents):
        return
    container.clear()
    container.extend(contents) if isinstance(container, list) else container.update(contents)


def _same(container: Any, contents: Any) -> bool:
    """Compare by identity: tensors do not compare with one bool."""
    if len(container) != len(contents):
        return False
    if isinstance(contents, dict):
        return all(
            key is other and value is kept
            for (key, value), (other, kept) in zip(container.items(), contents.items(), strict=True)
        )
    return all(value is kept for value, kept in zip(container, contents, strict=True))


def _restore_attributes(owner: Any, attributes: dict[str, Any]) -> None:
    now = vars(owner)
    for name in [name for name in now if name not in attributes]:
        del now[name]
    for name, value in attributes.items():
        if now.get(name, attributes) is not value:
            now[name] = value
