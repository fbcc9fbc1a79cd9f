# SPDX-License-Identifier: Apache-2.0
"""Compares HTTP clients in a closed loop against a server without work, on loopback.

    python benchmarks/load_clients.py [--connections 16] [--requests 200000] [--rounds 3] [--json FILE]

Each client sends the requests with the same number of connections, in a process of its own; the rounds take
turns. Printed are requests a second and the client's CPU time per request, and each as a ratio to ours.
aiohttp and httpx are measured where they are installed, wrk and hey where they are on the PATH. aiohttp
sends a tenth of the requests, httpx a hundredth.
"""

from __future__ import annotations

import argparse
import asyncio
import importlib.util
import json
import resource
import shutil
import statistics
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

if __name__ == "__main__":
    # Python searches only the script's own folder for modules.
    sys.path[0] = str(Path(__file__).resolve().parent.parent)

from benchmarks._machine import describe_machine
from benchmarks._output import Column, plain_table, show
from gpuprof import _native
from gpuprof.load.requests import is_ok, rows_of

RESPONSE = b'HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: 8\r\n\r\n{"ok":1}'
OURS = "gpuprof"
PYTHON_CLIENTS = (OURS, "aiohttp", "httpx")
COMMANDS = {
    "wrk": ["-t1", "-c{connections}", "-d3s", "{url}"],
    "hey": ["-c", "{connections}", "-n", "{requests}", "{url}"],
}
_SLOWER = {"aiohttp": 10, "httpx": 100}
_LONGEST_S = 120.0


class NullServer(asyncio.Protocol):
    """Responds to each request head with the same bytes."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Keep the transport."""
        self._transport: Any = transport  # uvloop's is none of asyncio's classes
        self._received = b""

    def data_received(self, data: bytes) -> None:
        """Respond to the requests that are whole."""
        self._received += data
        heads = self._received.split(b"\r\n\r\n")
        self._received = heads.pop()
        self._transport.write(RESPONSE * len(heads))


async def serve() -> None:
    server = await asyncio.get_running_loop().create_server(NullServer, "127.0.0.1", 0, backlog=1024)
    print(server.sockets[0].getsockname()[1], flush=True)
    # Its input ends with the process that started it.
    await asyncio.get_running_loop().run_in_executor(None, sys.stdin.read)


async def send_ours(port: int, connections: int, requests: int) -> int:
    from gpuprof.load.targets.address import ServerAddress, WireProtocol
    from gpuprof.load.targets.http import HttpClient
    from gpuprof.load.targets.http_requests import HttpRequests

    address = ServerAddress(WireProtocol.HTTP, "127.0.0.1", port, "/", resolved=("127.0.0.1",))
    log, done = _native.RequestLog(requests), asyncio.Event()
    ended = 0

    def on_end(_: int, __: int) -> None:
        nonlocal ended
        ended += 1
        if ended + connections <= requests:
            client.start(ended + connections - 1)
        elif ended == requests:
            done.set()

    client = HttpClient(address, HttpRequests(address).of, log, concurrency=connections, on_end=on_end)
    await client.open()
    for index in range(connections):
        client.start(index)
    await done.wait()
    await client.close()
    return int((~is_ok(rows_of(log))).sum())


async def share(requests: int, connections: int, get: Callable[[], Awaitable[bool]]) -> int:
    """Send requests one after the other from each connection; return how many failed."""

    async def send(count: int) -> int:
        return sum([not await get() for _ in range(count)])

    return sum(await asyncio.gather(*(send(requests // connections) for _ in range(connections))))


async def send_aiohttp(port: int, connections: int, requests: int) -> int:
    import aiohttp

    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=connections)) as session:

        async def get() -> bool:
            async with session.get(f"http://127.0.0.1:{port}/") as response:
                await response.read()
                return bool(response.status == 200)

        return await share(requests, connections, get)


async def send_httpx(port: int, connections: int, requests: int) -> int:
    import httpx

    limits = httpx.Limits(max_connections=connections, max_keepalive_connections=connections)
    async with httpx.AsyncClient(limits=limits, trust_env=False) as client:

        async def get() -> bool:
            return bool((await client.get(f"http://127.0.0.1:{port}/")).status_code == 200)

        return await share(requests, connections, get)


def run_client(name: str, port: int, connections: int, requests: int) -> None:
    """Send with one client in this process, and print what it took as JSON."""
    import uvloop

    send = {OURS: send_ours, "aiohttp": send_aiohttp, "httpx": send_httpx}[name]

    async def measure() -> dict[str, float]:
        await send(port, connections, connections * 4)  # imports and connections
        before, cpu = time.perf_counter(), time.process_time()
        failed = await send(port, connections, requests)
        wall, cpu = time.perf_counter() - before, time.process_time() - cpu
        return {"wall_s": wall, "cpu_s": cpu, "failed": failed}

    print(json.dumps(uvloop.run(measure())))


def measure_python(name: str, port: int, options: argparse.Namespace) -> dict[str, float]:
    connections: int = options.connections
    requests = max(options.requests // _SLOWER.get(name, 1) // connections, 1) * connections
    words = [sys.executable, __file__, "--client", name, "--port", str(port)]
    words += ["--connections", str(connections), "--requests", str(requests)]
    done = subprocess.run(words, capture_output=True, text=True, check=True, timeout=_LONGEST_S)
    found = json.loads(done.stdout)
    if found["failed"]:
        raise SystemExit(f"{name}: {found['failed']} of {requests} requests failed")
    return {"per_second": requests / found["wall_s"], "cpu_us": found["cpu_s"] / requests * 1e6}


def measure_command(name: str, port: int, options: argparse.Namespace) -> dict[str, float]:
    """Run wrk or hey; both print their rate in one line."""
    values = {"connections": options.connections, "requests": options.requests}
    words = [name, *(each.format(url=f"http://127.0.0.1:{port}/", **values) for each in COMMANDS[name])]
    before, wall = _cpu_of_children(), time.perf_counter()
    done = subprocess.run(words, capture_output=True, text=True, check=True, timeout=_LONGEST_S)
    cpu, wall = _cpu_of_children() - before, time.perf_counter() - wall
    rate = float(done.stdout.partition("Requests/sec:")[2].split()[0])
    return {"per_second": rate, "cpu_us": cpu / (rate * wall) * 1e6}


def _cpu_of_children() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def measure(options: argparse.Namespace) -> list[dict[str, Any]]:
    """Return a row for each client: the median of its rounds, and its ratios to ours."""
    python = [name for name in PYTHON_CLIENTS if name == OURS or importlib.util.find_spec(name)]
    commands = [name for name in COMMANDS if shutil.which(name)]
    found: dict[str, list[dict[str, float]]] = {name: [] for name in (*python, *commands)}
    with subprocess.Popen(
        [sys.executable, __file__, "--serve"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as server:
        assert server.stdout is not None
        port = int(server.stdout.readline())
        for _ in range(options.rounds):
            for name in python:
                found[name].append(measure_python(name, port, options))
            for name in commands:
                found[name].append(measure_command(name, port, options))
    figures = {
        name: {key: statistics.median(each[key] for each in rounds) for key in ("per_second", "cpu_us")}
        for name, rounds in found.items()
    }
    ours = figures[OURS]
    return [
        {
            "client": name,
            **each,
            "rate_ratio": each["per_second"] / ours["per_second"],
            "cpu_ratio": each["cpu_us"] / ours["cpu_us"],
        }
        for name, each in figures.items()
    ]


COLUMNS = (
    Column("client", 10, lambda row: str(row["client"])),
    Column("requests/s", 12, lambda row: f"{row['per_second']:,.0f}"),
    Column("x ours", 8, lambda row: f"{row['rate_ratio']:.3f}"),
    Column("CPU us/request", 16, lambda row: f"{row['cpu_us']:,.1f}"),
    Column("x ours", 8, lambda row: f"{row['cpu_ratio']:.1f}"),
)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--connections", type=int, default=16)
    parser.add_argument("--requests", type=int, default=200_000)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--json", metavar="FILE")
    parser.add_argument("--client", choices=PYTHON_CLIENTS, help=argparse.SUPPRESS)
    parser.add_argument("--port", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--serve", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.serve:
        import uvloop

        uvloop.run(serve())
    elif options.client:
        run_client(options.client, options.port, options.connections, options.requests)
    else:
        machine = describe_machine()
        rows = measure(options)
        result = {"machine": machine, "connections": options.connections, "rows": rows}
        show(result, plain_table(COLUMNS, rows), options.json)


if __name__ == "__main__":
    main()
