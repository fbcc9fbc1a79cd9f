# SPDX-License-Identifier: Apache-2.0
"""`gpuprof doctor` on machines that lack this or that, played by replacing what it looks at."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import json
import os
import re
import subprocess
import sys
import types
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from gpuprof import doctor
from gpuprof.cli.main import execute
from gpuprof.doctor import Check, examine, extras, frameworks, host, is_broken, machine_facts, nvidia, probes
from gpuprof.doctor.check import version_numbers
from gpuprof.run.native_messages import HINTS

TORCH = {"version": "2.13.0+cpu", "cuda": None, "hip": None, "itt": True, "file": "torch/__init__.py"}
NO_DRIVER = {"missing": "libcuda.so.1: cannot open shared object file"}
NO_NVML = {"missing": "libnvidia-ml.so.1: cannot open shared object file"}


class Machine:
    """A machine where everything needed works; a test breaks one part of it."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self.patch = patch
        self.versions = {"gpuprof-native": "0.1.0", "nvtx": "0.2.17"}
        self.absent: set[str] = set()
        self.present: set[str] = set()
        self.native = types.SimpleNamespace(
            build_info=lambda: {
                "compiler": "GCC 12",
                "build_type": "Release",
                "cuda": False,
                "version": "0.1.0",
            },
            clock_info=lambda: {"clock": "tsc", "monotonic_ns": 1, "realtime_ns": 2},
            itt_attached=lambda: False,
        )
        find_spec = importlib.util.find_spec
        patch.setattr(
            importlib.util,
            "find_spec",
            lambda name: (
                None
                if name in self.absent
                else True
                if "gpuprof" in name or name in self.present
                else find_spec(name)
            ),
        )
        patch.setattr(importlib.metadata, "version", self.version)
        patch.setattr(machine_facts, "native", lambda: self.native)
        patch.setattr(frameworks.platform, "machine", lambda: "x86_64")
        patch.delitem(sys.modules, "torch", raising=False)
        patch.delenv("INTEL_LIBITTNOTIFY64", raising=False)
        patch.delenv("NVTX_INJECTION64_PATH", raising=False)
        self.set_probes(
            torch=TORCH, driver=NO_DRIVER, nvml=NO_NVML, cupti={"error": "called without a driver"}
        )
        self.set_probes(nvrtc={"error": "called without a GPU"})

    def version(self, name: str) -> str:
        if name not in self.versions:
            raise importlib.metadata.PackageNotFoundError(name)
        return self.versions[name]

    def set_probes(self, **probes: Any) -> None:
        """Let the probes return these facts."""
        for name, result in probes.items():

            def ask(result: Any = result) -> Any:
                return result

            ask.cache_clear = lambda: None  # type: ignore[attr-defined]
            self.patch.setattr(machine_facts, name, ask)

    def check(self, name: str) -> Check:
        found = [check for check in examine() if check.name == name]
        assert len(found) == 1, [check.name for check in examine()]
        return found[0]


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch) -> Machine:
    return Machine(monkeypatch)


def test_a_machine_where_all_works_is_not_broken(machine: Machine) -> None:
    checks = examine()
    assert not any(map(is_broken, checks))
    names = [check.name for check in checks]
    for name in ("machine", "clock", "python", "gpuprof", "native core", "DuckDB", "torch", "ITT", "NVTX"):
        assert name in names
    for name in (
        "NVIDIA driver",
        "GPU",
        "NVML",
        "CUPTI",
        "GPU counters",
        "nsys",
        "nvcc",
        "current folder",
        "temporary folder",
    ):
        assert name in names
    assert {check.status for check in checks} <= {"ok", "missing", "problem", "info"}
    assert all("\n" not in check.detail + check.hint for check in checks)


def test_no_line_advises_to_install_the_namesake(machine: Machine) -> None:
    machine.versions["gpuprof"] = "9.9"
    machine.absent |= {"duckdb"}
    machine.set_probes(torch=None)
    del machine.native.build_info
    for check in examine():
        assert "pip install gpuprof" not in check.detail + check.hint


def test_the_namesake_is_found_out(machine: Machine) -> None:
    machine.versions["gpuprof"] = "9.9"
    check = machine.check("namesake")
    assert is_broken(check)
    assert "unrelated" in check.detail
    assert "gpuprof-native" in check.detail
    assert check.hint.startswith("pip uninstall gpuprof")


def test_without_the_native_core_nothing_goes(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    def missing() -> Any:
        raise ImportError("libstdc++.so.6: version `GLIBCXX_3.4.32' not found")

    monkeypatch.setattr(machine_facts, "native", missing)
    check = machine.check("native core")
    assert is_broken(check)
    assert "GLIBCXX" in check.detail
    assert "pip install" in check.hint


@pytest.mark.parametrize(
    ("version", "status"), [((3, 9), "problem"), ((3, 10), "ok"), ((3, 14), "ok"), ((3, 15), "info")]
)
def test_python_versions(machine: Machine, version: tuple[int, int], status: str) -> None:
    machine.patch.setattr(host.sys, "version_info", (*version, 0))
    check = machine.check("python")
    assert check.status == status
    assert is_broken(check) == (status == "problem")


@pytest.mark.parametrize(
    ("result", "status", "word"),
    [
        (None, "missing", "not installed"),
        ({"error": "exit code 1: ImportError: libc10.so"}, "problem", "libc10.so"),
        (TORCH | {"version": "2.3.1"}, "problem", "too old"),
        (TORCH | {"version": "2.4.0a0+git1", "cuda": "13.0"}, "ok", "CUDA 13.0 build"),
        (TORCH | {"hip": "6.2"}, "ok", "ROCm 6.2 build"),
        (TORCH, "ok", "CPU build"),
    ],
)
def test_torch(machine: Machine, result: Any, status: str, word: str) -> None:
    machine.set_probes(torch=result)
    check = machine.check("torch")
    assert check.status == status
    assert word in check.detail
    assert bool(check.hint) == (status != "ok")
    assert not is_broken(check)


def test_itt_of_another_tool(machine: Machine) -> None:
    machine.patch.setenv("INTEL_LIBITTNOTIFY64", "/opt/intel/vtune/libittnotify_collector.so")
    check = machine.check("ITT")
    assert check.status == "problem"
    assert "vtune" in check.detail
    assert "unset INTEL_LIBITTNOTIFY64" in check.hint


def test_itt_of_ours(machine: Machine) -> None:
    machine.patch.setenv("INTEL_LIBITTNOTIFY64", "/some/where/gpuprof/libgpuprof_core.so")
    assert machine.check("ITT").status == "ok"


def test_itt_where_torch_came_first(machine: Machine) -> None:
    machine.patch.setitem(sys.modules, "torch", types.ModuleType("torch"))
    check = machine.check("ITT")
    assert check.status == "problem"
    assert "import gpuprof before torch" in check.hint


def test_itt_where_torch_has_loaded_ours(machine: Machine) -> None:
    machine.patch.setitem(sys.modules, "torch", types.ModuleType("torch"))
    machine.native.itt_attached = lambda: True
    assert machine.check("ITT").status == "ok"


def test_clocks(machine: Machine) -> None:
    assert machine.check("clock") == Check("clock", "ok", "invariant time stamp counter")
    machine.native.clock_info = lambda: {"clock": "monotonic"}
    assert machine.check("clock").status == "info"


def test_itt_where_there_is_none(machine: Machine) -> None:
    machine.set_probes(torch=TORCH | {"itt": False})
    assert machine.check("ITT").status == "missing"
    machine.patch.setattr(frameworks.platform, "machine", lambda: "aarch64")
    assert "aarch64" in machine.check("ITT").detail


def test_nvtx_with_a_tool_attached(machine: Machine) -> None:
    machine.patch.setenv("NVTX_INJECTION64_PATH", "/opt/nvidia/nsight/libToolsInjection64.so")
    assert "a tool is attached" in machine.check("NVTX").detail
    assert "gpuprof's spans and layers" in machine.check("NVTX").detail


def test_nvtx_without_a_tool(machine: Machine) -> None:
    assert machine.check("NVTX").status == "ok"
    assert "are recorded" in machine.check("NVTX").detail
    machine.patch.setenv("NVTX_INJECTION64_PATH", "/some/where/gpuprof/libgpuprof_core.so")
    assert machine.check("NVTX").status == "ok"
    machine.absent.add("nvtx")
    assert "package nvtx not installed" in machine.check("NVTX").detail
    machine.patch.setenv("NVTX_INJECTION64_PATH", "")
    assert "set and empty" in machine.check("NVTX").detail
    assert "unset NVTX_INJECTION64_PATH" in machine.check("NVTX").hint
    machine.patch.delenv("NVTX_INJECTION64_PATH")
    machine.absent.add("gpuprof._native")
    assert machine.check("NVTX").status == "info"


@pytest.mark.parametrize(
    ("result", "status", "word"),
    [
        (NO_DRIVER, "missing", "libcuda.so.1"),
        ({"error": "exit code -11: no message"}, "problem", "-11"),
        ({"init": 100, "version": 13000, "devices": []}, "problem", "error 100"),
        ({"init": 0, "version": 12090, "devices": [["H100", 85 * 10**9, "9.0"]]}, "ok", "CUDA 12.9"),
    ],
)
def test_driver(machine: Machine, result: dict[str, Any], status: str, word: str) -> None:
    machine.set_probes(driver=result)
    check = machine.check("NVIDIA driver")
    assert (check.status, is_broken(check)) == (status, False)
    assert word in check.detail


def test_a_gpu_is_named_and_nothing_is_claimed_of_it(machine: Machine) -> None:
    machine.set_probes(driver={"init": 0, "version": 13000, "devices": [["NVIDIA H100", 85 * 10**9, "9.0"]]})
    check = machine.check("GPU 0")
    assert check.detail.startswith("NVIDIA H100, 85.0 GB, compute capability 9.0")


@pytest.mark.parametrize(
    ("result", "status", "words", "hint"),
    [
        (NO_NVML, "missing", "libnvidia-ml.so.1", "driver"),
        ({"package": False}, "missing", "nvidia-ml-py is not installed", "pip install"),
        ({"nvml": "Driver/library version mismatch"}, "problem", "version mismatch", "nvidia-smi"),
        ({"error": "no response within 120 s"}, "problem", "no response within 120 s", "nvidia-smi"),
        ({"driver": "570.1", "devices": ["H100", "H100"]}, "ok", "driver 570.1: H100, H100", ""),
        ({"driver": "570.1", "devices": []}, "ok", "no device", ""),
    ],
)
def test_nvml(machine: Machine, result: dict[str, Any], status: str, words: str, hint: str) -> None:
    machine.set_probes(nvml=result)
    check = machine.check("NVML")
    assert (check.status, is_broken(check)) == (status, False)
    assert words in check.detail
    assert hint in check.hint
    assert bool(hint) == bool(check.hint)


def test_cupti_is_found_in_a_wheel_and_not_loaded(machine: Machine, tmp_path: Path) -> None:
    library = tmp_path / "nvidia/cu13/lib/libcupti.so.13"
    library.parent.mkdir(parents=True)
    library.write_bytes(b"not a library: loading it would fail")
    machine.patch.syspath_prepend(tmp_path)
    machine.versions["nvidia-cuda-cupti"] = "13.0.85"
    detail = machine.check("CUPTI").detail
    assert str(library) in detail
    assert "nvidia-cuda-cupti 13.0.85" in detail
    assert "needs the NVIDIA driver" in detail


DRIVER = {"init": 0, "version": 13000, "devices": []}


def test_cupti_that_can_be_loaded_is_shown_with_its_version(machine: Machine) -> None:
    machine.set_probes(
        driver=DRIVER, cupti={"reason": None, "path": "/lib/libcupti.so.13", "version": "13.0"}
    )
    check = machine.check("CUPTI")
    assert (check.status, check.hint) == ("ok", "")
    assert check.detail.startswith("13.0 at /lib/libcupti.so.13")


@pytest.mark.parametrize(
    "facts",
    [
        {"reason": {"code": "cupti_not_found"}, "version": ""},
        {"error": "exit code -11: no message"},
        {"error": "no response within 120 s"},
    ],
)
def test_cupti_that_cannot_be_loaded_has_a_reason(machine: Machine, facts: dict[str, Any]) -> None:
    machine.set_probes(driver=DRIVER, cupti=facts)
    check = machine.check("CUPTI")
    assert check.status in ("problem", "missing")
    reason = facts.get("reason")
    assert check.hint == ("" if reason is None else HINTS.text(reason["code"], reason))
    assert facts.get("error", "") in check.detail


CUPTI = {"reason": None, "path": "/lib/libcupti.so.13", "version": "13.0", "no_counters": None}
TOO_OLD = {
    "code": "counters_lack_function",
    "file": "/lib/libcupti.so.12",
    "detail": "cuptiRangeProfilerEnable",
}


@pytest.mark.parametrize(
    ("driver", "cupti", "restricted", "status", "detail"),
    [
        (NO_DRIVER, CUPTI, None, "info", "they need a GPU"),
        (DRIVER, CUPTI, False, "ok", "has permission"),
        (DRIVER, CUPTI, None, "ok", "permission unknown"),
        (DRIVER, CUPTI, True, "missing", "restricted to administrators"),
        (DRIVER, {**CUPTI, "no_counters": TOO_OLD}, False, "missing", "cuptiRangeProfilerEnable"),
        (DRIVER, {"error": "exit code -11: no message"}, False, "missing", "exit code -11"),
    ],
)
def test_whether_counters_are_available(
    machine: Machine,
    driver: dict[str, Any],
    cupti: dict[str, Any],
    restricted: bool | None,
    status: str,
    detail: str,
) -> None:
    machine.set_probes(driver=driver, cupti=cupti)
    machine.patch.setattr(nvidia, "counters_are_restricted", lambda: restricted)
    check = machine.check("GPU counters")
    assert check.status == status
    assert detail in check.detail
    assert ("NVreg_RestrictProfilingToAdminUsers=0" in check.hint) == (restricted is True)


@pytest.mark.parametrize(
    ("parameters", "status", "restricted"),
    [
        (None, "", None),
        ("RmProfilingAdminOnly: 0\n", "CapEff:\t0000000000000000\n", False),
        ("RmProfilingAdminOnly: 1\n", "CapEff:\t0000000000000000\n", True),
        ("RmProfilingAdminOnly: 1\n", "CapEff:\t00000000a80425fb\n", True),  # root of a container
        ("RmProfilingAdminOnly: 1\n", "CapEff:\t000001ffffffffff\n", False),
        ("RmProfilingAdminOnly: 1\n", "", True),
    ],
)
def test_who_may_read_counters(
    tmp_path: Path, parameters: str | None, status: str, restricted: bool | None
) -> None:
    if parameters is not None:
        (tmp_path / "params").write_text(parameters)
    (tmp_path / "status").write_text(status)
    found = probes.counters_are_restricted(tmp_path / "params", tmp_path / "status")
    assert found is restricted


ONE_GPU = {**DRIVER, "devices": [["Invented", 8_000_000_000, "9.0"]]}


def test_nvrtc_is_shown_where_there_is_a_gpu(machine: Machine) -> None:
    assert not [check for check in examine() if check.name == "NVRTC"]
    answer = {"reason": None, "path": "/lib/libnvrtc.so.13", "version": "13.0"}
    machine.set_probes(driver=ONE_GPU, nvrtc=answer)
    assert machine.check("NVRTC").detail.startswith("13.0 at /lib/libnvrtc.so.13")


def test_without_nvrtc_ceilings_are_calculated(machine: Machine) -> None:
    reason = {"code": "nvrtc_not_found"}
    machine.set_probes(driver=ONE_GPU, nvrtc={"reason": reason, "path": "", "version": "0.0"})
    check = machine.check("NVRTC")
    assert (check.status, check.hint) == ("missing", HINTS.text("nvrtc_not_found", reason))


def test_a_folder_that_cannot_be_written_is_a_problem_with_a_hint(
    machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(folder: Path) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(host, "_reserve_blocks", refuse)
    check = machine.check("current folder")
    assert check.status == "problem"
    assert "No space left on device" in check.detail
    assert "--out" in check.hint


def test_a_current_folder_that_is_gone(tmp_path: Path) -> None:
    program = """
import os, sys
gone = sys.argv[1]
os.mkdir(gone); os.chdir(gone); os.rmdir(gone)
from gpuprof.doctor import host
for check in host.disk():
    print(check.status, check.name, check.detail)
"""
    command = [sys.executable, "-c", program, str(tmp_path / "gone")]
    done = subprocess.run(command, capture_output=True, text=True, check=True, env=absolute_environment())
    current, temporary = done.stdout.splitlines()
    assert current.startswith("problem current folder")
    assert "No such file or directory" in current
    assert temporary.startswith("ok temporary folder")


def absolute_environment() -> dict[str, str]:
    """Return the environment with a PYTHONPATH that holds from any folder."""
    package = str(Path(doctor.__file__).parents[2])
    return {**os.environ, "PYTHONPATH": os.pathsep.join((package, os.environ.get("PYTHONPATH", "")))}


@pytest.mark.parametrize("error", [RuntimeError("two\nlines"), SystemExit(3), MemoryError()])
def test_a_check_that_fails_reports_itself(
    machine: Machine, monkeypatch: pytest.MonkeyPatch, error: BaseException
) -> None:
    def broken() -> Iterator[Check]:
        yield Check("first", "ok", "fine")
        raise error

    monkeypatch.setattr(doctor, "_CHECKS", (("broken", broken),))
    first, second = examine()
    assert first.name == "first"
    assert (second.name, second.status) == ("broken", "problem")
    assert type(error).__name__ in second.detail
    assert "\n" not in second.detail


def test_a_probe_that_dies_or_hangs_is_a_result(monkeypatch: pytest.MonkeyPatch) -> None:
    assert probes.probe("print('noise'); print('{\"a\": 1}')") == {"a": 1}
    assert probes.probe("raise ValueError('no\\nway')")["error"] == "exit code 1: way"
    assert probes.probe("import os; os._exit(7)")["error"] == "exit code 7: no message"
    monkeypatch.setattr(probes, "PROBE_TIMEOUT_S", 0.2)
    assert "no response" in probes.probe("import threading; threading.Event().wait()")["error"]


def test_the_probes_work_on_this_machine() -> None:
    driver = probes.probe(probes.DRIVER_PROBE)
    assert "error" not in driver
    assert ("missing" in driver) != ("init" in driver)
    assert len(probes.probe(probes.NVML_PROBE).keys() & {"missing", "package", "driver"}) == 1
    if importlib.util.find_spec("torch"):
        assert probes.probe(probes.TORCH_PROBE).keys() == TORCH.keys()


@pytest.mark.parametrize(
    ("text", "version"), [("2.13.0+cpu", (2, 13)), ("2.4.0a0", (2, 4)), ("3", (3, 0)), ("1.1rc1", (1, 1))]
)
def test_versions(text: str, version: tuple[int, int]) -> None:
    assert version_numbers(text) == version


def test_the_command_on_this_machine_prints_json_and_fitting_exit_code() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "gpuprof", "doctor", "--json"],
        capture_output=True,
        text=True,
        env=absolute_environment(),
    )
    values = json.loads(done.stdout)
    assert done.returncode == (0 if values["ok"] else 1)
    assert done.stderr == ""
    broken = [
        check for check in values["checks"] if check["required"] and check["status"] in ("missing", "problem")
    ]
    assert values["ok"] == (not broken)


@pytest.mark.parametrize(
    ("checks", "code", "verdict"),
    [
        ([], 0, "gpuprof can record here."),
        ([Check("folder", "problem", "full")], 0, "gpuprof can record here, except for the problem above."),
        (
            [Check(name, "problem", "full") for name in "ab"],
            0,
            "gpuprof can record here, except for the problems above.",
        ),
        (
            [Check("core", "problem", "broken", required=True)],
            1,
            "gpuprof cannot record here: fix the problems above.",
        ),
    ],
)
def test_the_last_line_is_the_verdict(
    checks: list[Check],
    code: int,
    verdict: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(doctor, "examine", lambda: [Check("Python", "ok", "3"), *checks])
    assert execute(["doctor"]) == code
    assert capsys.readouterr().out.splitlines()[-1] == verdict


# ---- extras ----------------------------------------------------------------------------------


def test_an_extra_that_is_there_has_versions(machine: Machine) -> None:
    machine.versions |= {"jinja2": "3.1.4", "plotly": "6.0"}
    machine.present |= {"jinja2", "plotly"}
    check = machine.check("extra report")
    assert (check.status, check.hint) == ("ok", "")
    assert "jinja2 3.1.4, plotly 6.0" in check.detail


def test_an_extra_that_lacks_a_package_names_it_and_itself(machine: Machine) -> None:
    machine.versions |= {"jinja2": "3.1.4"}
    machine.present |= {"jinja2"}
    machine.absent |= {"plotly"}
    check = machine.check("extra report")
    assert check.status == "missing"
    assert check.detail == "plotly not installed, needed for HTML and PDF of gpuprof compare"
    assert check.hint == "pip install 'gpuprof-native[report]'"
    assert not is_broken(check)


def test_the_extras_are_those_of_the_package() -> None:
    project = (Path(__file__).resolve().parents[2] / "pyproject.toml").read_text("utf-8")
    declared = project.partition("[project.optional-dependencies]")[2].partition("\n[")[0]
    for extra in extras._EXTRAS:
        packages = re.search(rf"^{extra.name} = \[(.*?)\]$", declared, re.DOTALL | re.MULTILINE)
        assert packages is not None
        # Those for some systems are left out.
        everywhere = re.findall(r'"([a-z0-9-]+)[>=<][^;"]*"', packages[1])
        assert set(everywhere) == set(extra.packages)


def test_a_browser_without_the_packages_of_reports() -> None:
    program = """
import sys
sys.modules["msgspec"] = None
from gpuprof.doctor.extras import browser
(check,) = browser()
print(check.status)
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert (done.stdout.strip(), done.stderr) == ("missing", "")


@pytest.mark.parametrize(("program", "status"), [("", "missing"), (sys.executable, "ok")])
def test_a_browser_for_pdf(machine: Machine, program: str, status: str) -> None:
    machine.patch.setenv("GPUPROF_CHROMIUM", program or "/nowhere/chromium")
    check = machine.check("Chromium")
    assert check.status == status
    assert bool(check.detail)
