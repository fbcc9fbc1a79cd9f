# SPDX-License-Identifier: Apache-2.0
"""Models by name, by `file.py:factory` and by file. Nothing is downloaded: weights are random.

Nothing is unpickled unless the user allows it. A factory is the user's code and is run.
"""

from __future__ import annotations

import importlib
import importlib.util
import inspect
import sys
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from gpuprof.bench.failures import place_of, reason_of
from gpuprof.bench.models.importing import module_of_file
from gpuprof.errors import BenchmarkError, UnavailableError

ModelKind = Literal[
    "name", "factory", "torchscript", "torch-export", "onnx", "tensorrt", "pickle", "combination"
]

_KIND_OF_SUFFIX: dict[str, ModelKind] = {
    ".onnx": "onnx",
    ".pt2": "torch-export",
    ".pt": "torchscript",
    ".pth": "torchscript",
    ".ts": "torchscript",
    ".engine": "tensorrt",
    ".plan": "tensorrt",
    ".pkl": "pickle",
    ".pickle": "pickle",
}
NEAR_NAMES = 4


@dataclass(frozen=True, slots=True)
class ModelSource:
    """Where a model comes from. `text` is what the user wrote, `name` what tables show."""

    kind: ModelKind
    text: str
    name: str
    path: Path | None = None
    attribute: str = ""


def parse_model(text: str, *, trust_pickle: bool = False) -> ModelSource:
    """Return what `text` names; reads a file's head, imports nothing. Raises BenchmarkError."""
    file, separator, attribute = text.rpartition(":")
    if separator and file.endswith(".py"):
        return _factory(Path(file), attribute, text)
    path = Path(text)
    if path.suffix == ".py":
        raise BenchmarkError(
            "no_factory", f"{text} is a Python file", hint=f"specify the factory in it, as in {text}:build"
        )
    if path.suffix not in _KIND_OF_SUFFIX:
        if path.is_file():
            endings = " ".join(sorted(_KIND_OF_SUFFIX))
            raise BenchmarkError(
                "unsupported_file", f"{text}: unsupported file type", hint=f"use {endings} or file.py:factory"
            )
        return ModelSource("name", text, text)
    if not path.is_file():
        raise BenchmarkError("no_such_file", f"{text}: no such file", hint="check the path")
    kind = _KIND_OF_SUFFIX[path.suffix]
    if kind == "torchscript" and not _is_torchscript(path):
        kind = "pickle"
    # torch.export.load unpickles too where its strict reader gives up.
    if kind in ("pickle", "torch-export") and not trust_pickle:
        raise BenchmarkError(
            "pickled_model",
            f"{text} holds pickled objects, which can run any code when they are read",
            hint="save the model as ONNX, or add --trust-pickle if you know who made it "
            "(in Python, trust_pickle=True)",
        )
    return ModelSource(kind, text, path.name, path)


def _factory(path: Path, attribute: str, text: str) -> ModelSource:
    if not path.is_file():
        raise BenchmarkError("no_such_file", f"{path}: no such file", hint="check the path")
    if not attribute.isidentifier():
        raise BenchmarkError(
            "no_factory", f"{text} has no function name", hint=f"add it after the colon, as in {path}:build"
        )
    return ModelSource("factory", text, f"{path.stem}:{attribute}", path, attribute)


def _is_torchscript(path: Path) -> bool:
    """Whether a file of PyTorch holds a program; a pickled object holds none."""
    import zipfile

    try:
        with zipfile.ZipFile(path) as archive:
            return any("/code/" in name for name in archive.namelist())
    except (zipfile.BadZipFile, OSError):
        return False


# --- factories -----------------------------------------------------------------------------------


def call_factory(source: ModelSource, seed: int = 0) -> Any:
    """Import the file of a factory and call it. Raises BenchmarkError for whatever it raises.

    Generators are seeded before the call: variants of one model that are made in several processes have the
    same random weights.
    """
    assert source.path is not None
    try:
        module = module_of_file(source.path)
    except Exception as error:
        raise _raised(str(source.path), error) from error
    factory = getattr(module, source.attribute, None)
    if not callable(factory):
        raise no_function(source, [name for name, each in vars(module).items() if _is_of(module, each)])
    try:
        return _seeded(factory, seed)
    except Exception as error:
        raise _raised(f"the factory {source.text}", error) from error


def _is_of(module: Any, found: Any) -> bool:
    """Whether a module's value is a function or a class that it defines, or a model."""
    is_definition = inspect.isroutine(found) or inspect.isclass(found)
    return callable(found) and (not is_definition or getattr(found, "__module__", None) == module.__name__)


def _raised(what: str, error: Exception) -> BenchmarkError:
    return BenchmarkError(
        "model_raised", f"{what} raised {reason_of(error)} at {place_of(error)}", hint="correct it first"
    )


def no_function(source: ModelSource, names: Sequence[str]) -> BenchmarkError:
    """Return the error for a file without the function, with those of its names that are near."""
    near = _near_names(source.attribute, [name for name in names if not name.startswith("_")])
    hint = f"did you mean {' or '.join(near)}?" if near else "check the name after the colon"
    return BenchmarkError("no_such_function", f"{source.path} has no function {source.attribute}", hint=hint)


def _seeded(factory: Callable[[], Any], seed: int) -> Any:
    had_torch = "torch" in sys.modules
    _seed_generators(seed)
    found = factory()
    if had_torch or "torch" not in sys.modules or not _has_drawn(sys.modules["torch"]):
        return found
    # The factory itself imported PyTorch, and drew its weights from a generator that was not seeded.
    del found
    _seed_generators(seed)
    return factory()


def _has_drawn(torch: Any) -> bool:
    """Whether random numbers have been drawn since PyTorch was imported or seeded."""
    fresh = torch.Generator().manual_seed(torch.initial_seed())
    return not torch.equal(fresh.get_state(), torch.default_generator.get_state())


def _seed_generators(seed: int) -> None:
    """Seed Python's generator, and those of what has been imported."""
    import random

    random.seed(seed)
    numpy, torch = sys.modules.get("numpy"), sys.modules.get("torch")
    if numpy is not None:
        numpy.random.seed(seed % (1 << 32))
    if torch is not None:
        torch.manual_seed(seed)


def _near_names(name: str, known: Sequence[str]) -> list[str]:
    import difflib

    return difflib.get_close_matches(name, known, NEAR_NAMES, cutoff=0.5)


# --- names ---------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class NamedModel:
    """A model with a name. `input_shape` is that of one sample, `tokens` the vocabulary."""

    model: Any
    library: str
    input_shape: tuple[int, ...]
    tokens: int | None = None


@dataclass(frozen=True, slots=True)
class _Library:
    """Where names come from: what it has, how it builds one, and the files of it that define them."""

    module: str
    files: str
    names: Callable[[], Iterable[str]]
    build: Callable[[str], NamedModel]

    @property
    def is_here(self) -> bool:
        return importlib.util.find_spec(self.module) is not None

    def mentions(self, name: str) -> bool:
        """Whether the library's files define such a function, or hold such a text; imports nothing."""
        if not self.files:
            return name in self.names()
        found = importlib.util.find_spec(self.module)
        folders = (found.submodule_search_locations or []) if found is not None else []
        texts = (
            path.read_text(encoding="utf-8", errors="replace")
            for folder in folders
            for path in Path(folder).glob(self.files)
        )
        return any(f"def {name}(" in text or f'"{name}"' in text for text in texts)


IMAGE = (3, 224, 224)
SEQUENCE = (128,)
OWN = ("resnet50", "vit_b_16")


def _module(name: str) -> Any:
    return importlib.import_module(name)


def _version(module: str) -> str:
    return f"{module} {getattr(_module(module), '__version__', 'of unknown version')}"


def _build_torchvision(name: str) -> NamedModel:
    options = {"init_weights": False} if name in ("googlenet", "inception_v3") else {}
    model = _module("torchvision.models").get_model(name, weights=None, **options)
    return NamedModel(model, _version("torchvision"), (3, 299, 299) if name == "inception_v3" else IMAGE)


def _build_timm(name: str) -> NamedModel:
    model = _module("timm").create_model(name, pretrained=False)
    return NamedModel(model, _version("timm"), tuple(model.pretrained_cfg.get("input_size", IMAGE)))


def _build_transformers(name: str) -> NamedModel:
    transformers = _module("transformers")
    config = transformers.AutoConfig.for_model(name)
    tokens, size = getattr(config, "vocab_size", None), getattr(config, "image_size", 224)
    shape = (3, size, size) if tokens is None else SEQUENCE
    return NamedModel(transformers.AutoModel.from_config(config), _version("transformers"), shape, tokens)


def _build_own(name: str) -> NamedModel:
    return NamedModel(getattr(_module("gpuprof.bench.models.torch_networks"), name)(), "gpuprof's own", IMAGE)


TORCH_LIBRARIES = {
    each.module: each
    for each in (
        _Library(
            "torchvision",
            "models/**/*.py",
            lambda: _module("torchvision.models").list_models(module=_module("torchvision.models")),
            _build_torchvision,
        ),
        _Library("timm", "models/*.py", lambda: _module("timm").list_models(), _build_timm),
        _Library(
            "transformers",
            "models/auto/*.py",
            lambda: _module("transformers.models.auto.configuration_auto").CONFIG_MAPPING_NAMES,
            _build_transformers,
        ),
        _Library("gpuprof", "", lambda: OWN, _build_own),
    )
}


def build_torch(text: str) -> NamedModel:
    """Build the PyTorch model of a name: `resnet50`, or `timm:resnet50` of one library.

    Of the libraries that are installed the first in TORCH_LIBRARIES that has it. Raises BenchmarkError.
    """
    library, name = _found(text)
    try:
        return library.build(name)
    except Exception as error:
        raise BenchmarkError(
            "cannot_build",
            f"{text}: {library.module} cannot build it without weights ({reason_of(error)})",
            hint="name a factory instead, as in file.py:build",
        ) from error


def check_name(text: str, framework: str) -> None:
    """Raise BenchmarkError where no library has a model of this name. Imports one only to check that."""
    if framework == "jax":
        _check_own(text)
        return
    name, here = _libraries(text)
    if not any(each.mentions(name) for each in here):
        _found(text)


def _check_own(name: str) -> None:
    if name not in OWN:
        raise _unknown_name(name, OWN)


def _libraries(text: str) -> tuple[str, list[_Library]]:
    """Return the name, and those installed libraries that may have it. Raises BenchmarkError."""
    library, separator, name = text.partition(":")
    if not separator:
        return text, [each for each in TORCH_LIBRARIES.values() if each.is_here]
    if library not in TORCH_LIBRARIES:
        raise BenchmarkError(
            "unknown_library",
            f"{text}: no library {library!r}",
            hint=f"use one of {', '.join(TORCH_LIBRARIES)}",
        )
    if not TORCH_LIBRARIES[library].is_here:
        raise UnavailableError(
            "not_installed", f"{text}: {library} is not installed", hint=f"pip install {library}"
        )
    return name, [TORCH_LIBRARIES[library]]


def _found(text: str) -> tuple[_Library, str]:
    """Return the library of a model and its name there. Raises BenchmarkError."""
    name, here = _libraries(text)
    known: list[str] = []
    broken: list[str] = []
    for each in here:
        try:
            names = [*each.names()]
        except Exception as error:
            # Built for another PyTorch, as a rule. Another library may still have the model.
            broken.append(f"{each.module} cannot be imported ({reason_of(error)})")
            continue
        if name in names:
            return each, name
        known += names
    if ":" in text and broken:
        raise UnavailableError(
            "cannot_import", f"{text}: {broken[0]}", hint="install the version that fits your PyTorch"
        )
    raise _unknown_name(text, known, broken)


def build_flax(name: str) -> NamedModel:
    """Build the flax model of a name. Raises BenchmarkError."""
    _check_own(name)
    model = getattr(_module("gpuprof.bench.models.flax_networks"), name)()
    return NamedModel(model, f"gpuprof's own, {_version('flax')}", (224, 224, 3))


def _unknown_name(text: str, known: Sequence[str], broken: Sequence[str] = ()) -> BenchmarkError:
    """Return the error for a name that no library has, with those that are near."""
    names = _near_names(text, known) or sorted(known)[:8]
    why = "".join(f"; {line}" for line in broken)
    hint = f"use {', '.join(names)}, file.py:factory or a .onnx file"
    return BenchmarkError("unknown_model", f"unknown model {text!r}{why}", hint=hint)
