# SPDX-License-Identifier: Apache-2.0
"""Dataclasses as plain data and as JSON, and back with every type checked.

Arrays of numpy are lists of numbers. A mapping may have more keys than the dataclass has fields, so that files of a
later version can be read; a missing field or a value of another type is refused.
"""

from __future__ import annotations

from typing import Any, TypeVar

import numpy as np

from gpuprof.errors import BenchmarkError, UnavailableError

try:
    import msgspec
except ImportError as error:
    raise UnavailableError(
        "msgspec is not installed, and benchmarks need it: pip install 'gpuprof-native[bench]'"
    ) from error

T = TypeVar("T")


def to_plain(value: Any) -> Any:
    """Return dataclasses, enums, arrays and containers of them as dictionaries, lists, numbers and texts."""
    return msgspec.to_builtins(value, enc_hook=_plain_array)


def from_plain(data: Any, kind: type[T], what: str = "") -> T:
    """Return plain data as a dataclass or any other type. Raises BenchmarkError, which names `what`."""
    try:
        return msgspec.convert(data, kind, dec_hook=_array)
    except msgspec.ValidationError as error:
        raise _refused(what or kind.__name__, error) from error


def encode(value: Any) -> bytes:
    """Return JSON on one line. Numbers that are not finite are null."""
    return msgspec.json.encode(value, enc_hook=_plain_array)


def decode(text: bytes | str, kind: type[T], what: str = "") -> T:
    """Read JSON as a dataclass or any other type. Raises BenchmarkError, which names `what`."""
    try:
        return msgspec.json.decode(text, type=kind, dec_hook=_array)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise _refused(what or kind.__name__, error) from error


def _refused(what: str, error: Exception) -> BenchmarkError:
    return BenchmarkError(f"{what} cannot be read ({error}): write it again with this version")


def _plain_array(value: Any) -> Any:
    if isinstance(value, (np.ndarray, np.generic)):
        return value.tolist()
    return str(value)


def _array(kind: Any, value: Any) -> Any:
    origin = getattr(kind, "__origin__", kind)
    if isinstance(origin, type) and issubclass(origin, np.ndarray):
        return np.asarray(value, dtype=np.int64)
    raise NotImplementedError(f"{kind} is not read from plain data")
