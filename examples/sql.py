# SPDX-License-Identifier: Apache-2.0
"""Query a run with SQL: `run.sql` returns a DuckDB relation over the run's tables.

    python examples/sql.py [RUN]

Without RUN, a small model is recorded first.
"""

from __future__ import annotations

import sys

import gpuprof  # before torch, so that PyTorch announces its operators to it

QUERIES = {
    "The slowest calls of any layer": """
        SELECT name, count(*) AS calls,
               max(duration_ns) / 1e3 AS slowest_us, median(duration_ns) / 1e3 AS median_us
        FROM spans WHERE kind = 'layer'
        GROUP BY name ORDER BY slowest_us DESC LIMIT 5
    """,
    "Operators that each layer calls directly": """
        SELECT layer.name AS layer, operator.name AS operator, count(*) AS calls,
               sum(operator.duration_ns) / 1e3 AS total_us
        FROM spans AS operator JOIN spans AS layer ON operator.parent_id = layer.span_id
        WHERE operator.kind = 'operator' AND layer.kind = 'layer'
        GROUP BY ALL ORDER BY total_us DESC LIMIT 8
    """,
    "First call of a layer relative to the median call": """
        SELECT name, first(duration_ns ORDER BY start_ns) / median(duration_ns) AS first_over_median
        FROM spans WHERE kind = 'layer'
        GROUP BY name HAVING count(*) > 1 ORDER BY 2 DESC LIMIT 5
    """,
    "Call paths with the most self time": """
        SELECT name, kind, calls, own_ns / 1e3 AS self_us
        FROM call_tree ORDER BY own_ns DESC LIMIT 5
    """,
}


def record() -> gpuprof.Run:
    """Record a few forward passes of a small model."""
    import torch
    from torch import nn

    model = nn.Sequential(nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 10)).eval()
    with gpuprof.profile(model) as recording, torch.inference_mode():
        for _ in range(50):
            model(torch.randn(16, 64))
    return recording.run


def main() -> None:
    """Print the result of each query."""
    run = gpuprof.open(sys.argv[1]) if len(sys.argv) > 1 else record()
    print(f"tables: {', '.join(run.tables)}")
    for title, query in QUERIES.items():
        print(f"\n{title}\n{run.sql(query)}", end="")


if __name__ == "__main__":
    main()
