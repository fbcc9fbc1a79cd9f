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


DAMAGE = [
    "recording/7-0.segment: its last clock point is damaged",
    "recording/7-1.segment: cut short, 12 events are lost",
    "recording/8-0.segment: its header is damaged; its events are lost",
    "recording/8-1.segment: a copy of a segment that was read already; it is left out",
    "recording/7.names: damaged after 40 names",
    "process 9: 2 segments are missing",
    "recording/lost: its header is damaged; what other processes lost is not known",
]
RECORDS = {"dropped": 3, "unfinished": 1, "truncated": 1, "lost_records": 4, "problem": "CUPTI_ERROR_UNKNOWN"}
LAYERS = {"method": "CUDA events", "untimed": 2, "unfinished": 1, "lost_records": 0}
INCOMPLETE: dict[str, dict[str, Any]] = {
    "complete": {"complete": False, "notes": ["the program was ended by SIGKILL"]},
    "totals": {
        "totals": {"dropped_events": 12, "damaged_events": 1, "unmatched_ends": 1, "unfinished_spans": 3}
    },
    "damage": {"complete": False, "damage": DAMAGE},
    "gpu_records": {"gpu": RECORDS},
    "gpu_layers": {"gpu": LAYERS},
}


@pytest.mark.parametrize("what", INCOMPLETE)
def test_incomplete_run(golden: GoldenFiles, gpuprof: Run, what: str) -> None:
    """The facts of format 1, which are still shown."""
    write_meta(dict(INCOMPLETE[what]))
    golden.check(f"incomplete/{what}.txt", str(gpuprof("summary", "new.gpuprof", "--top", "2")))


def test_page_of_an_incomplete_run(golden: GoldenFiles, gpuprof: Run) -> None:
    write_meta(INCOMPLETE["damage"] | INCOMPLETE["gpu_records"])
    gpuprof("flamegraph", "new.gpuprof")
    page = PageOutline(Path("new.html").read_text(encoding="utf-8")).text
    golden.check("incomplete/page.txt", page.partition("\nh2:")[0] + "\n")


def write_meta(changes: dict[str, Any]) -> None:
    file = Path("new.gpuprof/meta.json")
    meta = json.loads(file.read_text(encoding="utf-8"))
    totals = {**meta["totals"], **changes.pop("totals", {})}
    file.write_text(json.dumps({**meta, "totals": totals, **changes}), encoding="utf-8")


@pytest.mark.parametrize("run", ["new", "gpu"])
@pytest.mark.parametrize("by", ["layer", "operator", "kernel"])
def test_roofline(golden: GoldenFiles, gpuprof: Run, run: str, by: str) -> None:
    golden.check(f"roofline/{run}-{by}.txt", str(gpuprof("roofline", f"{run}.gpuprof", "--by", by)))


@pytest.mark.parametrize("run", ["new", "gpu"])
def test_roofline_page(golden: GoldenFiles, gpuprof: Run, run: str) -> None:
    done = gpuprof("roofline", f"{run}.gpuprof", "-o", "roofline.html", "--json")
    golden.check_json(f"roofline/{run}.json", json.loads(done.out))
    check_page(golden, f"roofline/{run}-page", Path("roofline.html"))


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
    assert len(raw) == -(-begin // 8) * 8  # padded to whole numbers of 8 bytes
    return columns


def check_timeline(golden: GoldenFiles, name: str, path: Path) -> None:
    timeline = timeline_of(path.read_text(encoding="utf-8"))
    lines = [f"{len(timeline.slices)} slices, {len(timeline.classes)} classes"]
    lines += ["  ".join(map(str, each)) for each in timeline.slices[:SHOWN_SLICES]]
    golden.check(name, "\n".join(lines) + "\n")
