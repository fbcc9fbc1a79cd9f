# SPDX-License-Identifier: Apache-2.0
"""What is refused before work begins: one line on standard error, and exit code 2."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
from commands import INPUTS, Run, break_python
from golden_files import GoldenFiles

MODEL = "models.py:float32"
TWO = "a:models.py:float32,b:models.py:int8"
COMMANDS = {
    "usage": (
        ("summary",),
        ("summary", "old.gpuprof", "--by", "color"),
        ("summary", "old.gpuprof", "--top", "0"),
        ("summary", "old.gpuprof", "--scale", "calls"),
        ("summary", "old.gpuprof", "new.gpuprof"),
        ("summary", "new.gpuprof", "--against", "old.gpuprof", "--process", "1"),
        ("gate", "--candidate", "new.json"),
        ("gate", "--baseline", "a.json", "--candidate", "b.json", "--candidate", "c.json"),
        ("nonsense",),
    ),
    "runs": (
        ("summary", "missing.gpuprof"),
        ("summary", "empty.gpuprof"),
        ("summary", "future.gpuprof"),
        ("summary", "broken.gpuprof"),
        ("summary", "new.gpuprof", "--process", "1"),
        ("roofline", "uncounted.gpuprof"),
        ("roofline", "new.gpuprof", "-o", "new.gpuprof"),
        ("flamegraph", "new.gpuprof", "-o", "missing/flame.html"),
        ("flamegraph", "new.gpuprof", "--weight", "gpu"),
        ("export", "new.gpuprof", "-o", "trace.docx"),
        ("import", "models.py", "-o", "imported.gpuprof"),
        ("import", "missing.json", "-o", "imported.gpuprof"),
    ),
    "bench": (
        ("bench", "models.py"),
        ("bench", "missing.py:build"),
        ("bench", MODEL, "--framework", "caffe"),
        ("bench", MODEL, "--batch-sizes", "0"),
        ("bench", MODEL, "--batch-sizes", "one"),
        ("bench", MODEL, "--iterations", "0"),
        ("bench", MODEL, "--duration", "-1"),
        ("bench", MODEL, "--dtype", "float3"),
        ("bench", MODEL, "--slo", "quick"),
        ("bench", MODEL, "--memory-budget", "much"),
        ("bench", MODEL, "--format", "docx"),
        ("bench", MODEL, "--recipe", "faster"),
        ("bench", "model.pt2"),
        ("bench", MODEL, "--output-dir", "models.py"),
    ),
    "compare": (
        ("compare", ""),
        ("compare", "a:"),
        ("compare", "a:models.py:float32,a:models.py:int8"),
        ("compare", TWO, "--baseline", "c"),
        ("compare", TWO, "--batch-sizes", "auto"),
        ("compare", TWO, "--margin", "2"),
        ("compare", TWO, "--margin", "wide"),
        ("compare", TWO, "--price-per-hour", "-1"),
        ("compare", TWO, "--traffic", "90,10"),
        ("compare", TWO, "--interleave", "--traffic", "90,20"),
        ("compare", TWO, "--report", "docx"),
        ("compare", TWO, "--dataset", "missing.npz"),
        ("compare", TWO, "--metric", "missing.py:metric"),
        ("compare", TWO, "--fresh", "--resume"),
        ("compare", f"{MODEL}@nonsense"),
    ),
    "suite": (
        ("suite", "missing.toml"),
        ("suite", "models.py"),
        ("suite", "no_variant.toml"),
        ("suite", "unknown_key.toml"),
        ("suite", "wrong_value.toml"),
        ("suite", "wrong_variant.toml"),
    ),
    "gate": (
        ("gate", "--baseline", "missing.json", "--candidate", "base.json"),
        ("gate", "--baseline", "models.py", "--candidate", "base.json"),
        ("gate", "--baseline", "future.json", "--candidate", "base.json"),
        ("gate", "--baseline", "empty.json", "--candidate", "base.json"),
        ("gate", "--baseline", "base.json", "--candidate", "base.json", "--margin", "2"),
        ("gate", "--baseline", "base.json", "--candidate", "base.json", "--flamegraph", "cause.html"),
        ("gate", "--history", "missing", "--candidate", "base.json"),
        ("gate", "--history", "history", "--candidate", "history/day-01.json"),
    ),
}


@pytest.mark.usefixtures("replay")
@pytest.mark.parametrize("group", COMMANDS)
def test_refused(golden: GoldenFiles, gpuprof: Run, runs: Path, group: str) -> None:
    _write_bad_inputs(runs)
    break_python(runs)
    done = [gpuprof(*words) for words in COMMANDS[group]]
    golden.check(f"refusals/{group}.txt", "\n".join(map(str, done)))
    # As with every refusal: a line, nothing on standard output.
    odd = [each for each in done if (each.code, each.out, each.err.count("\n")) != (2, "", 1)]
    assert not odd


def _write_bad_inputs(folder: Path) -> None:
    shutil.copytree(INPUTS / "results", folder, dirs_exist_ok=True)
    base = json.loads((folder / "base.json").read_text(encoding="utf-8"))
    (folder / "future.json").write_text(json.dumps({**base, "format": 99}), encoding="utf-8")
    (folder / "empty.json").write_text(json.dumps({**base, "results": []}), encoding="utf-8")
    suites = {
        "no_variant": "",
        "unknown_key": 'launchs = 3\n[[variant]]\nname = "a"\nmodel = "models.py:float32"\n',
        "wrong_value": 'launches = "many"\n[[variant]]\nname = "a"\nmodel = "models.py:float32"\n',
        "wrong_variant": "[[variant]]\nname = 3\n",
    }
    for name, text in suites.items():
        (folder / f"{name}.toml").write_text(text, encoding="utf-8")
    for name, change in {"future": {"format_version": 99}, "uncounted": {"work": None, "parts": {}}}.items():
        run = Path(shutil.copytree(folder / "new.gpuprof", folder / f"{name}.gpuprof"))
        meta = json.loads((run / "meta.json").read_text(encoding="utf-8"))
        (run / "meta.json").write_text(json.dumps({**meta, **change}), encoding="utf-8")
    shutil.rmtree(folder / "uncounted.gpuprof" / "work")
    (folder / "empty.gpuprof").mkdir()
    (folder / "broken.gpuprof").mkdir()
    (folder / "broken.gpuprof" / "meta.json").write_text("{", encoding="utf-8")
