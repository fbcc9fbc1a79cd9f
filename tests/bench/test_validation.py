# SPDX-License-Identifier: Apache-2.0
"""What cannot work is refused before the first process, by `bench`, `compare` and `suite` alike."""

from __future__ import annotations

import importlib.util
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from refusals import refused, refused_command

from gpuprof.bench import validation
from gpuprof.bench.config import SystemSpec
from gpuprof.bench.models.sources import TORCH_LIBRARIES, call_factory, check_name, parse_model
from gpuprof.bench.suite import SuiteError, run_inference_benchmark
from gpuprof.bench.validation import check_spec
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
    ("resnet5", {}, "unknown_model"),
    ("b", {}, "unknown_model"),
    ("timm:resnet18", {}, "not_installed"),
    ("nowhere:resnet18", {}, "unknown_library"),
    ("missing.onnx", {}, "no_such_file"),
    ("missing.py:build", {}, "no_such_file"),
    ("broken.py:build", {}, "invalid_python"),
    (f"{MODELS}:doubledd", {}, "no_such_function"),
    ("resnet50", {"framework": "pytorhc"}, "unknown_framework"),
    ("resnet50", {"framework": "jax"}, "not_installed"),
    ("resnet50", {"framework": "onnxruntime"}, "not_installed"),
    ("resnet50", {"framework": "tensorrt"}, "kind_of_model"),
    ("resnet50", {"framework": "python"}, "kind_of_model"),
    ("resnet50", {"dtype": "int8"}, "unsupported_dtype"),
    (DOUBLED, {"framework": "python", "dtype": "bfloat16"}, "unsupported_dtype"),
    ("resnet50", {"device": "cuda"}, "no_such_device"),
    ("resnet50", {"device": "mps"}, "no_such_device"),
    ("resnet50", {"device": "tpu"}, "no_such_device"),
    ("resnet50", {"recipe": "int9"}, "unknown_recipe"),
    ("resnet50", {"recipe": "int8-dynamic", "device": "cuda"}, "quantized_on_cpu_only"),
    ("resnet50", {"recipe": "bf16", "dtype": "float16"}, "recipe_dtype"),
    ("resnet50", {"recipe": "int8-static:8:nowhere.npz"}, "no_such_file"),
    ("resnet50", {"data": "nowhere"}, "no_such_data"),
    ("resnet50", {"data": "nowhere.npz"}, "no_such_file"),
    ("resnet50", {"data": "text.npz"}, "not_an_npz_file"),
    ("resnet50", {"data": "images"}, "not_installed"),
    ("script.pt", {"recipe": "pruned"}, "pickled_model"),
]


def make_files(folder: Path) -> None:
    (folder / "broken.py").write_text("def build(:\n", encoding="utf-8")
    (folder / "text.npz").write_text("no arrays", encoding="utf-8")
    (folder / "script.pt").write_bytes(b"\x80\x04")
    (folder / "images" / "cat").mkdir(parents=True)
    (folder / "images" / "cat" / "a.png").touch()


def options_of(options: dict[str, str], but: tuple[str, ...] = ()) -> list[str]:
    return [word for name, value in options.items() if name not in but for word in (f"--{name}", value)]


@pytest.mark.parametrize(("model", "options", "code"), REFUSED)
def test_each_command_refuses_it(model: str, options: dict[str, str], code: str, tmp_path: Path) -> None:
    make_files(tmp_path)
    recipe = f"@{options['recipe']}" if "recipe" in options else ""
    toml = "".join(f"{name} = {value!r}\n" for name, value in {"model": model, **options}.items())
    other = f"[[variant]]\nname = 'other'\nmodel = {DOUBLED!r}\n"
    (tmp_path / "suite.toml").write_text(f"[[variant]]\nname = 'new'\n{toml}{other}", encoding="utf-8")
    before = set(tmp_path.rglob("*"))
    # The other variant of a comparison has the same options.
    variants = f"new:{model}{recipe},other:{DOUBLED}"
    refused_command(["bench", model, *options_of(options)], code)
    refused_command(["compare", variants, *options_of(options, ("recipe",))], code)
    refused_command(["suite", "suite.toml"], code)
    assert set(tmp_path.rglob("*")) == before


@pytest.mark.parametrize(
    ("words", "code"),
    [
        (["--dataset", "nowhere.npz"], "no_such_file"),
        (["--dataset", "nowhere"], "no_such_data"),
        (["--metric", "missing.py:f"], "cannot_import"),
        (["--slo", "p100<1ms"], "invalid_target"),
        (["--memory-budget", "much"], "invalid_size"),
        (["--batch-sizes", "auto"], "no_batch_size"),
        (["--baseline", "other"], "unknown_baseline"),
        (["--interleave"], "number_of_variants"),
        (["--output-dir", "file"], "cannot_write"),
    ],
)
def test_a_comparison_refuses_it(words: list[str], code: str, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    variants = ",".join(f"{name}:{DOUBLED}" for name in ("one", "two", "three"))
    refused_command(["compare", variants, "--input-shape", "3", *words], code)


@pytest.mark.parametrize(
    ("words", "code"),
    [
        ([], "one_variants_option"),
        (["a:resnet50,b:resnet50", "--models", "a:resnet50"], "one_variants_option"),
        (["--models"], "no_value"),
        (["--models", "fp32:"], "no_model"),
        (["--models", ","], "no_model"),
        (["--models", "missing.pt", "other.pt"], "no_such_file"),
        (["--models", f"a:{DOUBLED},b:resnet51"], "unknown_model"),
        (["--models", f"a:{DOUBLED},b:{DOUBLED}", "--report-format", "word"], "unknown_format"),
        (["--models", f"a:{DOUBLED},b:{DOUBLED}", "--dataset", "nowhere"], "no_such_data"),
    ],
)
def test_models_of_a_comparison_that_cannot_be(words: list[str], code: str) -> None:
    refused_command(["compare", *words], code)


def test_a_comparison_of_one_variant_is_refused() -> None:
    refused_command(["compare", f"one:{DOUBLED}", "--input-shape", "3"], "one_variant", "one")


def test_an_output_folder_that_cannot_be_written_is_refused_by_bench(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    refused_command(["bench", DOUBLED, "--output-dir", "file"], "cannot_write", "file")


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


def test_near_names_of_a_file_are_those_of_its_functions_classes_and_models(tmp_path: Path) -> None:
    text = (
        "import torch\nfrom torch import nn as torches\n\nTORCH_SIZE = 3\n"
        "other_torch = torch.nn.Linear(2, 2)\n\n\ndef my_torch(): ...\n\n\nclass TheTorch: ...\n"
    )
    (tmp_path / "model.py").write_text(text, encoding="utf-8")
    with refused(BenchmarkError, "no_such_function", "torchy") as found:
        check_spec(SystemSpec(f"{tmp_path / 'model.py'}:torchy"))
    assert set(re.findall(r"\w*[tT]orch\w*", found.value.hint)) == {"my_torch", "other_torch", "TheTorch"}
    # Without a check before, the file is imported.
    source = parse_model(f"{tmp_path / 'model.py'}:torchy")
    with refused(BenchmarkError, "no_such_function", "torchy") as found:
        call_factory(source)
    assert set(re.findall(r"\w*[tT]orch\w*", found.value.hint)) == {"my_torch", "other_torch", "TheTorch"}


def test_a_file_that_only_imports_has_no_near_names(tmp_path: Path) -> None:
    (tmp_path / "model.py").write_text("import torch\n", encoding="utf-8")
    with refused(BenchmarkError, "no_such_function") as found:
        check_spec(SystemSpec(f"{tmp_path / 'model.py'}:torchy"))
    assert "torch" not in found.value.hint


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
