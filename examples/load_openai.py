# SPDX-License-Identifier: Apache-2.0
"""Puts load on a server of streams, here a stand-in without a model, and prints TTFT, TPOT, ITL and goodput.

    python examples/load_openai.py [--rate 40] [--duration 5] [--serve 8000]

The server is compatible with chat/completions: it writes a token every 5 ms and counts them in `usage`.
With `--serve` it only serves, for a load from the command line.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from gpuprof.load.driver import DriveSettings
from gpuprof.load.schedules import RateSchedule
from gpuprof.load.streaming_metrics import parse_stream_objectives
from gpuprof.load.streaming_summary import summarize_streams
from gpuprof.load.targets.client_process import drive_server
from gpuprof.load.targets.server_target import server_target

TOKEN_S = 0.005
FIRST_TOKEN_S = 0.02
HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"


def chunk(event: object) -> bytes:
    """Return one server-sent event as a chunk of an HTTP response."""
    data = event if isinstance(event, str) else json.dumps(event)
    body = f"data: {data}\n\n".encode()
    return b"%x\r\n%b\r\n" % (len(body), body)


async def stream(writer: asyncio.StreamWriter, tokens: int) -> None:
    """Write the tokens of one response, with the server's count of them in each chunk."""
    writer.write(HEAD)
    await asyncio.sleep(FIRST_TOKEN_S)
    for count in range(1, tokens + 1):
        choice = {"index": 0, "delta": {"content": "word "}}
        writer.write(chunk({"choices": [choice], "usage": {"completion_tokens": count}}))
        await asyncio.sleep(TOKEN_S)
    writer.write(chunk("[DONE]") + b"0\r\n\r\n")
    await writer.drain()


async def respond(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Respond to the requests of one connection."""
    with contextlib.suppress(asyncio.IncompleteReadError, ConnectionError):
        while True:
            head = (await reader.readuntil(b"\r\n\r\n")).lower()
            length = int(head.partition(b"content-length:")[2].split()[0])
            body = json.loads(await reader.readexactly(length))
            await stream(writer, body["max_tokens"])
    writer.close()


@contextlib.contextmanager
def serving() -> Iterator[int]:
    """Serve in a thread until the block ends; the port is one that is free."""
    loop = asyncio.new_event_loop()
    server = loop.run_until_complete(asyncio.start_server(respond, "127.0.0.1", 0))
    thread = threading.Thread(target=loop.run_forever)
    thread.start()
    try:
        yield server.sockets[0].getsockname()[1]
    finally:
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        for task in asyncio.all_tasks(loop):
            task.cancel()
        server.close()
        loop.run_until_complete(asyncio.sleep(0))
        loop.close()


async def serve(port: int) -> None:
    server = await asyncio.start_server(respond, "127.0.0.1", port)
    print(f"openai+http://127.0.0.1:{port}/v1")
    await server.serve_forever()


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--rate", type=float, default=40.0)
    parser.add_argument("--duration", type=float, default=5.0)
    parser.add_argument("--serve", type=int, metavar="PORT")
    options = parser.parse_args()
    if options.serve is not None:
        asyncio.run(serve(options.serve))
        return
    arrivals = RateSchedule(options.rate, options.duration).arrivals_ns(np.random.default_rng(0))
    objectives = parse_stream_objectives(["ttft_p90<200ms", "tpot_p90<50ms"])
    with serving() as port, tempfile.TemporaryDirectory() as folder:
        target = server_target(f"openai+http://127.0.0.1:{port}/v1", model="stand-in", output_tokens=16)
        load = drive_server(target, arrivals, Path(folder), DriveSettings())
    print(summarize_streams(load, objectives))


if __name__ == "__main__":
    main()
