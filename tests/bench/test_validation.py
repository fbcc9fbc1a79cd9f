# SPDX-License-Identifier: Apache-2.0
"""What cannot work is refused before the first process, by `bench`, `compare` and `suite` alike."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from refusals import refused

from gpuprof.bench import validation
from gpuprof.bench.config import SystemSpec
from gpuprof.bench.models.sources import TORCH_LIBRARIES, check_name
from gpuprof.bench.suite import SuiteError, run_inference_benchmark
from gpuprof.bench.validation import check_spec
from gpuprof.cli.main import execute
from gpuprof.errors import BenchmarkError, GpuprofError, UnavailableError

MODELS = Path(__file__).parents[1] / "support" / "bench_models.py"
DOUBLED = f"{MODELS}:doubled"


@pytest.fixture(autouse=True)
def _no_process(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Let no process start, and pretend that PyTorch is the only framework here, on a machine without GPU."""

    def start(*_: Any, **__: Any) -> None:
        raise AssertionError("a process was started")

    def find(name: str, package: str | None = None) -> Any:
        return found(name, package) if name.partition(".")[0] in here else None

    found, here = importlib.util.find_spec, ("torch", "gpuprof", "numpy", "scipy", "msgspec")
    monkeypatch.setattr("gpuprof.bench.workers.process._start", start)
    monkeypatch.setattr("importlib.util.find_spec", find)
    monkeypatch.setattr(validation, "has_driver", lambda: False)
    monkeypatch.setattr(validation, "_GPU_FILES", ())
    monkeypatch.setattr("sys.platform", "linux")
    monkeypatch.chdir(tmp_path)


REFUSED = [
    ("resnet5", {}, "unknown model 'resnet5': did you mean resnet50"),
    ("b", {}, "unknown model 'b'; hint: use resnet50, vit_b_16"),
    ("timm:resnet18", {}, "timm is not installed: pip install timm"),
    ("nowhere:resnet18", {}, "no library 'nowhere'"),
    ("missing.onnx", {}, "missing.onnx: no such file"),
    ("missing.py:build", {}, "missing.py: no such file"),
    ("broken.py:build", {}, "broken.py: not valid Python"),
    (f"{MODELS}:doubledd", {}, "has no function doubledd: did you mean doubled"),
    ("resnet50", {"framework": "pytorhc"}, "unknown framework 'pytorhc': did you mean pytorch"),
    ("resnet50", {"framework": "jax"}, "JAX is not installed: pip install jax"),
    ("resnet50", {"framework": "onnxruntime"}, "ONNX Runtime is not installed"),
    ("resnet50", {"framework": "tensorrt"}, "tensorrt cannot run this kind of model"),
    ("resnet50", {"framework": "python"}, "python cannot run this kind of model"),
    ("resnet50", {"dtype": "int8"}, "pytorch cannot run in int8; hint: use --dtype float32"),
    (DOUBLED, {"framework": "python", "dtype": "bfloat16"}, "python cannot run in bfloat16"),
    ("resnet50", {"device": "cuda"}, "--device cuda: pytorch finds no such device; hint: use --device cpu"),
    ("resnet50", {"device": "mps"}, "--device mps: pytorch finds no such device"),
    ("resnet50", {"device": "tpu"}, "--device tpu: pytorch finds no such device"),
    ("resnet50", {"recipe": "int9"}, "unknown recipe 'int9'"),
    ("resnet50", {"recipe": "int8-dynamic", "device": "cuda"}, "quantized layers for CPUs alone"),
    ("resnet50", {"recipe": "bf16", "dtype": "float16"}, "takes bfloat16 inputs, not float16"),
    ("resnet50", {"recipe": "int8-static:8:nowhere.npz"}, "--recipe nowhere.npz: no such file"),
    ("resnet50", {"data": "nowhere"}, "--data nowhere: no folder of images"),
    ("resnet50", {"data": "nowhere.npz"}, "--data nowhere.npz: no such file"),
    ("resnet50", {"data": "text.npz"}, "--data text.npz: not a .npz file"),
    ("resnet50", {"data": "images"}, "reading images needs Pillow"),
    ("script.pt", {"recipe": "pruned"}, "script.pt holds pickled objects"),
]


def make_files(folder: Path) -> None:
    (folder / "broken.py").write_text("def build(:\n", encoding="utf-8")
    (folder / "text.npz").write_text("no arrays", encoding="utf-8")
    (folder / "script.pt").write_bytes(b"\x80\x04")
    (folder / "images" / "cat").mkdir(parents=True)
    (folder / "images" / "cat" / "a.png").touch()


def options_of(options: dict[str, str], but: tuple[str, ...] = ()) -> list[str]:
    return [word for name, value in options.items() if name not in but for word in (f"--{name}", value)]


@pytest.mark.parametrize(("model", "options", "line"), REFUSED)
def test_each_command_refuses_it(
    model: str, options: dict[str, str], line: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    make_files(tmp_path)
    recipe = f"@{options['recipe']}" if "recipe" in options else ""
    toml = "".join(f"{name} = {value!r}\n" for name, value in {"model": model, **options}.items())
    (tmp_path / "suite.toml").write_text(f"[[variant]]\nname = 'new'\n{toml}", encoding="utf-8")
    before = set(tmp_path.rglob("*"))
    commands = [
        ["bench", model, *options_of(options)],
        ["compare", f"old:{DOUBLED},new:{model}{recipe}", *options_of(options, ("recipe",))],
        ["suite", "suite.toml"],
    ]
    for command in commands:
        # The baseline of a comparison has the same options, and may be refused first.
        assert execute(command) == 2, command
        out, error = capsys.readouterr()
        assert out == ""
        assert len(error.splitlines()) == 1
        assert line in error or "variant old: python cannot run" in error
        assert set(tmp_path.rglob("*")) == before


@pytest.mark.parametrize(
    ("words", "line"),
    [
        (["--dataset", "nowhere.npz"], "nowhere.npz: no such file"),
        (["--dataset", "nowhere"], "--dataset nowhere: no folder of images"),
        (["--metric", "missing.py:f"], "missing.py"),
        (["--slo", "p42<1ms"], "is not a target"),
        (["--memory-budget", "much"], "is not a size"),
        (["--batch-sizes", "auto"], "has no batch size"),
        (["--baseline", "other"], "the baseline 'other' is not a variant"),
        (["--interleave"], "an A/B test needs exactly two variants"),
        (["--output-dir", "file"], "cannot be written"),
    ],
)
def test_a_comparison_refuses_it(
    words: list[str], line: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "file").touch()
    assert execute(["compare", f"one:{DOUBLED}", "--input-shape", "3", *words]) == 2
    error = capsys.readouterr().err
    assert line in error
    assert len(error.splitlines()) == 1


def test_an_output_folder_that_cannot_be_written_is_refused_by_bench(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "file").touch()
    assert execute(["bench", DOUBLED, "--output-dir", "file"]) == 2
    assert "--output-dir file: cannot be written" in capsys.readouterr().err


def test_the_function_for_one_benchmark_refuses_it_too() -> None:
    with refused(SuiteError, "unknown_model", "resnet5"):
        run_inference_benchmark(model_name="resnet5")
    with refused(GpuprofError, "not_installed", "JAX"):
        run_inference_benchmark("jax")


@pytest.mark.parametrize(
    "spec",
    [
        SystemSpec("resnet50"),
        SystemSpec("gpuprof:vit_b_16", dtype="bfloat16"),
        SystemSpec(DOUBLED, input_shape=(3,)),
        SystemSpec("resnet50", recipe="int8-static"),
        SystemSpec("resnet50", framework="torch-compile", device="cpu"),
        SystemSpec("resnet50", data="arrays.npz"),
    ],
)
def test_what_may_work_is_accepted(spec: SystemSpec, tmp_path: Path) -> None:
    np.savez(tmp_path / "arrays.npz", inputs=np.ones((2, 3), np.float32))
    check_spec(spec)


@pytest.mark.parametrize(
    ("text", "is_accepted"),
    [
        ("def build(): ...", True),
        ("class build: ...", True),
        ("from elsewhere import build", True),
        ("import elsewhere as build", True),
        ("build = made = lambda: 1", True),
        ("(build, other) = 1, 2", True),
        ("try:\n  import fast\nexcept ImportError:\n  def build(): ...", True),
        ("if True:\n  pass\nelse:\n  build = 1", True),
        ("for build in (1, 2): ...", True),
        ("with open('x') as build: ...", True),
        ("from elsewhere import *", True),
        ("def __getattr__(name): ...", True),
        ("globals().update(build=1)", True),
        ("setattr(module, 'build', 1)", True),
        ("exec('build = 1')", True),
        ("def other():\n  build = 1", False),
        ("other.build = 1", False),
        ("print('build')", False),
        ("", False),
    ],
)
def test_a_factory_is_looked_for_without_running_its_file(
    text: str, is_accepted: bool, tmp_path: Path
) -> None:
    (tmp_path / "model.py").write_text(f"{text}\nraise SystemExit\n", encoding="utf-8")
    spec = SystemSpec(f"{tmp_path / 'model.py'}:build")
    if is_accepted:
        check_spec(spec)
        return
    with refused(BenchmarkError, "no_such_function", "build"):
        check_spec(spec)


def test_the_names_of_a_library_are_read_without_importing_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "timm" / "models").mkdir(parents=True)
    (tmp_path / "timm" / "__init__.py").write_text("raise SystemExit", encoding="utf-8")
    (tmp_path / "timm" / "models" / "eva.py").write_text("def eva02_tiny(): ...\n", encoding="utf-8")
    monkeypatch.undo()
    monkeypatch.syspath_prepend(tmp_path)
    check_name("timm:eva02_tiny", "pytorch")
    assert TORCH_LIBRARIES["timm"].is_here
    assert not TORCH_LIBRARIES["timm"].mentions("eva02_huge")


def test_a_missing_package_is_an_error_with_its_installation(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda *_: None)
    with refused(UnavailableError, "not_installed", "PyTorch", "torch"):
        check_spec(SystemSpec("gpuprof:resnet50", framework="pytorch"))
