# SPDX-License-Identifier: Apache-2.0
"""Links between the documentation pages lead to a file and a heading; tables have what the program has."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from gpuprof.analyze.roofline.labels import Bound
from gpuprof.render.export import FORMATS

ROOT = Path(__file__).resolve().parents[2]
PAGES = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md")])


def prose(page: Path) -> str:
    return re.sub(r"^```.*?^```", "", page.read_text(encoding="utf-8"), flags=re.DOTALL | re.MULTILINE)


def links(page: Path) -> Iterator[str]:
    """Yield the targets of a page's links that are not addresses."""
    for target in re.findall(r"\]\(([^)\s]+)\)", prose(page)):
        if "://" not in target:
            yield target


def headings(page: Path) -> set[str]:
    """Return the anchors of a page, as GitHub and most renderers make them."""
    titles = re.findall(r"^#+ (.*)$", prose(page), flags=re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in titles}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_lead_to_a_file_and_a_heading(page: Path) -> None:
    for target in links(page):
        name, _, anchor = target.partition("#")
        file = (page.parent / name).resolve() if name else page
        assert file.exists(), target
        assert not anchor or anchor in headings(file), target


def test_every_page_is_linked() -> None:
    linked = {(page.parent / link.partition("#")[0]).resolve() for page in PAGES for link in links(page)}
    assert {page for page in PAGES if page.is_relative_to(ROOT / "docs")} <= linked
    assert len(PAGES) > 20


def first_cells(page: str, heading: str) -> str:
    """Return the first column of the tables below a heading, up to the next one."""
    section = re.split(r"^#+ ", (ROOT / "docs" / page).read_text(encoding="utf-8"), flags=re.MULTILINE)
    (text,) = [each for each in section if each.startswith(f"{heading}\n")]
    return "\n".join(re.findall(r"^\| (.*?) \|", text, flags=re.MULTILINE))


@pytest.mark.parametrize(
    ("page", "heading", "values"),
    [
        ("roofline.md", "Labels", list(map(str, Bound))),
        ("commands/export.md", "gpuprof export", list(FORMATS)),
    ],
)
def test_tables_list_every_value(page: str, heading: str, values: list[str]) -> None:
    listed = re.findall(r"`(?:HOST)?([^`]+)`", first_cells(page, heading))
    differing = (set(listed) - {"bound"}) ^ set(values)
    assert not differing, f"update the first table below '{heading}' in docs/{page}"
