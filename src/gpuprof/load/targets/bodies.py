# SPDX-License-Identifier: Apache-2.0
"""The bodies of requests: one, one made from a template for each request, or a mix of sizes."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from gpuprof.errors import BenchmarkError
from gpuprof.text.messages import listed
from gpuprof.text.units import counted

INDEX_FIELD = b"{{index}}"
_LONGEST_CYCLE = 4096


@dataclass(frozen=True, slots=True)
class Body:
    """Bytes to send; `{{index}}` in them is replaced with the number of the request."""

    content: bytes
    content_type: str = "application/octet-stream"

    def of(self, index: int) -> bytes:
        """Return the body of request `index`."""
        return self.content.replace(INDEX_FIELD, b"%d" % index) if self.is_template else self.content

    @property
    def is_template(self) -> bool:
        """Whether each request has a body of its own."""
        return INDEX_FIELD in self.content


def read_body(path: Path) -> Body:
    """Return the body in a file; one that is JSON is sent as such. Raises BenchmarkError."""
    try:
        content = path.read_bytes()
    except OSError as error:
        raise BenchmarkError(
            "cannot_read", f"the body {path} cannot be read: {error.strerror}", hint="check --body"
        ) from error
    return Body(content, "application/json" if _is_json(content) else "application/octet-stream")


def json_body(value: object) -> Body:
    """Return a value as JSON without spaces."""
    return Body(json.dumps(value, separators=(",", ":")).encode(), "application/json")


def _is_json(content: bytes) -> bool:
    try:
        json.loads(content.replace(INDEX_FIELD, b"0"))
    except ValueError:
        return False
    return True


class BodyMix:
    """Bodies in random order by weight; the same order for the same seed, whatever the order of the calls."""

    def __init__(self, bodies: Sequence[Body], weights: Sequence[float] = (), seed: int = 0) -> None:
        given = np.asarray(weights or [1.0] * len(bodies), dtype=float)
        if (
            not len(bodies)
            or len(given) != len(bodies)
            or not (given.min() >= 0 and 0 < given.sum() < np.inf)
        ):
            raise BenchmarkError(
                "bad_mix",
                f"{counted(len(bodies), 'body', 'bodies')} with the weights {listed(given.tolist())}: each "
                "needs a weight, and one is above 0",
                hint="give each body a weight, such as small.json:80,large.json:20",
            )
        self.bodies = tuple(bodies)
        drawn = np.random.default_rng(seed).choice(len(bodies), size=_LONGEST_CYCLE, p=given / given.sum())
        self._variants: list[int] = drawn.tolist() if len(bodies) > 1 else [0]

    def variant(self, index: int) -> int:
        """Return which body request `index` has; the order repeats after 4,096 requests."""
        return self._variants[index % len(self._variants)]


def parse_mix(text: str, seed: int = 0) -> BodyMix:
    """Return the bodies of `FILE` or `FILE:WEIGHT,FILE:WEIGHT`."""
    bodies, weights = [], []
    for word in text.split(","):
        name, colon, weight = word.rpartition(":")
        if not colon or Path(word).is_file():
            name, weight = word, "1"
        try:
            weights.append(float(weight))
        except ValueError as error:
            raise BenchmarkError(
                "bad_mix", f"{weight!r} in --body {text!r} is no weight", hint="such as a.json:80,b.json:20"
            ) from error
        bodies.append(read_body(Path(name)))
    return BodyMix(bodies, weights, seed)
