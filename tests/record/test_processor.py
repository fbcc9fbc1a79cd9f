# SPDX-License-Identifier: Apache-2.0
"""Caches, quotas and free memory, read from made-up system folders."""

from __future__ import annotations

from pathlib import Path

import pytest

from gpuprof.record.processor import (
    Cache,
    available_memory_bytes,
    data_caches,
    parse_list,
    processor_quota,
    usable_processors,
)


def write(root: Path, path: str, text: str) -> None:
    file = root / path
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(text + "\n")


def add_cache(root: Path, cpu: int, index: int, level: int, kind: str, size: str, shared: str) -> None:
    folder = f"sys/devices/system/cpu/cpu{cpu}/cache/index{index}"
    for name, text in (("level", str(level)), ("type", kind), ("size", size), ("shared_cpu_list", shared)):
        write(root, f"{folder}/{name}", text)


def test_each_data_cache_once(tmp_path: Path) -> None:
    for cpu, pair in ((0, "0,2"), (1, "1,3"), (2, "0,2"), (3, "1,3")):
        add_cache(tmp_path, cpu, 0, 1, "Data", "48K", pair)
        add_cache(tmp_path, cpu, 1, 1, "Instruction", "32K", pair)
        add_cache(tmp_path, cpu, 2, 3, "Unified", "30M", "0-3")
    assert data_caches([0, 1, 2, 3], tmp_path) == [
        Cache(1, 48 << 10, (0, 2)),
        Cache(3, 30 << 20, (0, 1, 2, 3)),
        Cache(1, 48 << 10, (1, 3)),
    ]
    assert [cache.level for cache in data_caches([3], tmp_path)] == [1, 3]


def test_caches_that_are_garbled_are_not_known(tmp_path: Path) -> None:
    add_cache(tmp_path, 0, 0, 1, "Data", "", "0")
    add_cache(tmp_path, 0, 1, 2, "Unified", "1024Q", "0")
    add_cache(tmp_path, 0, 2, 3, "Unified", "0K", "0")
    add_cache(tmp_path, 0, 3, 3, "Unified", "8M", "?")
    (tmp_path / "sys/devices/system/cpu/cpu0/cache/index4").mkdir()
    assert data_caches([0], tmp_path) == []
    assert data_caches([7], tmp_path) == []


@pytest.mark.parametrize(
    ("text", "numbers"), [("0-3,8", [0, 1, 2, 3, 8]), ("5", [5]), ("", []), ("0,2-3\n", [0, 2, 3])]
)
def test_lists_of_processors(text: str, numbers: list[int]) -> None:
    assert parse_list(text) == numbers


def test_no_quota_where_the_system_has_none(tmp_path: Path) -> None:
    assert processor_quota(tmp_path) is None
    write(tmp_path, "proc/self/cgroup", "0::/")
    assert processor_quota(tmp_path) is None
    write(tmp_path, "sys/fs/cgroup/cpu.max", "max 100000")
    assert processor_quota(tmp_path) is None


def test_the_tightest_quota_around_counts(tmp_path: Path) -> None:
    write(tmp_path, "proc/self/cgroup", "0::/user/job")
    write(tmp_path, "sys/fs/cgroup/user/job/cpu.max", "400000 100000")
    assert processor_quota(tmp_path) == 4
    write(tmp_path, "sys/fs/cgroup/user/cpu.max", "150000 100000")
    assert processor_quota(tmp_path) == 1.5
    write(tmp_path, "sys/fs/cgroup/user/cpu.max", "nonsense")
    assert processor_quota(tmp_path) == 4


def test_quotas_of_version_1(tmp_path: Path) -> None:
    write(tmp_path, "proc/self/cgroup", "4:memory:/job\n3:cpu,cpuacct:/job\n0::/")
    write(tmp_path, "sys/fs/cgroup/cpu/cpu.cfs_quota_us", "-1")
    write(tmp_path, "sys/fs/cgroup/cpu/cpu.cfs_period_us", "100000")
    assert processor_quota(tmp_path) is None
    write(tmp_path, "sys/fs/cgroup/cpu/job/cpu.cfs_quota_us", "50000")
    write(tmp_path, "sys/fs/cgroup/cpu/job/cpu.cfs_period_us", "100000")
    assert processor_quota(tmp_path) == 0.5


def test_a_group_outside_of_the_container_is_taken_as_the_top(tmp_path: Path) -> None:
    write(tmp_path, "proc/self/cgroup", "0::/../../elsewhere")
    write(tmp_path, "sys/fs/cgroup/cpu.max", "100000 100000")
    assert processor_quota(tmp_path) == 1


def test_free_memory_is_the_least_that_anyone_grants(tmp_path: Path) -> None:
    assert available_memory_bytes(tmp_path) is None
    write(tmp_path, "proc/meminfo", "MemTotal: 9000 kB\nMemAvailable: 8000 kB")
    assert available_memory_bytes(tmp_path) == 8000 * 1024
    write(tmp_path, "proc/self/cgroup", "0::/job")
    write(tmp_path, "sys/fs/cgroup/job/memory.max", "3000")
    write(tmp_path, "sys/fs/cgroup/job/memory.current", "1000")
    assert available_memory_bytes(tmp_path) == 2000
    write(tmp_path, "sys/fs/cgroup/job/memory.current", "4000")
    assert available_memory_bytes(tmp_path) == 0


def test_this_process_has_a_processor() -> None:
    assert len(usable_processors()) >= 1
    for cache in data_caches(usable_processors()):
        assert cache.bytes > 1000
        assert set(cache.processors) & set(usable_processors())
