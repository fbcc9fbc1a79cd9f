# SPDX-License-Identifier: Apache-2.0
"""Every bottleneck of the roofline has a name and a color in each page that shows it."""

from __future__ import annotations

import re
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import gpuprof
from gpuprof.analyze.roofline.labels import Bound
from gpuprof.bench.compare.document import LayerFigures
from gpuprof.bench.report.plots import LAYER_BOUNDS, bound_of
from gpuprof.render.flame_views import bound_coloring

STYLES = Path(gpuprof.__file__).parent / "render" / "assets" / "kit" / "bounds.css"
DECLARED = dict(re.findall(r"--(bound-[\w-]+): (light-dark\(.+?\));", STYLES.read_text(encoding="utf-8")))


def variable(bound: Bound) -> str:
    return f"bound-{str(bound).replace(' ', '-')}"


def test_the_style_sheet_has_a_color_for_each() -> None:
    assert set(DECLARED) == {variable(bound) for bound in Bound}, (
        f"one line in {STYLES} for each value of Bound"
    )
    assert len(set(DECLARED.values())) == len(Bound)


@pytest.mark.parametrize("bound", Bound)
def test_the_flame_graph_shows_it(bound: Bound) -> None:
    shown: Any = SimpleNamespace(source=np.array([0]))
    coloring = bound_coloring(shown, [str(bound)])
    code = coloring.code[0]
    assert (coloring.categories[code], coloring.colors[code][0]) == (bound, variable(bound))


@pytest.mark.parametrize("bound", [each for each in Bound if each != Bound.UNDERUTILIZED])
def test_the_report_of_a_comparison_shows_it(bound: Bound) -> None:
    found = bound_of(LayerFigures(name="fc", bound=str(bound)))
    assert (str(found), found in LAYER_BOUNDS) == (bound, True)
