# SPDX-License-Identifier: Apache-2.0
"""Models that the caller holds in memory, for worker processes: pickled once, with a file of a factory.

What a worker unpickles is what this user's own process pickled, in a folder that only this user can read; it
is removed when the process ends. Classes and functions are found by name, those of the caller's script by its
file.
"""

from __future__ import annotations

import atexit
import functools
import io
import itertools
import pickle
import re
import shutil
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from gpuprof.bench.config import SystemSpec
from gpuprof.bench.failures import reason_of
from gpuprof.bench.models.importing import module_of_file
from gpuprof.errors import BenchmarkError

_FACTORY = """\
from gpuprof.bench.models.model_transfer import load_model


def build():
    return load_model({file!r}, {script!r}, {search_path!r})
"""
_numbers = itertools.count()


def spec_of_model(name: str, model: Any) -> SystemSpec:
    """Return the spec of a model: a SystemSpec, what `gpuprof bench` takes as text, or an object.

    An object is a module, a callable, or a pair of one and a function that makes the inputs of a batch size.
    It is measured as it is now: later changes of it are not seen. Raises BenchmarkError where it is neither,
    or where a fresh process cannot have it.
    """
    if isinstance(model, SystemSpec):
        return model
    if isinstance(model, (str, Path)):
        return SystemSpec(str(model))
    measured = model[0] if isinstance(model, tuple) and len(model) == 2 else model
    if isinstance(measured, type) or not callable(measured):
        raise BenchmarkError(
            "invalid_model",
            f"{name}: {type(model).__name__} is no model",
            hint="use a module, a callable, a SystemSpec, or a text such as 'resnet50' or 'model.py:build'",
        )
    return SystemSpec(f"{_write(name, model)}:build")


def _write(name: str, model: Any) -> Path:
    """Write a model and its factory; returns the file of the factory."""
    script = _script_of(name, model)
    content = _pickled(name, model)
    stem = re.sub(r"\W+", "_", name, flags=re.ASCII).strip("_")[:40] or "model"
    folder = _folder() / str(next(_numbers))
    folder.mkdir()
    (folder / "model.pickle").write_bytes(content)
    factory = folder / f"{stem}.py"
    text = _FACTORY.format(file=str(folder / "model.pickle"), script=script, search_path=sys.path)
    factory.write_text(text, encoding="utf-8", errors="surrogatepass")
    return factory


@functools.cache
def _folder() -> Path:
    folder = Path(tempfile.mkdtemp(prefix="gpuprof-models-"))  # for this user alone
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return folder


def _pickled(name: str, model: Any) -> bytes:
    torch, buffer = sys.modules.get("torch"), io.BytesIO()
    try:
        if torch is not None:
            torch.save(model, buffer)  # tensors of the GPU and shared ones too
        else:
            pickle.dump(model, buffer)
    except Exception as error:
        # Each library refuses in its own way.
        raise BenchmarkError(
            "not_importable",
            f"{name}: it cannot be sent to fresh processes ({reason_of(error)})",
            hint="define it at the top of a module, or use a factory, as in 'model.py:build'",
        ) from error
    return buffer.getvalue()


def _script_of(name: str, model: Any) -> str | None:
    """Return the file of the script where it defines a part of the model. Raises BenchmarkError."""
    if not any(getattr(each, "__module__", None) == "__main__" for each in _definitions(model)):
        return None
    file = getattr(sys.modules["__main__"], "__file__", None)
    if file is None or not Path(file).is_file():
        raise BenchmarkError(
            "not_importable",
            f"{name}: it is defined in this session, which fresh processes cannot import",
            hint="put it into a file",
        )
    return str(Path(file).resolve())


def _definitions(model: Any) -> Iterator[Any]:
    """Yield the functions and classes that a model is made of, as far as they can be seen."""
    for each in model if isinstance(model, tuple) else (model,):
        yield each
        modules = getattr(each, "modules", None)
        for part in modules() if callable(modules) else ():
            yield type(part)
        yield type(each)


# --- in the worker process -----------------------------------------------------------------------


def load_model(file: str, script: str | None, search_path: list[str]) -> Any:
    """Return the model of a file that `spec_of_model` wrote."""
    sys.path[:] = search_path
    if script is None:
        return _loaded(Path(file))
    own = sys.modules["__main__"]
    # The script's classes were pickled as those of `__main__`.
    sys.modules["__main__"] = module_of_file(Path(script))
    try:
        return _loaded(Path(file))
    finally:
        sys.modules["__main__"] = own


def _loaded(file: Path) -> Any:
    content = file.read_bytes()
    if content.startswith(b"PK"):  # of torch.save
        import torch

        return torch.load(io.BytesIO(content), map_location="cpu", weights_only=False)
    return pickle.loads(content)  # noqa: S301 - see the module's docstring
