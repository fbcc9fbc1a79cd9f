# SPDX-License-Identifier: Apache-2.0
"""The worker process as the server sees it: one request at a time, restarted if it dies."""

from __future__ import annotations

import asyncio
import contextlib
import json
from typing import Any

from gpuprof.errors import GpuprofError
from gpuprof.record.helper_process import module_command

_LONGEST_REPLY = 256 << 20
_TIMEOUT_S = 180.0


class Worker:
    """A process that is started at the first request and ended after `idle_s` without one."""

    def __init__(self, *, idle_s: float = 120.0) -> None:
        self._idle_s = idle_s
        self._process: asyncio.subprocess.Process | None = None
        self._lock = asyncio.Lock()
        self._idle: asyncio.TimerHandle | None = None

    async def call(self, name: str, **arguments: Any) -> Any:
        """Return what the worker's function returns. Raises GpuprofError as the function does."""
        line = json.dumps({"call": name, "arguments": arguments}).encode("ascii") + b"\n"
        async with self._lock:
            if self._idle is not None:
                self._idle.cancel()
            try:
                reply = await asyncio.wait_for(self._exchange(line), _TIMEOUT_S)
            except asyncio.TimeoutError:
                await self._end()
                raise GpuprofError(
                    "timeout", f"no result after {_TIMEOUT_S:.0f} s", hint="use the command"
                ) from None
            except asyncio.CancelledError:
                await self._end()
                raise
            self._idle = asyncio.get_running_loop().call_later(self._idle_s, self._close_input)
        if "error" in reply:
            code, message, hint = (str(reply["error"][each]) for each in ("code", "message", "hint"))
            raise GpuprofError(code, message, hint=hint)
        return reply["value"]

    async def _exchange(self, line: bytes) -> Any:
        process = self._process
        if (
            process is None
            or process.returncode is not None
            or process.stdin is None
            or process.stdin.is_closing()
        ):
            await self._end()
            process = self._process = await asyncio.create_subprocess_exec(
                *module_command("gpuprof.live.dashboard.worker"),
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.PIPE,
                limit=_LONGEST_REPLY,
                start_new_session=True,  # Ctrl-C is for the server, which ends the worker
            )
        assert process.stdin is not None
        assert process.stdout is not None
        with contextlib.suppress(ConnectionError):
            process.stdin.write(line)
            await process.stdin.drain()
        found = await process.stdout.readline()
        if not found:
            await self._end()
            raise GpuprofError("worker_ended", "the process that reads runs has ended", hint="try again")
        return json.loads(found)

    def _close_input(self) -> None:
        if self._process is not None and self._process.stdin is not None:
            self._process.stdin.close()

    async def _end(self) -> None:
        process, self._process = self._process, None
        if process is None:
            return
        with contextlib.suppress(ProcessLookupError):
            process.kill()
        await process.wait()

    async def close(self) -> None:
        """End the process."""
        if self._idle is not None:
            self._idle.cancel()
        await self._end()
