# SPDX-License-Identifier: Apache-2.0
"""What imports of a program take, by the package that the program imports, and imports by functions."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from gpuprof.run.import_times import START_UP

if TYPE_CHECKING:
    from gpuprof.run.folder import RunFolder

# Runs of older versions have no importer: each package is its own.
_IMPORTS = """
    SELECT process_id, package, phase, coalesce(importer, package), coalesce(module, package), caller,
        sum(duration_ns)::BIGINT AS time_ns FROM imports GROUP BY ALL
"""


@dataclass(frozen=True, slots=True)
class ImportedPackage:
    """A package that the program imports before the first step, with all that it imports.

    `others_ns` is the time in other packages of it, `total_ns` includes them.
    """

    package: str
    total_ns: int
    others_ns: dict[str, int]


@dataclass(frozen=True, slots=True)
class ImportByFunction:
    """What a function imports that a program calls: in `phase`, by module.

    `phase` is `start-up` before the first step, `first step`, or `later`. `caller` is None for imports by the
    program's module itself, which are here if they are not in the start-up.
    """

    caller: str | None
    phase: str
    total_ns: int
    modules_ns: dict[str, int]


@dataclass(frozen=True, slots=True)
class ImportCauses:
    """Imports of the main thread, the longest first."""

    packages: tuple[ImportedPackage, ...]
    functions: tuple[ImportByFunction, ...]


def read_import_causes(run: RunFolder, process_id: int) -> ImportCauses:
    """Return the imports of a process; empty without samples of Python stacks."""
    packages: dict[str, dict[str, int]] = {}
    functions: dict[tuple[str | None, str], dict[str, int]] = {}
    for of, package, phase, importer, module, caller, time_ns in run.sql(_IMPORTS).fetchall():
        if of != process_id:
            continue
        if phase == START_UP:
            _add(packages.setdefault(importer, {}), package, time_ns)
        if caller is not None or phase != START_UP:
            _add(functions.setdefault((caller, phase), {}), module, time_ns)
    return ImportCauses(
        packages=tuple(
            sorted(
                (_package(name, times) for name, times in packages.items()),
                key=lambda each: (-each.total_ns, each.package),
            )
        ),
        functions=tuple(
            sorted(
                (
                    ImportByFunction(*key, sum(times.values()), _sorted(times))
                    for key, times in functions.items()
                ),
                key=lambda each: (-each.total_ns, each.caller or "", each.phase),
            )
        ),
    )


def _add(sums: dict[str, int], name: str, time_ns: int) -> None:
    sums[name] = sums.get(name, 0) + time_ns


def _package(name: str, times: dict[str, int]) -> ImportedPackage:
    others = {package: time_ns for package, time_ns in times.items() if package != name}
    return ImportedPackage(name, sum(times.values()), _sorted(others))


def _sorted(times: dict[str, int]) -> dict[str, int]:
    return dict(sorted(times.items(), key=lambda item: (-item[1], item[0])))
