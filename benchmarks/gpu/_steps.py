# SPDX-License-Identifier: Apache-2.0
"""The steps of `run.py`. Each runs its items within the limits of the call, which writes them down."""

from __future__ import annotations

import json
import shutil
import tarfile
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks.gpu._build import BUILD, PROGRAM_FOLDER
from benchmarks.gpu._call import Call, Command, json_text, python
from benchmarks.gpu._journal import read
from benchmarks.gpu._processes import Done
from benchmarks.gpu._questions import QUESTIONS

CAPTURES = ("streams", "transfers", "graph", "dropped", "forced_flush")
CAPTURES_LIMIT_BYTES = 5_000_000
KEY_WORKLOADS = ("small_kernels", "convnet.inference.1", "transformer.decode", "graph.decode")
KEY_PROFILERS = ("gpuprof", "gpuprof, kernels only", "gpuprof, whole graphs", "torch.profiler")
REST_WORKLOADS = ("convnet.inference.32", "convnet.training.32", "transformer.prefill", "streams", "compiled")
REST_PROFILERS = ("gpuprof", "torch.profiler", "proton", "cupti-python")
# Files of tests/gpu that no other step runs, in pieces of about the same time. What compares durations runs
# alone.
_TESTS_TOGETHER = (
    ("test_attribution.py", "-k", "compiled"),
    ("test_attribution.py", "-k", "not compiled"),
    ("test_lifecycle.py", "-k", "long_run or samples or clock"),
    ("test_lifecycle.py", "-k", "not long_run and not samples and not clock"),
    ("test_transfers.py",),
)
_TESTS_ALONE = ("test_with_torch_profiler.py", "test_second_opinion.py")
ROOFLINE_CASES = (
    "copy, 4x",
    "add, 4x",
    "bf16 product",
    "3x3 conv",
    "bf16 linear",
    "softmax",
    "adds of 4",
    "after a product",
    "depthwise",
    "attention",
)
_FOLDERS = "from gpuprof.record.kernels import cupti_folders; print(*cupti_folders(), sep='\\n')"
# Without names and serial numbers, since reports are published.
_PROCESSOR = "lscpu | head -40; uname -srm; cat /sys/devices/system/clocksource/*/current_clocksource"
_NVIDIA_SMI = ("nvidia-smi", "-q", "-d", "CLOCK,POWER,PERFORMANCE,MEMORY,TEMPERATURE,ECC")


def build(call: Call) -> None:
    """Build gpuprof and the native programs; describe the machine meanwhile."""
    left_s = call.left_s()
    BUILD.mkdir(parents=True, exist_ok=True)
    call.run_together(
        [
            Command("package", python("-m", "benchmarks.gpu._build", call.log, str(left_s)), left_s),
            Command("machine", python("-m", "benchmarks.gpu._describe"), 60, optional=True),
            Command("packages", python("-m", "pip", "list", "--format=freeze"), 60, optional=True),
            Command("nvidia-smi", _NVIDIA_SMI, 30, optional=True),
            Command("processor", ["sh", "-c", _PROCESSOR], 30, optional=True),
        ],
        at_once=5,
    )


def doctor(call: Call) -> None:
    """Keep the output of `gpuprof doctor`."""
    command = python("-m", "gpuprof", "doctor", "--json")
    call.run(Command("doctor", command, 60, facts=json_text, good_codes=(0, 1, 3)))


def captures(call: Call) -> None:
    """Capture CUPTI's raw buffers in each case, pack them after each, and replay them."""
    folders = _cupti_folders(call)
    packed = call.out / f"{call.name}-golden.tar.gz"
    with tempfile.TemporaryDirectory(prefix="gpuprof-captures-") as name:
        golden = Path(name) / "golden"
        golden.mkdir()
        for case in CAPTURES:
            program: list[str | Path] = [PROGRAM_FOLDER / "cupti_capture", case]
            file = golden / f"{case}.cupti"
            call.run(Command(case, [*program, file, *folders], 20, facts=_key_values))
            if file.exists():
                _pack(golden, packed)
        if not any(golden.iterdir()):
            call.add("replay", "skipped", problem="there are no captures")
            return
        call.work("pack", lambda _left_s: _pack(golden, packed))
        words: list[str | Path] = [PROGRAM_FOLDER / "test_cupti_replay", "captures_of_a_gpu"]
        call.run(Command("replay", words, 20, {"GPUPROF_GOLDEN_FOLDER": str(golden)}))


def _pack(folder: Path, target: Path) -> dict[str, Any]:
    """Write the folder's files into an archive, in place of an earlier one; returns their sizes."""
    sizes = {file.name: file.stat().st_size for file in sorted(folder.iterdir())}
    draft = folder.parent / "packed"
    with tarfile.open(draft, "w:gz") as archive:
        archive.add(folder, folder.name)
    shutil.move(draft, target)
    total = sum(sizes.values())
    found: dict[str, Any] = {"bytes": sizes, "packed_bytes": target.stat().st_size}
    if total > CAPTURES_LIMIT_BYTES:
        found["problem"] = f"{total:,} bytes are too many to keep: {CAPTURES_LIMIT_BYTES:,} at most"
    return found


def smoke(call: Call) -> None:
    """Test whether PyTorch's own kernels have their launch and their layer."""
    call.run(_pytest(call, "test_runtime_launches.py"))


def questions(call: Call) -> None:
    """Ask CUPTI. What is timed runs alone."""
    folders = _cupti_folders(call)
    for name, question in QUESTIONS.items():
        if not question.programs:
            call.run(Command(name, [PROGRAM_FOLDER / "cupti_probe", name, *folders], 25))
    cases = [case for question in QUESTIONS.values() for case in question.programs]
    commands = [Command(case, python("-m", "benchmarks.gpu._coexistence", case), 45) for case in cases]
    # What PyTorch's profiler does with its subscription when it ends was another before 2.12.
    torn_down = {"TEARDOWN_CUPTI": "1"}
    for case in ("profiler_inside", "one_after_the_other"):
        words = python("-m", "benchmarks.gpu._coexistence", case)
        commands.append(Command(f"{case}, TEARDOWN_CUPTI", words, 45, torn_down))
    call.run_together(commands)


def tests(call: Call) -> None:
    """Run tests/gpu but what other steps run, and the native tests that read CUPTI's own headers."""
    call.run(Command("test_cupti_abi", [PROGRAM_FOLDER / "test_cupti_abi"], 20))
    call.run_together([_pytest(call, *words) for words in _TESTS_TOGETHER], at_once=len(_TESTS_TOGETHER))
    for file in _TESTS_ALONE:
        call.run(_pytest(call, file))


def counters(call: Call) -> None:
    """Test the hardware counters."""
    call.run(_pytest(call, "test_counters_on_gpu.py"))


def long_run(call: Call) -> None:
    """Record ten million kernels."""
    call.run(_pytest(call, "test_lifecycle.py", "-k", "long_run", "--long-run"))


def _pytest(call: Call, file: str, *words: str) -> Command:
    command = python("-m", "pytest", f"tests/gpu/{file}", "-q", "--tb=short", "-p", "no:cacheprovider")
    command += ["-p", "benchmarks.gpu._pytest_journal", *words]
    # The machine's own plugins of pytest are no part of this.
    name, variables = " ".join((file, *words)), {"PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
    return Command(name, command, call.left_s(), variables, facts=_last_line, skipped_code=5)


def ceilings(call: Call) -> None:
    """Measure what the GPUs can do at best; the processors' ceilings take a minute and are left out."""
    call.run(Command("ceilings", python("-m", "benchmarks.gpu._ceilings"), 90))
    call.run(_pytest(call, "test_ceilings_on_gpu.py"))


def growth(call: Call) -> None:
    """Measure how device memory grows while kernels of a graph are recorded."""
    call.run(Command("growth", python("-m", "benchmarks.gpu._growth"), 60))


def roofline(call: Call) -> None:
    """Label the cases whose label is known beforehand."""
    _run_in_turn(call, ROOFLINE_CASES, python("-m", "benchmarks.gpu._roofline"))


def _run_in_turn(call: Call, items: Sequence[str], words: Sequence[str | Path]) -> None:
    """Have one process run items, which it writes into the journal; after one that ends it, a new process."""
    left = list(items)
    while left:
        done = call.run(Command(f"from {left[0]}", [*words, *left], call.left_s(), optional=True))
        if done is None:
            return
        entries = [entry for entry in read(call.journal.path) if entry.step == call.step]
        ended = {entry.item: entry.state for entry in entries if entry.item in left}
        if "failed" in ended.values():
            call.failed.add(call.step)
        left = [item for item in left if item not in ended]
        if left:  # the first of them ended the process
            call.add(left.pop(0), "timed out" if done.code is None else "failed", problem=done.problem)


def workloads(call: Call) -> None:
    """Measure all workloads, or those asked for."""
    _compare(call, call.options.workloads, call.options.profilers)


def workloads_key(call: Call) -> None:
    """Measure the four workloads on which gpuprof's overhead matters most."""
    _compare(call, KEY_WORKLOADS, call.options.profilers or KEY_PROFILERS)


def workloads_rest(call: Call) -> None:
    """Measure workloads that keep the GPU busy, or use it in other ways."""
    _compare(call, REST_WORKLOADS, call.options.profilers or REST_PROFILERS)


def _compare(call: Call, workloads: Sequence[str], profilers: Sequence[str]) -> None:
    options, left_s = call.options, call.left_s()
    with tempfile.TemporaryDirectory(prefix="gpuprof-workloads-") as folder:
        plan = Path(folder) / "plan.json"
        wanted = {
            "device": options.device,
            "workloads": list(workloads),
            "profilers": list(profilers),
            "rounds": 1 if options.quick else options.rounds,
            "limit_s": left_s - 5,
            "apart": options.apart,
            "tiny": options.quick,
            "folder": folder,
            "log": str(call.log.resolve()),
        }
        plan.write_text(json.dumps(wanted), encoding="utf-8")
        call.run(Command("comparison", python("-m", "benchmarks.gpu._compare_all", plan), left_s))


def _cupti_folders(call: Call) -> list[str]:
    done = call.run(Command("cupti_folders", python("-c", _FOLDERS), 30, facts=_lines))
    return [] if done is None else done.output.split("\n")[:-1]


def _lines(done: Done) -> list[str]:
    return done.output.splitlines()


def _key_values(done: Done) -> dict[str, int]:
    pairs = [line.split() for line in done.output.splitlines()]
    return {pair[0]: int(pair[1]) for pair in pairs if len(pair) == 2 and pair[1].isdigit()}


def _last_line(done: Done) -> str | None:
    lines = done.output.strip().splitlines()
    return lines[-1] if lines else None
