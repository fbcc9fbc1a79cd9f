# SPDX-License-Identifier: Apache-2.0
"""Fourier transforms and factorisations, by the leading terms of the textbook counts (all estimates).

Golub and Van Loan, Matrix Computations: LU 2/3 n^3, Cholesky 1/3 n^3, QR 2mn^2 - 2/3 n^3, triangular solution
n^2 a right side, symmetric eigenvalues with vectors 9 n^3, singular values with vectors 4mn^2 + 22n^3 ... A
Fourier transform of n points: 5 n log2 n (the convention of FFTW's benchmarks), half of that between real and
complex.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import torch

from gpuprof.record.work.call import Count, OperatorCall
from gpuprof.record.work.registry import formula
from gpuprof.record.work.sizes import elements


@formula("_fft_c2c _fft_r2c _fft_c2r")
def _fourier(call: OperatorCall) -> Count:
    """5 n log2 n for each transform, half of that for a real one."""
    is_real = "c2c" not in call.name
    whole = call.output if call.name.endswith("c2r") else call["self"]
    points = math.prod(int(whole.shape[dim]) for dim in call["dim"])
    logarithm = math.log2(points) if points > 1 else 0.0
    return Count(round(elements(whole) * logarithm * (2.5 if is_real else 5)), "estimated")


def _matrices(tensor: torch.Tensor) -> tuple[int, int, int]:
    rows, columns = int(tensor.shape[-2]), int(tensor.shape[-1])
    return math.prod(int(size) for size in tensor.shape[:-2]), rows, columns


# FLOPs of one factorisation by its rows m and columns n, with n the smaller.
_FACTOR: dict[str, Callable[[int, int], float]] = {
    "linalg_lu_factor_ex": lambda m, n: m * n * n - n**3 / 3,
    "linalg_lu": lambda m, n: m * n * n - n**3 / 3,
    "_linalg_det": lambda _, n: 2 * n**3 / 3,
    "_linalg_slogdet": lambda _, n: 2 * n**3 / 3,
    "linalg_cholesky_ex": lambda _, n: n**3 / 3,
    "cholesky": lambda _, n: n**3 / 3,
    "cholesky_inverse": lambda _, n: 2 * n**3 / 3,
    "linalg_qr": lambda m, n: 4 * m * n * n - 4 * n**3 / 3,
    "geqrf": lambda m, n: 2 * m * n * n - 2 * n**3 / 3,
    "linalg_inv_ex": lambda _, n: 2 * n**3,
    "_linalg_eigh": lambda _, n: 9 * n**3,
    "_linalg_svd": lambda m, n: 4 * m * n * n + 22 * n**3,
    "linalg_eig": lambda _, n: 25 * n**3,
    "_linalg_eigvals": lambda _, n: 10 * n**3,
}


@formula(" ".join(_FACTOR))
def _factorize(call: OperatorCall) -> Count:
    """The textbook's leading terms."""
    matrix = call.inputs[0]
    batch, rows, columns = _matrices(matrix)
    factor = 4 if matrix.is_complex() else 1
    flops = batch * factor * _FACTOR[call.base_name](max(rows, columns), min(rows, columns))
    return Count(round(flops), "estimated")


@formula(
    "linalg_solve_triangular triangular_solve cholesky_solve _cholesky_solve_helper linalg_lu_solve"
    " _linalg_solve_ex"
)
def _solve(call: OperatorCall) -> Count:
    """n^2 a right side for each triangle; solving from scratch factorises first, 2/3 n^3."""
    name = call.base_name
    sides = elements(call.output)
    size = int(call.inputs[0].shape[-1])
    if name in ("triangular_solve", "cholesky_solve", "_cholesky_solve_helper"):
        size = int(call.inputs[1].shape[-1])
    flops = float(sides * size * (1 if "triangular" in name else 2))
    if name == "_linalg_solve_ex":
        flops += _matrices(call["A"])[0] * 2 * size**3 / 3
    return Count(round(flops), "estimated")


@formula("linalg_cross")
def _cross(call: OperatorCall) -> Count:
    """Two products and a difference for each coordinate."""
    return Count(3 * elements(call.output))
