# SPDX-License-Identifier: Apache-2.0
"""The dashboard's server: who may ask, what is refused, and that nothing in the folder is changed."""

from __future__ import annotations

import asyncio
import base64
import errno
import fcntl
import gc
import hashlib
import http.server
import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, ClassVar
from urllib.parse import urlsplit

import pytest
from dashboard_folders import LEVEL_MS, record_run, result_text, write_history, write_load
from refusals import HAS_WORDS, refused, refused_command
from waiting import LONGEST_S

pytest.importorskip("starlette")
pytest.importorskip("uvicorn")
pytestmark = pytest.mark.needs("starlette", "uvicorn")

from dashboard_server import Client, Served, serving  # noqa: E402 - needs the packages

import gpuprof  # noqa: E402
from gpuprof.errors import GpuprofError  # noqa: E402
from gpuprof.live.dashboard import catalog, rendering, worker  # noqa: E402
from gpuprof.live.dashboard.catalog import Catalog  # noqa: E402
from gpuprof.live.dashboard.items import FileStamp, Item, ItemKind, ItemState  # noqa: E402
from gpuprof.live.dashboard.live_runs import LiveRuns  # noqa: E402
from gpuprof.live.dashboard.rendered import PageFolder, RenderedPages  # noqa: E402
from gpuprof.live.dashboard.security import Access  # noqa: E402
from gpuprof.live.dashboard.workers import Worker  # noqa: E402
from gpuprof.record.recording_folder import LOCK_FILE  # noqa: E402

LOCKING = """
import fcntl, sys, time
with open(sys.argv[1], "w") as lock:
    fcntl.lockf(lock, fcntl.LOCK_EX)
    print(flush=True)
    sys.stdin.read()
"""
HOSTILE = "<img src=x onerror=alert(1)>"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("served")
    record_run(root / "one.gpuprof")
    record_run(root / f"two {HOSTILE}.gpuprof")
    write_history(root / "results", 12, change_at=6)
    return root


@pytest.fixture(scope="module")
def served(folder: Path) -> Iterator[Served]:
    with serving(folder) as found:
        found.read(14)
        yield found


def id_of(served: Served, path: str) -> str:
    found: str = served.items()[path]["id"]
    return found


# --- who may ask -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    "host", ["evil.example", "evil.example:80", "127.0.0.1.evil.example", "", "169.254.169.254"]
)
def test_a_foreign_host_is_refused(served: Served, host: str) -> None:
    status, _, body = served.get("/", Host=host)
    assert status == 421
    assert b"; hint: open http://127.0.0.1:" in body


@pytest.mark.parametrize("name", ["localhost", "127.0.0.1", "[::1]"])
def test_a_foreign_port_is_refused(served: Served, name: str) -> None:
    assert served.get("/", Host=f"{name}:1")[0] == 421
    assert served.get("/", Host=f"{name}:")[0] == 200
    assert served.get("/", Host=name)[0] == 200


@pytest.mark.parametrize(
    ("bound", "token", "host", "expected"),
    [
        ("127.0.0.1", "t", "127.0.0.1:1", True),
        ("127.0.0.1", "t", "evil.example:8321", False),
        ("0.0.0.0", "t", "machine.example:9000", True),
        ("::1", None, "[::1]:8321", True),
        ("::1", None, "::1", False),
        ("Machine", "t", "machine:8321", True),
    ],
)
def test_the_host_that_a_server_accepts(bound: str, token: str | None, host: str, expected: bool) -> None:
    assert Access(bound, 8321, token).accepts(host) is expected


@pytest.mark.parametrize("host", ["localhost", "127.0.0.1", "[::1]"])
def test_names_of_loopback_are_served(served: Served, host: str) -> None:
    assert served.get("/", Host=f"{host}:{served.port}")[0] == 200


@pytest.mark.parametrize("path", ["/", "/events", "/api/catalog", "/api/models"])
@pytest.mark.parametrize(
    "origin", ["http://evil.example", "null", "https://127.0.0.1:{port}", "http://127.0.0.1:1"]
)
def test_a_foreign_origin_is_refused(served: Served, path: str, origin: str) -> None:
    assert served.get(path, Origin=origin.format(port=served.port))[0] == 403


def test_a_page_of_another_site_may_link_to_the_first_page_only(served: Served) -> None:
    link = {"Sec_Fetch_Site": "cross-site", "Sec_Fetch_Mode": "navigate", "Sec_Fetch_Dest": "document"}
    assert served.get("/", **link)[0] == 200
    assert served.get(f"/view/{id_of(served, 'one.gpuprof')}/flamegraph", **link)[0] == 403
    assert served.get("/api/catalog", Sec_Fetch_Site="cross-site", Sec_Fetch_Mode="no-cors")[0] == 403
    assert served.get("/api/catalog", Sec_Fetch_Site="same-origin", Sec_Fetch_Mode="cors")[0] == 200


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "PATCH", "OPTIONS", "TRACE"])
@pytest.mark.parametrize("path", ["/", "/api/catalog", "/events"])
def test_only_get_is_allowed(served: Served, method: str, path: str) -> None:
    assert served.get(path, method)[0] == 405


def test_every_response_has_the_headers(served: Served) -> None:
    for path, host in (("/", ""), ("/api/models", ""), ("/nowhere", ""), ("/", "evil.example")):
        _, headers, _ = served.get(path, **({"Host": host} if host else {}))
        assert headers["X-Content-Type-Options"] == "nosniff"
        assert headers["Cache-Control"] == "no-store"
        assert "frame-ancestors 'none'" in headers["Content-Security-Policy"]
        assert headers["Content-Security-Policy"].startswith("default-src 'none'")
        assert headers["Server"] is None


def test_the_nonce_of_a_page_is_new_and_that_of_its_policy(served: Served) -> None:
    nonces = set()
    for _ in range(2):
        _, headers, body = served.get("/")
        (nonce,) = set(re.findall(r'nonce="([^"]+)"', body.decode()))
        assert f"script-src 'nonce-{nonce}'" in headers["Content-Security-Policy"]
        assert "unsafe" not in headers["Content-Security-Policy"]
        nonces.add(nonce)
    assert len(nonces) == 2


# --- the token -----------------------------------------------------------------------------------


def test_the_token_becomes_a_cookie(folder: Path) -> None:
    with serving(folder, token="right-token") as served:
        assert served.get("/")[0] == 401
        assert served.get("/api/catalog?token=wrong")[0] == 401
        status, headers, body = served.get("/?token=right-token")
        assert status == 200
        assert b"right-token" not in body
        cookie, *attributes = headers["Set-Cookie"].split("; ")
        assert {"HttpOnly", "SameSite=Strict"} <= set(attributes)
        assert served.get("/api/catalog", Cookie=cookie)[0] == 200
        assert served.get("/api/catalog", Cookie=cookie[:-1])[0] == 401
        assert served.get("/api/catalog", Cookie="x" * 3000 + "=;;=\x7f")[0] == 401


def test_an_address_that_others_reach_needs_a_token(tmp_path: Path) -> None:
    for host in ("0.0.0.0", "::", "192.0.2.1"):
        refused_command(["dashboard", str(tmp_path), "--host", host, "--port", "0"], "needs_token")


def test_what_cannot_be_served_is_refused(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = str(other.getsockname()[1])
        refused_command(["dashboard", str(tmp_path), "--port", port], "port_in_use")
    refused_command(["dashboard", str(tmp_path / "none")], "no_such_folder")
    refused_command(["dashboard", str(tmp_path), "--host", "192.0.2.1", "--token"], "cannot_bind")
    refused_command(["dashboard", str(tmp_path), "--webhook", "http://192.0.2.1/"], "remote_webhook")
    (tmp_path / "rules.toml").write_text("[other]")
    refused_command(["dashboard", str(tmp_path), "--rules", str(tmp_path / "rules.toml")], "no_rules")


# --- paths ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "path",
    [
        "/../../../../etc/passwd",
        "/%2e%2e/%2e%2e/etc/passwd",
        "/view/..%2f..%2fetc/flamegraph",
        "/view/../../etc/passwd",
        "/api/items/..%2f..%2f..%2fetc%2fpasswd",
        "/api/items//etc/passwd",
        "/export/items/..%2f..%2fone.json",
        "/export/items/%00.json",
        "//etc/passwd",
    ],
)
def test_a_request_has_no_paths(served: Served, path: str) -> None:
    status, _, body = served.get(path)
    assert status == 404
    assert b"root:" not in body


def test_links_are_not_followed(tmp_path: Path) -> None:
    outside = record_run(tmp_path / "outside.gpuprof")
    root = tmp_path / "served"
    root.mkdir()
    (root / "linked.gpuprof").symlink_to(outside)
    (root / "linked").symlink_to(tmp_path)
    (root / "linked.json").symlink_to("/etc/hostname")
    inside = root / "inside.gpuprof"
    shutil.copytree(outside, inside)
    spans = next((inside / "spans").rglob("*.parquet"))
    spans.unlink()
    spans.symlink_to(next((outside / "spans").rglob("*.parquet")))
    with serving(root) as served:
        items = served.read(1)
        assert set(items) == {"inside.gpuprof"}
        status, _, body = served.get(f"/view/{items['inside.gpuprof']['id']}/flamegraph")
        assert (status, json.loads(body)["code"]) == (422, "not_in_folder")


# --- what is shown -------------------------------------------------------------------------------


def contents(folder: Path) -> dict[str, tuple[int, str]]:
    """Time and content of every file."""
    files = (each for each in folder.rglob("*") if each.is_file())
    return {
        str(each): (each.stat().st_mtime_ns, hashlib.sha256(each.read_bytes()).hexdigest()) for each in files
    }


def test_pages_are_rendered_with_their_policy_and_nothing_is_written(served: Served, folder: Path) -> None:
    before = contents(folder)
    one, two = id_of(served, "one.gpuprof"), id_of(served, f"two {HOSTILE}.gpuprof")
    for path in (f"/view/{one}/flamegraph", f"/view/{two}/flamegraph", f"/difference?old={one}&new={two}"):
        status, headers, body = served.get(path)
        assert status == 200, body
        assert "script-src 'sha256-" in headers["Content-Security-Policy"]
        assert "; sandbox allow-scripts" in headers["Content-Security-Policy"]
        assert b"<img" not in body
    assert served.json(f"/api/compare?old={one}&new={two}")["tables"][0]["by"] == "span"
    assert contents(folder) == before


def test_a_page_that_an_entry_lacks_is_refused(served: Served) -> None:
    one, result = id_of(served, "one.gpuprof"), id_of(served, "results/benchmark_results_0000.json")
    for path, code in (
        (f"/view/{one}/roofline", "no_work"),
        (f"/view/{result}/flamegraph", "no_such_page"),
        ("/view/0000/flamegraph", "no_such_item"),
        (f"/api/compare?old={one}&new={result}", "not_comparable"),
        (f"/difference?old={one}&new={result}", "no_such_page"),
        ("/api/history?model=net&metric=x", "no_such_metric"),
    ):
        status, _, body = served.get(path)
        assert status in (404, 422)
        assert json.loads(body)["code"] == code


def test_a_browser_gets_a_refused_page_as_html(tmp_path: Path) -> None:
    (tmp_path / f"empty {HOSTILE}.gpuprof").mkdir()
    with serving(tmp_path) as served:
        (item,) = served.read(1).values()
        for path in (f"/view/{item['id']}/flamegraph", f"/difference?old={item['id']}&new={item['id']}"):
            status, headers, body = served.get(path, Accept="text/html,*/*;q=0.8")
            assert (status, headers.get_content_type()) == (422, "text/html")
            assert headers["Content-Security-Policy"].startswith("default-src 'none'")
            assert b"<code>damaged_entry</code>" in body
            assert b"<img" not in body
            assert served.get(path, Accept="*/*")[1].get_content_type() == "application/json"
        assert served.get("/api/items/none", Accept="text/html")[1].get_content_type() == "application/json"


def test_a_refusal_that_a_browser_shows_has_a_style(folder: Path) -> None:
    html = {"Accept": "text/html,*/*;q=0.8"}
    with serving(folder, token="right-token") as served:
        cookie = {"Cookie": f"gpuprof-{served.port}=right-token"}
        cases: list[tuple[str, dict[str, str], int]] = [
            ("/", {}, 401),
            ("/", {"Host": "evil.example"}, 421),
            ("/", {"Origin": "http://evil.example"}, 403),
            ("/nowhere", cookie, 404),
            ("/view/none/flamegraph", cookie, 404),
        ]
        for path, more, expected in cases:
            status, headers, body = served.get(path, **html, **more)
            assert (status, headers.get_content_type()) == (expected, "text/html")
            (style,) = re.findall("<style>(.*)</style>", body.decode())
            digest = base64.b64encode(hashlib.sha256(style.encode()).digest()).decode()
            assert f"style-src 'sha256-{digest}'" in headers["Content-Security-Policy"]
            assert served.get(path, **more)[1].get_content_type() != "text/html"


def test_a_page_that_has_no_room_names_the_temporary_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_arguments: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device", str(tmp_path))

    out = tmp_path / "pages" / "page.html"
    arguments = {
        "root": str(tmp_path),
        "path": "run.gpuprof",
        "kind": "run",
        "page": "flamegraph",
        "out": str(out),
    }
    run = record_run(tmp_path / "run.gpuprof")
    with refused(GpuprofError, "no_temporary_file", out.parent):
        worker.CALLS["render"](**arguments)
    monkeypatch.setattr(rendering, "_render_run", full)
    with refused(GpuprofError, "no_temporary_file", out.parent):
        worker.CALLS["render"](**arguments)
    monkeypatch.undo()
    # A file of the entry that cannot be read is no lack of room.
    run.rename(tmp_path / "moved")
    with pytest.raises(GpuprofError) as caught:
        worker.CALLS["render"](**arguments)
    assert caught.value.code != "no_temporary_file"


def test_folders_of_servers_that_were_killed_are_removed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    with subprocess.Popen([sys.executable, "-c", ""]) as ended:
        pass
    names = {
        "left": f"gpuprof-dashboard-{ended.pid}-abc",
        "locked": f"gpuprof-dashboard-{ended.pid}-def",
        "running": f"gpuprof-dashboard-{os.getpid()}-abc",
        "other": f"gpuprof-dashboard-{ended.pid}",
    }
    for name in names.values():
        (tmp_path / name).mkdir()
        (tmp_path / name / "page.html").touch()
    (tmp_path / "kept").mkdir()
    (tmp_path / f"gpuprof-dashboard-{ended.pid}-link").symlink_to(tmp_path / "kept")
    lock = os.open(tmp_path / names["locked"], os.O_RDONLY)
    fcntl.flock(lock, fcntl.LOCK_EX)
    folder = PageFolder()
    try:
        assert [name for name, each in names.items() if not (tmp_path / each).exists()] == ["left"]
        assert (tmp_path / f"gpuprof-dashboard-{ended.pid}-link").exists()
        assert folder.path.is_dir()
    finally:
        os.close(lock)
        folder.close()
    assert not folder.path.exists()


def test_two_results_are_judged_as_the_gate_does(served: Served, folder: Path) -> None:
    from gpuprof.bench.gate.gate import judge
    from gpuprof.bench.results.stored import read_result_file

    names = [f"results/benchmark_results_{number:04}.json" for number in (0, 11)]
    found = served.json(f"/api/compare?old={id_of(served, names[0])}&new={id_of(served, names[1])}")
    expected = judge(*(read_result_file(folder / name) for name in names))
    assert found["outcome"] == str(expected.outcome) == "failed"
    assert [row["ratio"] for row in found["rows"]] == [row.ratio for row in expected.rows]


def test_two_runs_have_the_rows_of_the_command(served: Served, folder: Path) -> None:
    import gpuprof.api

    paths = "one.gpuprof", f"two {HOSTILE}.gpuprof"
    found = served.json(f"/api/compare?old={id_of(served, paths[0])}&new={id_of(served, paths[1])}")
    old, new = (gpuprof.api.open(folder / each) for each in paths)
    expected = gpuprof.api.summary_difference([new], [old], "span").to_dict(12)
    (table,) = found["tables"]
    sums = {f"{side}_sum_ns": sum(row[f"{side}_ns"] for row in table["rows"]) for side in ("old", "new")}
    assert table == {**expected, **sums}
    assert table["scaling"] == "none"


def test_techniques_of_a_model_are_compared(tmp_path: Path) -> None:
    for seed, framework in enumerate(("pytorch", "onnxruntime")):
        text = result_text(seed, LEVEL_MS / (1 + seed), seed, framework=framework)
        (tmp_path / f"{framework}.json").write_text(text)
    with serving(tmp_path) as served:
        items = served.read(2)
        old, new = (items[f"{each}.json"]["id"] for each in ("pytorch", "onnxruntime"))
        (row,) = served.json(f"/api/compare?old={old}&new={new}")["rows"]
    assert row["verdict"] == "faster"
    assert row["ratio"] == pytest.approx(0.5, rel=0.03)
    assert row["low"] < row["ratio"] < row["high"]


def test_collections_of_runs_that_are_compared_have_the_words_of_the_flame_graph(tmp_path: Path) -> None:
    names = ("old.gpuprof", "new.gpuprof")
    for name in names:
        with gpuprof.profile(out=tmp_path / name, python=True), gpuprof.span("step"):
            gc.collect()
    with serving(tmp_path) as served:
        items = served.read(2)
        old, new = (items[name]["id"] for name in names)
        tables = served.json(f"/api/compare?old={old}&new={new}")["tables"]
    collections = [row["name"] for table in tables for row in table["rows"] if row["kind"] == "gc"]
    assert "garbage collection, generation 2" in collections


def test_two_load_tests_are_compared_as_the_command_does(tmp_path: Path) -> None:
    from gpuprof.load.compared_loads import compare_loads, runs_in

    for seed, (name, service_ms) in enumerate({"old": 1.0, "new": 0.6}.items()):
        write_load(tmp_path / name, service_ms, seed)
    write_load(tmp_path / "other", 1.0, 3, rate=50.0)
    (tmp_path / "alone").mkdir()
    shutil.copy(tmp_path / "old" / "result.json", tmp_path / "alone" / "figures.json")
    with serving(tmp_path) as served:
        ids = {path: each["id"] for path, each in served.read(4).items()}
        found = served.json(f"/api/compare?old={ids['old']}&new={ids['new']}")
        expected = compare_loads({name: runs_in(tmp_path / name) for name in ("old", "new")})
        assert found["outcome"] == str(expected.verdict_of("new")) == "better"
        shown = [(row["metric"], row["ratio"], row["verdict"], row["margin"]) for row in found["rows"]]
        rows = expected.gate.rows
        assert shown == [(str(row.metric), row.ratio, str(row.verdict), row.threshold) for row in rows]
        assert {row["name"] for row in found["rows"]} == {"server 100/s"}
        # Of another rate: they have nothing in common.
        for other, code in (("other", "different_loads"), ("alone/figures.json", "no_requests")):
            status, _, body = served.get(f"/api/compare?old={ids['old']}&new={ids[other]}")
            assert (status, json.loads(body)["code"]) == (422, code)
        status, headers, body = served.get(f"/difference?old={ids['old']}&new={ids['new']}")
        assert status == 200, body
        assert b"A: old" in body
        assert b"B: new" in body
        assert "sandbox" in headers["Content-Security-Policy"]


def test_change_points_are_those_of_the_gate(served: Served, folder: Path) -> None:
    from gpuprof.bench.gate.history import judge_history
    from gpuprof.bench.results.run_figures import RunMetric
    from gpuprof.bench.results.stored import read_result_file
    from gpuprof.bench.results.stored_history import History

    files = [read_result_file(each) for each in sorted((folder / "results").iterdir())]
    rows = judge_history(History(tuple(files), (files[-1],), ()), any_load=True).rows
    (expected,) = next(row for row in rows if row.metric is RunMetric.P50).changes
    assert served.json("/api/models") == {"net": {"metrics": ["p50", "mean", "throughput"], "results": 12}}
    (series,) = served.json("/api/history?model=net&metric=p50")["series"]
    (change,) = series["changes"]
    assert change["at"] == files.index(expected.after) == 6
    assert (change["ratio"], change["low"], change["high"]) == (expected.ratio, expected.low, expected.high)
    assert change["is_worse"]
    values = [each["value"] for each in series["points"]]
    assert values[0] == pytest.approx(LEVEL_MS / 1e3, rel=0.03)
    assert values[-1] == pytest.approx(LEVEL_MS * 1.1 / 1e3, rel=0.03)
    (faster,) = served.json("/api/history?model=net&metric=throughput")["series"][0]["changes"]
    assert faster["ratio"] < 1
    assert faster["is_worse"]


def test_the_median_is_that_of_the_report_in_its_interval(served: Served, folder: Path) -> None:
    from gpuprof.bench.results.stored import read_configurations

    (series,) = served.json("/api/history?model=net&metric=p50")["series"]
    shown = [(each["low"], each["value"], each["high"]) for each in series["points"]]
    results = [read_configurations(each) for each in sorted((folder / "results").iterdir())]
    expected = [each.quantile(0.5, interval=True) for result in results for each in result.values()]
    assert shown == expected
    assert all(low < value < high for low, value, high in shown)
    detail = served.json(f"/api/items/{series['points'][0]['id']}")
    assert detail["figures"][0]["values"]["p50"] == shown[0][1]


def test_the_exports_have_what_the_page_shows(served: Served) -> None:
    status, headers, body = served.get("/export/history.csv?model=net&metric=p50")
    head, *rows = body.decode().splitlines()
    assert status == 200
    assert headers["Content-Disposition"] == 'attachment; filename="history.csv"'
    assert head.startswith("model,technique,metric,unit,time,value,low,high,is_change_point")
    assert [row.split(",")[8] for row in rows] == ["False"] * 6 + ["True"] + ["False"] * 5
    _, _, page = served.get("/export/history.html?model=net&metric=p50")
    assert page.count(b"<td>worse</td>") == 1
    assert page.count(b"<polyline") == page.count(b"<h2>") > 0
    assert page.count(b"<circle") == len(rows)
    assert b"device type cpu" in page
    # The results are of midnights, as the days of the axis.
    places = re.findall(r'<circle cx="([\d.]+)"', page.decode())
    points = {row.split(",")[4][:10]: x for row, x in zip(rows, places, strict=True)}
    days = re.findall(r'<text x="([\d.]+)" y="\d+" text-anchor="\w+">(2026[-\d]+)</text>', page.decode())
    assert len(days) > 4
    assert {x: points[day] for x, day in days} == {x: x for x, _ in days}
    entries = json.loads(served.get("/export/entries.json")[2])
    assert len(entries) == 14
    result = id_of(served, "results/benchmark_results_0003.json")
    document = json.loads(served.get(f"/export/items/{result}.json")[2])
    assert document["results"][0]["row"]["model"] == "net"


# --- a folder that changes -----------------------------------------------------------------------


def test_the_folder_grows_and_shrinks(tmp_path: Path) -> None:
    with serving(tmp_path) as served:
        assert served.read(0) == {}
        paths = write_history(tmp_path / "deep" / "er", 3)
        record_run(tmp_path / "run.gpuprof")
        before = served.json("/api/catalog")["version"]
        items = served.read(4)
        paths[0].write_text(result_text(0, 77.0, 5), encoding="utf-8")
        gone = items["run.gpuprof"]["id"]
        shutil.rmtree(tmp_path / "run.gpuprof")

        def is_slower(found: dict[str, Any]) -> bool:
            # While the file is being written it is damaged, and has no summary.
            summary = found["deep/er/benchmark_results_0000.json"]["summary"]
            return len(found) == 3 and summary is not None and abs(summary["p50_s"][1] - 0.077) < 0.003

        changed = served.wait_until(is_slower)
        assert "run.gpuprof" not in changed
        since = served.json(f"/api/catalog?since={before}")
        assert gone in since["removed"] or since["whole"]
        # A version of another server: everything is sent.
        assert served.json("/api/catalog?since=999999")["whole"]


def test_the_export_of_a_file_that_was_removed_is_refused(tmp_path: Path) -> None:
    (path, *_) = write_history(tmp_path, 2)
    with serving(tmp_path) as served:
        item = served.read(2)[path.name]["id"]
        assert served.get(f"/export/items/{item}.json")[0] == 200
        path.unlink()
        # Before and after the folder is listed again.
        status, _, body = served.get(f"/export/items/{item}.json")
        assert (status, json.loads(body)["code"]) == (404, "no_such_item")
        served.read(1)
        assert served.get(f"/export/items/{item}.json")[0] == 404


def test_names_of_models_have_no_invisible_characters(tmp_path: Path) -> None:
    hostile = "a\x1b[31m\u202eb"
    for number in range(2):
        text = result_text(number, 10.0, number).replace('"net"', json.dumps(hostile))
        (tmp_path / f"{number}.json").write_text(text, encoding="utf-8")
    with serving(tmp_path) as served:
        old, new = (each["id"] for each in served.read(2).values())
        for path in (
            "/api/catalog",
            f"/api/items/{old}",
            "/api/models",
            f"/api/compare?old={old}&new={new}",
            "/export/entries.json",
            "/export/entries.csv",
        ):
            status, _, body = served.get(path)
            assert status == 200, body
            text = body.decode()
            form = text if path.endswith(".csv") else json.dumps(json.loads(text), ensure_ascii=False)
            assert r"\x1b[31m" in form
            assert not {"\x1b", "\u202e"} & set(form)


def test_a_page_that_many_ask_for_is_rendered_once(tmp_path: Path) -> None:
    """A second rendering would cut the file that the first response reads."""

    class Rendering:
        def __init__(self) -> None:
            self.calls = 0
            self.may_end = asyncio.Event()

        async def call(self, _name: str, *, out: str, **_more: str) -> None:
            self.calls += 1
            await self.may_end.wait()
            Path(out).write_text("page", encoding="utf-8")

        async def close(self) -> None:
            self.may_end.set()

    async def ask() -> None:
        pages, rendering = RenderedPages(Catalog(tmp_path, Worker())), Rendering()
        pages._worker = rendering  # type: ignore[assignment]
        item = Item("run.gpuprof", ItemKind.RUN, ItemState.READY, FileStamp(1, 2, 3))
        pages.ready = lambda _wanted: item  # type: ignore[method-assign]
        tabs = [asyncio.create_task(pages.page(item.item_id, "flamegraph")) for _ in range(5)]
        await asyncio.sleep(0)
        tabs[0].cancel()  # the tab that asked first is closed
        await asyncio.sleep(0)
        rendering.may_end.set()
        cancelled, *paths = await asyncio.gather(*tabs, return_exceptions=True)
        assert isinstance(cancelled, asyncio.CancelledError)
        assert len(set(paths)) == rendering.calls == 1
        await pages.close()

    asyncio.run(ask())


def test_a_folder_with_more_than_is_listed_reports_it(tmp_path: Path) -> None:
    write_history(tmp_path / "a", 5)
    with serving(tmp_path, most_entries=4) as served:
        # The folder, the one in it, and two of its files.
        served.read(2)
        assert served.json("/api/catalog")["cut"] == {"limit": 4, "folders": 0, "files": 3}
        version = served.json("/api/catalog")["version"]
        for path in sorted((tmp_path / "a").iterdir())[:3]:
            path.unlink()
        served.wait_until(lambda _: served.json("/api/catalog")["cut"] is None)
        assert served.json("/api/catalog")["version"] > version
        for name in "bcd":
            (tmp_path / name).mkdir()
        served.wait_until(lambda _: (served.json("/api/catalog")["cut"] or {}).get("folders", 0) >= 1)


def test_what_is_damaged_is_listed_with_its_reason(tmp_path: Path) -> None:
    damaged = record_run(tmp_path / "damaged.gpuprof")
    (damaged / "meta.json").write_text("{", encoding="utf-8")
    newer = record_run(tmp_path / "newer.gpuprof")
    meta: dict[str, Any] = json.loads((newer / "meta.json").read_text(encoding="utf-8"))
    (newer / "meta.json").write_text(json.dumps(meta | {"format_version": 99}), encoding="utf-8")
    (tmp_path / "empty.gpuprof").mkdir()
    (tmp_path / "half.json").write_text(result_text(0, 10.0, 1)[:500], encoding="utf-8")
    lacking = json.loads(result_text(0, 10.0, 1))
    del lacking["results"][0]["settings"]
    (tmp_path / "lacking.json").write_text(json.dumps(lacking), encoding="utf-8")
    (tmp_path / "max_rate.json").touch()
    (tmp_path / "deep.json").write_text("[" * 100_000, encoding="utf-8")
    (tmp_path / "body.json").write_text('{"kind": "chat", "input": {{index}}}', encoding="utf-8")
    (tmp_path / "package.json").write_text('{"name": "another program"}', encoding="utf-8")
    record_run(tmp_path / "good.gpuprof")
    with serving(tmp_path) as served:
        items = served.read(7)
        codes = {path: (each["problem"] or {}).get("code") for path, each in items.items()}
    assert codes == {
        "damaged.gpuprof": "damaged",
        "newer.gpuprof": "newer_format",
        "empty.gpuprof": "not_a_run",
        "half.json": "not_json",
        "lacking.json": "damaged",
        "max_rate.json": "not_json",
        "good.gpuprof": None,
    }


def test_texts_of_damaged_entries_have_paths_relative_to_the_folder(tmp_path: Path) -> None:
    (tmp_path / "runs").mkdir()
    newer = record_run(tmp_path / "runs" / "newer.gpuprof")
    meta: dict[str, Any] = json.loads((newer / "meta.json").read_text(encoding="utf-8"))
    (newer / "meta.json").write_text(json.dumps(meta | {"format_version": 99}), encoding="utf-8")
    lacking = json.loads(result_text(0, 10.0, 1))
    del lacking["results"][0]["settings"]
    (tmp_path / "runs" / "lacking.json").write_text(json.dumps(lacking), encoding="utf-8")
    entries = [["runs/newer.gpuprof", "run"], ["runs/lacking.json", "result"]]
    for (path, _), found in zip(entries, worker.CALLS["digests"](str(tmp_path), entries), strict=True):
        message = found["problem"][1]
        assert path in message
        assert str(tmp_path) not in message


def test_a_damaged_run_is_named_by_what_opens_it_and_read_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(catalog, "_RECHECK_S", 0.0)
    record_run(tmp_path / "good.gpuprof")
    run = record_run(tmp_path / "copied.gpuprof")
    (run / "spans").rename(tmp_path / "later")
    with serving(tmp_path) as served:
        items = served.read(2)
        assert items["copied.gpuprof"]["problem"]["code"] == "damaged"
        one, two = (items[f"{each}.gpuprof"]["id"] for each in ("good", "copied"))
        for path in (f"/view/{two}/flamegraph", f"/api/compare?old={one}&new={two}"):
            status, _, body = served.get(path)
            assert (status, json.loads(body)["code"]) == (422, "damaged_entry")
            assert b"copied.gpuprof" in body
        # As at the end of a copy, whose meta.json came before the tables.
        (tmp_path / "later").rename(run / "spans")
        served.wait_until(lambda items: items["copied.gpuprof"]["state"] == "ready")


def test_an_entry_that_is_not_ready_has_the_reason_and_what_to_do(tmp_path: Path) -> None:
    unclosed = record_run(tmp_path / "unclosed.gpuprof")
    (unclosed / "meta.json").rename(unclosed / "recording.json")
    recorded = record_run(tmp_path / "recorded.gpuprof")
    (recorded / "meta.json").rename(recorded / "recording.json")
    locked = subprocess.Popen(
        [sys.executable, "-c", LOCKING, str(recorded / LOCK_FILE)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    with locked, serving(tmp_path) as served:
        assert locked.stdout is not None
        locked.stdout.readline()
        items = served.wait_until(
            lambda found: len(found) == 2 and found["recorded.gpuprof"]["state"] == "recording"
        )
        for name in ("unclosed", "recording"):
            (item,) = (each for each in items.values() if each["state"] == name)
            problem = served.json(f"/api/items/{item['id']}")["problem"]
            assert problem["code"] == name
            assert not HAS_WORDS or "; hint: " in problem["message"]
            status, _, body = served.get(f"/view/{item['id']}/flamegraph")
            assert (status, json.loads(body)["code"]) == (422, name)
        locked.kill()


def test_exports_have_no_files_of_other_software(tmp_path: Path) -> None:
    (tmp_path / "other.json").write_text("{}", encoding="utf-8")
    write_history(tmp_path, 1)
    with serving(tmp_path) as served:
        served.read(1)
        rows = json.loads(served.get("/export/entries.json")[2])
    assert [row["path"] for row in rows] == ["benchmark_results_0000.json"]


def test_entries_of_a_folder_that_is_removed_are_gone(tmp_path: Path) -> None:
    root, moved = tmp_path / "served", tmp_path / "moved"
    write_history(root, 2)
    with serving(root) as served:
        served.read(2)
        root.rename(moved)
        served.wait_until(lambda items: not items)
        moved.rename(root)
        assert len(served.read(2)) == 2


def test_a_folder_that_is_removed_is_a_problem_that_the_page_shows(tmp_path: Path) -> None:
    root = tmp_path / "served"
    root.mkdir()
    with serving(root) as served:
        served.read(0)
        root.rmdir()
        problem = next(tick["problem"] for kind, tick in served.events() if tick.get("problem"))
        assert "cannot be listed" in problem
        root.mkdir()
        assert any(tick["problem"] is None for kind, tick in served.events() if kind == "tick")


def test_alerts_reach_the_webhook_and_those_that_do_not_are_shown(tmp_path: Path) -> None:
    class Refusing(http.server.BaseHTTPRequestHandler):
        got: ClassVar[list[Any]] = []

        def do_POST(self) -> None:
            self.got.append(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))
            self.send_response(500)
            self.end_headers()

        def log_message(self, *_words: object) -> None:
            pass

    (tmp_path / "rules.toml").write_text(
        '[[rule]]\nname = "any"\nkind = "threshold"\nfigure = "machine.memory_used_bytes"\nabove = 1\n'
    )
    root = tmp_path / "root"
    root.mkdir()
    with http.server.HTTPServer(("127.0.0.1", 0), Refusing) as receiver:
        threading.Thread(target=receiver.serve_forever, daemon=True).start()
        url = f"http://127.0.0.1:{receiver.server_port}"
        words = ["--rules", str(tmp_path / "rules.toml"), "--webhook", url]
        command = [sys.executable, "-m", "gpuprof", "dashboard", str(root), "--port", "0", *words]
        with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
            assert process.stdout is not None
            address = urlsplit(process.stdout.readline().strip())
            assert address.port is not None
            events = Client(address.port).events()
            assert any(event.get("lost_alerts") == 1 for _, event in events)
            process.send_signal(signal.SIGINT)
            _, errors = process.communicate(timeout=LONGEST_S)
        receiver.shutdown()
    assert (process.returncode, len(errors.splitlines())) == (0, 1)
    ((alert,),) = [Refusing.got]
    assert (alert["rule"], alert["state"], alert["run"]) == ("any", "firing", None)


def test_a_number_that_json_lacks_is_unavailable(tmp_path: Path) -> None:
    text = '{"kind": "load", "settings": {"target": "x"}, "achieved_rate": NaN}'
    (tmp_path / "result.json").write_text(text, encoding="utf-8")
    (tmp_path / "requests.parquet").write_bytes(b"")
    (tmp_path / "load").mkdir()
    for name in ("result.json", "requests.parquet"):
        (tmp_path / name).rename(tmp_path / "load" / name)
    with serving(tmp_path) as served:
        (item,) = served.read(1).values()
    # The whole list failed before.
    assert item["path"] == "load"


def test_a_link_to_the_facts_of_a_run_elsewhere_is_not_followed(tmp_path: Path) -> None:
    (tmp_path / "outside").mkdir()
    outside = record_run(tmp_path / "outside" / "run.gpuprof")
    root = tmp_path / "root"
    (root / "link.gpuprof").mkdir(parents=True)
    (root / "link.gpuprof" / "meta.json").symlink_to(outside / "meta.json")
    with serving(root) as served:
        (item,) = served.read(1).values()
    assert item["state"] == "damaged"


def test_a_follower_that_fails_is_reported_and_continues(tmp_path: Path) -> None:
    class Failing(LiveRuns):
        failures = 3

        def poll(self, recording: Mapping[str, str]) -> Any:
            if self.failures:
                self.failures -= 1
                raise OSError(24, "too many open files")
            return super().poll(recording)

    with serving(tmp_path, live=Failing(tmp_path)) as served:
        problems = []
        for kind, data in served.events():
            problems.append(data["problem"])
            if kind == "tick":
                break
        assert problems[-1] is None
        with served.dashboard._reporting("runs"):
            raise ValueError("<b>odd</b>")
        assert served.dashboard._state()["problem"] == "ValueError: <b>odd</b>"
