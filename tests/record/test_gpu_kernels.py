# SPDX-License-Identifier: Apache-2.0
"""The kernels that measure GPUs, compiled for real by what is at hand: nvcc, NVRTC. Neither needs a GPU."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest

from gpuprof import _native
from gpuprof.record.kernels import nvrtc_folders

SOURCE = Path(__file__).resolve().parents[2] / "csrc/cuda/ceilings.cu"
CAPABILITIES = (75, 80, 86, 89, 90, 100)
KERNELS = ("read", "copy", "triad", "fma_fp64", "fma_fp32", "fma_fp16", "fma_bf16", "empty", "busy")
MULTIPLY_ADDS = {
    "fma_fp64": "fma.rn.f64",
    "fma_fp32": "fma.rn.f32",
    "fma_fp16": "fma.rn.f16x2",
    "fma_bf16": "fma.rn.bf16x2",
}
# Eight accumulators, sixteen steps: what the bench counts for a round.
IN_A_ROUND = 8 * 16
# Pieces of 16 bytes in a group of four: loads and stores.
MOVES = {"read": (4, 1), "copy": (4, 4), "triad": (8, 4)}  # that of the reading kernel never happens


def kernels_for(capability: int) -> set[str]:
    return {name for name in KERNELS if capability >= 80 or name != "fma_bf16"}


@pytest.mark.parametrize("capability", CAPABILITIES)
def test_nvcc_compiles_the_kernels_and_leaves_nothing_out(capability: int, tmp_path: Path) -> None:
    nvcc = shutil.which("nvcc")
    if nvcc is None:
        pytest.skip("no nvcc")
    target = tmp_path / "ceilings.ptx"
    words = [nvcc, "-std=c++17", f"-arch=sm_{capability}", "-ptx", str(SOURCE), "-o", str(target)]
    done = subprocess.run(words, capture_output=True, text=True, timeout=100, check=False)
    if "is not defined for option" in done.stderr or "Unsupported gpu architecture" in done.stderr:
        pytest.skip(f"this nvcc does not know sm_{capability}")
    assert done.returncode == 0, done.stderr
    bodies = dict(re.findall(r"\.entry gpuprof_(\w+)\((.*?)^}", target.read_text(), re.DOTALL | re.MULTILINE))
    assert bodies.keys() == kernels_for(capability)
    for name in bodies.keys() & MULTIPLY_ADDS.keys():
        assert bodies[name].count(MULTIPLY_ADDS[name]) == IN_A_ROUND, name
    for name, (loads, stores) in MOVES.items():
        found = (bodies[name].count("ld.global.cg.v4"), bodies[name].count("st.global.cg.v4"))
        assert found == (loads, stores), name


@pytest.mark.needs("nvrtc")
def test_nvrtc_compiles_what_the_extension_carries() -> None:
    folders = [os.fsencode(folder) for folder in nvrtc_folders()]
    known = 0
    for capability in CAPABILITIES:
        try:
            image = _native.compile_gpu_kernels(folders, capability)
        except RuntimeError as error:
            if "gpu-architecture" in str(error):
                continue  # this NVRTC is too old, or too new, for it
            raise
        known += 1
        assert image.startswith(b"\x7fELF")
        names = {name.decode() for name in re.findall(rb"\.text\.gpuprof_(\w+)", image)}
        assert names == kernels_for(capability)
    assert known
