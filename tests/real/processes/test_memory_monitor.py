"""The memory monitor of real nodes: what it measures, and what becomes of a task that takes too much."""

from __future__ import annotations

import mmap
import os
import time
from pathlib import Path

import numpy as np
import pytest

import dualray as ray
from dualray.exceptions import OutOfMemoryError
from dualray.machine_memory import machine_memory, own_bytes

MIB = 1 << 20


@ray.remote(max_retries=1)
def take(size_mib, marker):
    with Path(marker).open("a") as attempts:
        attempts.write("x")
    taken = np.ones(size_mib * MIB, dtype=np.uint8)
    if size_mib > 100:
        time.sleep(60)
    return int(taken[-1])


def test_a_task_that_takes_too_much_memory_is_ended_with_the_reason(tmp_path):
    marker = tmp_path / "attempts"
    limits = {"memory_limit_bytes": 400 * MIB, "memory_check_ns": 50_000_000}
    ray.init(mode="real", num_cpus=2, limits=limits)
    try:
        with pytest.raises(OutOfMemoryError, match=r"was out of memory: .* were in use, and the limit is 400.0 MiB"):
            ray.get(take.remote(500, str(marker)), timeout=60)
        assert marker.read_text() == "xx"
        assert ray.get(take.remote(10, str(marker)), timeout=60) == 1  # the node goes on
    finally:
        ray.shutdown()


def test_what_a_process_uses_by_itself_is_its_own():
    before = own_bytes(os.getpid())
    with mmap.mmap(-1, 64 * MIB, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS) as taken:
        taken.write(b"x" * 64 * MIB)
        assert own_bytes(os.getpid()) - before > 50 * MIB
    assert own_bytes(1 << 30) == 0


def test_there_is_memory_and_not_all_of_it_is_used():
    memory = machine_memory()
    assert 0 < memory.used_bytes < memory.total_bytes


@pytest.mark.parametrize(
    ("membership", "files"),
    [
        (
            "0::/docker/abc\n",
            {
                "docker/abc/memory.max": "1000000",
                "docker/abc/memory.current": "900000",
                "docker/abc/memory.stat": "anon 1\ninactive_file 300000",
            },
        ),
        (
            "0::/docker/abc\n",
            {"memory.max": "1000000", "memory.current": "900000", "memory.stat": "inactive_file 300000"},
        ),
        (
            "5:cpu:/x\n3:memory:/docker/abc\n",
            {
                "memory/docker/abc/memory.limit_in_bytes": "1000000",
                "memory/docker/abc/memory.usage_in_bytes": "900000",
                "memory/docker/abc/memory.stat": "total_inactive_file 300000",
            },
        ),
    ],
    ids=["version 2", "version 2 from inside", "version 1"],
)
def test_the_limit_of_a_container_counts(tmp_path: Path, membership: str, files: dict[str, str]) -> None:
    (tmp_path / "membership").write_text(membership)
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    memory = machine_memory(tmp_path, tmp_path / "membership")
    assert (memory.total_bytes, memory.used_bytes) == (1_000_000, 600_000)


def test_a_group_without_a_limit_is_the_machine(tmp_path):
    (tmp_path / "membership").write_text("0::/\n")
    for name, text in (("memory.max", "max"), ("memory.current", "5"), ("memory.stat", "")):
        (tmp_path / name).write_text(text)
    assert machine_memory(tmp_path, tmp_path / "membership").total_bytes > 1_000_000
