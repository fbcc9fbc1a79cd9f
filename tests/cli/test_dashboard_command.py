# SPDX-License-Identifier: Apache-2.0
"""`gpuprof dashboard` as a process: its address, its end, and that no process is left of it."""

from __future__ import annotations

import contextlib
import http.client
import os
import select
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlsplit

import pytest
from dashboard_folders import write_history
from refusals import refused_command

LONGEST_S = 120


@contextlib.contextmanager
def started(folder: Path, *more: str) -> Iterator[tuple[subprocess.Popen[str], str]]:
    command = [sys.executable, "-m", "gpuprof", "dashboard", str(folder), "--port", "0", *more]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as server:
        assert server.stdout is not None
        try:
            yield server, server.stdout.readline().strip()
        finally:
            server.kill()


def get(address: str, path: str) -> tuple[int, bytes]:
    connection = http.client.HTTPConnection(urlsplit(address).netloc, timeout=LONGEST_S)
    with contextlib.closing(connection):
        connection.request("GET", path)
        response = connection.getresponse()
        return response.status, response.read()


def workers_below(process_id: int) -> list[int]:
    words = Path(f"/proc/{process_id}/task/{process_id}/children").read_text().split()
    return [int(each) for each in words]


def has_ended(process_id: int) -> bool:
    try:
        state = Path(f"/proc/{process_id}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return True
    return state in "ZX"


def wait_for_entries(address: str, count: int) -> None:
    connection = http.client.HTTPConnection(urlsplit(address).netloc, timeout=LONGEST_S)
    with contextlib.closing(connection):
        connection.request("GET", "/events")
        for _ in connection.getresponse():
            if get(address, "/api/catalog")[1].count(b'"ready"') == count:
                return
    raise AssertionError("the stream has ended")


@pytest.mark.needs("starlette", "uvicorn")
@pytest.mark.skipif(sys.platform != "linux", reason="needs /proc")
@pytest.mark.parametrize("end", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_it_ends_with_its_worker(tmp_path: Path, end: signal.Signals) -> None:
    write_history(tmp_path, 2)
    with started(tmp_path) as (server, address):
        assert address.startswith("http://127.0.0.1:")
        wait_for_entries(address, 2)
        workers = workers_below(server.pid)
        assert len(workers) == 1
        server.send_signal(end)
        _, errors = server.communicate(timeout=LONGEST_S)
        assert errors == ""
        expected = {signal.SIGINT: 0, signal.SIGTERM: 143, signal.SIGKILL: -signal.SIGKILL}
        assert server.returncode == expected[end]
        for worker in workers:
            with contextlib.suppress(OSError):
                descriptor = os.pidfd_open(worker)  # readable when the process has ended
                assert select.select([descriptor], [], [], LONGEST_S)[0]
                os.close(descriptor)
            assert has_ended(worker)


@pytest.mark.needs("starlette", "uvicorn")
def test_the_printed_address_has_the_token(tmp_path: Path) -> None:
    with started(tmp_path, "--token") as (_, address):
        token = urlsplit(address).query
        assert len(token) > len("token=") + 30
        assert get(address, f"/?{token}")[0] == 200
        assert get(address, "/")[0] == 401


@pytest.mark.needs("starlette", "uvicorn")
def test_an_address_of_all_interfaces_is_announced_as_open(tmp_path: Path) -> None:
    with started(tmp_path, "--host", "0.0.0.0", "--token") as (server, address):
        assert "token=" in address
        server.send_signal(signal.SIGINT)
        _, errors = server.communicate(timeout=LONGEST_S)
    assert len(errors.splitlines()) == 2
    assert errors.startswith("warning: ")


def test_without_its_packages_it_names_the_extra(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [each for each in sys.modules if each.startswith("gpuprof.live.dashboard")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "uvicorn", None)
    monkeypatch.setitem(sys.modules, "starlette", None)
    refused_command(["dashboard", str(tmp_path)], "not_installed", "gpuprof-native[serve]")
