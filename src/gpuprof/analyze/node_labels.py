# SPDX-License-Identifier: Apache-2.0
"""Facts about the nodes of a call tree: the class of their layer, their bottleneck."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from gpuprof.analyze.roofline.counted import plain_name
from gpuprof.analyze.tree_work import Where, places_of
from gpuprof.run.format import KINDS

if TYPE_CHECKING:
    from gpuprof.analyze.call_tree import CallTree
    from gpuprof.analyze.roofline.build import Roofline

_LAYER, _OPERATOR, _BACKWARD = (KINDS.index(kind) for kind in ("layer", "operator", "backward"))
NOT_CLASSIFIED = "not classified"


def layer_types(tree: CallTree, meta: Mapping[str, Any]) -> list[str | None] | None:
    """Return the class of the layer around each node; None alone where the run does not know any."""
    known = meta.get("layer_types")
    if not isinstance(known, dict) or not known:
        return None

    def class_of(where: Where) -> str | None:
        types = known.get(where.root)
        found = types.get(where.layer) if isinstance(types, dict) else None
        return str(found) if found else None

    return [class_of(where) for where in places_of(tree)]


def bounds(tree: CallTree, roofline: Roofline) -> list[str]:
    """Return the bottleneck of each layer and operator, by its roofline rows with the most time."""
    layers: dict[tuple[str, str], str] = {(row.root, row.layer): row.bound for row in roofline.layers}
    times: dict[tuple[Where, str], Counter[str]] = defaultdict(Counter)
    for row in roofline.operators:
        where = Where(row.root, row.layer or row.root, row.phase == "backward")
        times[where, plain_name(row.operator or "")][row.bound] += row.total_ns
    operators = {key: bound.most_common(1)[0][0] for key, bound in times.items()}
    found = []
    columns = (tree.kind.tolist(), tree.name.tolist(), places_of(tree))
    for kind, name, where in zip(*columns, strict=True):
        if kind == _LAYER and not where.is_backward:
            found.append(layers.get((where.root, where.layer), NOT_CLASSIFIED))
        elif kind in (_OPERATOR, _BACKWARD):
            found.append(operators.get((where, plain_name(tree.names[name])), NOT_CLASSIFIED))
        else:
            found.append(NOT_CLASSIFIED)
    return found
