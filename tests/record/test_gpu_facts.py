# SPDX-License-Identifier: Apache-2.0
"""What a run records of the GPUs that its models used: simulated, with tensors that only have a device."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from gpuprof.record.first_calls import gpu_facts, gpu_of_call


class Switch:
    """A setting that refuses to be asked in the older way once the newer one was used."""

    def __init__(self, allowed: bool | None, precision: str | None = None) -> None:
        self._allowed = allowed
        if precision is not None:
            self.fp32_precision = precision

    @property
    def allow_tf32(self) -> bool:
        if self._allowed is None:
            raise RuntimeError("you have used mix of the legacy and new APIs")
        return self._allowed


def torch_with(matmul: Switch, cudnn: Switch, convolution: Any = None) -> Any:
    cudnn.conv = convolution  # type: ignore[attr-defined]
    properties = {0: SimpleNamespace(name="Invented", uuid="1234"), 1: SimpleNamespace(name="Older")}
    backends = SimpleNamespace(cuda=SimpleNamespace(matmul=matmul), cudnn=cudnn)
    return SimpleNamespace(
        backends=backends, cuda=SimpleNamespace(get_device_properties=lambda ordinal: properties[ordinal])
    )


def tensor(device: int | None) -> Any:
    return SimpleNamespace(is_cuda=device is not None, get_device=lambda: device)


def module(*parameters: Any) -> Any:
    return SimpleNamespace(parameters=lambda: iter(parameters))


PLAIN = torch_with(Switch(False), Switch(True))


def test_a_model_on_the_host_has_no_gpu() -> None:
    assert gpu_of_call(PLAIN, module(tensor(None)), [tensor(None)]) is None
    assert gpu_facts(PLAIN, [("Net", None)]) is None


@pytest.mark.parametrize(("parameters", "given"), [([tensor(1)], []), ([], [tensor(None), tensor(1)])])
def test_the_gpu_of_a_call_is_that_of_its_parameters_or_arguments(parameters: Any, given: Any) -> None:
    found = gpu_of_call(PLAIN, module(*parameters), given)
    assert found == {"device": "cuda:1", "tf32": {"matmul": False, "convolution": True}}


@pytest.mark.parametrize(("precision", "allowed"), [("tf32", True), ("ieee", False), (None, None)])
def test_the_newer_switches_are_asked_where_the_older_ones_refuse(
    precision: str | None, allowed: bool | None
) -> None:
    newer = Switch(None, precision)
    torch = torch_with(Switch(None, precision), Switch(None), newer)
    found = gpu_of_call(torch, module(tensor(0)), [])
    assert found is not None
    assert found["tf32"] == {"matmul": allowed, "convolution": allowed}


def test_a_run_has_its_gpus_and_one_value_where_all_calls_agree() -> None:
    def call(device: str, matmul: bool) -> dict[str, Any]:
        return {"device": device, "tf32": {"matmul": matmul, "convolution": True}}

    calls = [("Net", call("cuda:0", True)), ("Loss", call("cuda:1", False)), ("Host", None)]
    assert gpu_facts(PLAIN, calls) == {
        "roots": {"Net": "cuda:0", "Loss": "cuda:1"},
        "devices": [
            {"ordinal": 0, "name": "Invented", "uuid": "1234"},
            {"ordinal": 1, "name": "Older", "uuid": None},
        ],
        "tf32": {"matmul": None, "convolution": True},
    }
