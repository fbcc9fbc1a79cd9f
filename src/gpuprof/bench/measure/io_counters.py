# SPDX-License-Identifier: Apache-2.0
"""Counters of disk and network: what a process read and wrote, and how long it waited for that.

None is unavailable. Linux reports them in /proc; elsewhere all are None.
"""

from __future__ import annotations

import contextlib
import os
from dataclasses import dataclass, fields
from pathlib import Path

PROC = Path("/proc")
_IO_WAIT_OF_MACHINE = 5  # the word in the first line of /proc/stat (proc_stat(5))
_IO_DELAY_OF_THREAD = 39  # after the name in /proc/PID/stat: delayacct_blkio_ticks (proc_pid_stat(5))
_RECEIVED, _SENT = 0, 8  # the words of an interface in /proc/net/dev
_LOOPBACK = "lo"


@dataclass(frozen=True, slots=True)
class IoCounters:
    """Counters at one moment, or how much they rose between two.

    `read_bytes` and `written_bytes` went to and from disks, `read_call_bytes` is what read calls returned,
    the page cache and pipes included. `wait_s` is how long the threads of this process waited for disks;
    the kernel accounts it only with `kernel.task_delayacct=1`. `machine_wait_s` is how long the processors of
    the machine were idle while a disk was busy. The network's bytes are of all processes in its namespace,
    without the loopback interface.
    """

    read_bytes: int | None = None
    written_bytes: int | None = None
    read_call_bytes: int | None = None
    wait_s: float | None = None
    machine_wait_s: float | None = None
    network_received_bytes: int | None = None
    network_sent_bytes: int | None = None

    def since(self, before: IoCounters) -> IoCounters:
        """Return the rise of each counter since `before`; None where one of both is unavailable."""
        values = {each.name: (getattr(before, each.name), getattr(self, each.name)) for each in fields(self)}
        return IoCounters(
            **{name: None if old is None or new is None else new - old for name, (old, new) in values.items()}
        )


def read_io(proc: Path = PROC) -> IoCounters:
    """Read the counters now."""
    calls = _process_io(proc)
    received, sent = _network_bytes(proc)
    return IoCounters(
        read_bytes=calls.get("read_bytes"),
        written_bytes=calls.get("write_bytes"),
        read_call_bytes=calls.get("rchar"),
        wait_s=_process_wait_s(proc),
        machine_wait_s=_machine_wait_s(proc),
        network_received_bytes=received,
        network_sent_bytes=sent,
    )


def _process_io(proc: Path) -> dict[str, int]:
    with contextlib.suppress(OSError, ValueError):
        lines = (proc / "self/io").read_text(encoding="ascii").splitlines()
        return {name: int(value) for name, value in (line.split(": ") for line in lines)}
    return {}


def _process_wait_s(proc: Path) -> float | None:
    """Return the waiting of all threads that live; those that have ended are not in the sum."""
    with contextlib.suppress(OSError, ValueError, IndexError):
        if (proc / "sys/kernel/task_delayacct").read_text(encoding="ascii").strip() != "1":
            return None  # the counter is 0, whatever happens
        ticks = 0
        for thread in (proc / "self/task").iterdir():
            # The name may hold spaces and parentheses.
            words = (thread / "stat").read_text(encoding="utf-8", errors="replace").rpartition(")")[2].split()
            ticks += int(words[_IO_DELAY_OF_THREAD])
        return ticks / os.sysconf("SC_CLK_TCK")
    return None


def _machine_wait_s(proc: Path) -> float | None:
    with contextlib.suppress(OSError, ValueError, IndexError):
        words = (proc / "stat").read_text(encoding="ascii").split("\n", 1)[0].split()
        return int(words[_IO_WAIT_OF_MACHINE]) / os.sysconf("SC_CLK_TCK")
    return None


def _network_bytes(proc: Path) -> tuple[int | None, int | None]:
    received = sent = 0
    try:
        for line in (proc / "self/net/dev").read_text(encoding="ascii").splitlines()[2:]:
            name, _, words = line.partition(":")
            if name.strip() != _LOOPBACK:
                received += int(words.split()[_RECEIVED])
                sent += int(words.split()[_SENT])
    except (OSError, ValueError, IndexError):
        return None, None
    return received, sent
