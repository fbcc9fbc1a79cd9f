# SPDX-License-Identifier: Apache-2.0
"""The machine code that NVRTC makes of the kernels that measure ceilings. Needs no GPU, but a compiler and a
disassembler: `pip install nvidia-cuda-nvrtc nvidia-cuda-nvdisasm`."""

from __future__ import annotations

import ctypes
import re
import subprocess
from collections import Counter
from functools import lru_cache
from pathlib import Path

import pytest
from optional_tools import disassembler

from gpuprof.record.kernels import nvrtc_folders

pytestmark = pytest.mark.needs("nvrtc", "nvdisasm")
SOURCE = Path(__file__).resolve().parents[3] / "csrc" / "cuda" / "ceilings.cu"
INSTRUCTION = re.compile(r"/\*[0-9a-f]{4,}\*/\s+(?:@!?\w+ )?([A-Z0-9_.]+)")
CHAINS_TIMES_STEPS = 8 * 16


def compiler() -> ctypes.CDLL:
    paths = [path for folder in nvrtc_folders() for path in sorted(folder.glob("libnvrtc.so.1?"))]
    for builtins in paths[-1].parent.glob("libnvrtc-builtins.so.*"):
        ctypes.CDLL(str(builtins))
    return ctypes.CDLL(str(paths[-1]))


def machine_code(architecture: str) -> bytes:
    nvrtc, program, size = compiler(), ctypes.c_void_p(), ctypes.c_size_t()
    assert (
        nvrtc.nvrtcCreateProgram(ctypes.byref(program), SOURCE.read_bytes(), b"ceilings.cu", 0, None, None)
        == 0
    )
    options = (ctypes.c_char_p * 2)(f"--gpu-architecture={architecture}".encode(), b"--std=c++17")
    assert nvrtc.nvrtcCompileProgram(program, len(options), options) == 0
    assert nvrtc.nvrtcGetCUBINSize(program, ctypes.byref(size)) == 0
    image = ctypes.create_string_buffer(size.value)
    assert nvrtc.nvrtcGetCUBIN(program, image) == 0
    return image.raw


@lru_cache
def instructions(architecture: str, folder: Path) -> dict[str, Counter[str]]:
    """Return how often each kernel has each instruction."""
    image = folder / f"{architecture}.cubin"
    image.write_bytes(machine_code(architecture))
    tool = disassembler()
    assert tool is not None
    command = [tool, "-c", str(image)]
    text = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True).stdout
    kernels = re.split(r"^\.text\.(\w+):", text, flags=re.MULTILINE)
    return {
        name: Counter(INSTRUCTION.findall(body))
        for name, body in zip(kernels[1::2], kernels[2::2], strict=True)
    }


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("machine-code")


@pytest.mark.parametrize("architecture", ["sm_80", "sm_90"])
def test_halves_use_both_pipelines(architecture: str, folder: Path) -> None:
    """HFMA2 is of the pipeline for halves, HFMA2.MMA of the one for fp64: only both together are the peak."""
    found = instructions(architecture, folder)["gpuprof_fma_fp16"]
    assert found["HFMA2"] == CHAINS_TIMES_STEPS / 2
    # Some more set registers to constants.
    assert CHAINS_TIMES_STEPS / 2 <= found["HFMA2.MMA"] < CHAINS_TIMES_STEPS / 2 + 8


def test_each_multiply_add_is_one_instruction(folder: Path) -> None:
    found = instructions("sm_90", folder)
    assert found["gpuprof_fma_fp32"]["FFMA"] == CHAINS_TIMES_STEPS
    assert found["gpuprof_fma_fp64"]["DFMA"] == CHAINS_TIMES_STEPS
    bfloats = found["gpuprof_fma_bf16"]
    assert bfloats["HFMA2.BF16_V2"] + bfloats["HFMA2.MMA.BF16_V2"] == CHAINS_TIMES_STEPS


def test_no_kernel_spills_registers(folder: Path) -> None:
    for name, found in instructions("sm_90", folder).items():
        assert not {each for each in found if each.startswith(("LDL", "STL"))}, name


@pytest.mark.parametrize("name", ["gpuprof_read", "gpuprof_copy", "gpuprof_triad"])
def test_memory_is_read_in_pieces_of_128_bits(name: str, folder: Path) -> None:
    loads = {each for each in instructions("sm_90", folder)[name] if each.startswith("LDG")}
    assert loads
    assert all(".128" in each for each in loads), loads
