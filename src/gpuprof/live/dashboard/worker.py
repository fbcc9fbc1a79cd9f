# SPDX-License-Identifier: Apache-2.0
"""The process that reads and renders for the dashboard: a request is a line of JSON, and so is its reply.

It ends when its standard input does, so it cannot outlive the server.
"""

from __future__ import annotations

import errno
import importlib
import json
import os
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

from gpuprof.errors import GpuprofError
from gpuprof.live.dashboard.items import ItemKind, Plain

_RESTORE = "restore it from a copy, or measure again"


def _digests(root: str, entries: list[list[str]]) -> list[Plain]:
    from gpuprof.live.dashboard.digests import digest_of

    found: list[Plain] = []
    for path, kind in entries:
        try:
            found.append({"digest": digest_of(Path(root), path, ItemKind(kind))})
        except GpuprofError as error:
            found.append({"problem": [error.code, *_in_folder(root, error.message, error.hint)]})
        except Exception as error:
            reason = f"{_file_of(path, ItemKind(kind))} is not what gpuprof writes: {_reason_of(error)}"
            found.append({"problem": ["unreadable", *_in_folder(root, reason, _RESTORE)]})
    return found


def _file_of(path: str, kind: ItemKind) -> str:
    """Return the name of the file that has the figures of an entry."""
    from gpuprof.load.out_folder import SINGLE_RESULT
    from gpuprof.run.format import META_FILE

    return {ItemKind.RUN: META_FILE, ItemKind.LOAD: SINGLE_RESULT}.get(kind, Path(path).name)


def _reason_of(error: Exception) -> str:
    """Return what is wrong with a file in words: an exception of Python is none."""
    if isinstance(error, KeyError):
        return f"it has no {error.args[0]}" if error.args else "a value is missing"
    if isinstance(error, OSError):
        return f"a file cannot be read ({error.strerror or error})"
    if isinstance(error, (TypeError, AttributeError)):
        return "a value has another type"
    if isinstance(error, IndexError):
        return "a list has too few values"
    return f"a value is wrong ({error})" if isinstance(error, ValueError) else "a value is wrong"


def _in_folder(root: str, *texts: str) -> list[str]:
    """Return texts in which paths are relative to the served folder, as the page shows all paths."""
    begin = root.rstrip(os.sep) + os.sep
    return [text if begin == os.sep else text.replace(begin, "") for text in texts]


def _deferred(module: str, name: str) -> Callable[..., Any]:
    """Return a function of a module that is imported with its first call."""

    def call(**arguments: Any) -> Any:
        found = importlib.import_module(f"gpuprof.live.dashboard.{module}")
        return getattr(found, name)(**arguments)

    return call


_FULL = (errno.ENOSPC, errno.EDQUOT)


def _writing(name: str) -> Callable[..., Any]:
    """Return a function that writes a page to the temporary folder, which the user chooses by TMPDIR."""
    write = _deferred("rendering", name)

    def call(*, out: str, **arguments: Any) -> Any:
        try:
            return write(out=out, **arguments)
        except OSError as error:
            if error.errno not in _FULL:  # of a file of the entry
                raise
            reason = error.strerror
        except GpuprofError as error:
            if error.code != "cannot_write":
                raise
            reason = error.message
        Path(out).unlink(missing_ok=True)
        raise GpuprofError(
            "no_temporary_file",
            f"the page cannot be written to {Path(out).parent}: {reason}",
            hint="make room there, or start gpuprof dashboard with another folder in TMPDIR",
        )

    return call


CALLS: dict[str, Callable[..., Any]] = {
    "digests": _digests,
    "levels": _deferred("judging", "levels"),
    "compare": _deferred("judging", "compare"),
    "render": _writing("render"),
    "difference": _writing("render_difference"),
    "table": _deferred("rendering", "table"),
    "source": _deferred("rendering", "source_of"),
}


_SEE_OUTPUT = "see the output of gpuprof dashboard"


def _reply(line: bytes) -> Plain:
    root = ""
    try:
        request = json.loads(line)
        root = request["arguments"].get("root", "")
        return {"value": CALLS[request["call"]](**request["arguments"])}
    except GpuprofError as error:
        message, hint = _in_folder(root, error.message, error.hint)
        return {"error": {"code": error.code, "message": message, "hint": hint}}
    except Exception as error:
        traceback.print_exc()
        return {
            "error": {"code": "failed", "message": f"{type(error).__name__}: {error}", "hint": _SEE_OUTPUT}
        }


def main() -> None:
    """Reply to requests until there are no more."""
    # What a library prints must not be taken for a reply.
    with os.fdopen(os.dup(1), "wb") as replies, open(0, "rb", buffering=1 << 16) as requests:
        os.dup2(2, 1)
        for line in requests:
            replies.write(json.dumps(_reply(line)).encode("ascii") + b"\n")
            replies.flush()


if __name__ == "__main__":
    main()
