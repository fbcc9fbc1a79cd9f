# SPDX-License-Identifier: Apache-2.0
"""The steps of `run.py`. Each returns its section of the report; a `problem` in it means that it failed."""

from __future__ import annotations

import json
import sys
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

from benchmarks.gpu._build import BUILD, PROGRAM_FOLDER, build, environment
from benchmarks.gpu._processes import Done, run

CAPTURES = ("streams", "transfers", "graph", "dropped", "forced_flush")
CAPTURES_LIMIT_BYTES = 5_000_000
_FOLDERS = "from gpuprof.record.kernels import cupti_folders; print(*cupti_folders(), sep='\\n')"


@dataclass(slots=True)
class Settings:
    """What the steps are told. `save` writes a section that is not finished yet."""

    out: Path
    device: str = "cuda"
    quick: bool = False
    workloads: list[str] | None = None
    profilers: list[str] | None = None
    rounds: int = 20
    apart: bool = False
    long_run: bool = False
    save: Callable[[dict[str, Any]], None] = lambda _section: None

    @property
    def log(self) -> Path:
        """Where the output of all commands goes."""
        return self.out / "log.txt"


def _python(settings: Settings, limit_s: float, *words: str | Path, **more: str) -> Done:
    variables = {**environment(), **_caches(), **more}
    return run([sys.executable, *words], limit_s=limit_s, log=settings.log, environment=variables)


def _caches() -> dict[str, str]:
    """Return where compilers keep what they made, so that it is made once for all processes."""
    return {"TORCHINDUCTOR_CACHE_DIR": str(BUILD / "inductor"), "TRITON_CACHE_DIR": str(BUILD / "triton")}


def describe(settings: Settings) -> Any:
    """Return the machine's description; None where it cannot be had."""
    done = _python(settings, 120, "-m", "benchmarks.gpu._describe")
    lines = [line for line in done.output.splitlines() if line.startswith("{")]
    return json.loads(lines[-1]) if lines else None


def build_step(settings: Settings, limit_s: float) -> dict[str, Any]:
    """Build gpuprof and the native programs."""
    BUILD.mkdir(parents=True, exist_ok=True)
    return build(limit_s, settings.log)


def doctor_step(settings: Settings, limit_s: float) -> dict[str, Any]:
    """Keep what `gpuprof doctor` says."""
    done = _python(settings, limit_s, "-m", "gpuprof", "doctor", "--json")
    try:
        return {"doctor": json.loads(done.output), "code": done.code}
    except ValueError:
        return {"problem": done.problem or "doctor printed no JSON"}


def tests_step(settings: Settings, limit_s: float) -> dict[str, Any]:
    """Run tests/gpu, and the native tests that read CUPTI's own headers."""
    with tempfile.TemporaryDirectory() as folder:
        results = Path(folder) / "junit.xml"
        words = ["-m", "pytest", "tests/gpu", "-q", "-p", "no:cacheprovider", f"--junitxml={results}"]
        if settings.long_run:
            words.append("--long-run")
        # The machine's own plugins of pytest are no part of this.
        done = _python(settings, limit_s, *words, PYTEST_DISABLE_PLUGIN_AUTOLOAD="1")
        tests = read_junit(results) if results.exists() else []
    native = {
        name: run([PROGRAM_FOLDER / name], limit_s=60, log=settings.log).problem or "passed"
        for name in ("test_cupti_abi", "test_cupti_replay")
    }
    counts = {
        state: sum(test["state"] == state for test in tests) for state in ("passed", "failed", "skipped")
    }
    section: dict[str, Any] = {"counts": counts, "tests": tests, "native": native}
    if done.problem is not None:
        section["problem"] = done.problem
    elif not counts["passed"]:
        section["problem"] = "no test ran"
    elif wrong := [name for name, state in native.items() if state != "passed"]:
        section["problem"] = f"native: {', '.join(wrong)}"
    return section


def read_junit(path: Path) -> list[dict[str, Any]]:
    """Return name, state, seconds and message of each test of pytest's report."""
    tests = []
    for case in ElementTree.parse(path).iter("testcase"):
        found = {child.tag: child for child in case}
        state = (
            "failed" if found.keys() & {"failure", "error"} else "skipped" if "skipped" in found else "passed"
        )
        why = next((child for tag, child in found.items() if tag in ("failure", "error", "skipped")), None)
        message = None if why is None else (why.get("message") or "")[:2000]
        name = f"{case.get('classname')}.{case.get('name')}"
        tests.append(
            {"test": name, "state": state, "seconds": float(case.get("time", 0)), "message": message}
        )
    return tests


def ceilings_step(settings: Settings, limit_s: float) -> dict[str, Any]:
    """Measure what the GPUs and the processors can do at best."""
    done = _python(settings, limit_s, "-m", "gpuprof", "doctor", "--ceilings", "--refresh", "--json")
    try:
        found = json.loads(done.output)
    except ValueError:
        return {"problem": done.problem or "doctor printed no JSON"}
    missing = settings.device == "cuda" and not found["gpus"]
    why = "; ".join(found["gpu_notes"]) or "no driver was found"
    return {"ceilings": found, "problem": f"no ceilings of a GPU: {why}" if missing else None}


def roofline_step(settings: Settings, limit_s: float) -> dict[str, Any]:
    """Label the cases whose label is known beforehand, and compare two runs."""
    words = ["benchmarks/roofline_cases.py", "--json", "--device", settings.device]
    words += ["--only", "add of 4 elements"] if settings.quick else []
    done = _python(settings, limit_s, *words)
    try:
        found = json.loads(done.output)
    except ValueError:
        return {"problem": done.problem or "the cases printed no JSON"}
    wrong = [case["name"] for case in found["cases"] if case["passed"] is False]
    wrong += [f"two runs, {each['model']}" for each in found["agreement"] if each["passed"] is False]
    return {**found, "problem": f"not as it must be: {', '.join(wrong)}" if wrong else None}


def captures_step(settings: Settings, limit_s: float) -> dict[str, Any]:
    """Capture CUPTI's raw buffers in each case, and replay them."""
    folders = _python(settings, 60, "-c", _FOLDERS).output.split("\n")
    golden = settings.out / "golden"
    golden.mkdir(exist_ok=True)
    cases: dict[str, Any] = {}
    for case in CAPTURES:
        file = golden / f"{case}.cupti"
        words = [str(PROGRAM_FOLDER / "cupti_capture"), case, str(file), *filter(None, folders)]
        done = run(words, limit_s=min(30, limit_s), log=settings.log)
        lines = [line.split() for line in done.output.splitlines() if len(line.split()) == 2]
        cases[case] = {"problem": done.problem, "facts": {key: int(value) for key, value in lines}}
        cases[case]["bytes"] = file.stat().st_size if file.exists() else None
        settings.save({"cases": cases})
    replay = run(
        [PROGRAM_FOLDER / "test_cupti_replay", "captures_of_a_gpu"],
        limit_s=60,
        log=settings.log,
        environment={"GPUPROF_GOLDEN_FOLDER": str(golden)},
    )
    total = sum(case["bytes"] or 0 for case in cases.values())
    problems = [f"{name}: {case['problem']}" for name, case in cases.items() if case["problem"]]
    if replay.problem is not None:
        problems.append(f"replay: {replay.problem}")
    if total > CAPTURES_LIMIT_BYTES:
        problems.append(f"{total:,} bytes are too many to keep: {CAPTURES_LIMIT_BYTES:,} at most")
    return {"cases": cases, "bytes": total, "problem": "; ".join(problems) or None}


def settle_step(settings: Settings, limit_s: float) -> dict[str, Any]:
    """Ask the open questions. In a process of its own, since only there is what was just built."""
    file = settings.out / "answers.json"
    done = _python(settings, limit_s, "benchmarks/gpu/settle.py", "--out", file)
    answers = json.loads(file.read_text(encoding="utf-8")) if file.exists() else []
    file.unlink(missing_ok=True)
    open_ones = [answer["name"] for answer in answers if answer["answer"].startswith("not settled")]
    problem = f"not settled: {', '.join(open_ones)}" if open_ones else None
    if not answers:
        problem = done.problem or "no answers"
    return {"answers": answers, "open": open_ones, "problem": problem}


def workloads_step(settings: Settings, limit_s: float) -> dict[str, Any]:
    """Measure the workloads under each profiler."""
    with tempfile.TemporaryDirectory(prefix="gpuprof-gpu-") as folder:
        plan = Path(folder) / "plan.json"
        section = settings.out / "workloads.json"
        wanted = {
            "device": settings.device,
            "workloads": settings.workloads,
            "profilers": settings.profilers,
            "rounds": 1 if settings.quick else settings.rounds,
            "limit_s": limit_s - 10,
            "apart": settings.apart,
            "tiny": settings.quick,
            "folder": folder,
            "log": str(settings.log),
            "section": str(section),
        }
        plan.write_text(json.dumps(wanted), encoding="utf-8")
        done = _python(settings, limit_s, "-m", "benchmarks.gpu._compare_all", plan)
        found: dict[str, Any] = json.loads(section.read_text("utf-8")) if section.exists() else {}
        section.unlink(missing_ok=True)
    print("".join(line for line in done.output.splitlines(keepends=True) if line.startswith("  ")), end="")
    problem = done.problem or (None if found else "nothing was measured")
    return {**found, "problem": problem}
