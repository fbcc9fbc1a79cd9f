# SPDX-License-Identifier: Apache-2.0
"""Repeated layers as one: those of a class whose paths differ in one index, as `layers.*.mlp.up_proj`."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from typing import Any

# Where the index was: what is before it, and what is after.
_Pattern = tuple[str, str]


def classes_of_layers(meta: Mapping[str, Any]) -> dict[str, str]:
    """Return the class of each layer by its name, as far as the run knows them."""
    known = meta.get("layer_types")
    types = known.values() if isinstance(known, dict) else ()
    return {
        str(name): str(found)
        for each in types
        if isinstance(each, dict)
        for name, found in each.items()
        if found
    }


def layer_groups(names: Iterable[str], classes: Mapping[str, str]) -> dict[str, str]:
    """Return the group of each layer that has at least one other in it: its name with `*` for the index.

    `classes` are by name; a layer whose class is not known is in no group. Of several indices the one with
    the most layers counts, of these the first one. Elements of a list of different classes, as in
    `Sequential(Linear, ReLU, Linear)`, stay apart unless they have parts.
    """
    known = sorted({name for name in names if classes.get(name)})
    owners = {owner for name in classes for owner in _owners(name)}
    mixed = _mixed_lists(classes)
    members: dict[tuple[_Pattern, str], list[str]] = defaultdict(list)
    for name in known:
        for before, after in _patterns(name):
            if after or name in owners or before not in mixed:
                members[(before, after), classes[name]].append(name)
    found: dict[str, str] = {}
    texts: dict[str, str] = {}  # the class of each group, by its text
    for (pattern, kind), of_group in sorted(members.items(), key=_largest_first):
        left = [name for name in of_group if name not in found]
        if len(left) < 2:
            continue
        text = f"{pattern[0]}*{pattern[1]}"
        if texts.setdefault(text, kind) != kind:
            text = f"{text} ({kind})"
        found.update(dict.fromkeys(left, text))
    return found


def _largest_first(entry: tuple[tuple[_Pattern, str], list[str]]) -> tuple[int, int, _Pattern, str]:
    (pattern, kind), of_group = entry
    return -len(of_group), len(pattern[0]), pattern, kind


def _patterns(name: str) -> list[_Pattern]:
    """Return what is before and after each index of a path."""
    label = len(name) - len(name.rpartition("/")[2])
    found, start = [], label
    for part in name[label:].split("."):
        end = start + len(part)
        if part.isascii() and part.isdigit():
            found.append((name[:start], name[end:]))
        start = end + 1
    return found


def _owners(name: str) -> Iterable[str]:
    """Yield the paths that lead to a layer."""
    end = name.rfind(".")
    while end > 0:
        yield name[:end]
        end = name.rfind(".", 0, end)


def _mixed_lists(classes: Mapping[str, str]) -> set[str]:
    """Return what is before the index of the elements of each list that has several classes."""
    kinds: dict[str, set[str]] = defaultdict(set)
    for name, kind in classes.items():
        for before, after in _patterns(name):
            if not after:
                kinds[before].add(kind)
    return {before for before, found in kinds.items() if len(found) > 1}
