# SPDX-License-Identifier: Apache-2.0
"""Dataclasses as plain data and as JSON, and back with every type checked.

Arrays of numpy are lists of numbers. Plain data may have more keys than a dataclass has fields, so that files
of a later version can be read; a missing field or a value of another type is refused.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path, PurePath
from typing import Any, TypeVar

from gpuprof.errors import BenchmarkError, UnavailableError

try:
    import msgspec
except ImportError as error:
    raise UnavailableError(
        "not_installed",
        "benchmarks need msgspec, which is not installed",
        hint="pip install 'gpuprof-native[bench]'",
    ) from error

T = TypeVar("T")
WRITE_AGAIN = "write it again with this version"


def to_plain(value: Any) -> Any:
    """Return dataclasses, enums, arrays and containers of them as dictionaries, lists, numbers and texts.

    Raises TypeError for what has no such form.
    """
    return msgspec.to_builtins(value, enc_hook=_plain)


def to_finite(value: Any) -> Any:
    """Return `to_plain` where NaN and infinity, which JSON does not know, are None."""
    return msgspec.json.decode(msgspec.json.encode(to_plain(value)))


def from_plain(data: Any, kind: type[T], what: str = "", hint: str = WRITE_AGAIN) -> T:
    """Return plain data as a dataclass or any other type. Raises BenchmarkError, which names `what`."""
    try:
        return msgspec.convert(data, kind, dec_hook=_array, str_keys=True)
    except msgspec.ValidationError as error:
        raise _refused(what or kind.__name__, error, hint) from error


def read_toml(path: Path) -> dict[str, Any]:
    """Return a table. Raises OSError, ValueError, and UnavailableError where Python 3.10 lacks tomli."""
    try:
        table: dict[str, Any] = msgspec.toml.decode(path.read_bytes())
    except ImportError as error:
        raise UnavailableError(
            "not_installed", "reading TOML on Python 3.10 needs tomli", hint="pip install tomli"
        ) from error
    return table


def encode(value: Any) -> bytes:
    """Return JSON on one line. Numbers that are not finite are null, what has no plain form is its text."""
    try:
        return msgspec.json.encode(value, enc_hook=_plain_or_text)
    except UnicodeEncodeError:  # a path that is no UTF-8
        return json.dumps(msgspec.to_builtins(value, enc_hook=_plain_or_text)).encode()


def decode(text: bytes | str, kind: type[T], what: str = "") -> T:
    """Read JSON as a dataclass or any other type. Raises BenchmarkError, which names `what`."""
    try:
        return msgspec.json.decode(text, type=kind, dec_hook=_array)
    except msgspec.ValidationError as error:
        raise _refused(what or kind.__name__, error) from error
    except (msgspec.DecodeError, UnicodeDecodeError):
        try:
            plain = json.loads(text)
        except ValueError as error:
            raise _refused(what or kind.__name__, error) from error
        return from_plain(plain, kind, what)


def _refused(what: str, error: Exception, hint: str = WRITE_AGAIN) -> BenchmarkError:
    return BenchmarkError("damaged", f"{what} cannot be read ({error})", hint=hint)


def _plain(value: Any) -> Any:
    numpy = sys.modules.get("numpy")
    if numpy is not None and isinstance(value, (numpy.ndarray, numpy.generic)):
        return value.tolist()
    if isinstance(value, (str, PurePath)):  # a subclass of str, as PyTorch's version is
        return str(value)
    raise TypeError(f"{type(value).__name__} is no plain data")


def _plain_or_text(value: Any) -> Any:
    try:
        return _plain(value)
    except TypeError:
        return str(value)


def _array(kind: Any, value: Any) -> Any:
    import numpy as np

    origin = getattr(kind, "__origin__", kind)
    if isinstance(origin, type) and issubclass(origin, np.ndarray):
        return np.asarray(value, dtype=np.int64)
    raise NotImplementedError(f"{kind} is not read from plain data")
