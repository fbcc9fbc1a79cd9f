# SPDX-License-Identifier: Apache-2.0
"""PDF: the page printed by an installed Chromium, which is given a time limit and nothing else to do."""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from pathlib import Path

from gpuprof.bench.workers.process import end_session, last_words
from gpuprof.errors import BenchmarkError, UnavailableError

LIMIT_S = 120.0
VARIABLE = "GPUPROF_CHROMIUM"
_NAMES = (
    "chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "chrome", "microsoft-edge",
    "chromium-headless-shell", "headless_shell",
)  # fmt: skip
_APPLICATIONS = (
    "/Applications/Google Chrome.app/Contents/MacOS/Google Chrome",
    "/Applications/Chromium.app/Contents/MacOS/Chromium",
)
_OPTIONS = (
    "--headless", "--disable-gpu", "--no-first-run", "--no-default-browser-check", "--disable-extensions",
    "--disable-background-networking", "--disable-component-update", "--disable-sync",
    "--disable-dev-shm-usage", "--no-pdf-header-footer", "--print-to-pdf-no-header", "--hide-scrollbars",
)  # fmt: skip


def find_chromium() -> str:
    """Return the browser that prints. Raises UnavailableError where there is none."""
    told = os.environ.get(VARIABLE)
    if told:
        found = shutil.which(told)
        if found is None:
            raise UnavailableError(
                "not_a_program",
                f"{VARIABLE}={told} is not a program",
                hint="name the browser that prints the PDF",
            )
        return found
    for name in (*_NAMES, *_APPLICATIONS):
        found = shutil.which(name)
        if found is not None:
            return found
    raise UnavailableError(
        "not_installed",
        "a PDF needs Chromium, which is not installed",
        hint=f"install chromium, or set {VARIABLE} to a browser",
    )


def print_pdf(html: str, path: Path, *, limit_s: float = LIMIT_S) -> None:
    """Print a page to a file. Raises UnavailableError without a browser, BenchmarkError where it fails."""
    browser = find_chromium()
    with tempfile.TemporaryDirectory(prefix="gpuprof-pdf-", ignore_cleanup_errors=True) as place:
        folder = Path(place)
        page, printed = folder / "page.html", folder / "page.pdf"
        page.write_text(html, encoding="utf-8", errors="backslashreplace")
        said = _run(browser, page, printed, folder, limit_s)
        if not _is_pdf(printed):
            told = f" (its last output: {said})" if said else ""
            raise BenchmarkError(
                "nothing_printed",
                f"{path}: {browser} printed nothing{told}",
                hint="print the HTML from a browser",
            )
        draft = path.with_name(f".{path.name}.new")
        try:
            shutil.copyfile(printed, draft)
            draft.replace(path)
        except OSError:
            draft.unlink(missing_ok=True)
            raise


def _is_pdf(path: Path) -> bool:
    try:
        with path.open("rb") as file:
            return file.read(5) == b"%PDF-"
    except OSError:
        return False


def _run(browser: str, page: Path, printed: Path, folder: Path, limit_s: float) -> str:
    """Run the browser to its end; returns its last line. Raises BenchmarkError where the time ends first."""
    # As root there is no sandbox to be had, and the page runs no script but its own.
    sandbox = ("--no-sandbox",) if hasattr(os, "geteuid") and os.geteuid() == 0 else ()
    # A profile of its own: a browser that already runs would take the page over, and leave at once.
    own = (f"--user-data-dir={folder / 'profile'}", f"--print-to-pdf={printed}")
    command = [browser, *_OPTIONS, *sandbox, *own, page.as_uri()]
    with (folder / "output").open("w+b") as output:
        try:
            process = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=output, stderr=output, start_new_session=True
            )
        except OSError as error:
            raise BenchmarkError(
                "cannot_start", f"{browser} cannot be started ({error.strerror})", hint=f"set {VARIABLE}"
            ) from error
        try:
            process.wait(limit_s)
        except subprocess.TimeoutExpired:
            raise BenchmarkError(
                "print_timeout",
                f"{browser} did not print the page in {limit_s:g} s",
                hint="print the HTML from a browser",
            ) from None
        finally:
            end_session(process)
        return last_words(output)
