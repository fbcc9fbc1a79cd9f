# SPDX-License-Identifier: Apache-2.0
"""The page of the dashboard: the page kit with a nonce, since a server can send one."""

from __future__ import annotations

import functools
from pathlib import Path

from gpuprof.errors import GpuprofError
from gpuprof.render.page import asset, escaped, filled, page_script, page_style, safe_json

ASSETS = Path(__file__).parent / "assets"


def dashboard_page(root: Path, nonce: str) -> tuple[str, str]:
    """Return the HTML of the page, and its content security policy."""
    name = escaped(root.name or str(root))
    page = filled(
        _template(),
        {
            "nonce": nonce,
            "title": name,
            "folder": escaped(str(root)),
            "style": _style(),
            "script": _script(),
            "data": safe_json({"folder": root.name or str(root)}),
        },
    )
    return page, policy_of(nonce)


def refusal_page(error: GpuprofError) -> str:
    """Return why a page cannot be shown, as HTML without styles and scripts."""
    return (
        '<!doctype html><html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        '<meta name="color-scheme" content="light dark"><title>gpuprof: error</title></head>'
        f"<body><h1>This page cannot be shown</h1><p>{escaped(error.message)}</p>"
        f"<p>hint: {escaped(error.hint)}</p><p><code>{escaped(error.code)}</code></p></body></html>"
    )


def policy_of(nonce: str) -> str:
    """Return the policy: what carries the nonce runs, and only this server is asked."""
    return (
        f"default-src 'none'; script-src 'nonce-{nonce}'; style-src 'nonce-{nonce}'; connect-src 'self'; "
        "img-src data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    )


@functools.cache
def _template() -> str:
    return asset(ASSETS / "dashboard.html")


@functools.cache
def _script() -> str:
    return page_script(ASSETS / "dashboard.js")


@functools.cache
def _style() -> str:
    return page_style("kit/page.css", ASSETS / "dashboard.css")
