# SPDX-License-Identifier: Apache-2.0
"""Ensembles and cascades: several models that are measured as one variant."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

from gpuprof.bench.config import Average, Combination, SystemSpec
from gpuprof.bench.models.model_transfer import spec_of_model
from gpuprof.errors import BenchmarkError

# What a text begins with, and how it averages.
PREFIXES: dict[str, Average] = {
    "ensemble": "outputs",
    "ensemble-probabilities": "probabilities",
    "cascade": "outputs",
}
_ARROW = "->"


@dataclass(frozen=True, slots=True)
class Ensemble:
    """Models that all compute each batch; the output is their mean.

    `models` are at least two of what a variant may be: modules, callables, specs, texts. `average` is what
    the mean is of: the outputs as they are, or the probabilities of classes (softmax of scores).
    """

    models: Sequence[object]
    average: Average = "outputs"

    def spec(self, name: str) -> SystemSpec:
        """Return the spec of the variant `name`. Raises BenchmarkError for what is no ensemble."""
        parts = tuple(map(_part_of(name), self.models))
        return _combined(
            parts[0] if parts else SystemSpec(name), Combination("ensemble", parts, self.average)
        )


@dataclass(frozen=True, slots=True)
class Cascade:
    """A small model, and a large one for the samples of which the small one is not confident.

    A sample is forwarded to `large` where the top probability of `small` is below `threshold` (0 to 1).
    """

    small: object
    large: object
    threshold: float

    def spec(self, name: str) -> SystemSpec:
        """Return the spec of the variant `name`. Raises BenchmarkError for what is no cascade."""
        small, large = map(_part_of(name), (self.small, self.large))
        return _combined(small, Combination("cascade", (small, large), threshold=self.threshold))


def variant_spec(name: str, model: object) -> SystemSpec:
    """Return the spec of a variant: of an ensemble or cascade too. Raises BenchmarkError."""
    if isinstance(model, (Ensemble, Cascade)):
        return model.spec(name)
    return spec_of_model(name, model)


def _part_of(name: str) -> Callable[[object], SystemSpec]:
    return lambda model: variant_spec(name, model)


def _combined(like: SystemSpec, combination: Combination) -> SystemSpec:
    """Return the spec; its data, device and shape are those of its parts."""
    return dataclasses.replace(
        like, model=combination.text, framework="auto", dtype=None, recipe=None, combination=combination
    )


# --- texts ---------------------------------------------------------------------------------------


def is_combination(text: str) -> bool:
    """Whether a text is that of an ensemble or a cascade, `ensemble:a.pt+b.pt`."""
    prefix, separator, _ = text.partition(":")
    return bool(separator) and prefix in PREFIXES


def read_combination(text: str, part_of: Callable[[str], SystemSpec]) -> SystemSpec:
    """Read `ensemble:a+b` or `cascade:small->large@0.9`; `part_of` reads a part. Raises BenchmarkError."""
    prefix, _, rest = text.partition(":")
    threshold: float | None = None
    if prefix == "cascade":
        rest, threshold = _threshold(rest, text)
    words = [word.strip() for word in rest.split(_ARROW if prefix == "cascade" else "+")]
    if not all(words):
        raise BenchmarkError("no_model", f"{text!r}: a part has no model", hint=_hint(prefix))
    for word in words:
        if is_combination(word):
            raise _nested(word)
    kind: Literal["ensemble", "cascade"] = "cascade" if prefix == "cascade" else "ensemble"
    parts = tuple(map(part_of, words)) if len(words) > 1 else ()
    if kind == "cascade" and len(words) != 2:
        raise BenchmarkError(
            "number_of_parts", f"{text!r}: a cascade has two models, not {len(words)}", hint=_hint(prefix)
        )
    if not parts:
        raise BenchmarkError("number_of_parts", f"{text!r} has one model", hint=_hint(prefix))
    combination = Combination(kind, parts, PREFIXES[prefix], threshold)
    return dataclasses.replace(_combined(parts[0], combination), model=text)


def _threshold(rest: str, text: str) -> tuple[str, float]:
    """Return the models, and the threshold after the last `@`."""
    models, separator, number = rest.rpartition("@")
    try:
        return models, float(number)
    except ValueError:
        what = f"{number!r} is not a threshold" if separator else "there is no threshold"
        raise BenchmarkError("no_threshold", f"{text!r}: {what}", hint=_hint("cascade")) from None


def _hint(prefix: str) -> str:
    if prefix == "cascade":
        return "write cascade:small.pt->large.pt@0.9"
    return f"write {prefix}:a.pt+b.pt"


def _nested(word: str) -> BenchmarkError:
    return BenchmarkError(
        "nested_combination",
        f"{word!r} is a part of an ensemble or a cascade, and is one itself",
        hint="name its models as parts",
    )
