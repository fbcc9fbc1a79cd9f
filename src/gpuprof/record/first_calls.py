# SPDX-License-Identifier: Apache-2.0
"""What the first call of each outermost layer was given, kept until its work is counted, after the recording.

For each later call only the similarity of its inputs is recorded. The call itself continues at once: nothing
is copied, and no operator of PyTorch is called, since it would be in the recording.
"""

from __future__ import annotations

import math
import sys
import threading
import weakref
from collections.abc import Iterable, Iterator, MutableMapping
from dataclasses import dataclass
from itertools import chain
from typing import TYPE_CHECKING, Any, NamedTuple

from gpuprof.record.operator_windows import OperatorWindows

if TYPE_CHECKING:
    import torch


# A program that makes models without end would keep all of them alive.
MOST_ROOTS = 16
# In the recording's segments, until the run is closed.
WORK_FACTS = "work.json"
WORK_ROWS = "work.jsonl"
INPUT_ROWS = "operator_inputs.jsonl"
COUNTER_FACTS = "counters.json"
COUNTER_ROWS = "counters.jsonl"


@dataclass(slots=True)
class FirstCall:
    """A layer that was called outside of others, its arguments, and the modes that it was called in.

    `names` are those of all layers of the recording.
    """

    root: str
    module: torch.nn.Module
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    grad: bool
    inference: bool
    autocast: dict[str, Any]
    training: bool
    threads: int
    # Tensors among the arguments with the version that they had then.
    versions: list[tuple[torch.Tensor, int]]
    names: MutableMapping[torch.nn.Module, str]
    gpu: dict[str, Any] | None = None


class FirstCalls:
    """Takes the first call of each layer outside of others, and keeps these modules alive.

    `names` are the layers of the recording; `left_out` those whose first call was one too many. `windows`
    have the inputs of operators recorded after calls of a new kind.
    """

    def __init__(self, windows: OperatorWindows | None = None) -> None:
        self.calls: list[FirstCall] = []
        self.left_out: set[str] = set()
        self.windows = windows
        self.given = CallsGiven()
        self.names: MutableMapping[torch.nn.Module, str] = weakref.WeakKeyDictionary()
        self._taken: set[str] = set()

    def take(self, module: torch.nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
        """Look at a call, and keep the first of its layer. Returns whether the next one is wanted.

        Called from the native core, just before the call continues.
        """
        name = self.names.get(module)
        torch = sys.modules.get("torch")
        if name is None or torch is None:
            return False
        try:
            if is_tracing() or torch._C._current_autograd_node() is not None:
                return True
            if name not in self._taken:
                if len(self._taken) >= MOST_ROOTS:
                    self.left_out.add(name)
                    return False
                self._taken.add(name)
                self._keep(torch, name, module, args, kwargs)
            number = self.given.note(name, signature_of(torch, args, kwargs))
            if number is not None and self.windows is not None:
                self.windows.begin_call(name, number)
            return number is not None
        except (RuntimeError, TypeError, AttributeError, ValueError):
            # Of a tensor that cannot be asked. Not every error: a signal's handler may raise one here.
            return False

    def _keep(
        self, torch: Any, name: str, module: torch.nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> None:
        versions: list[tuple[Any, int]] = []
        given = (value for value in (*args, *kwargs.values()) if isinstance(value, torch.Tensor))
        self.calls.append(
            FirstCall(
                name,
                module,
                tuple(_kept(torch, value, versions) for value in args),
                {key: _kept(torch, value, versions) for key, value in kwargs.items()},
                grad=torch.is_grad_enabled(),
                inference=torch.is_inference_mode_enabled(),
                autocast=_autocast(torch),
                training=bool(module.training),
                threads=int(torch.get_num_threads()),
                versions=versions,
                names=self.names,
                gpu=gpu_of_call(torch, module, given),
            )
        )

    def release(self) -> None:
        """Let go of everything."""
        self.calls.clear()
        self.given = CallsGiven()
        self.names.clear()
        self._taken.clear()


def _kept(torch: Any, value: Any, versions: list[tuple[Any, int]]) -> Any:
    """Return what to keep of an argument: containers are copied, since programs fill them again."""
    if isinstance(value, torch.Tensor):
        if value.grad_fn is None:
            if not value.is_inference():
                versions.append((value, int(value._version)))
            return value
        # Cut off, or it would hold everything that led to it. `detach` would be in the recording.
        cut = value.data
        cut.requires_grad = True
        return cut
    if type(value) is dict:
        return {key: _kept(torch, each, versions) for key, each in value.items()}
    if type(value) in (list, tuple):
        return type(value)(_kept(torch, each, versions) for each in value)
    return value


def _autocast(torch: Any) -> dict[str, Any]:
    """Return the type that each kind of device calculates in, where a mode sets it."""
    kinds = [kind for kind in ("cpu", "cuda") if torch.is_autocast_enabled(kind)]
    return {kind: torch.get_autocast_dtype(kind) for kind in kinds}


# ---- inputs of later calls ------------------------------------------------------------------

# With more calls than these, the durations have to decide.
MOST_CALLS = 1_000_000
# Changes from alike to not alike and back: what they take in memory and in the run.
MOST_CHANGES = 10_000
_MOST_ITEMS = 64
_LONGEST_TEXT = 80

Signature = object


class _TensorSign(NamedTuple):
    sizes: tuple[Any, ...]
    dtype: Any
    device: str


def signature_of(torch: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Signature:
    """Return what of its arguments decides how much work a call is: shapes, types and switches."""
    return tuple(_sign(torch, each) for each in args), tuple(
        (name, _sign(torch, each)) for name, each in sorted(kwargs.items())
    )


def _sign(torch: Any, value: Any, depth: int = 0) -> Signature:
    if isinstance(value, torch.Tensor):
        # A size that is a symbol must not be compared: that would bind it.
        sizes = tuple(size if type(size) is int else type(size) for size in value.shape)
        return _TensorSign(sizes, value.dtype, value.device.type)
    # Numbers are left out: a step's index or a learning rate would make every call another one.
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, str):
        return value[:_LONGEST_TEXT]
    if depth < 4 and type(value) in (list, tuple):
        return type(value), len(value), tuple(_sign(torch, each, depth + 1) for each in value[:_MOST_ITEMS])
    if depth < 4 and type(value) is dict:
        first = list(value.items())[:_MOST_ITEMS]
        return dict, len(value), tuple((str(key), _sign(torch, each, depth + 1)) for key, each in first)
    return type(value), *_tensors_of(torch, value, depth)


def _tensors_of(torch: Any, value: Any, depth: int) -> Iterator[Signature]:
    """Yield the tensors that are attributes, as of a cache of keys and values; nothing else of an object."""
    attributes = getattr(value, "__dict__", None)
    if depth >= 4 or type(attributes) is not dict or isinstance(value, torch.nn.Module):
        return
    for each in list(attributes.values())[:_MOST_ITEMS]:
        if isinstance(each, torch.Tensor):
            yield _sign(torch, each)
        elif type(each) in (list, tuple):
            for item in each[:_MOST_ITEMS]:
                if isinstance(item, torch.Tensor):
                    yield _sign(torch, item)
                else:
                    yield from _tensors_of(torch, item, depth + 1)


# Different signatures of a root; more of them count as one.
MOST_SIGNATURES = 4096


class CallsGiven:
    """Which inputs calls were given, recorded for each call in order as the number of its signature.

    The signatures of a root are numbered in the order of their first calls: 0 is that of the counted call.
    """

    def __init__(self) -> None:
        self._numbers: dict[str, dict[Signature, int]] = {}
        # Run lengths for each root and thread: number, calls, number, calls...
        self._runs: dict[tuple[str, int], list[int]] = {}
        self._calls = 0
        self._changes = 0

    def note(self, root: str, signature: Signature) -> int | None:
        """Record a call of this thread. Returns the number of its signature, None after too many calls."""
        if self._calls >= MOST_CALLS or self._changes >= MOST_CHANGES:
            return None
        self._calls += 1
        numbers = self._numbers.setdefault(root, {})
        number = numbers.get(signature)
        if number is None:
            number = len(numbers)
            if number < MOST_SIGNATURES:
                numbers[signature] = number
        runs = self._runs.setdefault((root, threading.get_native_id()), [])
        if not runs or runs[-2] != number:
            runs += (number, 0)
            self._changes += 1
        runs[-1] += 1
        return number

    def as_rows(self) -> list[dict[str, Any]]:
        """Return a row for each root and thread, as plain data."""
        return [
            {"root": root, "thread_id": thread, "stretches": _stretches(runs), "runs": runs}
            for (root, thread), runs in self._runs.items()
        ]

    def signatures(self) -> dict[str, list[tuple[str, int]]]:
        """Return for the signatures of each root, by number, their structure and how many elements they have.

        Signatures with equal structures differ in the sizes of tensors alone.
        """
        return {
            root: [(_structure(each), _elements(each)) for each in numbers]
            for root, numbers in self._numbers.items()
        }


def _stretches(runs: list[int]) -> list[int]:
    """Return how many calls were alike, then not, then alike again..."""
    found = [0]
    for number, calls in zip(runs[::2], runs[1::2], strict=True):
        if (number == 0) != (len(found) % 2 == 1):
            found.append(0)
        found[-1] += calls
    return found


def _structure(signature: Signature) -> str:
    """Return the signature without its sizes."""
    return repr(_without_sizes(signature))


def _without_sizes(signature: Signature) -> Signature:
    if isinstance(signature, _TensorSign):
        return len(signature.sizes), signature.dtype, signature.device
    return tuple(map(_without_sizes, signature)) if isinstance(signature, tuple) else signature


def _elements(signature: Signature) -> int:
    if isinstance(signature, _TensorSign):
        sizes = signature.sizes
        return math.prod(sizes) if all(type(each) is int for each in sizes) else 0
    return sum(map(_elements, signature)) if isinstance(signature, tuple) else 0


# ---- what a roofline of a GPU needs besides the counted work --------------------------------


def gpu_of_call(torch: Any, module: torch.nn.Module, tensors: Iterable[Any]) -> dict[str, Any] | None:
    """Return the GPU that a call is made on and how it multiplies there; None where it is on none."""
    on_gpu = (each for each in chain(module.parameters(), tensors) if each.is_cuda)
    found = next(on_gpu, None)
    if found is None:
        return None
    return {"device": f"cuda:{found.get_device()}", "tf32": _tf32(torch)}


def _tf32(torch: Any) -> dict[str, bool | None]:
    """Return whether fp32 products may be made of shortened numbers; None where it is unknown."""
    backends = torch.backends
    return {
        "matmul": _allowed(backends.cuda.matmul, backends.cuda.matmul),
        "convolution": _allowed(backends.cudnn, getattr(backends.cudnn, "conv", None)),
    }


def _allowed(old: Any, new: Any) -> bool | None:
    # Once a program has used the newer setting, asking for the older one is an error.
    try:
        return bool(old.allow_tf32)
    except RuntimeError:
        precision = getattr(new, "fp32_precision", None)
    return None if precision is None else precision == "tf32"


def gpu_facts(torch: Any, calls: Iterable[tuple[str, dict[str, Any] | None]]) -> dict[str, Any] | None:
    """Return what a run keeps of the GPUs of its counted calls (root, `gpu_of_call`); None without one."""
    used = {root: gpu for root, gpu in calls if gpu is not None}
    if not used:
        return None
    names = sorted({gpu["device"] for gpu in used.values()})
    return {
        "roots": {root: gpu["device"] for root, gpu in used.items()},
        "devices": [_describe(torch, int(name.partition(":")[2])) for name in names],
        "tf32": {
            kind: _same([gpu["tf32"][kind] for gpu in used.values()]) for kind in ("matmul", "convolution")
        },
    }


def _describe(torch: Any, ordinal: int) -> dict[str, Any]:
    try:
        properties = torch.cuda.get_device_properties(ordinal)
    except (RuntimeError, AssertionError):  # a GPU that does not respond any more
        return {"ordinal": ordinal, "name": None, "uuid": None}
    uuid = getattr(properties, "uuid", None)
    return {"ordinal": ordinal, "name": str(properties.name), "uuid": None if uuid is None else str(uuid)}


def _same(values: list[bool | None]) -> bool | None:
    return values[0] if len(set(values)) == 1 else None


# ---- tracing: calls then do no work, and their inputs are no inputs -------------------------


def is_compiling() -> bool:
    """Whether a compiler is at work on this thread: the modules that it makes and calls are its own."""
    guards = sys.modules.get("torch._guards")
    return guards is not None and guards.TracingContext.try_get() is not None


def is_tracing() -> bool:
    """Whether calls on this thread are traced, by a compiler or by `torch.jit.trace`."""
    torch = sys.modules.get("torch")
    return is_compiling() or (torch is not None and bool(torch.jit.is_tracing()))
