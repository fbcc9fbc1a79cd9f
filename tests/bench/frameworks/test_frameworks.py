# SPDX-License-Identifier: Apache-2.0
"""The systems under test, on a CPU: each framework runs for real where it is installed."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from refusals import refused
from wrapped_models import wrap_model

from gpuprof.bench.config import SystemSpec
from gpuprof.bench.frameworks import framework_name, make_system
from gpuprof.bench.frameworks.python import PythonSystem
from gpuprof.bench.models.sources import build_torch, parse_model
from gpuprof.errors import BenchmarkError, GpuprofError, UnavailableError

torch = pytest.importorskip("torch")
MODELS = Path(__file__).parents[2] / "support" / "bench_models.py"


def outputs_of(system: Any, batch_size: int) -> Any:
    """Prepare, call and wait; returns the outputs as an array."""
    system.prepare(batch_size)
    outputs = system.run()
    system.synchronize()
    first = outputs[0] if isinstance(outputs, (list, tuple)) else outputs
    return np.asarray(first.detach() if hasattr(first, "detach") else first)


def spec_of(factory: str = "network", **more: Any) -> SystemSpec:
    return SystemSpec(f"{MODELS}:{factory}", **{"input_shape": (16,), **more})


@pytest.mark.parametrize(
    "framework",
    [
        "pytorch",
        "torchscript",
        "torch-export",
        pytest.param("onnxruntime", marks=pytest.mark.needs("onnxruntime", "onnx", "onnxscript")),
    ],
)
def test_each_form_of_a_module_has_the_outputs_of_the_module(framework: str) -> None:
    eager, system = make_system(spec_of(seed=3)), make_system(spec_of(framework=framework, seed=3))
    eager.load()
    torch.manual_seed(3)
    system.load()
    try:
        if framework != "onnxruntime":  # whose module is gone once it has been exported
            system._module_itself = system.model = eager.model
            expected = outputs_of(eager, 4)
            np.testing.assert_allclose(outputs_of(system, 4), expected, rtol=1e-4, atol=1e-5)
        assert outputs_of(system, 2).shape == (2, 4)
        described = system.describe()
        assert (described.framework, described.device_type, described.dtype) == (framework, "cpu", "float32")
        assert (described.input_shape, described.parameters) == ((16,), 16 * 8 + 8 + 8 * 4 + 4)
        assert (system.compile_s is not None) == (framework in ("torchscript", "torch-export"))
        assert system.memory().host_resident_bytes
    finally:
        system.close()
        system.close()


def test_torch_compile_compiles_while_it_prepares(monkeypatch: pytest.MonkeyPatch) -> None:
    """Stub test: the compiler is played, since a real one takes half a minute."""
    compiled: list[tuple[int, ...]] = []

    def compile_(module: Any, **options: Any) -> Any:
        assert options == {"dynamic": False}

        def call(batch: Any) -> Any:
            compiled.append(tuple(batch.shape))
            return module(batch)

        return call

    monkeypatch.setattr(torch, "compile", compile_)
    system = make_system(spec_of(framework="torch-compile"))
    system.load()
    system.prepare(2)
    assert compiled == [(2, 16)]
    assert system.compile_s is not None
    assert system.describe().parameters == 16 * 8 + 8 + 8 * 4 + 4


def test_the_device_times_a_call_between_two_events(monkeypatch: pytest.MonkeyPatch) -> None:
    """Stub test: CUDA's events are played."""
    order: list[str] = []

    class Event:
        def __init__(self, *, enable_timing: bool) -> None:
            assert enable_timing

        def record(self) -> None:
            order.append("record")

        def synchronize(self) -> None:
            order.append("wait")

        def elapsed_time(self, end: Event) -> float:
            return 1.5

    system = make_system(spec_of())
    system.load()
    assert system.call_on_device_s() is None
    monkeypatch.setattr(torch.cuda, "Event", Event)
    monkeypatch.setattr(system, "run", lambda: order.append("run"))
    system.device_type = "cuda"
    assert system.call_on_device_s() == 0.0015
    assert order == ["record", "run", "record", "wait"]


@pytest.mark.filterwarnings("ignore:.*torch.jit:DeprecationWarning")  # from PyTorch 2.5 on
def test_a_file_of_torchscript_and_one_of_torch_export(tmp_path: Path) -> None:
    module = torch.nn.Sequential(torch.nn.Linear(6, 2)).eval()
    torch.jit.trace(module, torch.zeros(3, 6)).save(str(tmp_path / "model.pt"))
    torch.export.save(torch.export.export(module, (torch.zeros(3, 6),)), tmp_path / "model.pt2")
    for name, framework in (("model.pt", "torchscript"), ("model.pt2", "torch-export")):
        system = make_system(SystemSpec(str(tmp_path / name), input_shape=(6,), trust_pickle=True))
        system.load()
        assert outputs_of(system, 3).shape == (3, 2)
        assert system.describe().framework == framework
    of_its_own_shape = make_system(SystemSpec(str(tmp_path / "model.pt2"), trust_pickle=True))
    of_its_own_shape.load()
    assert of_its_own_shape.input_spec().shape == (6,)
    system.prepare(2)
    with refused(BenchmarkError, "failed", "model.pt2", "torch-export", "2x6"):
        system.first_inference()


def test_a_saved_module_needs_trust_and_weights_alone_are_no_model(tmp_path: Path) -> None:
    torch.save(torch.nn.Linear(6, 2), tmp_path / "whole.pt")
    torch.save(torch.nn.Linear(6, 2).state_dict(), tmp_path / "weights.pt")
    with refused(BenchmarkError, "pickled_model"):
        parse_model(str(tmp_path / "whole.pt"))
    system = make_system(SystemSpec(str(tmp_path / "whole.pt"), input_shape=(6,), trust_pickle=True))
    system.load()
    assert outputs_of(system, 2).shape == (2, 2)
    weights = make_system(SystemSpec(str(tmp_path / "weights.pt"), input_shape=(6,), trust_pickle=True))
    with refused(BenchmarkError, "weights_without_model"):
        weights.load()


SAVED_NET = """
import torch
class SavedNet(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(6, 2)
    def forward(self, batch):
        return self.layer(batch)
"""


@pytest.fixture
def saved_net(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A module that was saved whole, next to the file of its class, which is imported by nothing here."""
    name = "saved_net_of_a_test"
    (tmp_path / f"{name}.py").write_text(SAVED_NET)
    with monkeypatch.context() as patch:
        patch.syspath_prepend(tmp_path)
        torch.save(importlib.import_module(name).SavedNet(), tmp_path / "whole.pth")
    monkeypatch.delitem(sys.modules, name)
    monkeypatch.setattr(sys, "path", [each for each in sys.path if each != str(tmp_path)])
    return tmp_path / "whole.pth"


def test_a_saved_module_finds_its_class_next_to_it(saved_net: Path) -> None:
    system = make_system(SystemSpec(str(saved_net), input_shape=(6,), trust_pickle=True))
    system.load()
    assert outputs_of(system, 2).shape == (2, 2)
    sys.modules.pop("saved_net_of_a_test")


@pytest.mark.parametrize("found", ["no file", "no class"])
def test_a_saved_module_without_its_class_is_one_error(saved_net: Path, found: str) -> None:
    file = saved_net.with_name("saved_net_of_a_test.py")
    if found == "no file":
        file.unlink()
        importlib.invalidate_caches()
    else:
        file.write_text("nothing_here_is_a_class = True\n")
    system = make_system(SystemSpec(str(saved_net), input_shape=(6,), trust_pickle=True))
    with pytest.raises(BenchmarkError) as raised:
        system.load()
    assert raised.value.code == "definition_not_found"
    sys.modules.pop("saved_net_of_a_test", None)


def test_dtypes_reach_weights_and_inputs() -> None:
    system = make_system(spec_of(dtype="bfloat16"))
    system.load()
    system.prepare(2)
    assert system.arguments[0].dtype == torch.bfloat16
    assert system.run().dtype == torch.bfloat16
    with refused(BenchmarkError, "unsupported_dtype", "pytorch", "int8"):
        make_system(spec_of(dtype="int8")).load()


def test_the_same_seed_gives_the_same_batch_and_weights() -> None:
    found = []
    for seed in (1, 1, 2):
        system = make_system(SystemSpec("resnet50", seed=seed, input_shape=(3, 32, 32), framework="pytorch"))
        system.load()
        found.append(outputs_of(system, 1))
    np.testing.assert_array_equal(found[0], found[1])
    assert not np.array_equal(found[0], found[2])


def test_own_networks_have_the_published_sizes() -> None:
    with torch.device("meta"):
        counts = {
            name: sum(each.numel() for each in build_torch(f"gpuprof:{name}").model.parameters())
            for name in ("resnet50", "vit_b_16")
        }
        assert build_torch("gpuprof:vit_b_16").model(torch.empty(2, 3, 224, 224)).shape == (2, 1_000)
        with pytest.raises(ValueError, match="takes images of 224 x 224, not 128 x 96"):
            build_torch("gpuprof:vit_b_16").model(torch.empty(2, 3, 128, 96))
    assert counts == {"resnet50": 25_557_032, "vit_b_16": 86_567_656}


@pytest.mark.needs("jax", "flax")
def test_flax_networks_have_them_too() -> None:
    import jax

    from gpuprof.bench.models.sources import build_flax

    counts = {}
    for name in ("resnet50", "vit_b_16"):
        model, images = build_flax(name).model, jax.ShapeDtypeStruct((1, 224, 224, 3), "float32")
        shapes = jax.eval_shape(model.init, jax.random.key(0), images)
        counts[name] = sum(leaf.size for leaf in jax.tree_util.tree_leaves(shapes["params"]))
    assert counts == {"resnet50": 25_557_032, "vit_b_16": 86_567_656}


@pytest.mark.needs("jax")
def test_a_function_in_jax_is_compiled_ahead_and_waited_for() -> None:
    system = wrap_model(lambda batch: batch @ batch.T, SystemSpec("product", "jax", input_shape=(4,)))
    system.load()
    assert outputs_of(system, 3).shape == (3, 3)
    assert system.compile_s is not None
    system.run()
    assert len(system._outstanding) == 1
    system.waiting()()
    assert system._outstanding == []


@pytest.mark.needs("jax", "flax")
def test_flax_modules_take_channels_last() -> None:
    from flax import linen

    system = wrap_model(linen.Dense(5), SystemSpec("dense", input_shape=(7,), dtype="bfloat16"))
    system.load()
    assert (system.framework, outputs_of(system, 2).shape) == ("jax", (2, 5))
    assert system.describe().parameters == 7 * 5 + 5
    named = make_system(SystemSpec("resnet50", "jax", input_shape=(3, 32, 32)))
    named.import_framework()
    named.named = build_named("resnet50")
    assert named._inputs().shape == (32, 32, 3)


def build_named(name: str) -> Any:
    from gpuprof.bench.models.sources import build_flax

    return build_flax(name)


@pytest.mark.needs("onnxruntime", "onnx", "onnxscript")
def test_an_onnx_file_has_shape_and_type(tmp_path: Path) -> None:
    path = tmp_path / "model.onnx"
    onnx_file(path, dtype="float16")
    system = make_system(SystemSpec(str(path)))
    system.load()
    assert outputs_of(system, 2).dtype == np.float16
    described = system.describe()
    assert (described.framework, described.dtype, described.input_shape) == ("onnxruntime", "float16", (6,))
    assert described.model_bytes == path.stat().st_size
    Path(f"{path}.data").write_bytes(bytes(7))
    assert system.describe().model_bytes == path.stat().st_size + 7
    with refused(BenchmarkError, "unsupported_dtype", "float16"):
        make_system(SystemSpec(str(path), dtype="float32")).load()
    (tmp_path / "broken.onnx").write_bytes(b"no protobuf")
    with refused(BenchmarkError, "cannot_load", "cpu"):
        make_system(SystemSpec(str(tmp_path / "broken.onnx"))).load()


def onnx_file(path: Path, dtype: str) -> None:
    import onnx
    from onnx import TensorProto, helper

    kind = {"float16": TensorProto.FLOAT16}[dtype]
    ends = [helper.make_tensor_value_info(name, kind, ["batch", 6]) for name in ("x", "y")]
    graph = helper.make_graph([helper.make_node("Relu", ["x"], ["y"])], "relu", ends[:1], ends[1:])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)])
    model.ir_version = 10
    onnx.save(model, str(path))


def test_factories_may_hand_over_their_inputs() -> None:
    system = make_system(SystemSpec(f"{MODELS}:with_inputs"))
    system.load()
    np.testing.assert_array_equal(outputs_of(system, 3), [2, 2, 2])
    sequences = make_system(SystemSpec(f"{MODELS}:embedding"))
    sequences.load()
    assert outputs_of(sequences, 2).shape == (2, 12, 8)
    assert sequences.describe().details["tokens_per_sample"] == "12"


@pytest.mark.parametrize("framework", ["jax", "onnxruntime", "tensorrt"])
def test_a_missing_package_is_one_line_with_the_command(
    monkeypatch: pytest.MonkeyPatch, framework: str
) -> None:
    monkeypatch.setitem(sys.modules, framework, None)
    with refused(UnavailableError, "not_installed", framework):
        make_system(spec_of(framework=framework)).import_framework()


def test_a_library_that_cannot_be_imported_is_passed_over(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "torchvision").mkdir()
    (tmp_path / "torchvision" / "__init__.py").write_text("raise RuntimeError('built for another torch')")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "torchvision", raising=False)
    with torch.device("meta"):
        assert build_torch("resnet50").library == "gpuprof's own"
    with refused(UnavailableError, "cannot_import", "torchvision"):
        build_torch("torchvision:resnet50")
    with refused(BenchmarkError, "unknown_model", "resnet5"):
        build_torch("resnet5")


@pytest.mark.parametrize(
    ("text", "name"), [("torch", "pytorch"), ("ORT", "onnxruntime"), ("flax", "jax"), ("auto", "auto")]
)
def test_frameworks_have_other_names(text: str, name: str) -> None:
    assert framework_name(text) == name


def test_whatever_a_system_raises_is_ours() -> None:
    with refused(GpuprofError, "kind_of_model"):
        make_system(spec_of("doubled", framework="pytorch")).load()


def test_inputs_of_a_factory_come_in_the_type_that_was_asked_for() -> None:
    pytest.importorskip("torch", reason="the system is a PyTorch module")
    system = make_system(SystemSpec(f"{MODELS}:network_with_inputs", dtype="float64"))
    system.load()
    system.prepare(3)
    assert str(system.run().dtype) == "torch.float64"  # type: ignore[attr-defined]


@pytest.mark.skipif(sys.platform != "linux", reason="the peak of a process can only be reset on Linux")
def test_host_memory_is_what_calls_add_and_the_framework_is_apart() -> None:
    size = 64 << 20
    held = np.ones(size, dtype=np.uint8)  # is the framework and everything else of the process
    source = parse_model(f"{MODELS}:doubled")
    system = PythonSystem(SystemSpec("calls"), source, model=lambda: np.ones(size, np.uint8))
    system.load()
    system.prepare(1)
    system.run()
    found = system.memory()
    assert found.host_own_bytes is not None
    assert found.host_calls_bytes == found.host_own_bytes
    assert 0.9 * size <= found.host_own_bytes <= 1.3 * size
    assert found.host_baseline_bytes is not None
    assert found.host_baseline_bytes >= held.nbytes
    assert found.host_resident_bytes is not None
    assert found.host_resident_bytes >= held.nbytes + size
