# SPDX-License-Identifier: Apache-2.0
"""The page of the dashboard: the page kit with a nonce, since a server can send one."""

from __future__ import annotations

import base64
import functools
import hashlib
from pathlib import Path

from gpuprof.render.page import asset, escaped, filled, page_script, page_style, safe_json

ASSETS = Path(__file__).parent / "assets"
# The colors and the font of kit/page.css, which is a hundred times as long.
_REFUSAL_STYLE = (
    ":root{color-scheme:light dark}"
    "body{max-width:720px;margin:0 auto;padding:48px 24px;font:14px/1.5 system-ui,sans-serif;"
    "background:light-dark(#ffffff,#14171c);color:light-dark(#1b1f24,#e8ebf0);overflow-wrap:anywhere}"
    "h1{font-size:20px;font-weight:650}"
    "code{padding:1px 5px;border-radius:4px;background:light-dark(#f4f6f8,#1d2128)}"
)
_REFUSAL_HASH = base64.b64encode(hashlib.sha256(_REFUSAL_STYLE.encode()).digest()).decode()
REFUSAL_POLICY = (
    f"default-src 'none'; style-src 'sha256-{_REFUSAL_HASH}'; frame-ancestors 'none'; base-uri 'none'; "
    "form-action 'none'"
)


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


def refusal_page(message: str, hint: str = "", code: str = "") -> str:
    """Return why a page cannot be shown, as HTML without scripts."""
    more = (f"<p>hint: {escaped(hint)}</p>" if hint else "") + (
        f"<p><code>{escaped(code)}</code></p>" if code else ""
    )
    return (
        '<!doctype html><html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        '<meta name="color-scheme" content="light dark"><title>gpuprof: error</title>'
        f"<style>{_REFUSAL_STYLE}</style></head>"
        f"<body><h1>This page cannot be shown</h1><p>{escaped(message)}</p>{more}</body></html>"
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
