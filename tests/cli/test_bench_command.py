# SPDX-License-Identifier: Apache-2.0
"""`gpuprof bench` in real processes, with small callables: what it writes, refuses and keeps."""

from __future__ import annotations

import csv
import importlib.util
import json
import pickle
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from gpuprof.cli.main import execute

MODELS = Path(__file__).parents[1] / "support" / "bench_models.py"
COLUMNS = (
    "framework,model,device,device_type,batch_size,input_shape,dtype,latency_p50_ms,latency_p95_ms,"
    "latency_p99_ms,latency_mean_ms,latency_std_ms,latency_min_ms,latency_max_ms,throughput_ips,memory_mb,"
    "compilation_time_ms,timestamp,git_commit"
)
QUICK = ("--launches", "1", "--iterations", "20", "--warmup", "1", "--input-shape", "3")


@pytest.fixture
def bench(run_with_codes: Any) -> Any:
    """`bench("doubled", ...)` benchmarks a factory of MODELS or a named model; errors show codes."""

    def bench(model: str, *words: str) -> Any:
        is_factory = model.isidentifier() and model != "resnet51"
        target = f"{MODELS}:{model}" if is_factory else model
        return run_with_codes("-m", "gpuprof", "bench", target, *QUICK, *words)

    return bench


def rows(folder: Path) -> list[dict[str, str]]:
    (file,) = (folder / "results" / "raw").glob("*.csv")
    with file.open(encoding="utf-8") as lines:
        return list(csv.DictReader(lines))


def test_a_table_and_three_files(bench: Any, tmp_path: Path) -> None:
    done = bench("doubled", "--batch-sizes", "1,8")
    assert (done.returncode, done.stderr) == (0, "")
    assert max(map(len, done.stdout.splitlines()[:-4])) <= 100
    found = rows(tmp_path)
    assert [row["batch_size"] for row in found] == ["1", "8"]
    assert ",".join(found[0]).startswith(COLUMNS + ",")
    first = found[0]
    assert (first["framework"], first["model"], first["input_shape"]) == (
        "python",
        "bench_models:doubled",
        "3",
    )
    assert float(first["latency_min_ms"]) <= float(first["latency_p50_ms"]) <= float(first["latency_max_ms"])
    assert first["warnings"].startswith("unreliable_quantiles; ")  # p99 of 20 samples
    assert float(first["latency_p99_ms"]) <= float(first["latency_max_ms"])
    assert first["compilation_time_ms"] == ""  # nothing is compiled
    names = sorted(path.suffix for path in (tmp_path / "results" / "raw").iterdir())
    assert names == [".csv", ".json", ".md"]


def test_the_json_has_every_sample_and_why_a_cell_is_empty(bench: Any, tmp_path: Path) -> None:
    done = bench("doubled", "--json", "--launches", "2", "--format", "json")
    document = json.loads(done.stdout)
    (result,) = document["results"]
    assert [len(launch["measurement"]["samples_ns"]) for launch in result["launches"]] == [20, 20]
    assert "n=40" in result["insufficient"]["latency_p99_ms"]
    assert [path.suffix for path in (tmp_path / "results" / "raw").iterdir()] == [".json"]
    parts = document["startups"][0]
    assert sum(v for k, v in parts.items() if k != "total_s") == pytest.approx(parts["total_s"])


def blocks(text: str) -> list[str]:
    """Return the titles between rules."""
    lines = text.splitlines()
    rule = "=" * 60
    return [lines[place + 1] for place in range(len(lines) - 2) if lines[place] == lines[place + 2] == rule]


def test_models_by_option_have_the_form_of_the_documents(run_with_codes: Any, tmp_path: Path) -> None:
    words = ["bench", "--model", f"{MODELS}:doubled", "--framework", "python", "--model", f"{MODELS}:slow"]
    words += ["--batch-sizes", "1", "2", "--iterations", "5", "--warmup", "1", "--input-shape", "3"]
    done = run_with_codes("-m", "gpuprof", *words, "--output-dir", "out")
    assert (done.returncode, done.stderr) == (0, "")
    assert blocks(done.stdout) == [
        f"python Benchmark: {MODELS}:doubled",
        f"python Benchmark: {MODELS}:slow",
        "Benchmark Suite Complete",
    ]
    assert "Total configurations: 4" in done.stdout
    (file,) = (tmp_path / "out").glob("benchmark_results_*.csv")
    assert f"Results saved to: {file.relative_to(tmp_path)}" in done.stdout
    found = list(csv.DictReader(file.read_text(encoding="utf-8").splitlines()))
    assert [(row["batch_size"], row["samples"], row["launches"]) for row in found] == [
        (size, "5", "1") for size in "1212"
    ]
    document = json.loads(file.with_suffix(".json").read_text(encoding="utf-8"))
    assert [each["asked"]["spec"]["framework"] for each in document["benchmarks"]] == ["python"] * 2


def test_models_by_option_have_the_defaults_of_the_configuration() -> None:
    from gpuprof.cli.bench import BenchOptions, bench

    seen: list[Any] = []
    callback, bench.callback = bench.callback, lambda **values: seen.append(BenchOptions(**values))
    try:
        for words in (["--model", "both", "--framework", "pytorch"], ["resnet50"]):
            bench.main(words, standalone_mode=False)
    finally:
        bench.callback = callback
    by_option, by_argument = seen
    assert (by_option.batch_sizes, by_option.iterations, by_option.warmup) == ((1, 8, 32, 128), 50, 10)
    assert [each.spec.model for each in by_option.requests()] == ["resnet50", "vit_b_16"]
    assert (by_argument.batch_sizes, by_argument.iterations, by_argument.launches) == ((1,), None, 3)


def test_one_that_fails_does_not_affect_the_others(run_with_codes: Any, tmp_path: Path) -> None:
    words = [f"--model={MODELS}:{name}" for name in ("raising", "doubled")]
    done = run_with_codes("-m", "gpuprof", "bench", *words, *QUICK, "--batch-sizes", "1")
    assert (done.returncode, "model_raised" in done.stderr) == (2, True), done.stderr
    assert len(done.stderr.splitlines()) == 1
    assert [row["model"] for row in rows(tmp_path)] == ["bench_models:doubled"]


def test_every_second_launch_takes_the_sizes_backwards(run_python: Any, tmp_path: Path) -> None:
    words = ["bench", f"{MODELS}:doubled", *QUICK, "--launches", "3", "--batch-sizes", "1,2,4", "--json"]
    done = run_python("-c", ORDER, *words)
    *_, order = done.stderr.split()
    assert order == "1,2,4,4,2,1,1,2,4"
    assert len(json.loads(done.stdout)["startups"]) == 2


ORDER = """
import sys
from gpuprof.bench.workers import session
from gpuprof.cli.main import execute
file, order = session.Session._file, []
def filing(self, launch, batch_size, *rest):
    file(self, launch, batch_size, *rest)
    order.append(str(batch_size))
session.Session._file = filing
execute(sys.argv[1:])
sys.stderr.write(",".join(order))
"""


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ([], "one_model_option"),
        (["--model", "resnet51"], "unknown_model"),
        (["--model", "resnet50", "--framework", "pytorhc"], "unknown_framework"),
        (["--model", "both", "--model", "nothing.onnx"], "no_such_file"),
    ],
)
def test_a_model_that_cannot_be_is_refused_before_any_work(
    run_with_codes: Any, tmp_path: Path, words: list[str], message: str
) -> None:
    done = run_with_codes("-m", "gpuprof", "bench", *words)
    assert (done.returncode, message in done.stderr, done.stdout) == (2, True, ""), done.stderr
    assert len(done.stderr.splitlines()) == 1
    assert not list(tmp_path.rglob("*.csv"))


def test_both_frameworks_need_both(run_with_codes: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    if importlib.util.find_spec("jax") is not None:
        pytest.skip("JAX is installed")
    done = run_with_codes("-m", "gpuprof", "bench", "--model", "resnet50", "--framework", "both")
    assert (done.returncode, "not_installed" in done.stderr, done.stdout) == (2, True, "")


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ("--batch-sizes 1 8 32 model.py:build", "--batch-sizes 1,8,32 model.py:build"),
        ("model.py:build --batch-sizes 1,8 32 --json", "model.py:build --batch-sizes 1,8,32 --json"),
        ("--batch-sizes=1 8 resnet50", "--batch-sizes 1,8 resnet50"),
        ("--batch-sizes auto resnet50", "--batch-sizes auto resnet50"),
        ("--models a.pt b.pt --dataset d", "--models a.pt,b.pt --dataset d"),
        ("--models a:a.pt,b:b.pt", "--models a:a.pt,b:b.pt"),
        ("--iterations 5 -- --batch-sizes 1 8", "--iterations 5 -- --batch-sizes 1 8"),
    ],
)
def test_lists_take_the_words_after_them(words: str, expected: str) -> None:
    from gpuprof.cli.options import ListsCommand, join_lists

    assert join_lists(words.split(), ListsCommand.lists) == expected.split()


REFUSED = {
    "raising": ([], "model_raised"),
    "missing": ([], "no_such_function"),
    "not_callable": ([], "kind_of_model"),
    "not_a_number": ([], "not_finite"),
    "changing": ([], "inputs_changed"),
    "dying": ([], "SIGABRT"),
    "killed": ([], "SIGKILL"),
    "leaving": ([], "SystemExit: 3"),
    "resnet51": ([], "unknown_model"),
    "doubled": (["--dtype", "bfloat16"], "unsupported_dtype, python, bfloat16"),
    "network": (["--framework", "pytorhc"], "unknown_framework, 'pytorhc'"),
    "nothing.onnx": ([], "no_such_file, nothing.onnx"),
}


@pytest.mark.parametrize("model", REFUSED)
def test_bad_input_is_one_line_and_exit_code_2(bench: Any, tmp_path: Path, model: str) -> None:
    words, message = REFUSED[model]
    done = bench(model, *words)
    assert done.returncode == 2
    assert message in done.stderr
    assert len(done.stderr.splitlines()) == 1
    assert done.stdout == ""
    assert not list(tmp_path.rglob("*.csv"))


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--batch-sizes", "1,0"], "--batch-sizes"),
        (["--batch-sizes", "one"], "--batch-sizes"),
        (["--slo", "p100<1ms"], "invalid_target, 'p100<1ms'"),
        (["--memory-budget", "lots"], "invalid_size, 'lots'"),
        (["--format", "xml"], "unknown_format, 'xml'"),
        (["--device", "gpu"], "'gpu' is not one of"),
        (["--dtype", "float4"], "'float4' is not one of"),
        (["--data", "nowhere"], "no_such_data, --data, nowhere"),
        (["--framework", "tensorrt"], "kind_of_model"),
        (["--batch-sizes", "0"], "--batch-sizes"),
        (["--batch-sizes", ""], "--batch-sizes"),
        (["--batch-sizes"], "no_value"),
        (["--batch-sizes", "--json"], "no_value"),
        (["--model", "resnet50"], "one_model_option"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_options_that_cannot_be(bench: Any, words: list[str], message: str) -> None:
    done = bench("doubled", *words)
    assert (done.returncode, message in done.stderr) == (2, True), done.stderr
    assert len(done.stderr.splitlines()) == 1


@pytest.mark.parametrize(
    ("model", "message"),
    [("too_large_at_two", "DoesNotFitError, 2"), ("hanging_at_two", "TimeLimitError, 2")],
)
def test_what_was_measured_before_is_kept(bench: Any, tmp_path: Path, model: str, message: str) -> None:
    done = bench(model, "--batch-sizes", "1,2,4", "--time-limit", "2")
    assert (done.returncode, message in done.stderr) == (2, True), done.stderr
    assert [row["batch_size"] for row in rows(tmp_path)] == ["1"]


def test_cuda_without_one(bench: Any) -> None:
    pytest.importorskip("torch")
    done = bench("network", "--device", "cuda")
    assert done.returncode in (0, 2)
    if done.returncode:
        assert "no_such_device, cuda, pytorch" in done.stderr


def test_a_wrong_shape_names_the_option(bench: Any) -> None:
    pytest.importorskip("torch")
    done = bench("network")
    assert done.returncode == 2
    assert "1x3, float32" in done.stderr


def test_a_folder_that_cannot_be_written(bench: Any, tmp_path: Path) -> None:
    (tmp_path / "taken").write_text("a file")
    done = bench("doubled", "--output-dir", "taken/results")
    assert done.returncode == 2
    assert "cannot_write, taken/results" in done.stderr


def test_no_samples(bench: Any, tmp_path: Path) -> None:
    (tmp_path / "images" / "cat").mkdir(parents=True)
    done = bench("doubled", "--data", "images")
    assert done.returncode == 2
    assert "no_samples, images" in done.stderr


@pytest.mark.parametrize("name", ["model.pt", "model.pt2", "model.pkl"])
def test_pickled_files_are_refused(bench: Any, tmp_path: Path, name: str) -> None:
    class Trap:
        def __reduce__(self) -> Any:
            return (Path.touch, (tmp_path / "sprung",))

    (tmp_path / name).write_bytes(pickle.dumps(Trap()))
    done = bench(name)
    assert done.returncode == 2
    assert f"pickled_model, {name}" in done.stderr
    assert not (tmp_path / "sprung").exists()


def test_a_child_that_outlives_its_launch_is_ended_with_it(bench: Any, tmp_path: Path) -> None:
    done = bench("forking", "--time-limit", "20")
    assert (done.returncode, done.stderr) == (0, "")
    assert len(rows(tmp_path)) == 1


def test_what_a_model_prints_leaves_the_output_alone(bench: Any) -> None:
    done = bench("printing", "--json")
    assert json.loads(done.stdout)["results"]
    assert done.stderr == ""


@pytest.mark.parametrize(("slo", "code"), [("p50<10s", 0), ("p50<1ns", 1), ("p99<1s", 3)])
def test_a_target_decides_the_exit_code(bench: Any, slo: str, code: int) -> None:
    done = bench("doubled", "--slo", slo)
    assert done.returncode == code, done.stderr
    assert "the target is" in done.stdout


def test_a_profile_is_left_next_to_the_results(bench: Any, run_python: Any, tmp_path: Path) -> None:
    done = bench("doubled", "--profile")
    assert done.returncode == 0
    # On a busy machine, the progress is reported after some time.
    assert all(line.startswith(("process run", "profile")) for line in done.stderr.splitlines())
    (run,) = (tmp_path / "results" / "raw").glob("*.gpuprof")
    shown = run_python("-m", "gpuprof", "summary", run, "--by", "span").stdout
    assert "call" in shown


@pytest.mark.slow
def test_the_largest_batch_that_fits_a_budget(bench: Any) -> None:
    words = ("--find-max-batch", "--memory-budget", "100MB", "--json", "--input-shape", "2000000")
    document = json.loads(bench("doubled", *words).stdout)
    largest = document["largest_batch"]
    assert largest["why"] == "does not fit"
    assert 6 <= largest["batch_size"] <= 12  # 8 MB of output a sample
    assert largest["outcomes"][str(largest["batch_size"])] == "ok"


def test_the_budget_is_for_the_model_and_not_for_the_interpreter(bench: Any, tmp_path: Path) -> None:
    done = bench("doubled", "--memory-budget", "10MB")
    assert (done.returncode, done.stderr) == (0, "")
    (row,) = rows(tmp_path)
    assert row["memory_kind"] == "model and calls"
    assert int(row["host_own_bytes"]) <= 10e6 < int(row["host_baseline_bytes"]) <= int(row["host_peak_bytes"])


def test_no_batch_under_a_target_is_a_no(bench: Any) -> None:
    done = bench("doubled", "--find-max-batch", "--slo", "p50<1ns")
    assert (done.returncode, done.stderr) == (1, "")
    assert "largest batch size: none (batch size 1 missed the target)" in done.stdout


def test_batches_double_until_memory_ends(bench: Any) -> None:
    words = ("--batch-sizes", "auto", "--memory-budget", "100MB", "--input-shape", "2000000")
    done = bench("doubled", *words)
    assert (done.returncode, done.stderr) == (0, "")
    assert "memory ended:" in done.stdout


def test_a_cold_and_a_warm_start(bench: Any) -> None:
    document = json.loads(bench("doubled", "--startup", "--json").stdout)
    assert set(document["startup"]) == {"cold", "warm"}
    assert all(each["total_s"] > 0 for each in document["startup"].values())


@pytest.mark.parametrize(
    ("function", "words"),
    [
        ("gpuprof.bench.workers.startup.measure_startups", ["resnet50"]),
        ("gpuprof.bench.ready_times.time_to_ready", ["--ready", "tcp://127.0.0.1:1", "true"]),
    ],
    ids=["model", "command"],
)
def test_an_interrupt_of_starts_is_reported(
    function: str, words: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def interrupted(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(function, interrupted)
    assert execute(["startup", *words]) == 130
    printed = capsys.readouterr()
    assert printed.out == ""
    assert printed.err.startswith("interrupted before")


def test_the_command_for_starts(capsys: pytest.CaptureFixture[str]) -> None:
    words = ["startup", f"{MODELS}:doubled", "--runs", "2", "--input-shape", "3"]
    assert execute([*words, "--json", "--limit", "600"]) == 0
    document = json.loads(capsys.readouterr().out)
    starts = [document["cold"], *document["warm"]]
    assert len(starts) == 3
    for parts in starts:
        total_s = parts.pop("total_s")
        assert total_s == pytest.approx(sum(parts.values()))
    assert execute([*words, "--limit", "0.000001"]) == 1
    *_, total, limit = capsys.readouterr().out.splitlines()
    assert (total.split()[0], limit.split()[0], limit.split()[-1]) == ("total", "limit", "missed")


@pytest.mark.parametrize(
    ("way", "code", "more"),
    [
        ("SIGINT", 130, ["--batch-sizes", "1,2"]),
        ("SIGTERM", 143, ["--batch-sizes", "1,2"]),
        ("SIGINT", 130, ["--batch-sizes", "1", "--find-max-batch", "--slo", "p50<10s"]),
    ],
    ids=["interrupted", "terminated", "interrupted-search"],
)
def test_an_interrupt_keeps_what_was_measured(tmp_path: Path, way: str, code: int, more: list[str]) -> None:
    # The second batch size never ends; the first one has been measured when its first call begins.
    words = ["bench", f"{MODELS}:hanging_at_two", "--input-shape", "3", "--launches", "1", "--warmup", "1"]
    words += ["--iterations", "20", "--json", *more]
    program = INTERRUPTED.replace("SIGNAL", f"signal.{way}")
    process = subprocess.Popen(
        [sys.executable, "-c", program, *words],
        cwd=tmp_path,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    out, errors = process.communicate(timeout=180)
    assert process.returncode == code
    assert errors.splitlines()[-1].startswith("interrupted")
    (file,) = tmp_path.glob("results/raw/*.json")
    for document in (json.loads(out), json.loads(file.read_text())):
        assert document["interrupted"]
        assert [each["row"]["batch_size"] for each in document["results"]] == [1]
    assert "interrupted" in file.with_suffix(".md").read_text()


def test_an_interrupt_before_the_first_sample_is_reported(tmp_path: Path) -> None:
    words = ["bench", f"{MODELS}:hanging_at_two", "--input-shape", "3", "--batch-sizes", "2"]
    program = INTERRUPTED.replace("SIGNAL", "signal.SIGINT")
    done = subprocess.run(
        [sys.executable, "-c", program, *words],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=180,
        check=False,
    )
    assert (done.returncode, done.stdout) == (130, "")
    assert done.stderr.startswith("interrupted before")
    assert not list(tmp_path.glob("results/raw/*"))


# Ends itself as a terminal would, once the second batch size has been prepared.
INTERRUPTED = """
import os, signal, sys
from gpuprof.bench.workers import session
from gpuprof.cli.main import execute
take = session.Session.take
def taking(self, number, event):
    take(self, number, event)
    if event.state.value == "prepared" and event.batch_size == 2:
        os.kill(os.getpid(), SIGNAL)
session.Session.take = taking
sys.exit(execute(sys.argv[1:]))
"""


# --- streamed data -------------------------------------------------------------------------------


def test_each_call_gets_a_new_batch_of_a_file(bench: Any, tmp_path: Path) -> None:
    np.savez(tmp_path / "data.npz", inputs=np.zeros((64, 3), np.float32), labels=np.arange(64))
    done = bench("doubled", "--data", str(tmp_path / "data.npz"), "--stream", "--batch-size", "8")
    assert (done.returncode, done.stderr) == (0, "")
    (row,) = rows(tmp_path)
    assert float(row["streamed_samples"]) == 160
    assert 0 < float(row["data_loading_share"]) < 1
    assert float(row["data_loading_p50_ms"]) > 0
    assert "data loading at batch size 8: " in done.stdout


def test_the_end_of_a_generator_is_a_fact(bench: Any, tmp_path: Path) -> None:
    words = ("--data", f"python:{MODELS}:one_pass", "--stream", "--batch-size", "2", "--json")
    done = bench("doubled", *words)
    assert (done.returncode, done.stderr) == (0, "")
    (result,) = json.loads(done.stdout)["results"]
    measurement = result["launches"][0]["measurement"]
    assert (measurement["stopped_by"], len(measurement["samples_ns"])) == ("end of data", 11)
    loading = measurement["loading"]
    assert (loading["samples"], loading["passes"], loading["has_ended"]) == (22, 1, True)
    assert len(measurement["gaps_ns"]) == 11


def test_a_loader_that_takes_the_batch_size_begins_again(bench: Any, tmp_path: Path) -> None:
    words = ("--data", f"python:{MODELS}:whole_batches", "--stream", "--batch-size", "5", "--json")
    done = bench("doubled", *words)
    (result,) = json.loads(done.stdout)["results"]
    loading = result["launches"][0]["measurement"]["loading"]
    assert (loading["samples"], loading["passes"], loading["has_ended"]) == (100, 5, False)


def test_what_was_measured_before_the_loader_raises_is_kept(bench: Any, tmp_path: Path) -> None:
    done = bench("doubled", "--data", f"python:{MODELS}:ending_loader", "--stream")
    assert done.returncode == 2
    assert "the disk is gone" in done.stderr
    (row,) = rows(tmp_path)
    assert row["samples"] == "11"


@pytest.mark.parametrize(
    ("words", "code"),
    [
        (["--stream"], "nothing_to_stream"),
        (["--stream", "--data", "python:nothing"], "invalid_loader"),
        (["--stream", "--data", "python:missing.py:make"], "no_such_file"),
        (["--stream", "--data", f"python:{MODELS}:no_batches"], "no_samples"),
        (["--stream", "--data", f"python:{MODELS}:texts"], "unsupported_batch"),
        (["--stream", "--data", f"python:{MODELS}:one_pass"], "loader_batch_size"),
        (["--stream", "--data", "empty"], "no_samples"),
        (["--data", "none.npz"], "no_array"),
        (["--data", "unequal.npz"], "number_of_labels"),
    ],
)
def test_data_that_cannot_be_streamed(bench: Any, tmp_path: Path, words: list[str], code: str) -> None:
    (tmp_path / "empty").mkdir()
    np.savez(tmp_path / "none.npz")
    np.savez(tmp_path / "unequal.npz", inputs=np.zeros((4, 3)), labels=np.zeros(3))
    done = bench("doubled", *words)
    assert done.returncode == 2
    assert code in done.stderr
    assert len(done.stderr.splitlines()) == 1
