# SPDX-License-Identifier: Apache-2.0
"""Models whose layers have the same paths: the lists of a page distinguish them, as the summary does."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from pages import make_page, state

import gpuprof

torch = pytest.importorskip("torch", reason="the models are PyTorch's")


@pytest.fixture(name="folder", scope="module")
def recorded_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    class Generator(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.net = torch.nn.Sequential(torch.nn.Linear(8, 32), torch.nn.ReLU(), torch.nn.Linear(32, 8))

        def forward(self, batch: Any) -> Any:
            return self.net(batch)

    class Discriminator(Generator):
        pass

    folder = tmp_path_factory.mktemp("runs") / "gan.gpuprof"
    generator, discriminator = Generator(), Discriminator()
    with gpuprof.profile(generator, discriminator, out=folder):
        for _ in range(3):
            discriminator(generator(torch.ones(4, 8)))
        generator(torch.ones(4, 8))
    return folder


@pytest.fixture(name="html")
def written_page(folder: Path, tmp_path: Path) -> str:
    return gpuprof.open(folder).flamegraph(tmp_path / "gan.html").read_text(encoding="utf-8")


def calls_of_layers(folder: Path) -> dict[str, str]:
    return {row.name: f"{row.calls:,}" for row in gpuprof.open(folder).summary("layer").rows}


def test_the_table_has_the_rows_of_the_summary(open_page: Any, folder: Path, html: str) -> None:
    page = open_page(html)
    rows = [text.split("\t") for text in page.locator("#rows tr").all_inner_texts()]
    found = {name.strip(): calls.strip() for name, kind, _, _, _, calls, *_ in rows if kind == "layer"}
    assert found == calls_of_layers(folder)
    assert found["Generator/net.0"] == "4"
    assert found["Discriminator/net.0"] == "3"


def test_without_javascript_the_table_has_them_too(open_page: Any, folder: Path, html: str) -> None:
    page = open_page(html, java_script_enabled=False)
    rows = [text.split("\t") for text in page.locator(".static tbody tr").all_inner_texts()]
    assert {name: calls for name, kind, _, _, calls, _ in rows if kind == "layer"} == calls_of_layers(folder)


@pytest.mark.parametrize(("text", "calls"), [("Generator/net.0", 4), ("net.0", 7), ("/^Disc.*net/", 12)])
def test_the_search_finds_the_listed_names(open_page: Any, html: str, text: str, calls: int) -> None:
    page = open_page(html)
    page.evaluate("text => window.__gpuprof.search(text)", text)
    assert f"{calls} calls" in page.locator("#found").inner_text()
    names = page.locator("#rows tr th span").all_inner_texts()
    assert names
    assert all("net" in name for name in names)
    assert state(page, "timeline.marked") == calls


def test_a_card_highlights_the_layer_of_its_model_alone(open_page: Any) -> None:
    models = [
        (-1, "process", "python train.py", 1, 0),
        (0, "layer", "Generator", 4, 10),
        (1, "layer", "Generator/net.0", 4, 40),
        (0, "layer", "Discriminator", 3, 20),
        (3, "layer", "Discriminator/net.0", 3, 30),
    ]
    page = open_page(make_page(models))
    assert page.locator("#hot button .name").all_inner_texts() == [
        "Generator/net.0",
        "Discriminator/net.0",
        "Discriminator",
        "Generator",
    ]
    page.locator("#hot button[title^='Highlight Generator/net.0 ']").click()
    assert "4 calls" in page.locator("#found").inner_text()


def test_a_range_of_the_timeline_distinguishes_the_models(open_page: Any, folder: Path, html: str) -> None:
    page = open_page(html)
    totals = state(page, "timeline.totals(0, 1e15)")
    found = {each["name"]: f"{each['calls']:,}" for each in totals if each["kind"] == "layer"}
    assert found == calls_of_layers(folder)


def test_one_model_needs_no_name_before_its_layers(open_page: Any, tmp_path: Path) -> None:
    model = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.ReLU())
    with gpuprof.profile(model, out=tmp_path / "one.gpuprof"):
        model(torch.ones(2, 4))
    html = gpuprof.open(tmp_path / "one.gpuprof").flamegraph(tmp_path / "one.html").read_text("utf-8")
    page = open_page(html)
    assert state(page, "nodes") > 3
    names = page.locator("#rows tr th span").all_inner_texts()
    assert {"0", "1"} <= set(names)
