# SPDX-License-Identifier: Apache-2.0
"""One headless Chromium for all pages; every page is checked for errors and network requests."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from pages import next_frames

OpenPage = Callable[..., Any]
LONGEST_STEP_MS = 180_000  # ends what hangs; a busy machine needs more than the 30 s of Playwright


def _browser_path(playwright: Any) -> str | None:
    if told := os.environ.get("GPUPROF_CHROMIUM"):
        return shutil.which(told) or told
    # The first is the same browser without windows: each test's page opens in half the time.
    for name in ("chromium-headless-shell", "chromium"):
        if found := shutil.which(name):
            return found
    own = Path(playwright.chromium.executable_path)
    return str(own) if own.exists() else None


@pytest.fixture(scope="module")  # not longer: playwright keeps an event loop running in the main thread
def browser() -> Iterator[Any]:
    reason = "no playwright: `pip install playwright`"
    sync_api = pytest.importorskip("playwright.sync_api", reason=reason)
    with sync_api.sync_playwright() as playwright:
        path = _browser_path(playwright)
        if path is None:
            pytest.skip(
                "no Chromium: `apt-get install chromium-headless-shell`, or `playwright install chromium`, "
                "or set GPUPROF_CHROMIUM to the browser's path"
            )
        arguments = ["--no-sandbox", "--disable-gpu"]
        running = playwright.chromium.launch(executable_path=path, args=arguments, timeout=LONGEST_STEP_MS)
        yield running
        running.close()


@pytest.fixture
def open_page(browser: Any, tmp_path: Path) -> Iterator[OpenPage]:
    """Open HTML text from a file; fail the test on any error, dialog or request that it causes."""
    problems: list[str] = []
    contexts = []

    def opened(html: str, *, fragment: str = "", **options: Any) -> Any:
        file = tmp_path / f"page{len(contexts)}.html"
        file.write_text(html, encoding="utf-8")
        context = browser.new_context(**({"viewport": {"width": 1280, "height": 900}} | options))
        context.set_default_timeout(LONGEST_STEP_MS)
        contexts.append(context)
        page = context.new_page()
        _watch(page, file.as_uri(), problems)
        page.goto(file.as_uri() + fragment)
        if options.get("java_script_enabled", True):
            # Not wait_for_function: it polls with eval, which the page's security policy forbids.
            page.locator("html[data-ready]").wait_for(state="attached")
            assert page.evaluate("window.__gpuprof.ready") is True
            next_frames(page)  # what is not laid out yet has no text for a reader
        return page

    yield opened
    for context in contexts:
        context.close()
    assert problems == []


def _watch(page: Any, address: str, problems: list[str]) -> None:
    def on_request(request: Any) -> None:
        if not request.url.startswith((address, "data:", "blob:")):
            problems.append(f"request: {request.url}")

    def on_dialog(dialog: Any) -> None:
        problems.append(f"dialog: {dialog.message}")
        dialog.dismiss()

    page.on("request", on_request)
    page.on("dialog", on_dialog)
    page.on("pageerror", lambda error: problems.append(f"page error: {error}"))
    page.on("console", lambda message: problems.append(f"console: {message.text}"))
