# SPDX-License-Identifier: Apache-2.0
"""Runs a program as Python itself would, with a recording around it.

`python -m gpuprof.record.launch OPTIONS -- [-m] TARGET ARGS...`: started by `gpuprof run`, in a process of
its own. The program finds `sys.argv`, `sys.path`, `__main__` and its standard streams as it would alone;
a traceback shows the program's frames only.
"""

from __future__ import annotations

import atexit
import importlib.util
import io
import json
import os
import signal
import sys
from pathlib import Path
from types import CodeType, ModuleType, TracebackType
from typing import Any

from gpuprof.record.collector import offer_collector
from gpuprof.record.recording import Recording

# What `gpuprof run` shows in place of a traceback when the target cannot be run at all.
EXIT_BAD_TARGET = 2
_INTERRUPTED = 128 + signal.SIGINT


def main(arguments: list[str]) -> None:
    """Run the program that the JSON in the first argument describes."""
    options: dict[str, Any] = json.loads(arguments[0])
    target, program_arguments = arguments[1], arguments[2:]
    try:
        code, module = (_load_module if options["is_module"] else _load_script)(target)
    except _BadTargetError as error:
        print(f"gpuprof: error: {error}", file=sys.stderr)
        raise SystemExit(EXIT_BAD_TARGET) from None
    sys.argv = [str(module.__file__), *program_arguments]
    sys.modules["__main__"] = module
    recording = Recording(Path(options["out"]), layers=options["layers"], operators=options["operators"])
    offer_collector()
    recording.start()
    _stop_at_exit(recording)
    _execute(code, module)


class _BadTargetError(Exception):
    pass


def _stop_at_exit(recording: Recording) -> None:
    """Stop last of all exit handlers, after the program's threads have ended; in this process only."""
    owner = os.getpid()

    def stop() -> None:
        if os.getpid() == owner:
            recording.stop()

    atexit.register(stop)


def _load_script(target: str) -> tuple[CodeType, ModuleType]:
    path = Path(target)
    if path.is_dir():
        path = path / "__main__.py"
        sys.path[0] = target
    else:
        sys.path[0] = str(path.resolve().parent)
    try:
        with io.open_code(str(path.resolve() if path.name == "__main__.py" else path)) as file:
            source = file.read()
    except OSError as error:
        raise _BadTargetError(f"cannot read the script {target}: {error.strerror}") from None
    module = ModuleType("__main__")
    module.__dict__.update(__file__=str(path), __builtins__=__builtins__)
    return _compile(source, str(path)), module


def _compile(source: bytes, filename: str) -> CodeType:
    try:
        return compile(source, filename, "exec", dont_inherit=True)
    except (SyntaxError, ValueError) as error:
        # Exactly what Python prints for a script with this mistake, and its exit code.
        sys.excepthook(type(error), error.with_traceback(None), None)
        raise SystemExit(1) from None


def _load_module(target: str) -> tuple[CodeType, ModuleType]:
    sys.path[0] = str(Path.cwd())
    try:
        spec = importlib.util.find_spec(target)
        if spec is not None and spec.submodule_search_locations is not None:
            spec = importlib.util.find_spec(f"{target}.__main__")
    except (ImportError, ValueError) as error:
        raise _BadTargetError(f"cannot find the module {target}: {error}") from None
    if spec is None or spec.loader is None:
        raise _BadTargetError(
            f"there is no module {target} that can be run: check the name and the current folder"
        )
    code = getattr(spec.loader, "get_code", lambda _: None)(spec.name)
    if code is None:
        raise _BadTargetError(f"the module {target} has no Python code to run")
    module = ModuleType("__main__")
    module.__dict__.update(
        __file__=spec.origin,
        __spec__=spec,
        __loader__=spec.loader,
        __package__=spec.parent,
        __cached__=spec.cached,
        __builtins__=__builtins__,
    )
    return code, module


def _execute(code: CodeType, module: ModuleType) -> None:
    try:
        exec(code, module.__dict__)  # noqa: S102 - running the user's program is the purpose
    except SystemExit:
        raise
    except BaseException as error:
        _show(error)
        raise SystemExit(_INTERRUPTED if isinstance(error, KeyboardInterrupt) else 1) from None


def _show(error: BaseException) -> None:
    """Print as the interpreter would: the program's own hook, without our frame above its first."""
    trace: TracebackType | None = error.__traceback__
    error.__traceback__ = trace.tb_next if trace is not None else None
    sys.last_type, sys.last_value, sys.last_traceback = type(error), error, error.__traceback__
    sys.excepthook(type(error), error, error.__traceback__)


if __name__ == "__main__":
    main(sys.argv[1:])
