# SPDX-License-Identifier: Apache-2.0
"""The settings of a program that decide its speed: of its data loaders, its optimizers and its threads."""

from __future__ import annotations

import contextlib
import dataclasses
import math
import sys
import weakref
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from inspect import unwrap
from types import FunctionType
from typing import Any, TypeVar, get_type_hints

from gpuprof import _native
from gpuprof.record.facts import Method, SourceStatus
from gpuprof.record.frame_text import OWN_FOLDER
from gpuprof.record.import_hook import ImportHook
from gpuprof.record.loader_places import loader_places
from gpuprof.record.processor import processor_quota, usable_processors

_Settings = TypeVar("_Settings", "LoaderSettings", "OptimizerSettings", "ThreadSettings")


@dataclass(frozen=True, slots=True)
class LoaderSettings:
    """A PyTorch data loader that was iterated.

    `dataset` is the name of its class. `prefetch_factor` is None without workers; `batch_size` is None if a
    batch sampler decides or if samples are not collected into batches. The functions are those of
    `LoaderPlaces`, None in older runs. `iterated` is None, too, if equal loaders are iterated at several
    places.
    """

    dataset: str
    workers: int
    prefetch_factor: int | None
    pin_memory: bool
    persistent_workers: bool
    batch_size: int | None
    iterated: str | None = None
    iterated_line: int | None = None
    item: str | None = None
    collate: str | None = None


@dataclass(frozen=True, slots=True)
class ParameterShape:
    """Parameters of one shape and type, as `float32`; `count` of them."""

    shape: tuple[int, ...]
    dtype: str
    count: int


@dataclass(frozen=True, slots=True)
class OptimizerSettings:
    """A PyTorch optimizer that made a step.

    `name` is its class. `fused` and `foreach` are its options; None is PyTorch's default, or no such option,
    or a difference between its groups of parameters. `can_be_fused`: the class has a fused implementation,
    which takes the types and devices of all parameters. `elements` are those of all `parameters`.

    `shapes` are those of all parameters, None if there are more than 1,000 different ones or in older runs.
    `options` are the flags and numbers it was made with that decide what it calculates, as `weight_decay`.
    """

    name: str
    fused: bool | None
    foreach: bool | None
    can_be_fused: bool
    parameters: int
    elements: int
    devices: tuple[str, ...]
    shapes: tuple[ParameterShape, ...] | None = None
    options: tuple[tuple[str, float], ...] = ()


@dataclass(frozen=True, slots=True)
class ThreadSettings:
    """PyTorch's threads, within an operator and between operators, at the end of the recording.

    `usable_processors` are those of the process's affinity mask, at most as many as the quota of its control
    groups is worth.
    """

    intra_op: int
    inter_op: int
    usable_processors: float


@dataclass(frozen=True, slots=True)
class ProgramSettings:
    """The settings of a run: loaders and optimizers in the order of their first use, without repetition.

    `threads` is None where no process used PyTorch.
    """

    loaders: tuple[LoaderSettings, ...] = ()
    optimizers: tuple[OptimizerSettings, ...] = ()
    threads: ThreadSettings | None = None

    def to_plain(self) -> dict[str, Any]:
        """Return plain data for JSON, which `from_plain` reads."""
        return dataclasses.asdict(self)

    @classmethod
    def from_plain(cls, plain: Mapping[str, Any]) -> ProgramSettings:
        """Read what `to_plain` wrote. Raises ValueError, KeyError or TypeError for anything else."""
        threads = plain["threads"]
        return cls(
            tuple(_read(LoaderSettings, each) for each in plain["loaders"]),
            tuple(_read(OptimizerSettings, each) for each in plain["optimizers"]),
            None if threads is None else _read(ThreadSettings, threads),
        )


def _read(settings: type[_Settings], plain: Mapping[str, Any]) -> _Settings:
    """Read plain data, without what a later version may add. Raises KeyError or TypeError."""
    values = {
        each.name: plain[each.name]
        if each.default is dataclasses.MISSING
        else plain.get(each.name, each.default)
        for each in dataclasses.fields(settings)
    }
    for name, read in _READERS.items():
        if values.get(name) is not None:
            values[name] = read(values[name])
    for name, kind in get_type_hints(settings).items():
        if name not in _READERS and not isinstance(values[name], _PLAIN_TYPES.get(kind, kind)):
            raise TypeError(f"{name} is {values[name]!r}")
    return settings(**values)


def _read_shapes(plain: Any) -> tuple[ParameterShape, ...]:
    return tuple(
        ParameterShape(tuple(map(int, each["shape"])), str(each["dtype"]), int(each["count"]))
        for each in plain
    )


def _read_options(plain: Any) -> tuple[tuple[str, float], ...]:
    if not all(isinstance(value, bool | int | float) for _, value in plain):
        raise TypeError(f"options are {plain!r}")
    return tuple((str(name), value) for name, value in plain)


# Where JSON has another type.
_PLAIN_TYPES: dict[Any, Any] = {float: (int, float)}
_READERS: dict[str, Callable[[Any], Any]] = {
    "devices": lambda plain: tuple(map(str, plain)),
    "shapes": _read_shapes,
    "options": _read_options,
}


# ---- recording -------------------------------------------------------------------------------

MOST_OF_A_KIND = 64  # loaders, or optimizers, of which the settings are kept
_MOST_OPTIMIZERS = 1024  # objects of which it is remembered that they were looked at
_MOST_SHAPES = 1_000
_SWITCHES = ("weight_decay", "momentum", "dampening")
_LONGEST_NAME = 200
_LOADERS = "torch.utils.data.dataloader"
# They are made where an iteration begins.
_ITERATORS = ("_SingleProcessDataLoaderIter", "_MultiProcessingDataLoaderIter")


class SettingsSource:
    """Looks at loaders where their iteration begins, and at optimizers before their first step.

    Neither is kept alive. A step costs a look into a dictionary. What cannot be read is left out. Calls are
    watched without a hook of PyTorch, which the compiler would trace.
    """

    def __init__(self, found: Callable[[], None] = lambda: None) -> None:
        """Call `found` for each new loader or optimizer, so that a program that is killed leaves it."""
        self._found = found
        # In the order of their first use; loaders by their settings without the place of the iteration.
        self._loaders: dict[LoaderSettings, LoaderSettings] = {}
        self._optimizers: dict[OptimizerSettings, None] = {}
        self._threads: ThreadSettings | None = None
        self._has_ended = False
        self._seen: dict[int, weakref.ref[Any]] = {}
        self._hook: ImportHook | None = None
        self._watched: list[FunctionType] = []
        failures: set[type[Exception]] = set()
        self._at_loader = _native.QuietCall(self._note_loader, OWN_FOLDER, failures)
        self._at_new_optimizer = _native.QuietCall(self._watch_class_of, OWN_FOLDER, failures)
        self._at_step = _native.QuietCall(self.note_optimizer, OWN_FOLDER, failures)

    def start(self) -> SourceStatus:
        """Begin; torch is imported. Returns the source's status."""
        optimizer = getattr(sys.modules.get("torch.optim"), "Optimizer", None)
        if isinstance(optimizer, type):
            self._watch(vars(optimizer).get("__init__"), self._at_new_optimizer, 0)
            for kind in _with_subclasses(optimizer):
                self._watch_steps_of(kind)
        if _LOADERS in sys.modules:
            self._watch_loaders()
        else:
            self._hook = ImportHook(_LOADERS, self._watch_loaders)
            self._hook.install()
        return SourceStatus.on(Method.RECORDED)

    def stop(self) -> None:
        """End, and read the numbers of threads."""
        if self._hook is not None:
            self._hook.remove()
            self._hook = None
        for function in self._watched:
            _native.release_calls(function)
        self._watched.clear()
        self._seen.clear()
        # The program's torch may be another library.
        with contextlib.suppress(Exception):
            self._threads = _thread_settings()
        self._has_ended = True

    @property
    def facts(self) -> dict[str, Any]:
        """Facts for the file of the recording: the settings, if there are any."""
        settings = self.settings
        return {} if settings is None else {"settings": settings.to_plain()}

    @property
    def settings(self) -> ProgramSettings | None:
        """What was seen until now; None before the end if there was nothing. Threads are known at the end."""
        if not (self._has_ended or self._loaders or self._optimizers):
            return None
        return ProgramSettings(tuple(self._loaders.values()), tuple(self._optimizers), self._threads)

    def _watch(self, function: object, callback: Callable[..., Any], place: int) -> None:
        if isinstance(function, FunctionType) and function not in self._watched:
            _native.watch_calls(function, callback, place)
            self._watched.append(function)

    def _watch_loaders(self) -> None:
        module = sys.modules[_LOADERS]
        for name in _ITERATORS:
            self._watch(vars(getattr(module, name, object)).get("__init__"), self._at_loader, 1)

    def _watch_class_of(self, optimizer: Any) -> None:
        for kind in type(optimizer).__mro__:
            self._watch_steps_of(kind)

    def _watch_steps_of(self, kind: type) -> None:
        # PyTorch wraps them. The innermost function is called by a wrapper with `*args`, and so through the
        # function's entry; direct calls of a function Python 3.11 executes without it.
        self._watch(unwrap(vars(kind).get("step", object)), self._at_step, 0)

    def _note_loader(self, loader: Any) -> None:
        # A program's loader may refuse to be read.
        with contextlib.suppress(Exception):
            found = _loader_settings(loader)
            anywhere = dataclasses.replace(found, iterated=None, iterated_line=None)
            if anywhere in self._loaders:
                if self._loaders[anywhere] != found:
                    self._loaders[anywhere] = anywhere
            elif len(self._loaders) < MOST_OF_A_KIND:
                self._loaders[anywhere] = found
                self._found()

    def note_optimizer(self, optimizer: Any) -> None:
        """Look at an optimizer, if it is a new one. Another object may have its address later."""
        seen = self._seen.get(id(optimizer))
        if seen is not None and seen() is optimizer:
            return
        if len(self._optimizers) >= MOST_OF_A_KIND or len(self._seen) >= _MOST_OPTIMIZERS:
            return
        with contextlib.suppress(Exception):
            self._seen[id(optimizer)] = weakref.ref(optimizer)
            # What only passes steps on to an optimizer, as that of accelerate, is none.
            if getattr(type(optimizer).step, "hooked", False):
                known = len(self._optimizers)
                self._optimizers.setdefault(_optimizer_settings(optimizer))
                if len(self._optimizers) > known:
                    self._found()


def _with_subclasses(kind: type) -> Iterator[type]:
    yield kind
    each: type
    for each in type.__subclasses__(kind):
        yield from _with_subclasses(each)


def _class_name(value: object) -> str:
    # Not `__class__`, which an object may define as it likes.
    return str(type(value).__name__)[:_LONGEST_NAME]


def _loader_settings(loader: Any) -> LoaderSettings:
    workers = int(loader.num_workers)
    factor, batch_size = loader.prefetch_factor, loader.batch_size
    return LoaderSettings(
        dataset=_class_name(loader.dataset),
        workers=workers,
        prefetch_factor=None if factor is None or not workers else int(factor),
        pin_memory=bool(loader.pin_memory),
        persistent_workers=bool(loader.persistent_workers),
        batch_size=None if batch_size is None else int(batch_size),
        **dataclasses.asdict(loader_places(loader)),
    )


def _optimizer_settings(optimizer: Any) -> OptimizerSettings:
    import torch

    groups = optimizer.param_groups
    # A parameter may be of a class that takes over such calls.
    with torch._C.DisableTorchFunctionSubclass():
        parameters = [each for group in groups for each in group["params"]]
        return OptimizerSettings(
            name=_class_name(optimizer),
            fused=_option(groups, "fused"),
            foreach=_option(groups, "foreach"),
            can_be_fused=_can_be_fused(optimizer, parameters),
            parameters=len(parameters),
            elements=sum(each.numel() for each in parameters),
            devices=tuple(sorted({str(each.device) for each in parameters})),
            shapes=_shapes(parameters),
            options=_numbers(optimizer.defaults),
        )


def _shapes(parameters: list[Any]) -> tuple[ParameterShape, ...] | None:
    counts = Counter((tuple(each.shape), str(each.dtype).removeprefix("torch.")) for each in parameters)
    if len(counts) > _MOST_SHAPES:
        return None
    return tuple(ParameterShape(shape, dtype, count) for (shape, dtype), count in counts.items())


def _numbers(defaults: Mapping[str, Any]) -> tuple[tuple[str, float], ...]:
    """Return the options that decide what a step calculates: all flags, and numbers that switch a part on."""
    return tuple(
        (name, value)
        for name, value in defaults.items()
        if (isinstance(value, bool) and name not in ("fused", "foreach"))
        or (name in _SWITCHES and isinstance(value, int | float) and math.isfinite(value))
    )


def _option(groups: Iterable[Mapping[str, Any]], name: str) -> bool | None:
    values = {group.get(name) for group in groups}
    value = values.pop() if len(values) == 1 else None
    return value if isinstance(value, bool) else None


def _can_be_fused(optimizer: Any, parameters: list[Any]) -> bool:
    """Whether PyTorch has a fused implementation that takes the parameters; not of the program's classes."""
    import torch
    from torch.utils import _foreach_utils

    kind, defaults = type(optimizer), optimizer.defaults
    if kind not in vars(torch.optim).values() or "fused" not in defaults or defaults.get("differentiable"):
        return False
    devices = set(_foreach_utils._get_fused_kernels_supported_devices())
    if kind is torch.optim.Adagrad:
        devices &= {"cpu"}
    return all(each.device.type in devices and each.is_floating_point() for each in parameters)


def _thread_settings() -> ThreadSettings:
    import torch

    usable = float(len(usable_processors()))
    quota = processor_quota()
    return ThreadSettings(
        intra_op=int(torch.get_num_threads()),
        inter_op=int(torch.get_num_interop_threads()),
        usable_processors=usable if quota is None else min(usable, quota),
    )
