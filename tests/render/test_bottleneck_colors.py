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

STYLES = Path(gpuprof.__file__).parent / "render" / "assets" / "roofline" / "roofline.css"


def test_the_style_sheet_has_a_color_for_each() -> None:
    found = set(re.findall(r"--bound-([\w-]+):", STYLES.read_text(encoding="utf-8")))
    assert found == {str(bound).replace(" ", "-") for bound in Bound}


@pytest.mark.parametrize("bound", Bound)
def test_the_flame_graph_shows_it(bound: Bound) -> None:
    shown: Any = SimpleNamespace(source=np.array([0]))
    coloring = bound_coloring(shown, [str(bound)])
    assert coloring.categories[coloring.code[0]] == bound


@pytest.mark.parametrize("bound", [each for each in Bound if each != Bound.UNDERUTILIZED])
def test_the_report_of_a_comparison_shows_it(bound: Bound) -> None:
    found = bound_of(LayerFigures(name="fc", bound=str(bound)))
    assert (str(found), found in LAYER_BOUNDS) == (bound, True)
