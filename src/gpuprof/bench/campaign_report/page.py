# SPDX-License-Identifier: Apache-2.0
"""A report as one HTML file that works offline, with its plots; and the same page for paper."""

from __future__ import annotations

import importlib
import json
from importlib import resources
from typing import TYPE_CHECKING, Any

from gpuprof.bench.campaign_report.layer_plot import BOUNDS, bound_colour, bound_of
from gpuprof.bench.campaign_report.sections import Content
from gpuprof.errors import UnavailableError
from gpuprof.render.page import asset, policy, readable, safe_json

if TYPE_CHECKING:
    import jinja2

INSTALL = "pip install 'gpuprof-native[report]'"
_SCRIPTS = ("report.js",)


def report_page(content: Content, *, for_paper: bool = False) -> str:
    """Return the page; `for_paper` draws the plots as wide as paper from the start.

    Raises UnavailableError where jinja2 or plotly is missing.
    """
    jinja = _required("jinja2")
    library = _required("plotly.offline").get_plotlyjs()
    script = _own("report.js")
    template = _environment(jinja).from_string(_own("report.html"))
    return template.render(
        content=content,
        report=content.report,
        looks=content.plots.looks,
        places={variant.name: place for place, variant in enumerate(content.report.variants)},
        bounds=_bounds(content),
        for_paper=for_paper,
        # Plots of a library that writes styles of its own; scripts are those two and no other.
        policy=policy(script, None, library),
        style=_html(asset("page.css") + asset("roofline/page.css") + _own("report.css")),
        library=_html(library),
        script=_html(script),
        data=_html(safe_json(_data(content))),
    )


def required_packages() -> None:
    """Raise UnavailableError where a page could not be made."""
    for module in ("jinja2", "plotly.offline"):
        _required(module)


def _required(module: str) -> Any:
    try:
        return importlib.import_module(module)
    except ImportError as error:
        package = module.split(".", maxsplit=1)[0]
        raise UnavailableError(f"an HTML or PDF report needs {package}: {INSTALL}") from error


def _environment(jinja: Any) -> jinja2.Environment:
    """Return an environment in which no text of the document is HTML, or hides or turns what is near."""
    environment: jinja2.Environment = jinja.Environment(
        autoescape=True,
        undefined=jinja.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        finalize=lambda value: readable(value) if type(value) is str else value,
    )
    return environment


def _html(text: str) -> Any:
    """Mark text of ours as HTML."""
    return importlib.import_module("markupsafe").Markup(text)


def _own(name: str) -> str:
    return (resources.files("gpuprof.bench.campaign_report") / "assets" / name).read_text("utf-8")


def _data(content: Content) -> dict[str, Any]:
    """Return what the plots are drawn from; variants are numbers, as in the legends."""
    places = {variant.name: place for place, variant in enumerate(content.report.variants)}
    figures = []
    for figure in content.figures:
        plain = json.loads(json.dumps(figure.to_dict()))
        for trace in plain["traces"]:
            if "meta" in trace:
                trace["meta"] = {"variant": places[trace["meta"]["variant"]]}
        figures.append(plain)
    return {"figures": figures}


def _bounds(content: Content) -> list[tuple[str, str]]:
    """Return the kinds of bounds in use, with their colours."""
    used = {bound_of(layer.bound) for each in content.report.variants for layer in each.layers or ()}
    return [(kind, bound_colour(kind)) for kind in BOUNDS if kind in used]
