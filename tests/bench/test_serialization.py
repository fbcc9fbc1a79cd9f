# SPDX-License-Identifier: Apache-2.0
"""Typed values as plain data and back: nothing changes on the way, and a value of another type is refused."""

from __future__ import annotations

import json
import subprocess
import sys

import numpy as np
import pytest
from refusals import refused

from gpuprof.bench.config import Settings, SystemSpec
from gpuprof.bench.serialization import decode, encode, from_plain, to_plain
from gpuprof.errors import BenchmarkError

SPEC = SystemSpec("m.py:build", input_shape=(3, 8), seed=4)


def test_a_dataclass_survives_plain_data_and_json() -> None:
    assert from_plain(to_plain(SPEC), SystemSpec) == SPEC
    assert decode(encode(SPEC), SystemSpec) == SPEC
    assert json.loads(encode(SPEC))["input_shape"] == [3, 8]


def test_numpy_is_written_as_plain_numbers() -> None:
    assert json.loads(encode({"a": np.array([1, 2]), "b": np.float64(0.5)})) == {"a": [1, 2], "b": 0.5}


@pytest.mark.parametrize("change", [{"input_shape": ["a"]}, {"seed": "4"}, {"model": None}])
def test_a_value_of_another_type_is_one_line_with_its_place(change: dict[str, object]) -> None:
    (field,) = change
    with refused(BenchmarkError, "damaged", "a.json", "Expected", field) as raised:
        from_plain({**to_plain(SPEC), **change}, SystemSpec, "a.json")
    assert "\n" not in str(raised.value)


def test_what_is_no_json_is_refused() -> None:
    for text in (b"{", b"", b"\xff"):
        with refused(BenchmarkError, "damaged"):
            decode(text, Settings)


def test_values_are_checked_by_the_class_itself() -> None:
    with refused(BenchmarkError, "invalid_option"):
        from_plain({"iterations": 0}, Settings)


def test_a_missing_package_is_one_line_that_names_the_extra() -> None:
    code = """
import sys
from gpuprof.errors import UnavailableError
sys.modules['msgspec'] = None
try:
    import gpuprof.bench.serialization
except UnavailableError as error:
    print(error.code, len(str(error).splitlines()))
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.stdout == "not_installed 1\n", done.stderr
