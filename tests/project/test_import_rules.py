# SPDX-License-Identifier: Apache-2.0
"""A package imports only from the packages that it may, and importing gpuprof costs little."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import gpuprof

PACKAGE = Path(gpuprof.__file__).parent
BASE = {"errors", "_native", "text"}
# What the files of each part of the package may import from the others. What is missing may import nothing.
MAY_IMPORT: dict[str, set[str]] = {
    "text": set(),
    "stats": BASE,
    "record": BASE,
    "run": {"record", *BASE},
    "analyze": {"stats", "record", "run", *BASE},
    "render": {"record", "run", "analyze", *BASE},
    "bench": {"stats", "record", "run", "analyze", "render", *BASE},
    "load": {"stats", "record", "run", "analyze", "render", "bench", *BASE},
    "live": {"opened_run", "stats", "record", "run", "analyze", "render", "bench", "load", *BASE},
    "doctor": {"stats", "record", "run", "bench", *BASE},
    "opened_run": {"record", "run", "analyze", "render", *BASE},
    "recorded_program": {"opened_run", "record", "run", "analyze", *BASE},
    "always_on": {"opened_run", "record", "run", *BASE},
    "profiling": {"recorded_program", "opened_run", "record", "run", "analyze", *BASE},
    "api": {
        "always_on",
        "profiling",
        "recorded_program",
        "opened_run",
        "record",
        "run",
        "analyze",
        "bench",
        "load",
        *BASE,
    },
    "__init__": {"record", "load", "api", *BASE},
    "cli": {
        "record",
        "run",
        "analyze",
        "render",
        "bench",
        "load",
        "live",
        "doctor",
        "recorded_program",
        "always_on",
        "api",
        *BASE,
    }
    | {"__init__"},
    "__main__": {"cli"},
}


def part_of(module: str) -> str:
    """Return the part of the package that `gpuprof.x.y` belongs to."""
    return module.split(".")[1] if "." in module else "__init__"


def exists(module: str) -> bool:
    path = PACKAGE.parent.joinpath(*module.split("."))
    return path.is_dir() or path.with_suffix(".py").exists() or path.with_suffix(".pyi").exists()


def imports_of(file: Path) -> Iterator[str]:
    """Yield every module of ours that is imported anywhere in a file, under TYPE_CHECKING too."""
    package = ("gpuprof", *file.relative_to(PACKAGE).parts[:-1])
    for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            yield from (name.name for name in node.names)
        elif isinstance(node, ast.ImportFrom):
            above = package[: len(package) - node.level + 1] if node.level else ()
            module = ".".join((*above, *filter(None, [node.module])))
            yield from (
                f"{module}.{name.name}" if exists(f"{module}.{name.name}") else module for name in node.names
            )


FILES = sorted(PACKAGE.rglob("*.py"))


@pytest.mark.parametrize("file", FILES, ids=lambda file: str(file.relative_to(PACKAGE)))
def test_a_package_imports_only_what_it_may(file: Path) -> None:
    own = file.relative_to(PACKAGE).parts[0].removesuffix(".py")
    imported = {part_of(name) for name in imports_of(file) if name.split(".")[0] == "gpuprof"}
    wrong = imported - MAY_IMPORT.get(own, set()) - {own}
    assert not wrong, f"{own} may import only {', '.join(sorted(MAY_IMPORT.get(own, set())))}"


def test_the_rules_are_about_what_is_there() -> None:
    assert len(FILES) > 15
    packages = {path.name for path in PACKAGE.iterdir() if path.is_dir() and list(path.glob("*.py"))}
    assert packages <= set(MAY_IMPORT)
    assert set(imports_of(PACKAGE / "opened_run.py")) >= {"gpuprof.errors", "gpuprof.run.folder"}


def arrows() -> dict[str, set[str]]:
    """Return for each module of ours the modules of ours that it imports, inside functions too."""
    modules = {
        ".".join(file.relative_to(PACKAGE.parent).with_suffix("").parts).removesuffix(".__init__"): file
        for file in FILES
    }
    # The compiled core is no file of the package; of the package itself only `_native` is imported.
    return {
        name: (set(imports_of(file)) & set(modules)) - {name, "gpuprof"} for name, file in modules.items()
    }


def test_no_files_import_each_other() -> None:
    graph = arrows()
    assert graph["gpuprof.opened_run"] >= {"gpuprof.errors", "gpuprof.render.export"}
    while leaves := {name for name, imported in graph.items() if not imported}:
        graph = {name: imported - leaves for name, imported in graph.items() if name not in leaves}
    assert graph == {}


def test_no_two_public_classes_have_one_name() -> None:
    places: dict[str, list[str]] = {}
    for file in FILES:
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                places.setdefault(node.name, []).append(str(file.relative_to(PACKAGE)))
    assert len(places) > 200
    assert {name: files for name, files in places.items() if len(files) > 1} == {}


HEAVY = "{'torch', 'numpy', 'duckdb', 'rich', 'click', 'pandas', 'asyncio', 'multiprocessing'}"


@pytest.mark.parametrize(
    "use",
    [
        "",
        "gpuprof.__version__",
        "gpuprof.span('a').__enter__()",
        "gpuprof.profile",
        "import gpuprof.record.launch",
    ],
)
def test_importing_the_package_imports_nothing_heavy(run_python: Any, use: str) -> None:
    done = run_python("-c", f"import sys, gpuprof\n{use}\nprint(sorted({HEAVY} & set(sys.modules)))")
    assert (done.stdout, done.stderr) == ("[]\n", "")


def test_the_list_of_commands_imports_no_command(run_python: Any) -> None:
    program = (
        "import sys\nfrom gpuprof.cli.main import COMMANDS, execute\nexecute(['--help'])\n"
        "loaded = {f'gpuprof.cli.{each.module}' for each in COMMANDS.values()} & set(sys.modules)\n"
        "print('imported', sorted(loaded))"
    )
    done = run_python("-c", program)
    assert done.stdout.splitlines()[-1] == "imported []"
    listed = [line.split()[0] for line in done.stdout.split("Commands:\n")[1].splitlines()[:-1]]
    assert listed == sorted(listed)
    assert {"run", "summary", "import"} < set(listed)


def test_the_package_shows_what_the_contract_names() -> None:
    assert {"profile", "span", "open", "GpuprofError", "Run"} <= set(gpuprof.__all__) <= set(dir(gpuprof))
    assert all(getattr(gpuprof, name) is not None for name in gpuprof.__all__)
    errors = ("RecordingError", "RunError", "UnavailableError")
    assert all(issubclass(getattr(gpuprof, name), gpuprof.GpuprofError) for name in errors)
    with pytest.raises(AttributeError, match="nothing_here"):
        _ = gpuprof.nothing_here
