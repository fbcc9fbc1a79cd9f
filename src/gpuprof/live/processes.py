# SPDX-License-Identifier: Apache-2.0
"""Figures of processes and of the machine, from /proc: memory, processor time, disk and network.

Rates need two readings, so the first interval has none. Nothing is asked of the process itself.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gpuprof.live.snapshot import MachineFigures, MissingReason, ProcessFigures, Unavailable

PROC = Path("/proc")
_FIRST = Unavailable(MissingReason.FIRST_INTERVAL)
_ENDED = Unavailable(MissingReason.PROCESS_ENDED)
_NO_PROCFS = Unavailable(MissingReason.NO_PROCFS)
_NOT_PERMITTED = Unavailable(MissingReason.NOT_PERMITTED)


@dataclass(frozen=True, slots=True)
class ProcessReading:
    """The kernel's counts of a process since its start."""

    name: str
    state: str  # as in proc(5): R, S, D, Z, ...
    parent_process_id: int
    cpu_ticks: int
    threads: int
    start_ticks: int  # after the boot of the machine
    rss_bytes: int
    read_bytes: int | None  # None: not permitted
    written_bytes: int | None


def read_process(process_id: int, proc: Path = PROC) -> ProcessReading | None:
    """Return the counts of a process; None if there is none with this id."""
    folder = proc / str(process_id)
    try:
        stat = (folder / "stat").read_text(encoding="utf-8", errors="backslashreplace")
    except OSError:
        return None
    # The name is in parentheses and may contain any of them.
    name, _, rest = stat.partition("(")[2].rpartition(")")
    fields = rest.split()
    try:
        counts = dict(line.split(": ") for line in (folder / "io").read_text(encoding="ascii").splitlines())
    except OSError:
        counts = {}
    return ProcessReading(
        name=name,
        state=fields[0],
        parent_process_id=int(fields[1]),
        cpu_ticks=int(fields[11]) + int(fields[12]),
        threads=int(fields[17]),
        start_ticks=int(fields[19]),
        rss_bytes=int(fields[21]) * os.sysconf("SC_PAGE_SIZE"),
        read_bytes=int(counts["read_bytes"]) if "read_bytes" in counts else None,
        written_bytes=int(counts["write_bytes"]) if "write_bytes" in counts else None,
    )


def rank_of(process_id: int, proc: Path = PROC) -> int | None:
    """Return the rank in the environment that a process was started with; None without one, or if unknown."""
    try:
        words = (proc / str(process_id) / "environ").read_bytes().split(b"\0")
    except OSError:
        return None
    values = dict(word.partition(b"=")[::2] for word in words)
    rank = values.get(b"RANK") or values.get(b"LOCAL_RANK") or b""
    return int(rank) if rank.isdigit() else None


class ProcessWatch:
    """One process from reading to reading. A later process with the same id is another one."""

    def __init__(self, process_id: int, proc: Path = PROC) -> None:
        self.process_id = process_id
        self._proc = proc
        self._last = read_process(process_id, proc)
        self._before: ProcessReading | None = None
        self.is_alive = _runs(self._last)
        self.rank = rank_of(process_id, proc) if self.is_alive else None

    @property
    def started_ticks(self) -> int | None:
        """Begin of the process in clock ticks after the boot; None if it has ended."""
        return None if self._last is None else self._last.start_ticks

    def read(self) -> None:
        """Take the next reading."""
        if not self.is_alive:
            return
        now = read_process(self.process_id, self._proc)
        same = now is not None and self._last is not None and now.start_ticks == self._last.start_ticks
        self.is_alive = same and _runs(now)
        self._before, self._last = self._last, now if self.is_alive else self._last

    def mark_ended(self) -> None:
        """Note that the process with this id is not the one that was meant."""
        self.is_alive = False
        self._last = None

    def figures(self, interval_ns: int, spans: int | Unavailable, waiting_ns: int = 0) -> ProcessFigures:
        """Return the figures of the interval between the last two readings."""
        now, before = self._last, self._before
        alive = now is not None and self.is_alive
        seconds = interval_ns / 1e9

        def rate(one: int | None, other: int | None, scale: float = 1.0) -> float | Unavailable:
            if not alive:
                return _ENDED
            if one is None or (before is not None and other is None):
                return _NOT_PERMITTED
            return _FIRST if other is None or seconds <= 0 else (one - other) * scale / seconds

        ticks = 1 / os.sysconf("SC_CLK_TCK")
        return ProcessFigures(
            process_id=self.process_id,
            parent_process_id=now.parent_process_id if now is not None else None,
            name=now.name if now is not None else "",
            is_alive=alive,
            threads=now.threads if now is not None and alive else _ENDED,
            rss_bytes=now.rss_bytes if now is not None and alive else _ENDED,
            cpu_cores=rate(now.cpu_ticks if now else None, before.cpu_ticks if before else None, ticks),
            read_bytes_per_s=rate(now.read_bytes if now else None, before.read_bytes if before else None),
            written_bytes_per_s=rate(
                now.written_bytes if now else None, before.written_bytes if before else None
            ),
            spans=spans,
            waiting_ns=waiting_ns,
            rank=self.rank,
            is_stopped=now is not None and alive and now.state in "Tt",
            **self._sums(),
        )

    def _sums(self) -> dict[str, Any]:
        now = self._last
        if now is None or not self.is_alive:
            return dict.fromkeys(("cpu_s", "read_bytes", "written_bytes"), _ENDED)
        return {
            "cpu_s": now.cpu_ticks / os.sysconf("SC_CLK_TCK"),
            "read_bytes": _NOT_PERMITTED if now.read_bytes is None else now.read_bytes,
            "written_bytes": _NOT_PERMITTED if now.written_bytes is None else now.written_bytes,
        }


def _runs(reading: ProcessReading | None) -> bool:
    return reading is not None and reading.state not in "ZX"


class MachineWatch:
    """The machine from reading to reading."""

    def __init__(self, proc: Path = PROC) -> None:
        self._proc = proc
        self._before: dict[str, int] = {}
        self._interfaces: dict[str, tuple[int, int]] = {}
        self._traffic = [0, 0]
        self._now = self._read()

    def read(self) -> None:
        """Take the next reading."""
        self._before, self._now = self._now, self._read()

    def figures(self, interval_ns: int) -> MachineFigures:
        """Return the figures of the interval between the last two readings."""
        return MachineFigures(
            processors=os.cpu_count() or 1,
            cpu_share=self._share("busy"),
            io_wait_share=self._share("iowait"),
            memory_used_bytes=self._value("used"),
            memory_total_bytes=self._value("total"),
            load_1min=self._load(),
            received_bytes_per_s=self._rate("received", interval_ns),
            sent_bytes_per_s=self._rate("sent", interval_ns),
            cpu_s=self._seconds("busy"),
            io_wait_s=self._seconds("iowait"),
            received_bytes=self._value("received"),
            sent_bytes=self._value("sent"),
        )

    def _value(self, name: str) -> int | Unavailable:
        return self._now.get(name, _NO_PROCFS)

    def _seconds(self, name: str) -> float | Unavailable:
        return self._now[name] / os.sysconf("SC_CLK_TCK") if name in self._now else _NO_PROCFS

    def _rate(self, name: str, interval_ns: int) -> float | Unavailable:
        if name not in self._now:
            return _NO_PROCFS
        if name not in self._before or interval_ns <= 0:
            return _FIRST
        return (self._now[name] - self._before[name]) * 1e9 / interval_ns

    def _share(self, name: str) -> float | Unavailable:
        if name not in self._now:
            return _NO_PROCFS
        elapsed = self._now["all"] - self._before.get("all", self._now["all"])
        return (self._now[name] - self._before[name]) / elapsed if elapsed > 0 else _FIRST

    def _load(self) -> float | Unavailable:
        try:
            return float((self._proc / "loadavg").read_text(encoding="ascii").split()[0])
        except OSError:
            return _NO_PROCFS

    def _read(self) -> dict[str, int]:
        found: dict[str, int] = {}
        try:
            # user, nice, system, idle, iowait, irq, softirq, steal; guests are in the first two.
            ticks = [int(each) for each in (self._proc / "stat").read_text().split("\n")[0].split()[1:9]]
            found |= {"all": sum(ticks), "iowait": ticks[4], "busy": sum(ticks) - ticks[3] - ticks[4]}
            memory = dict(line.split(":") for line in (self._proc / "meminfo").read_text().splitlines())
            total, free = (int(memory[name].split()[0]) * 1024 for name in ("MemTotal", "MemAvailable"))
            found |= {"total": total, "used": total - free}
            self._add_traffic((self._proc / "net" / "dev").read_text().splitlines()[2:])
            found |= {"received": self._traffic[0], "sent": self._traffic[1]}
        except (OSError, KeyError):
            return found
        return found

    def _add_traffic(self, lines: list[str]) -> None:
        """Add what each interface has counted since the last reading; one that vanishes adds nothing."""
        now = {}
        for line in lines:
            interface, _, counts = line.partition(":")
            if interface.strip() != "lo":
                now[interface.strip()] = (int(counts.split()[0]), int(counts.split()[8]))
        for interface, totals in now.items():
            before = self._interfaces.get(interface, (0, 0))
            for place, (total, former) in enumerate(zip(totals, before, strict=True)):
                # An interface that was made again counts from 0.
                self._traffic[place] += total - former if total >= former else total
        self._interfaces = now


def mapped_files(process_id: int, suffix: str, proc: Path = PROC) -> list[Path]:
    """Return existing files that a process has mapped whose names end so; empty if unknown."""
    try:
        lines = (proc / str(process_id) / "maps").read_text(errors="surrogateescape").splitlines()
    except OSError:
        return []
    paths = (line.partition("/")[1] + line.partition("/")[2] for line in lines if line.endswith(suffix))
    return [path for path in map(Path, dict.fromkeys(paths)) if path.exists()]
