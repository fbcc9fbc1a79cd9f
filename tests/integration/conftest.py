# SPDX-License-Identifier: Apache-2.0
"""Wheels are built once; an environment serves all tests of its Python and its PyTorch."""

from __future__ import annotations

from importlib.metadata import version
from pathlib import Path

import pytest
from environments import (
    PYTHONS,
    REPOSITORY,
    THIS_PYTHON,
    Environment,
    Wheels,
    build_sdist,
    build_wheel,
    make_environment,
)

OLDEST_PYTORCH = "2.4.1"
ENVIRONMENTS = REPOSITORY / "build" / "integration"


@pytest.fixture(scope="session")
def sdist(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The source distribution of the working tree."""
    return build_sdist(tmp_path_factory.mktemp("sdist"))


@pytest.fixture(scope="session")
def wheels(sdist: Path, tmp_path_factory: pytest.TempPathFactory) -> Wheels:
    """`wheels("3.12")` is the wheel for that Python, built of the source distribution.

    That of this Python is built of the working tree, whose objects are there from `make venv`.
    """
    built: dict[str, Path] = {}

    def wheel(python: str) -> Path:
        if python not in built:
            folder = tmp_path_factory.mktemp("wheel")
            is_tree = python == THIS_PYTHON
            source, words = (REPOSITORY, ["--no-build-isolation"]) if is_tree else (sdist, [])
            built[python] = build_wheel(python, source, folder, *words)
        return built[python]

    return wheel


KINDS_OF_ENVIRONMENT = {
    "oldest-torch": ("3.10", OLDEST_PYTORCH),
    "tested-torch": (THIS_PYTHON, version("torch").partition("+")[0]),
    "no-torch": (PYTHONS[-1], None),
}


@pytest.fixture(
    scope="session",
    params=[
        pytest.param(kind, marks=pytest.mark.needs(f"Python {python}"))
        for kind, (python, _) in KINDS_OF_ENVIRONMENT.items()
    ],
)
def environment(request: pytest.FixtureRequest, wheels: Wheels) -> Environment:
    """An environment with the wheel, what it depends on, and a PyTorch or none.

    That without a PyTorch has none of the extras either. It is kept in the build folder, since a PyTorch
    takes minutes to install; the wheel is replaced.
    """
    python, pytorch = KINDS_OF_ENVIRONMENT[request.param]
    environment = make_environment(python, pytorch, ENVIRONMENTS / f"{request.param}-{python}")
    environment.install("--force-reinstall", "--no-deps", wheels(python))
    environment.install(f"{wheels(python)}{'[bench,torch]' if pytorch else ''}")
    return environment
