# SPDX-License-Identifier: Apache-2.0
"""A server that stalls for a second: what load generators report as its p99, and what they cost.

    python benchmarks/load_stall.py [--aiperf PATH [--tokenizer FOLDER]] [--json FILE]

The server responds to chat completions at once, one after the other, and once stops for a second. Each
generator plans 200 requests per second for 8 s at even distances. The true p99 is that of the plan, by the
server's clock: the time from when the n-th request was due until the n-th response. It is 920 ms for a server
that needs no time to accept connections and to respond. hey and AIPerf are measured where they are found,
also with a cap of 8 requests at once. Printed are the p99, its ratio to the truth of the same requests,
processor time and bytes on disk for each request. Then each sends as many requests as it can to the same
server, without a stall.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import math
import resource
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, ClassVar

if __name__ == "__main__":
    # Python searches only the script's own folder for modules.
    sys.path[0] = str(Path(__file__).resolve().parent.parent)

import numpy as np

from benchmarks._machine import describe_machine
from benchmarks._output import Column, plain_table, show

RATE, SECONDS, CAP, STALL_AT, STALL_S = 200, 8, 8, 400, 1.0
PATH = "/v1/chat/completions"
_BODY = json.dumps(
    {
        "id": "1",
        "object": "chat.completion",
        "created": 1,
        "model": "m",
        "choices": [
            {"index": 0, "message": {"role": "assistant", "content": "one"}, "finish_reason": "stop"}
        ],
        "usage": {"prompt_tokens": 1, "completion_tokens": 1, "total_tokens": 2},
    }
).encode()
_RESPONSE = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n" % len(_BODY)
_LONGEST_S = 300.0


class StallingServer(asyncio.Protocol):
    """Responds at once, and stops once for STALL_S where `stalls`."""

    stalls = True
    arrived_s: ClassVar[list[float]] = []
    responded_s: ClassVar[list[float]] = []

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Keep the transport."""
        self._transport: Any = transport
        self._received = b""

    def data_received(self, data: bytes) -> None:
        """Respond to the requests that are whole."""
        self._received += data
        while True:
            head, separator, rest = self._received.partition(b"\r\n\r\n")
            _, _, after = head.lower().partition(b"\r\ncontent-length:")
            length = int(after.split(b"\r\n")[0]) if after else 0
            if not separator or len(rest) < length:
                return
            self._received = rest[length:]
            self.arrived_s.append(time.monotonic())
            if StallingServer.stalls and len(self.arrived_s) == STALL_AT:
                time.sleep(STALL_S)
            self._transport.write(_RESPONSE + _BODY)
            self.responded_s.append(time.monotonic())


def true_p99_s(arrived_s: Sequence[float], responded_s: Sequence[float]) -> float:
    """Return the p99 of requests at even distances, as an order statistic.

    The plan is that of the median request before the stall, not of one that only checks the server.
    """
    due_s = np.arange(len(arrived_s)) / RATE
    start_s = np.median((np.array(arrived_s) - due_s)[: STALL_AT - 1])
    latencies_s = np.sort(np.array(responded_s) - due_s - start_s)
    return float(latencies_s[int(np.ceil(0.99 * len(latencies_s))) - 1])


async def serve(stalls: bool) -> None:
    """Serve until the input ends, and print the true p99 if the server stalls."""
    StallingServer.stalls = stalls
    loop = asyncio.get_running_loop()
    server = await loop.create_server(StallingServer, "127.0.0.1", 0, backlog=1024)
    print(server.sockets[0].getsockname()[1], flush=True)
    # Its input ends with the process that started it.
    await loop.run_in_executor(None, sys.stdin.read)
    if stalls:
        print(true_p99_s(StallingServer.arrived_s, StallingServer.responded_s))


@dataclass
class Server:
    """A server in a process of its own; `true_p99_s` is known once it has ended."""

    port: int
    true_p99_s: float = math.nan


@contextmanager
def serving(stalls: bool) -> Iterator[Server]:
    """Run the server in a process of its own."""
    words = [sys.executable, __file__, "--serve", "stall" if stalls else "null"]
    with subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        server = Server(int(process.stdout.readline()))
        yield server
        last, _ = process.communicate()
        if stalls:
            server.true_p99_s = float(last)


def run(words: list[str], folder: Path) -> tuple[str, float]:
    """Run a command in a folder; returns its output and its processor time in seconds."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    done = subprocess.run(words, capture_output=True, text=True, timeout=_LONGEST_S, cwd=folder, check=False)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    if done.returncode not in (0, 3):
        raise SystemExit(f"{words[0]}: exit code {done.returncode}: {done.stderr[-500:]}{done.stdout[-500:]}")
    used = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return done.stdout, used


def row(
    name: str, p99_s: float, requests: int, cpu_s: float, size: int | None, **more: Any
) -> dict[str, Any]:
    """Return the figures of one generator."""
    return {
        "generator": name,
        "p99_ms": p99_s * 1e3,
        "cpu_us": cpu_s / requests * 1e6,
        "bytes": None if size is None else size / requests,
        **more,
    }


def command_in(folder: Path, port: int) -> list[str]:
    """Write the body of a request to a folder; returns the command that sends it from there."""
    body = json.dumps({"model": "m", "messages": [{"role": "user", "content": "one"}]})
    (folder / "body.json").write_text(body, encoding="utf-8")
    address = f"http://127.0.0.1:{port}{PATH}"
    return [sys.executable, "-m", "gpuprof", "load", address, "--body", "body.json"]


def ours(port: int, cap: int | None) -> list[dict[str, Any]]:
    """Return the rows of gpuprof: from the plan, and from sending as others measure."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        words = command_in(folder, port)
        words += ["--scenario", "constant", "--rate", str(RATE), "--duration", f"{SECONDS}s", "--out", "out"]
        out, cpu_s = run([*words, "--json", *(["--concurrency", str(cap)] if cap else [])], folder)
        size = (folder / "out" / "requests.parquet").stat().st_size
    found = json.loads(out)
    name, count = f"gpuprof{f', {cap} at once' if cap else ''}", found["requests"]
    rows = [row(f"{name}, from the plan", found["latency_s"]["p99"], count, cpu_s, size)]
    return [*rows, row(f"{name}, from sending", found["service_s"]["p99"], count, cpu_s, size)]


def hey(port: int) -> list[dict[str, Any]]:
    """Return the row of hey, whose workers each send at an eighth of the rate."""
    words = ["hey", "-z", f"{SECONDS}s", "-q", str(RATE // CAP), "-c", str(CAP), "-m", "POST", "-d", "{}"]
    with tempfile.TemporaryDirectory() as folder:
        out, cpu_s = run([*words, f"http://127.0.0.1:{port}{PATH}"], Path(folder))
    line = next(each for each in out.splitlines() if "99%" in each)
    count = round(float(out.partition("Requests/sec:")[2].split()[0]) * SECONDS)
    return [row(f"hey, {CAP} at once", float(line.split()[-2]), count, cpu_s, None)]


def aiperf(
    command: Sequence[str], port: int, *, cap: int | None, rate: float | None, count: int
) -> list[dict[str, Any]]:
    """Return AIPerf's row; without a rate it sends as fast as it can."""
    words = [
        *command,
        "--model",
        "m",
        "--url",
        f"http://127.0.0.1:{port}",
        "--endpoint-type",
        "chat",
    ]
    words += ["--request-count", str(count), "--ui", "none"]
    words += ["--synthetic-input-tokens-mean", "8", "--artifact-dir", "out"]
    words += ["--request-rate", str(rate), "--arrival-pattern", "constant"] if rate else []
    words += ["--concurrency", str(cap)] if cap else []
    with tempfile.TemporaryDirectory() as name:
        _, cpu_s = run(words, Path(name))
        found = json.loads(next(Path(name).rglob("profile_export_aiperf.json")).read_text(encoding="utf-8"))
        records = next(Path(name).rglob("profile_export.jsonl"), None)
        size = None if records is None else records.stat().st_size
    p99_s = found["request_latency"]["p99"] / 1e3
    per_second = found["request_throughput"]["avg"]
    name = f"AIPerf{f', {cap} at once' if cap else ''}"
    return [row(name, p99_s, count, cpu_s, size, per_second=per_second)]


def ceilings(command: Sequence[str] | None) -> list[dict[str, Any]]:
    """Return requests per second of 16 connections on a server that does not stall."""
    found = []
    with serving(stalls=False) as server, tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        words = command_in(folder, server.port)
        words += ["--scenario", "closed-loop", "--concurrency", "16", "--count", "20000", "--json"]
        out, _ = run(words, folder)
        found.append({"generator": "gpuprof", "per_second": json.loads(out)["achieved_rate"]})
        if command is not None:
            (measured,) = aiperf(command, server.port, cap=16, rate=None, count=2_000)
            found.append({"generator": "AIPerf", "per_second": measured["per_second"]})
    return found


def measure(command: Sequence[str] | None) -> list[dict[str, Any]]:
    """Return a row for each generator."""
    rows: list[dict[str, Any]] = []
    for cap in (None, CAP):
        rows += against_truth(partial(ours, cap=cap))
        if command is not None:
            rows += against_truth(partial(aiperf, command, cap=cap, rate=RATE, count=RATE * SECONDS))
    if shutil.which("hey"):
        rows += against_truth(hey)
    return rows


def against_truth(measured: Callable[[int], list[dict[str, Any]]]) -> list[dict[str, Any]]:
    """Return the rows of a generator, with the true p99 of its requests."""
    with serving(stalls=True) as server:
        rows = measured(server.port)
    true_s = server.true_p99_s
    return [{**each, "true_p99_ms": true_s * 1e3, "of_truth": each["p99_ms"] / true_s / 1e3} for each in rows]


COLUMNS = (
    Column("generator", 33, lambda each: str(each["generator"])),
    Column("p99 ms", 9, lambda each: f"{each['p99_ms']:,.1f}"),
    Column("true p99 ms", 12, lambda each: f"{each['true_p99_ms']:,.1f}"),
    Column("x truth", 8, lambda each: f"{each['of_truth']:.4f}"),
    Column("CPU us/request", 15, lambda each: f"{each['cpu_us']:,.0f}"),
    Column("B/request", 10, lambda each: "-" if each["bytes"] is None else f"{each['bytes']:,.0f}"),
)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--aiperf", metavar="PATH", default=shutil.which("aiperf"))
    parser.add_argument("--tokenizer", metavar="FOLDER", help="of AIPerf; its own is downloaded")
    parser.add_argument("--json", metavar="FILE")
    parser.add_argument("--serve", choices=("stall", "null"), help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.serve:
        asyncio.run(serve(options.serve == "stall"))
        return
    tokenizer = ("--tokenizer", str(Path(options.tokenizer).absolute()) if options.tokenizer else "builtin")
    command = None if options.aiperf is None else (options.aiperf, "profile", *tokenizer)
    machine, rows, most = describe_machine(), measure(command), ceilings(command)
    table = plain_table(COLUMNS, rows)
    table += "".join(f"most requests/s, {each['generator']}: {each['per_second']:,.0f}\n" for each in most)
    result = {"machine": machine, "rows": rows, "ceilings": most}
    show(result, table, options.json)


if __name__ == "__main__":
    main()
