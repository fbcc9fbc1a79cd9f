# SPDX-License-Identifier: Apache-2.0
"""`gpuprof summary`, `roofline`, `flamegraph`, `export` and `import`, on recorded runs of format 1."""

from __future__ import annotations

import base64
import gzip
import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from commands import INPUTS, Run
from golden_files import GoldenFiles, PageOutline
from page_reader import timeline_of

pytestmark = pytest.mark.usefixtures("runs")
SHOWN_SLICES = 200


@pytest.mark.parametrize("by", ["layer", "operator", "kernel", "span", "python"])
def test_summary(golden: GoldenFiles, gpuprof: Run, by: str) -> None:
    golden.check(f"summary/{by}.txt", str(gpuprof("summary", "new.gpuprof", "--by", by, "--top", "12")))


def test_summary_as_json(golden: GoldenFiles, gpuprof: Run) -> None:
    golden.check_json("summary/layer.json", json.loads(gpuprof("summary", "new.gpuprof", "--json").out))


@pytest.mark.parametrize("scale", ["none", "calls", "total"])
def test_difference(golden: GoldenFiles, gpuprof: Run, scale: str) -> None:
    words = ("summary", "new.gpuprof", "--against", "old.gpuprof", "--scale", scale)
    golden.check(f"difference/{scale}.txt", str(gpuprof(*words)))
    if scale == "none":
        golden.check_json("difference/none.json", json.loads(gpuprof(*words, "--json").out))
        golden.check("difference/operator.txt", str(gpuprof(*words, "--by", "operator")))


def test_incomplete_run(golden: GoldenFiles, gpuprof: Run) -> None:
    meta = json.loads(Path("new.gpuprof/meta.json").read_text(encoding="utf-8"))
    meta |= {"complete": False, "notes": ["the program was ended by SIGKILL"]}
    meta["totals"] |= {"dropped_events": 12, "unfinished_spans": 3}
    Path("new.gpuprof/meta.json").write_text(json.dumps(meta), encoding="utf-8")
    golden.check("summary/incomplete.txt", str(gpuprof("summary", "new.gpuprof", "--top", "3")))


@pytest.mark.parametrize("run", ["new", "gpu"])
@pytest.mark.parametrize("by", ["layer", "operator", "kernel"])
def test_roofline(golden: GoldenFiles, gpuprof: Run, run: str, by: str) -> None:
    golden.check(f"roofline/{run}-{by}.txt", str(gpuprof("roofline", f"{run}.gpuprof", "--by", by)))


@pytest.mark.parametrize("run", ["new", "gpu"])
def test_roofline_page(golden: GoldenFiles, gpuprof: Run, run: str) -> None:
    done = gpuprof("roofline", f"{run}.gpuprof", "-o", "roof.html", "--json")
    golden.check_json(f"roofline/{run}.json", json.loads(done.out))
    check_page(golden, f"roofline/{run}-page", Path("roof.html"))


def test_flamegraph(golden: GoldenFiles, gpuprof: Run) -> None:
    golden.check("flamegraph/console.txt", str(gpuprof("flamegraph", "new.gpuprof")))
    check_page(golden, "flamegraph/new", Path("new.html"))
    check_timeline(golden, "flamegraph/new-timeline.txt", Path("new.html"))


def test_flamegraph_of_a_difference(golden: GoldenFiles, gpuprof: Run) -> None:
    done = gpuprof("flamegraph", "new.gpuprof", "--against", "old.gpuprof")
    golden.check("flamegraph/difference-console.txt", str(done))
    check_page(golden, "flamegraph/difference", Path("new-against-old.html"))


def test_imported_trace(golden: GoldenFiles, gpuprof: Run) -> None:
    shutil.copy(INPUTS / "trace.json", "trace.json")
    done = gpuprof("import", "trace.json", "-o", "trace.gpuprof")
    golden.check("import/console.txt", str(done))
    for by in ("operator", "kernel"):
        golden.check(f"import/{by}.txt", str(gpuprof("summary", "trace.gpuprof", "--by", by)))
    gpuprof("flamegraph", "trace.gpuprof")
    check_timeline(golden, "import/timeline.txt", Path("trace.html"))


@pytest.mark.parametrize("ending", ["folded", "speedscope.json", "json"])
def test_export(golden: GoldenFiles, gpuprof: Run, ending: str) -> None:
    shutil.copy(INPUTS / "trace.json", "trace.json")
    gpuprof("import", "trace.json", "-o", "trace.gpuprof")
    done = gpuprof("export", "trace.gpuprof", "-o", f"out.{ending}")
    golden.check(f"export/{ending}.txt", str(done) + Path(f"out.{ending}").read_text(encoding="utf-8"))


def check_page(golden: GoldenFiles, name: str, path: Path) -> None:
    page = PageOutline(path.read_text(encoding="utf-8"))
    golden.check(f"{name}.txt", page.text)
    data = {key: json.loads(each) for key, each in page.data.items() if key in ("data", "head")}
    if "columns" in page.data:
        data["columns"] = columns_of(data["head"], page.data["columns"])
    golden.check_json(f"{name}.json", data)


def columns_of(head: dict[str, Any], packed: str) -> dict[str, Any]:
    """Return the columns of the call tree, each with as many values as the tree has nodes."""
    raw = base64.b64decode(packed)
    raw = gzip.decompress(raw) if head["gzip"] else raw
    columns, begin = {}, 0
    for name, kind in head["columns"]:
        found = np.frombuffer(raw, np.dtype(kind).newbyteorder("<"), head["count"], begin)
        begin += found.nbytes
        columns[name] = found.tolist()
    assert begin == len(raw)
    return columns


def check_timeline(golden: GoldenFiles, name: str, path: Path) -> None:
    timeline = timeline_of(path.read_text(encoding="utf-8"))
    lines = [f"{len(timeline.slices)} slices, {len(timeline.classes)} classes"]
    lines += ["  ".join(map(str, each)) for each in timeline.slices[:SHOWN_SLICES]]
    golden.check(name, "\n".join(lines) + "\n")
