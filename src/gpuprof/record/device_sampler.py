# SPDX-License-Identifier: Apache-2.0
"""The program that reads the devices through NVML, in a process of its own next to the measured one.

Started as `python -I -S device_sampler.py FILE PROCESS_ID PERIOD_NS PYNVML`, so it imports nothing of
gpuprof. Standard input is its leash: its end asks for a last reading and the end. What it writes is laid
out here, for the reader too:

A head (magic, version, length of what follows), a JSON object, then records of 24 bytes. The object holds
`devices` and `period_ns`, or `off` with the reason why there is nothing to read. A record is a time of the
monotonic clock, a device, a code, a check and a value; the code is a metric's or a mark's.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import struct
import sys
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

MAGIC = b"GPUPSMPL"
VERSION = 1
HEAD = struct.Struct("<8sII")
RECORD = struct.Struct("<qHHId")
_WORDS = struct.Struct("<6I")
CHECK_SALT = 0x9E3779B9

# A metric's code is its place in here, from 1.
METRICS = (
    "utilization_percent",
    "memory_utilization_percent",
    "memory_used_bytes",
    "power_w",
    "energy_j",
    "sm_clock_hz",
    "memory_clock_hz",
    "temperature_c",
    "throttle_reasons",
)
# Marks: a device went away (the value is NVML's error), readings were slow (how many), the end in order.
DEVICE_LOST, SLOW_READINGS, END = 0xFF01, 0xFF02, 0xFFFF

NICENESS = 5
LONGEST_LAST_READING_S = 1.0
TOLERATED_SLOW_SHARE = 0.1  # on a busy machine some readings take long
LIVENESS_PERIOD_MS = 500  # where the kernel cannot report the end of a process

# NVML's return codes. With the first, a question is not asked again; with the second, the device is not.
_UNSUPPORTED = {2, 3, 4, 13, 25, 26}  # argument, not supported, permission, no function, version, deprecated
_DEVICE_IS_GONE = {1, 9, 15, 16, 28}  # uninitialized, no driver, lost, reset required, not found

Way = Callable[[Any, Any], tuple[float, ...]]


def pack_record(t_ns: int, device: int, code: int, value: float) -> bytes:
    """Return one record. Its check is the sum of its other words, so that neither zeros nor noise pass."""
    words = _WORDS.unpack(RECORD.pack(t_ns, device, code, 0, value))
    return RECORD.pack(t_ns, device, code, (sum(words) + CHECK_SALT) & 0xFFFFFFFF, value)


def pack_head(description: dict[str, Any]) -> bytes:
    """Return what a file begins with."""
    text = json.dumps(description).encode()
    return HEAD.pack(MAGIC, VERSION, len(text)) + text


# --- what is asked -------------------------------------------------------------------------------


def _rates(nvml: Any, handle: Any) -> tuple[float, ...]:
    rates = nvml.nvmlDeviceGetUtilizationRates(handle)
    return rates.gpu, rates.memory


# The metrics in a response, and the ways to get it, the best first: older drivers lack some.
_QUESTIONS: tuple[tuple[tuple[str, ...], tuple[Way, ...]], ...] = (
    (("utilization_percent", "memory_utilization_percent"), (_rates,)),
    (
        ("memory_used_bytes",),
        (
            lambda nvml, of: (nvml.nvmlDeviceGetMemoryInfo(of, version=nvml.nvmlMemory_v2).used,),
            lambda nvml, of: (nvml.nvmlDeviceGetMemoryInfo(of).used,),  # with what the driver reserved
        ),
    ),
    (("power_w",), (lambda nvml, of: (nvml.nvmlDeviceGetPowerUsage(of) / 1e3,),)),
    (("energy_j",), (lambda nvml, of: (nvml.nvmlDeviceGetTotalEnergyConsumption(of) / 1e3,),)),
    (("sm_clock_hz",), (lambda nvml, of: (nvml.nvmlDeviceGetClockInfo(of, nvml.NVML_CLOCK_SM) * 1e6,),)),
    (("memory_clock_hz",), (lambda nvml, of: (nvml.nvmlDeviceGetClockInfo(of, nvml.NVML_CLOCK_MEM) * 1e6,),)),
    (("temperature_c",), (lambda nvml, of: (nvml.nvmlDeviceGetTemperature(of, nvml.NVML_TEMPERATURE_GPU),),)),
    (
        ("throttle_reasons",),
        (
            lambda nvml, of: (nvml.nvmlDeviceGetCurrentClocksEventReasons(of),),
            lambda nvml, of: (nvml.nvmlDeviceGetCurrentClocksThrottleReasons(of),),
        ),
    ),
)


class DeviceGoneError(Exception):
    """The device does not respond any more; `code` is NVML's error."""

    def __init__(self, code: int) -> None:
        super().__init__(code)
        self.code = code


class Question:
    """One query of one device, as long as it responds."""

    def __init__(self, metrics: tuple[str, ...], ways: tuple[Way, ...]) -> None:
        self.codes = [METRICS.index(metric) + 1 for metric in metrics]
        self.ways = list(ways)

    def ask(self, nvml: Any, handle: Any) -> tuple[float, ...] | None:
        """Return the values, or None where there are none now. Raises DeviceGoneError."""
        while self.ways:
            try:
                return self.ways[0](nvml, handle)
            except nvml.NVMLError as error:
                if error.value in _DEVICE_IS_GONE:
                    raise DeviceGoneError(error.value) from None
                if error.value not in _UNSUPPORTED:
                    return None
                del self.ways[0]
            except (AttributeError, TypeError):
                del self.ways[0]  # pynvml is older than this function
        return None


class Device:
    """One device and the queries that still work."""

    def __init__(self, index: int, handle: Any) -> None:
        self.index = index
        self._handle = handle
        self._questions = [Question(*question) for question in _QUESTIONS]
        self._energy_code = METRICS.index("energy_j") + 1
        self._first_energy_j: float | None = None

    def read(self, nvml: Any, t_ns: int) -> bytes:
        """Ask everything once; returns the records. Raises DeviceGoneError."""
        records = []
        for question in self._questions:
            values = question.ask(nvml, self._handle)
            for code, value in zip(question.codes, values or (), strict=False):
                records.append(pack_record(t_ns, self.index, code, self._adjusted(code, float(value))))
        self._questions = [question for question in self._questions if question.ways]
        return b"".join(records)

    def _adjusted(self, code: int, value: float) -> float:
        """Count energy from the first reading: the counter itself counts from when the driver was loaded."""
        if code != self._energy_code:
            return value
        if self._first_energy_j is None:
            self._first_energy_j = value
        return value - self._first_energy_j


# --- what the devices are ------------------------------------------------------------------------


def describe(nvml: Any, index: int, handle: Any) -> dict[str, Any]:
    """Return the facts of a device; what it does not report is None."""

    def reported(function: str, *arguments: Any) -> Any:
        try:
            value = getattr(nvml, function)(*arguments)
        except (nvml.NVMLError, AttributeError, TypeError):
            return None
        return value.decode(errors="replace") if isinstance(value, bytes) else value

    memory = reported("nvmlDeviceGetMemoryInfo", handle)
    mode = reported("nvmlDeviceGetMigMode", handle)
    return {
        "index": index,
        "name": reported("nvmlDeviceGetName", handle),
        "uuid": reported("nvmlDeviceGetUUID", handle),
        "driver_version": reported("nvmlSystemGetDriverVersion"),
        "memory_bytes": None if memory is None else int(memory.total),
        "power_limit_w": _scaled(reported("nvmlDeviceGetEnforcedPowerLimit", handle), 1e-3),
        "max_sm_clock_hz": _scaled(reported("nvmlDeviceGetMaxClockInfo", handle, nvml.NVML_CLOCK_SM), 1e6),
        "max_memory_clock_hz": _scaled(
            reported("nvmlDeviceGetMaxClockInfo", handle, nvml.NVML_CLOCK_MEM), 1e6
        ),
        "mig_mode": None if mode is None else bool(mode[0]),
    }


def _scaled(value: Any, factor: float) -> float | None:
    return None if value is None else value * factor


# --- the process ---------------------------------------------------------------------------------


class Sampler:
    """Reads all devices again and again, into a file, until `stopping` is set; then once more."""

    def __init__(self, path: str, period_ns: int, load: Callable[[], Any]) -> None:
        self.stopping = threading.Event()
        self.is_reading = False
        self._path = path
        self._period_ns = period_ns
        self._load = load
        self._devices: list[Device] = []
        self._readings = 0
        self._slow_readings = 0

    def run(self) -> None:
        """Read until the end. Raises OSError when the file cannot be written."""
        try:
            nvml, description = self._begin()
        except Exception as error:
            nvml, description = None, {"off": " ".join(f"{error}".split()) or type(error).__name__}
        file = _create(self._path, pack_head({**description, "process_id": os.getpid()}))
        if nvml is None:
            return
        self.is_reading = True
        self._read_until_stopped(nvml, file)

    def _begin(self) -> tuple[Any, dict[str, Any]]:
        nvml = self._load()
        nvml.nvmlInit()
        handles = [nvml.nvmlDeviceGetHandleByIndex(index) for index in range(nvml.nvmlDeviceGetCount())]
        if not handles:
            raise LookupError("NVML finds no device")
        self._devices = [Device(index, handle) for index, handle in enumerate(handles)]
        described = [describe(nvml, index, handle) for index, handle in enumerate(handles)]
        return nvml, {"devices": described, "period_ns": self._period_ns}

    def _read_until_stopped(self, nvml: Any, file: int) -> None:
        stopped = False
        while not stopped:
            begun_ns = time.monotonic_ns()
            self._read_once(nvml, file)
            taken_ns = time.monotonic_ns() - begun_ns
            # Queries take at most half of the time, however slow the responses are.
            pause_ns = max(self._period_ns - taken_ns, taken_ns)
            self._readings += 1
            self._slow_readings += 2 * taken_ns > self._period_ns
            stopped = self.stopping.wait(pause_ns / 1e9)
        self._read_once(nvml, file)
        now_ns = time.monotonic_ns()
        marks = [pack_record(now_ns, 0, END, 0.0)]
        if self._slow_readings > self._readings * TOLERATED_SLOW_SHARE:
            marks.insert(0, pack_record(now_ns, 0, SLOW_READINGS, self._slow_readings))
        _write(file, b"".join(marks))

    def _read_once(self, nvml: Any, file: int) -> None:
        for device in tuple(self._devices):
            t_ns = time.monotonic_ns()
            try:
                records = device.read(nvml, t_ns)
            except DeviceGoneError as error:
                self._devices.remove(device)
                records = pack_record(t_ns, device.index, DEVICE_LOST, error.code)
            _write(file, records)


def _create(path: str, head: bytes) -> int:
    """Make the file; it takes its name when its head is whole."""
    unfinished = f"{path}.new"
    file = os.open(unfinished, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_APPEND | os.O_CLOEXEC, 0o644)
    _write(file, head)
    Path(unfinished).rename(path)
    return file


def _write(file: int, content: bytes) -> None:
    if os.write(file, content) != len(content):
        raise OSError("the disk is full")  # what came after would not be in step


def load_pynvml(path: str) -> Any:
    """Import pynvml from its file: this interpreter has the standard library on its path and no more."""
    from importlib import util

    folder = [str(Path(path).parent)] if Path(path).name == "__init__.py" else None
    spec = util.spec_from_file_location("pynvml", path, submodule_search_locations=folder)
    if spec is None or spec.loader is None:
        raise ImportError(f"{path} is no module")
    module = util.module_from_spec(spec)
    sys.modules["pynvml"] = module
    spec.loader.exec_module(module)
    return module


def wait_for_end(process_id: int, leash: int) -> None:
    """Return when the leash's other end is closed, or when the process has ended.

    Both: a fork of the measured process may hold the leash for longer than that lives.
    """
    poller = select.poll()
    poller.register(leash, select.POLLIN)
    try:
        poller.register(os.pidfd_open(process_id), select.POLLIN)
    except ProcessLookupError:
        return
    except (OSError, AttributeError):  # an older kernel
        begun = _start_time(process_id)
        while not poller.poll(LIVENESS_PERIOD_MS) and _start_time(process_id) == begun:
            pass
        return
    poller.poll()


def _start_time(process_id: int) -> str | None:
    """Return when the process began, which distinguishes it from a later one of the same number."""
    try:
        state = Path(f"/proc/{process_id}/stat").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return None
    fields = state.rpartition(")")[2].split()
    return None if fields[0] in "ZX" else fields[19]


def _run_to_end(sampler: Sampler) -> None:
    try:
        sampler.run()
    finally:
        os._exit(0)


def main(arguments: Sequence[str]) -> None:
    """Read until the measured process ends or lets go, and end."""
    path, process_id, period_ns, library = arguments
    with contextlib.suppress(OSError):
        os.nice(NICENESS)
    sampler = Sampler(path, int(period_ns), lambda: load_pynvml(library))
    thread = threading.Thread(target=_run_to_end, args=(sampler,), daemon=True)
    thread.start()
    # The driver may never respond: this thread still handles the end.
    wait_for_end(int(process_id), sys.stdin.fileno())
    sampler.stopping.set()
    if sampler.is_reading:
        thread.join(LONGEST_LAST_READING_S)
    os._exit(0)


if __name__ == "__main__":
    main(sys.argv[1:])
