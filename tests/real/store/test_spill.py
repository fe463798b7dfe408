"""Spilled objects on real disks: small ones, full ones, ones that lose what they were given."""

from __future__ import annotations

import os
import queue
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest

import dualray as ray
from dualray.exceptions import DualrayError
from dualray.real.store.spill import SpillDirectory
from tests.conformance.support import MIB
from tests.real.store.test_shared_memory import ID, OTHER, WITHIN_S, on_a_small_tmpfs

SPILLS = {"eviction_policy": "spill", "store_wait_ns": 2_000_000_000}


class Disk:
    """A spill directory, and a loop for what it reports."""

    def __init__(self, directory: Path) -> None:
        self.calls: queue.SimpleQueue[Callable[[], object]] = queue.SimpleQueue()
        self.files = SpillDirectory(directory, self.calls.put)

    def write(self, object_id: bytes, data: bytes) -> str | None:
        outcomes: list[str | None] = []
        self.files.write(object_id, memoryview(data), lambda error, _: outcomes.append(error))
        self.calls.get(timeout=WITHIN_S)()
        return outcomes[0]

    def read(self, object_id: bytes, size: int) -> bytes | str:
        outcomes: list[str | None] = []
        target = bytearray(size)
        self.files.read(object_id, memoryview(target), lambda error, _: outcomes.append(error))
        self.calls.get(timeout=WITHIN_S)()
        return outcomes[0] or bytes(target)


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Disk]:
    disk = Disk(tmp_path / "spilled")
    yield disk
    disk.files.close()
    disk.files.close()
    assert not disk.files.directory.exists()


def test_what_is_written_is_read_back(disk: Disk) -> None:
    data = os.urandom(40 * MIB)
    assert not disk.files.directory.exists()
    assert disk.write(ID, data) is None
    assert disk.files.directory.stat().st_mode & 0o777 == 0o700
    assert [path.name for path in disk.files.directory.iterdir()] == [ID.hex()]
    assert disk.read(ID, len(data)) == data
    assert (disk.write(OTHER, b""), disk.read(OTHER, 0)) == (None, b"")
    disk.files.delete(ID)
    disk.files.delete(ID)
    assert "No such file" in str(disk.read(ID, len(data)))


def test_what_the_disk_lost_or_cut_off_is_an_error(disk: Disk) -> None:
    assert disk.write(ID, b"abc") is None
    (disk.files.directory / ID.hex()).write_bytes(b"ab")
    assert "does not have 3 bytes" in str(disk.read(ID, 3))


def test_a_directory_that_cannot_be_made_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    disk = Disk(tmp_path / "file" / "spilled")
    assert "Not a directory" in str(disk.write(ID, b"abc"))
    disk.files.close()


def test_a_full_disk_is_an_error_in_words_and_leaves_nothing_half(tmp_path: Path) -> None:
    program = """
import sys
from pathlib import Path
from tests.real.store.test_spill import ID, MIB, OTHER, Disk
disk = Disk(Path(sys.argv[1]) / "spilled")
assert disk.write(ID, bytes(10 * MIB)) is None
error = disk.write(OTHER, bytes(30 * MIB))
assert "No space left on device" in error and "of its disk's 33,554,432 bytes are free" in error, error
assert [path.name for path in disk.files.directory.iterdir()] == [ID.hex()]
assert disk.read(ID, 10 * MIB) == bytes(10 * MIB)
disk.files.close()
"""
    on_a_small_tmpfs(program, tmp_path)


def test_a_cluster_whose_disk_is_full_loses_nothing_and_says_so(tmp_path: Path) -> None:
    program = """
import sys
import numpy as np
import dualray as ray
from dualray.exceptions import ObjectStoreFullError
from tests.real.store.test_spill import MIB, SPILLS
if __name__ == "__main__":
    ray.init(num_cpus=1, object_store_memory=64 * MIB, limits=SPILLS | {"spill_directory": sys.argv[1]})
    refs = []
    try:
        for fill in range(20):
            refs.append(ray.put(np.full(10 * MIB, fill, dtype=np.uint8)))
    except ObjectStoreFullError as error:
        assert "none on disk" in str(error) and "No space left on device" in str(error), error
        assert "of its disk's 33,554,432 bytes are free" in str(error), error
    else:
        raise AssertionError("there was room")
    assert 8 <= len(refs) <= 9, len(refs)
    del refs[0]  # to have room for moving
    refs.append(ray.put(np.full(10 * MIB, len(refs) + 1, dtype=np.uint8)))
    del refs[-1]
    for fill, ref in enumerate(refs, 1):
        assert (ray.get(ref) == fill).all()
    ray.shutdown()
    import os
    assert os.listdir(sys.argv[1]) == []
    print("went on")
"""
    assert on_a_small_tmpfs(program, tmp_path).endswith("went on\n")


def test_spilled_objects_lie_where_they_should_and_are_gone_at_the_end(tmp_path: Path) -> None:
    ray.init(num_cpus=1, object_store_memory=64 * MIB, limits=SPILLS | {"spill_directory": str(tmp_path / "disk")})
    try:
        refs = [ray.put(np.full(10 * MIB, fill, dtype=np.uint8)) for fill in range(10)]
        (directory,) = (tmp_path / "disk").iterdir()
        assert len(list(directory.iterdir())) >= 4
        assert (ray.get(refs[0]) == 0).all()
        del refs
    finally:
        ray.shutdown()
    assert list((tmp_path / "disk").iterdir()) == []


def test_what_the_disk_lost_is_made_again_or_reported_lost(tmp_path: Path) -> None:
    @ray.remote
    def block() -> np.ndarray:
        return np.full(10 * MIB, 5, dtype=np.uint8)

    ray.init(num_cpus=1, object_store_memory=64 * MIB, limits=SPILLS | {"spill_directory": str(tmp_path)})
    try:
        made, was_put = block.remote(), ray.put(np.full(10 * MIB, 6, dtype=np.uint8))
        ray.wait([made], timeout=WITHIN_S, fetch_local=False)
        others = [ray.put(np.full(10 * MIB, fill, dtype=np.uint8)) for fill in range(6)]
        lost = {made.hex(), was_put.hex()}
        for path in tmp_path.glob("*/*"):
            if path.name in lost:
                path.unlink()
                lost.discard(path.name)
        assert not lost, "both were used longest ago and had been spilled"
        del others
        assert (ray.get(made, timeout=WITHIN_S) == 5).all()
        with pytest.raises(DualrayError, match="lost"):
            ray.get(was_put, timeout=WITHIN_S)
    finally:
        ray.shutdown()


def test_a_directory_that_cannot_be_written_is_refused_before_anything_starts(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(ValueError, match=r"spill_directory=.* cannot be written"):
        ray.init(limits=SPILLS | {"spill_directory": str(tmp_path / "file")})
    assert not ray.is_initialized()


def test_when_all_processes_are_killed_the_next_init_removes_what_they_left(tmp_path: Path) -> None:
    program = f"""
import contextlib, os, signal, sys
import numpy as np, psutil
import dualray as ray
if __name__ == "__main__":
    ray.init(num_cpus=1, object_store_memory={64 * MIB}, limits={SPILLS | {"spill_directory": str(tmp_path)}!r})
    refs = [ray.put(np.zeros({10 * MIB}, dtype=np.uint8)) for fill in range(9)]
    print(ray.runtime.current_or_none().session.directory.name, flush=True)
    for child in psutil.Process().children(recursive=True):
        with contextlib.suppress(psutil.NoSuchProcess):  # one ends when another is killed
            child.kill()
    os.kill(os.getpid(), signal.SIGKILL)
"""
    done = subprocess.run([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True, timeout=60)
    assert done.returncode == -signal.SIGKILL
    name = done.stdout.strip()
    assert (Path("/dev/shm") / name / "arena").exists()
    assert (tmp_path / name).exists()
    ray.init(num_cpus=1, object_store_memory=64 * MIB, limits={"spill_directory": str(tmp_path)})
    ray.shutdown()
    assert not (Path("/dev/shm") / name).exists()
    assert list(tmp_path.iterdir()) == []
