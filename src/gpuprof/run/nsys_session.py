# SPDX-License-Identifier: Apache-2.0
"""A capture under Nsight Systems: where nsys is, the command lines, and the run that comes of it."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from gpuprof.errors import RecordingError, RunError
from gpuprof.record.collector import NVTX_VARIABLE
from gpuprof.record.ranges import RANGE_NAME
from gpuprof.record.supervise import run_command
from gpuprof.run.imports.trace_file import import_trace
from gpuprof.run.temporary import TemporaryFolder

REPORT_NAME = "nsight.nsys-rep"
OWN_DOMAIN = "gpuprof"
Range = Literal["cuda", "nvtx"]

# Where NVIDIA's packages and installers put it.
_USUAL_PLACES = (
    "opt/nvidia/nsight-systems/*/bin/nsys",
    "opt/nvidia/nsight-systems-cli/*/bin/nsys",
    "opt/nvidia/nsight-systems/*/target-linux-*/nsys",
    "usr/local/cuda/bin/nsys",
    "usr/local/cuda-*/bin/nsys",
)


@dataclass(frozen=True, slots=True)
class Capture:
    """What is to be captured of a command."""

    command: Sequence[str]
    capture_range: Range | None = None  # only inside `gpuprof.nsight_range()`; None: all of it
    domains: Sequence[str] = ()  # NVTX domains that are wanted; none: all
    python: bool = False


def find_nsys(environment: Mapping[str, str], root: Path = Path("/")) -> Path | None:
    """Return the nsys of the path, else the newest one in the usual folders, else None."""
    found = shutil.which("nsys", path=environment.get("PATH", os.defpath))
    if found is not None:
        return Path(found)
    places = [path for pattern in _USUAL_PLACES for path in root.glob(pattern) if os.access(path, os.X_OK)]
    return max(places, key=_version, default=None)


def _version(path: Path) -> list[int]:
    return [int(number) for number in re.findall(r"\d+", str(path))]


def profile_command(nsys: str, capture: Capture, report: str) -> list[str]:
    """Return the command line that captures."""
    words = [nsys, "profile", "--trace=cuda,nvtx,osrt,cublas,cudnn", "--cuda-graph-trace=node"]
    words += ["--force-overwrite=true", f"--output={report}"]
    if capture.capture_range == "cuda":
        words.append("--capture-range=cudaProfilerApi")
    elif capture.capture_range == "nvtx":
        words += ["--capture-range=nvtx", f"--nvtx-capture={RANGE_NAME}@{OWN_DOMAIN}"]
        # Names that a program did not register with NVTX count too.
        words.append("--env-var=NSYS_NVTX_PROFILER_REGISTER_ONLY=0")
    if capture.capture_range is not None:
        # nsys would end the program with the range.
        words.append("--capture-range-end=stop")
    if capture.domains:
        words.append(f"--nvtx-domain-include={','.join(capture.domains)}")
    if capture.python:
        words.append("--python-sampling=true")
    return [*words, *capture.command]


def export_command(nsys: str, report: str, database: str) -> list[str]:
    """Return the command line that makes SQLite of a report."""
    return [nsys, "export", "--type=sqlite", "--force-overwrite=true", f"--output={database}", report]


def elsewhere(capture: Capture, out: Path) -> list[str]:
    """Return the lines that do the same on a machine that has nsys."""
    stem = out.name.removesuffix(".gpuprof") or "capture"
    report, database = f"{stem}.nsys-rep", f"{stem}.sqlite"
    lines = [
        profile_command("nsys", capture, report),
        export_command("nsys", report, database),
        ["gpuprof", "import", database, "-o", str(out)],
    ]
    return [shlex.join(line) for line in lines]


def run_capture(nsys: Path, capture: Capture, out: Path) -> tuple[int, RunError | None]:
    """Run the command under nsys, then make the run `out` of what was captured.

    Returns the command's exit code, and what went wrong afterwards, if anything did. The report itself is
    kept in the run for Nsight's own window. Raises RecordingError where nothing could be started.
    """
    if out.exists():
        raise RecordingError("exists", f"{out} exists", hint="specify another folder, or remove it")
    scratch = TemporaryFolder("gpuprof-nsys-")
    report, database = scratch.path / REPORT_NAME, scratch.path / "report.sqlite"
    environment = _environment()
    try:
        code = run_command(profile_command(str(nsys), capture, str(report)), environment)
    except OSError as error:
        raise RecordingError(
            "cannot_start", f"cannot run {nsys}: {error.strerror}", hint="install Nsight Systems again"
        ) from None
    try:
        _export(nsys, report, database, environment)
        import_trace(database, out)
        shutil.move(str(report), str(out / REPORT_NAME))
    except (RunError, RecordingError, OSError) as error:
        if isinstance(error, OSError):
            reason, message, hint = "no_capture", str(error), "free disk space, or specify another folder"
        else:
            reason, message, hint = error.code, error.message, error.hint
        return code, RunError(reason, f"the command ran, but its capture is not a run: {message}", hint=hint)
    return code, None


def _export(nsys: Path, report: Path, database: Path, environment: dict[str, str]) -> None:
    if not report.exists():
        raise RunError(
            "no_report",
            "nsys wrote no report",
            hint="see its output above, and check that the program enters the range of --range",
        )
    done = subprocess.run(
        export_command(str(nsys), str(report), str(database)),
        env=environment,
        capture_output=True,
        text=True,
        errors="replace",
        check=False,
    )
    if done.returncode != 0 or not database.exists():
        told = (done.stderr or done.stdout).strip().splitlines()
        raise RunError(
            "cannot_export",
            f"nsys export failed with {done.returncode}: {told[-1] if told else 'it printed nothing'}",
            hint="free disk space, or install Nsight Systems again",
        )


def _environment() -> dict[str, str]:
    """Return the environment without our own listener, so that nsys can put its own there."""
    environment = dict(os.environ)
    if Path(environment.get(NVTX_VARIABLE, "")).name.startswith("libgpuprof"):
        del environment[NVTX_VARIABLE]
    return environment
